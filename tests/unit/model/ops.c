/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocator/error.h"
#include "allocator/heap.h"
#include "ops.h"

int same(play *p, moor_status got, moor_status want, const char *what)
{
    SAY("  %s\n", moor_status_name(got));
    if (got == want)
        return 0;
    return check_fail(p->l, "%s: store %s (%s), model %s", what, moor_status_name(got), moor_last_error(),
                      moor_status_name(want));
}

int without_memory(moor_status got)
{
    int fired = moor_fault_fired();
    return fired && (got == MOOR_E_NOMEM || got == MOOR_E_FULL);
}

int take_over_now(play *p)
{
    lab *l = p->l;
    if (!moor_fault_fired() && l->s->arena->refused == l->refused)
        return 0;
    l->rough = 1;
    l->refused = l->s->arena->refused;
    p->fault = 0;
    moor_fault_arm(0);
    return check_all(l);
}

m_record *any_record(play *p)
{
    uint32_t n = 0, pick;
    model *m = &p->l->m;
    for (uint32_t i = 0; i < M_RECORDS; i++)
        n += m->record[i].used;
    if (!n)
        return NULL;
    pick = play_take(p, n);
    for (uint32_t i = 0; i < M_RECORDS; i++)
        if (m->record[i].used && !pick--)
            return &m->record[i];
    return NULL;
}

/* ---- from outside ---- */

static int op_fill(play *p)
{
    static _Thread_local int32_t ids[48 * 64 * 64];
    lab *l = p->l;
    world *w = &l->w;
    uint32_t name = play_take(p, M_NAMES), start = play_take(p, 50), n = 1 + play_take(p, 40);
    m_row rows[48];
    w_request who = {.uid = 1000 + name, .prompt = 0};
    m_record *found[M_RECORDS];
    if (m_look_up(&l->m, name, found, NULL) == 1 && play_take(p, 4)) /* as a resumption does it */
        start = found[0]->accepted > start % 8 ? (uint32_t)found[0]->accepted - start % 8 : 0;
    if (start + n >= M_ROWS - 8)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = w_row(w, &who, start + i);
        rows[i].foreign = 1;
        for (uint32_t c = 0; c < w->layers; c++)
            w_ids(w, rows[i], c, ids + ((size_t)i * w->layers + c) * w->k);
    }
    SAY("fill %s from %u, %u rows\n", check_id(name), start, n);
    moor_ids call = {.data = ids, .dtype = MOOR_DTYPE_I32, .tokens = n, .top_k = w->layers * w->k};
    moor_fault_arm(p->fault);
    moor_status got = moor_records_fill(l->s, check_id(name), 2, start, &call, n, w->epoch);
    if (without_memory(got) || (got == MOOR_E_FULL && l->s->arena->refused != l->refused)) {
        m_record *r = m_by_name(&l->m, name);
        const moor_record_slot *slot = r && r->handle ? moor_slots_at(&l->s->slots, (uint32_t)r->handle) : NULL;
        if (slot && !r->dead && slot->rows.end > slot->accepted)
            return 0; /* rows that nobody decided are there still: none came in */
        if (moor_fault_fired() && (l->s->created != l->m.created || (r && !r->dead)))
            (void)m_fill(&l->m, name, start, rows,
                         n); /* rows that came in before may stay: the check takes that over */
        return 0;
    }
    return same(p, got, m_fill(&l->m, name, start, rows, n), "fill");
}

static int op_truncate(play *p)
{
    uint32_t id = play_take(p, M_NAMES + M_ALIASES), rows = play_take(p, 60), least = play_take(p, 2) * 8;
    m_record *found[M_RECORDS];
    if (m_look_up(&p->l->m, id, found, NULL) == 1 && play_take(p, 2))
        rows = found[0]->accepted > rows % 8 ? (uint32_t)found[0]->accepted - rows % 8 : 0;
    for (uint32_t i = 0; i < W_REQUESTS; i++) /* the engine would have to roll back with it */
        if (p->l->w.request[i].state == 1)
            for (uint32_t k = 0; k < m_look_up(&p->l->m, id, found, NULL); k++)
                if (found[k]->name == p->l->w.request[i].name)
                    return 0;
    SAY("truncate %s to %u, at least %u\n", check_id(id), rows, least);
    moor_fault_arm(p->fault);
    moor_status got = moor_records_truncate(p->l->s, check_id(id), 2, rows, least);
    if (without_memory(got)) {
        m_drain(&p->l->m);
        return 0;
    }
    return same(p, got, m_truncate(&p->l->m, id, rows, least), "truncate");
}

/* ---- consumers ---- */

static void remember(play *p, moor_handle handle)
{
    p->old[p->n_old++ % PLAY_HANDLES] = handle;
}

/* Keeps a view with what it must go on saying while its lease lasts. */
int keep_view(play *p, moor_view *view, m_record *r, uint32_t client)
{
    remember(p, view->handle);
    for (uint32_t i = 0; i < PLAY_VIEWS; i++) {
        play_view *v = &p->view[i];
        if (v->view)
            continue;
        v->rows = malloc((view->rows + 1) * sizeof(*v->rows));
        if (!v->rows)
            break;
        memcpy(v->rows, r->row, view->rows * sizeof(*v->rows));
        v->view = view;
        v->record = r;
        v->number = r->number;
        v->client = client;
        return 0;
    }
    moor_status got = moor_records_close(p->l->s, client, view->handle);
    moor_view_free(view);
    m_unlease(&p->l->m, r, client);
    return same(p, got, MOOR_OK, "close");
}

static int op_open(play *p)
{
    lab *l = p->l;
    uint32_t id = play_take(p, M_NAMES + M_ALIASES), client = play_take(p, M_CLIENTS + 1);
    uint32_t flags = play_take(p, 3) == 1 ? MOOR_OPEN_PREFIX : 0;
    uint64_t rows = flags ? play_take(p, 50) : 0, shown = 0;
    moor_view *view = NULL;
    m_record *r;
    SAY("open %s client %u flags %u rows %llu\n", check_id(id), client, flags, (unsigned long long)rows);
    moor_fault_arm(p->fault);
    moor_status got = moor_records_open(l->s, client, check_id(id), 2, flags, rows, &view);
    moor_status want = m_open_one(&l->m, id, flags, rows, &r, &shown);
    if (without_memory(got))
        return view ? check_fail(l, "a view in spite of an error") : 0;
    if (same(p, got, want, "open"))
        return 1;
    if (got)
        return view ? check_fail(l, "a view in spite of an error") : 0;
    m_lease(&l->m, r, client, 1);
    if (take_over_now(p) || check_view(l, view, r, shown, id))
        return 1;
    return keep_view(p, view, r, client);
}

static int op_open_all(play *p)
{
    lab *l = p->l;
    uint32_t id = play_take(p, M_NAMES + M_ALIASES), client = 1 + play_take(p, M_CLIENTS), n = 0, want_n = 0;
    moor_view **views = NULL;
    m_record *found[M_RECORDS];
    SAY("open all %s client %u\n", check_id(id), client);
    moor_fault_arm(p->fault);
    moor_status got = moor_records_open_all(l->s, client, check_id(id), 2, &views, &n);
    moor_status want = m_open_all(&l->m, id, found, &want_n);
    if (without_memory(got)) {
        uint32_t opened = (uint32_t)(l->counter[MOOR_C_OPENS] - l->m.count[MOOR_C_OPENS]); /* and given back */
        for (uint32_t i = 0; i < opened && i < want_n; i++)
            m_lease(&l->m, found[i], client, 1);
        for (uint32_t i = 0; i < opened && i < want_n; i++)
            m_unlease(&l->m, found[i], client);
        return 0;
    }
    if (same(p, got, want, "open_all") || got)
        return l->why[0] != 0;
    if (n != want_n)
        return check_fail(l, "open_all: store %u, model %u", n, want_n);
    for (uint32_t i = 0; i < n; i++)
        m_lease(&l->m, found[i], client, 1);
    if (take_over_now(p))
        return 1;
    for (uint32_t i = 0; i < n; i++)
        if (check_view(l, views[i], found[i], found[i]->end, id))
            return 1;
    for (uint32_t i = 0; i < n; i++) {
        m_unlease(&l->m, found[i], client);
        if (same(p, moor_records_close(l->s, client, views[i]->handle), MOOR_OK, "close"))
            return 1;
    }
    moor_views_free(views, n);
    return 0;
}

/* A handle of now, of once, or of never. */
moor_handle any_handle(play *p, int *never)
{
    uint32_t kind = play_take(p, 8);
    m_record *r = any_record(p);
    *never = kind == 7;
    if (kind == 7)
        return play_take(p, 2) ? 5 : (moor_handle)1 << 32 | 4000000;
    if (kind < 5 && r)
        return r->handle;
    moor_handle old = p->old[play_take(p, PLAY_HANDLES)];
    *never = old == 0 || (uint32_t)old >= p->l->s->slots.count; /* one of a store before, that had more slots */
    return old;
}

static int op_open_handle(play *p)
{
    lab *l = p->l;
    int never;
    uint32_t client = play_take(p, M_CLIENTS + 1);
    moor_handle handle = any_handle(p, &never);
    moor_view *view = NULL;
    m_record *r = NULL;
    SAY("open handle %llx client %u\n", (unsigned long long)handle, client);
    moor_fault_arm(p->fault);
    moor_status got = moor_records_open_handle(l->s, client, handle, &view);
    moor_status want = m_open_handle(&l->m, handle, &r);
    if (never)
        want = MOOR_E_INVALID;
    if (without_memory(got))
        return 0;
    if (same(p, got, want, "open_handle") || got)
        return l->why[0] != 0;
    m_lease(&l->m, r, client, 1);
    if (take_over_now(p) || check_view(l, view, r, r->end, M_NAMES + M_ALIASES))
        return 1;
    return keep_view(p, view, r, client);
}

static int end_view(play *p, play_view *v)
{
    lab *l = p->l;
    moor_view *view = v->view;
    int bad = 0;
    for (uint32_t i = 0; i < view->n_segments && !bad; i++) {
        const moor_view_segment *segment = &view->segments[i];
        for (uint64_t row = 0; row < segment->rows && segment->present && !bad; row++)
            if (!w_is(&l->w, v->rows[segment->start + row],
                      l->s->arena->region.base + segment->offset + row * l->s->row_bytes))
                bad = check_fail(l, "row %llu of %s changed while it was leased",
                                 (unsigned long long)(segment->start + row), view->id);
    }
    if (!bad && v->record->held[v->client]) {
        m_unlease(&l->m, v->record, v->client);
        bad = same(p, moor_records_close(l->s, v->client, view->handle), MOOR_OK, "close");
    }
    moor_view_free(view);
    free(v->rows);
    memset(v, 0, sizeof(*v));
    return bad;
}

static int op_close(play *p)
{
    play_view *v = &p->view[play_take(p, PLAY_VIEWS)];
    if (!v->view)
        return 0;
    SAY("close %s client %u\n", v->view->id, v->client);
    return end_view(p, v);
}

/* A close of what the client does not hold. */
static int op_close_none(play *p)
{
    m_record *r = any_record(p);
    uint32_t client = 1 + play_take(p, M_CLIENTS);
    if (!r || r->held[client])
        return 0;
    SAY("close of what is not held\n");
    return same(p, moor_records_close(p->l->s, client, r->handle), MOOR_E_STATE, "close of what is not held");
}

static int op_lease(play *p)
{
    lab *l = p->l;
    int never;
    moor_handle handle = any_handle(p, &never);
    m_record *r = m_by_handle(&l->m, handle);
    moor_status want = never ? MOOR_E_INVALID : !r || r->dead ? MOOR_E_STALE : MOOR_OK;
    SAY("lease %llx\n", (unsigned long long)handle);
    if (same(p, moor_records_lease(l->s, handle), want, "lease"))
        return 1;
    if (!want) {
        remember(p, handle);
        m_lease(&l->m, r, 0, 0);
    }
    return 0;
}

static int op_unlease(play *p)
{
    lab *l = p->l;
    int never;
    moor_handle handle = any_handle(p, &never);
    m_record *r = m_by_handle(&l->m, handle);
    if (r && !r->held[0] && m_leases(r))
        return 0;                                  /* it would take a client's */
    for (uint32_t i = 0; r && i < PLAY_VIEWS; i++) /* nor one of a view that is kept */
        if (p->view[i].view && p->view[i].client == 0 && p->view[i].record == r)
            return 0;
    moor_status want = never ? MOOR_E_INVALID : !r ? MOOR_E_STALE : r->held[0] ? MOOR_OK : MOOR_E_STATE;
    SAY("unlease %llx\n", (unsigned long long)handle);
    if (same(p, moor_records_unlease(l->s, handle), want, "unlease"))
        return 1;
    if (!want)
        m_unlease(&l->m, r, 0);
    return 0;
}

static int op_disconnect(play *p)
{
    lab *l = p->l;
    uint32_t client = 1 + play_take(p, M_CLIENTS);
    SAY("disconnect %u\n", client);
    play_forget_views(p, client);
    uint32_t want = m_disconnect(&l->m, client), got = moor_records_disconnect(l->s, client);
    return got == want ? 0 : check_fail(l, "disconnect ended %u leases, model %u", got, want);
}

static int op_claim(play *p)
{
    int never;
    moor_handle handle = any_handle(p, &never);
    uint32_t owner = play_take(p, 4);
    moor_status want = m_claim(&p->l->m, handle, owner);
    if (want == MOOR_E_STALE && never)
        want = MOOR_E_INVALID;
    SAY("claim %llx owner %u\n", (unsigned long long)handle, owner);
    return same(p, moor_records_claim(p->l->s, handle, owner), want, "claim");
}

static int op_event(play *p)
{
    int never;
    moor_handle handle = any_handle(p, &never);
    uint32_t event = play_take(p, 6);
    moor_status want = m_policy_event(&p->l->m, handle, event);
    if (want == MOOR_E_STALE && never)
        want = MOOR_E_INVALID;
    SAY("event %u of %llx\n", event, (unsigned long long)handle);
    return same(p, moor_records_event(p->l->s, handle, event), want, "event");
}

static int op_expire(play *p)
{
    int all = play_take(p, 4) == 1;
    SAY("expire%s\n", all ? " all" : "");
    uint64_t now = moor_now_ns() + (all ? 100000000000000u : 0);
    uint32_t want = m_expire(&p->l->m, all), got = moor_records_expire(p->l->s, now);
    return got == want ? 0 : check_fail(p->l, "expire: store %u, model %u", got, want);
}

static int op_find(play *p)
{
    uint32_t id = play_take(p, M_NAMES + M_ALIASES);
    moor_handle handle = 0;
    m_record *r;
    SAY("find %s\n", check_id(id));
    moor_fault_arm(p->fault);
    moor_status got = moor_records_find(p->l->s, check_id(id), 2, &handle), want = m_find(&p->l->m, id, &r);
    if (without_memory(got))
        return 0;
    if (same(p, got, want, "find"))
        return 1;
    return got || handle == r->handle || !r->handle ? 0 : check_fail(p->l, "find %s: another handle", check_id(id));
}

static int op_fault(play *p)
{
    p->fault = 1 + play_take(p, 12);
    SAY("fault %u\n", p->fault);
    return 0;
}

/* What is played, and how often. */
static const struct {
    int (*run)(play *);
    uint32_t weight;
} table[] = {
    {op_step, 60},     {op_begin, 10},     {op_capture, 10},    {op_commit, 12}, {op_capture_bad, 3}, {op_abandon, 2},
    {op_begin_bad, 2}, {op_admit, 24},     {op_preempt, 6},     {op_epoch, 4},   {op_kv_reset, 2},    {op_end, 22},
    {op_seal, 4},      {op_drain, 4},      {op_finished, 6},    {op_alias, 8},   {op_fill, 8},        {op_truncate, 6},
    {op_open, 22},     {op_open_all, 6},   {op_open_handle, 6}, {op_close, 12},  {op_close_none, 2},  {op_lease, 8},
    {op_unlease, 8},   {op_disconnect, 2}, {op_claim, 8},       {op_event, 14},  {op_expire, 5},      {op_find, 5},
    {op_fault, 4},     {op_session, 60},   {op_snapshot, 3},
};

int play_step(play *p)
{
    uint32_t sum = 0, pick;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        sum += table[i].weight;
    pick = play_take(p, 256) * sum / 256;
    size_t i = 0;
    for (; pick >= table[i].weight; i++)
        pick -= table[i].weight;
    lab *l = p->l;
    l->refused = l->s->arena->refused;
    moor_fault_arm(0);
    int bad = table[i].run(p);
    if (table[i].run != op_fault)
        p->fault = 0;
    l = p->l; /* it may be another store by now */
    l->rough |= moor_fault_fired() || l->s->arena->refused != l->refused;
    moor_fault_arm(0);
    return bad;
}
