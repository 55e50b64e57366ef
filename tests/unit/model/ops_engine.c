/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "allocator/error.h"
#include "allocator/heap.h"
#include "ops.h"

static w_request *any_request(play *p)
{
    w_request *q = &p->l->w.request[play_take(p, W_REQUESTS)];
    return q->state ? q : NULL;
}

static int in_flight(play *p, const w_request *q)
{
    for (uint32_t i = 0; i < p->l->w.n; i++)
        if (&p->l->w.request[p->l->w.who[i]] == q)
            return 1;
    return 0;
}

/* ---- steps ---- */

static void fill_store_request(moor_step_request *to, const m_request *from, uint32_t hint)
{
    *to = (moor_step_request){.id = check_id(from->name),
                              .id_len = 2,
                              .count = from->count,
                              .start = from->start,
                              .spec = from->spec,
                              .kv_blocks = from->n_kv ? from->kv : NULL,
                              .n_kv_blocks = from->n_kv,
                              .rows_hint = hint,
                              .flags = from->flags};
}

/* Rows that a prefix hit supplied are those that the KV slots hold: S1.15. */
static int true_prefix(play *p, int committed)
{
    const world *w = &p->l->w;
    for (uint32_t i = 0; i < p->l->m.n && i < w->n; i++) {
        const m_entry *e = &p->l->m.entry[i];
        if (!e->record || !w->kv_size)
            continue;
        for (uint64_t at = e->gap_from; at < e->request.start; at++) {
            const m_row *row = &e->record->row[at];
            uint64_t number = at / w->kv_size;
            if (!row->seed || number >= e->request.n_kv)
                continue;
            const m_row *slot = &w->truth[e->request.kv[number]][at % w->kv_size];
            const m_row *old = &w->was[e->request.kv[number]][at % w->kv_size];
            if (slot->seed != row->seed && (!committed || old->seed != row->seed))
                return check_fail(p->l,
                                  "record %s row %llu came from KV block %d, which holds another token: %llx, not %llx",
                                  check_id(e->request.name), (unsigned long long)at, e->request.kv[number],
                                  (unsigned long long)slot->seed, (unsigned long long)row->seed);
        }
    }
    return 0;
}

static int begin_with(play *p, const m_request *requests, uint32_t n, uint32_t hint)
{
    lab *l = p->l;
    moor_step_request list[M_BATCH + 1];
    world *w = &l->w;
    if (l->s->step.open)
        l->whole = 1; /* it is abandoned */
    if (w->n_handed_out) {
        moor_records_kv_handed_out(l->s, w->handed_out, w->n_handed_out);
        m_handed_out(&l->m, w->handed_out, w->n_handed_out);
        w->n_handed_out = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        fill_store_request(&list[i], &requests[i], hint ? (uint32_t)(requests[i].start + hint) : 0);
        SAY("  %s start %llu count %u spec %u kv %u\n", list[i].id, (unsigned long long)list[i].start, list[i].count,
            list[i].spec, list[i].n_kv_blocks);
    }
    moor_fault_arm(p->fault);
    moor_status got = moor_records_step_begin(l->s, list, n, w->epoch);
    if (without_memory(got)) {
        m_abandon(&l->m);
        l->m.count[MOOR_C_STEPS_FAILED]++;
        return 0;
    }
    moor_status want = m_begin(&l->m, requests, n, w->epoch);
    for (uint32_t i = 0; !got && i < n; i++) { /* what is physical */
        const moor_step_entry *entry = &l->s->step.entries[i];
        int full = moor_fault_fired() || l->s->arena->refused != l->refused;
        l->m.entry[i].lost = entry->lost;
        if (entry->lost && !full)
            return check_fail(l, "%u rows of %s without room, and nothing was refused", entry->lost, list[i].id);
        if (!entry->n_kv && moor_fault_fired())
            l->m.entry[i].request.n_kv = 0; /* the index will not hear of it */
        if (!entry->record && l->m.entry[i].record && moor_fault_fired()) {
            l->m.entry[i].record->in_step = 0;
            l->m.entry[i].record = NULL;
        }
    }
    return same(p, got, want, "step_begin") || take_over_now(p);
}

static int compose(play *p, int late)
{
    world *w = &p->l->w;
    /* The store abandons it, or never had it; the engine ran it. */
    for (uint32_t i = 0; i < w->n; i++)
        p->spec_settled[i] = w->step[i].count;
    if (w->n)
        w_settle(w, p->spec_settled);
    w_new_step(w);
    uint32_t mask = play_take(p, 256), tokens = 1 + play_take(p, 40), spec = play_take(p, 8);
    for (uint32_t i = 0; i < W_REQUESTS; i++) {
        w_request *q = &w->request[i];
        if (q->state == 1 && !(mask >> i & 1))
            (void)w_schedule(w, q, tokens, spec > 4 ? spec - 4 : 0);
        else if (q->state == 2 && late && (mask & 64))
            (void)w_late(w, q);
    }
    uint32_t hint = mask & 128 ? 30 : 0;
    for (uint32_t i = 0; i < w->n; i++)
        if (mask == 0x55)
            w->step[i].flags = MOOR_STEP_PREFIX_UNPROVEN;
    int bad = begin_with(p, w->step, w->n, hint);
    if (!bad)
        bad = true_prefix(p, 0);
    w_execute(w);
    if (!p->l->m.open)
        w_unwrite(w);
    return bad;
}

int op_begin(play *p)
{
    SAY("begin\n");
    return compose(p, 1);
}

static int capture(play *p, uint32_t column, uint32_t dtype)
{
    static _Thread_local int32_t ids[M_TOKENS * 64];
    static _Thread_local int64_t wide[M_TOKENS * 64];
    world *w = &p->l->w;
    uint32_t token = 0;
    for (uint32_t i = 0; i < w->n; i++)
        for (uint32_t t = 0; t < w->step[i].count; t++, token++)
            w_ids(w, w->rows[i][t], column, ids + (size_t)token * w->k);
    moor_ids call = {.data = ids, .dtype = MOOR_DTYPE_I32, .tokens = token, .top_k = w->k};
    if (dtype) {
        for (uint32_t i = 0; i < token * w->k; i++)
            wide[i] = ids[i];
        call.data = wide;
        call.dtype = MOOR_DTYPE_I64;
    }
    moor_status got = moor_records_capture(p->l->s, column, &call);
    memset(ids, 0x55, (size_t)token * w->k * sizeof(*ids)); /* S1.13 */
    return got != m_capture(&p->l->m, column) ? check_fail(p->l, "capture %u: %s", column, moor_last_error()) : 0;
}

static int capture_rest(play *p, uint32_t leave)
{
    for (uint32_t c = 0; p->l->m.open && c < p->l->m.layers; c++)
        if (!p->l->m.captured[c] && c != leave && capture(p, c, c & 1))
            return 1;
    return 0;
}

int op_capture(play *p)
{
    SAY("capture\n");
    return p->l->m.open ? capture_rest(p, play_take(p, 8) == 1 ? 0 : UINT32_MAX) : 0;
}

int op_capture_bad(play *p)
{
    lab *l = p->l;
    int32_t ids[4] = {-1, 1, 2, 3};
    uint32_t column = play_take(p, l->m.layers + 1), kind = play_take(p, 4);
    moor_ids call = {.data = ids, .dtype = MOOR_DTYPE_I32, .tokens = (uint32_t)l->m.tokens + 1, .top_k = l->w.k};
    SAY("bad capture of column %u, kind %u\n", column, kind);
    if (kind == 1)
        call = (moor_ids){.data = ids, .dtype = 77, .tokens = (uint32_t)l->m.tokens, .top_k = l->w.k};
    if (kind == 2)
        call.data = NULL;
    moor_status got = kind == 3 ? moor_records_capture_failed(l->s, column, MOOR_E_INVALID)
                                : moor_records_capture(l->s, column, &call);
    m_capture_bad(&l->m, column, kind == 3);
    return got ? 0 : check_fail(l, "a bad capture was taken");
}

static int commit(play *p)
{
    lab *l = p->l;
    world *w = &l->w;
    uint32_t accepted[M_BATCH], told[M_BATCH], known = !(play_take(p, 4) == 1);
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t sure = w->step[i].count - w->step[i].spec;
        accepted[i] = sure + (w->step[i].spec ? play_take(p, w->step[i].spec + 1) : 0);
        told[i] = accepted[i];
        SAY("  %s: %u of %u accepted%s\n", check_id(w->step[i].name), accepted[i], w->step[i].count,
            known ? "" : ", not told");
    }
    moor_fault_arm(p->fault);
    moor_status got = moor_records_step_commit(l->s, known ? told : NULL, w->n);
    moor_status want = m_commit(&l->m, known ? told : NULL, w->n);
    int bad = same(p, got, want, "step_commit") || take_over_now(p) || (!got && true_prefix(p, 1));
    if (!got)
        w_settle(w, accepted);
    return bad;
}

int op_commit(play *p)
{
    lab *l = p->l;
    SAY("commit\n");
    if (play_take(p, 16) == 1) {
        uint32_t none[M_BATCH + 1] = {0};
        moor_status want = l->m.open && l->m.n == l->w.n + 1 ? MOOR_OK : l->m.open ? MOOR_E_INVALID : MOOR_E_STATE;
        return same(p, moor_records_step_commit(l->s, none, l->w.n + 1), want, "step_commit of another count");
    }
    return commit(p);
}

int op_step(play *p)
{
    SAY("step\n");
    if (compose(p, 0) || !p->l->m.open)
        return p->l->why[0] != 0;
    return capture_rest(p, UINT32_MAX) || commit(p);
}

int op_abandon(play *p)
{
    world *w = &p->l->w;
    SAY("abandon\n");
    p->l->whole = 1;
    for (uint32_t i = 0; i < w->n; i++)
        p->spec_settled[i] = w->step[i].count;
    moor_status got = moor_records_step_abandon(p->l->s);
    m_abandon(&p->l->m);
    if (w->n)
        w_settle(w, p->spec_settled);
    return same(p, got, MOOR_OK, "step_abandon");
}

/* A batch that cannot be: twice the same request, too many tokens, more drafts than tokens. */
int op_begin_bad(play *p)
{
    world *w = &p->l->w;
    m_request list[3];
    uint32_t kind = play_take(p, 3);
    SAY("bad begin, kind %u\n", kind);
    p->fault = 0;
    if (w->n) {
        for (uint32_t i = 0; i < w->n; i++)
            p->spec_settled[i] = w->step[i].count;
        w_settle(w, p->spec_settled);
        w_new_step(w);
    }
    memset(list, 0, sizeof(list));
    for (uint32_t i = 0; i < 3; i++)
        list[i] = (m_request){.name = (i + 7) % M_NAMES, .count = 1, .rows = w->rows[0]};
    w->rows[0][0] = (m_row){.seed = 1ull << 63, .epoch = w->epoch};
    if (kind == 0)
        list[2].name = list[0].name;
    if (kind == 1)
        list[1].count = p->l->m.max_tokens + 1;
    if (kind == 2)
        list[2].spec = 2;
    if (kind == 1)
        list[1].rows = w->rows[1];
    if (begin_with(p, list, 3, 0))
        return 1;
    m_abandon(&p->l->m); /* rows of a request that is over are dropped, twice if need be */
    return same(p, moor_records_step_abandon(p->l->s), MOOR_OK, "step_abandon");
}

/* ---- the engine ---- */

int op_admit(play *p)
{
    uint32_t name = play_take(p, M_NAMES), group = play_take(p, W_GROUPS), sampled = play_take(p, 40);
    w_request *q = w_admit(&p->l->w, name, group, sampled);
    if (!q)
        return 0;
    /* Every engine tells its worker of a request's end before the id comes again. */
    m_finished(&p->l->m, name);
    if (same(p, moor_records_finished(p->l->s, check_id(name), 2), MOOR_OK, "finished"))
        return 1;
    SAY("admit %s group %u prompt %u, %llu cached\n", check_id(name), group, q->prompt, (unsigned long long)q->done);
    return 0;
}

int op_preempt(play *p)
{
    w_request *q = any_request(p);
    if (!q || q->state != 1 || in_flight(p, q))
        return 0;
    SAY("preempt %s\n", check_id(q->name));
    w_preempt(&p->l->w, q);
    return 0;
}

int op_epoch(play *p)
{
    if (p->l->w.n)
        return 0;
    SAY("epoch %llu\n", (unsigned long long)p->l->w.epoch + 1);
    p->l->w.epoch++;
    return 0;
}

int op_kv_reset(play *p)
{
    SAY("kv reset\n");
    w_kv_reset(&p->l->w);
    m_kv_reset(&p->l->m);
    return same(p, moor_records_kv_reset(p->l->s), MOOR_OK, "kv_reset");
}

/* A request ends: right number of rows mostly. */
int op_end(play *p)
{
    lab *l = p->l;
    w_request *q = any_request(p);
    uint32_t kind = play_take(p, 16), how = play_take(p, 3), alias = play_take(p, 2 * M_ALIASES);
    if (!q || q->state != 1)
        return 0;
    uint64_t rows = q->done;
    uint32_t flags = 0;
    if (kind == 0)
        rows += 1 + play_take(p, 6);
    if (kind == 1)
        rows -= rows > 3 ? 3 : rows;
    if (kind == 2 || kind == 3)
        flags = MOOR_SEAL_COMMITTED | MOOR_SEAL_ABORTED;
    if (kind == 4)
        flags = MOOR_SEAL_ERROR;
    SAY("end %s rows %llu flags %u how %u\n", check_id(q->name), (unsigned long long)rows, flags, how);
    w_end(&l->w, q);
    if (kind & 8)
        q->state = 0;
    if (how == 0) {
        moor_status want = m_seal_now(&l->m, q->name, M_ALIASES, rows, flags);
        return same(p, moor_records_seal(l->s, check_hash(q->name), rows, flags), want, "seal");
    }
    if (how == 1) {
        m_finished(&l->m, q->name);
        return same(p, moor_records_finished(l->s, check_id(q->name), 2), MOOR_OK, "finished");
    }
    moor_hash128 none = {0, 0};
    if (l->m.n_ring == 32)
        return 0;
    alias = alias < M_ALIASES ? alias : M_ALIASES;
    m_push(&l->m, q->name, alias, rows, flags);
    return same(p,
                moor_seal_push(l->ring, check_hash(q->name), alias < M_ALIASES ? check_hash(M_NAMES + alias) : none,
                               rows, flags),
                MOOR_OK, "seal_push");
}

/* A seal out of nothing: repeated, or of a request that never was. */
int op_seal(play *p)
{
    uint32_t name = play_take(p, M_NAMES), rows = play_take(p, 60);
    if (play_take(p, 4))
        return 0;
    SAY("seal %s rows %u\n", check_id(name), rows);
    moor_status want = m_seal_now(&p->l->m, name, M_ALIASES, rows, 0);
    return same(p, moor_records_seal(p->l->s, check_hash(name), rows, 0), want, "seal");
}

int op_drain(play *p)
{
    SAY("drain\n");
    uint32_t want = m_drain(&p->l->m), got = moor_records_drain(p->l->s);
    return got == want ? 0 : check_fail(p->l, "drain: store %u, model %u", got, want);
}

int op_finished(play *p)
{
    uint32_t name = play_take(p, M_NAMES);
    for (uint32_t i = 0; i < W_REQUESTS; i++)
        if (p->l->w.request[i].state && p->l->w.request[i].name == name) {
            if (p->l->w.request[i].state == 1)
                return 0;
            p->l->w.request[i].state = 0; /* no step comes after the notice */
        }
    SAY("finished %s\n", check_id(name));
    m_finished(&p->l->m, name);
    return same(p, moor_records_finished(p->l->s, check_id(name), 2), MOOR_OK, "finished");
}

int op_alias(play *p)
{
    uint32_t name = play_take(p, M_NAMES), alias = play_take(p, M_ALIASES), index = play_take(p, 3);
    SAY("alias %s of %s, %u\n", check_id(M_NAMES + alias), check_id(name), index);
    moor_fault_arm(p->fault);
    moor_status got = moor_records_alias(p->l->s, check_id(name), 2, check_id(M_NAMES + alias), 2, index);
    int refused = without_memory(got);
    if (!refused || p->l->s->created != p->l->m.created)
        m_alias(&p->l->m, name, alias, index);
    return refused ? 0 : same(p, got, MOOR_OK, "alias");
}
