/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocator/error.h"
#include "allocator/heap.h"
#include "allocator/trace.h"
#include "ops.h"

typedef struct at { /* what an operation is about */
    uint32_t number, length;
    m_session *s;
    const char *id;
    char key[M_KEY + 1];
} at;

/* A key of the session, cut and gone on from, so that keys begin alike; letters that a string may end with among them. */
static void pick_key(play *p, at *a)
{
    int32_t order[M_NODES];
    uint32_t n = a->s->state == MOOR_SESSION_LIVE ? m_keys(a->s, 0, order) : 0;
    uint32_t how = play_take(p, 256), letters = how & 16 ? play_take(p, 256) : 0, more = how & 16 ? how & 3 : 0;
    a->length = 0;
    if (n) {
        const m_node *node = &a->s->node[order[play_take(p, n)]];
        a->length = node->length;
        memcpy(a->key, node->key, node->length);
    }
    if (how & 32 && a->length)
        a->length -= 1 + (how >> 6) % a->length;
    while (more-- && a->length < M_KEY) {
        a->key[a->length++] = "ab\0\xFF"[letters & 3];
        letters >>= 2;
    }
}

static void pick(play *p, at *a)
{
    memset(a, 0, sizeof(*a));
    a->number = play_take(p, M_SESSIONS);
    a->s = &p->l->m.session[a->number];
    a->id = check_session_id(a->number);
}

/* What an operation says that must be of one mind with the model, or without memory. 1: go on, the operation was done. */
static int done(play *p, moor_status got, moor_status want, const char *what, int *bad)
{
    if (without_memory(got)) {
        SAY("  no memory\n");
        *bad = 0;
        return 0;
    }
    *bad = same(p, got, want, what);
    return !*bad && !got;
}

/* ---- life ---- */

static int op_start(play *p)
{
    at a;
    int bad;
    pick(p, &a);
    uint32_t client = play_take(p, M_CLIENTS + 1), keep = play_take(p, 2);
    SAY("session %s: start, client %u, keep %u\n", a.id, client, keep);
    moor_fault_arm(p->fault);
    moor_status got = moor_session_start(p->l->s, client, a.id, 2, (int)keep);
    if (done(p, got, MOOR_OK, "session_start", &bad))
        m_session_start(&p->l->m, a.s, keep ? 0 : client);
    return bad;
}

/* Records that a release frees at once lie on the list of free slots, the last one first: children went before parents (S3.2). */
static int freed_in_order(play *p, const m_session *before, const moor_handle *handle)
{
    lab *l = p->l;
    int32_t order[M_NODES], found[M_NODES];
    uint32_t n = m_keys(before, 1, order), n_found = 0;
    for (const moor_record_slot *slot = l->s->slots.free; slot && n_found < M_NODES; slot = slot->next_free) {
        uint32_t k = n;
        while (k && (!before->node[order[k - 1]].valued || handle[k - 1] == 0 ||
                     slot->index != (uint32_t)handle[k - 1])) /* its last place is what counts */
            k--;
        if (k)
            found[n_found++] = (int32_t)k;
    }
    for (uint32_t i = 1; i < n_found; i++)
        if (found[i] >= found[i - 1])
            return check_fail(l, "a record of key %d was freed after that of key %d", found[i], found[i - 1]);
    return 0;
}

static int op_release(play *p)
{
    at a;
    int bad;
    lab *l = p->l;
    static _Thread_local m_session before;
    moor_handle handle[M_NODES] = {0};
    int32_t order[M_NODES];
    pick(p, &a);
    if (play_take(p, 4)) /* seldom: it ends what grew */
        return 0;
    before = *a.s;
    for (uint32_t i = 0; before.state == MOOR_SESSION_LIVE && i < m_keys(&before, 1, order); i++) {
        const m_node *node = &before.node[order[i]];
        const m_record *r = node->valued && node->record != M_NONE ? &l->m.record[node->record] : NULL;
        if (r && !r->parked && !m_leases(r))
            handle[i] = r->handle;
    }
    SAY("session %s: release\n", a.id);
    moor_fault_arm(p->fault);
    moor_status got = moor_session_release(l->s, a.id, 2);
    if (moor_fault_fired())
        return check_fail(l, "a release needs memory");
    done(p, got, m_session_release(&l->m, a.s), "session_release", &bad);
    return bad || (before.state == MOOR_SESSION_LIVE && freed_in_order(p, &before, handle));
}

/* ---- keys ---- */

/* A record, mostly one that goes on from `end`. */
static moor_handle pick_record(play *p, const m_session *s, uint64_t end, int *never)
{
    const model *m = &p->l->m;
    uint32_t kind = play_take(p, 8), from = play_take(p, M_RECORDS);
    *never = 0;
    if (kind == 0)
        return 0;
    if (kind == 1)
        return any_handle(p, never);
    for (uint32_t i = 0; i < M_RECORDS; i++) {
        const m_record *r = &m->record[(from + i) % M_RECORDS];
        if (r->used && r->sealed && !r->dead && r->end > end &&
            (r->session == M_NONE || (kind == 2 && r->session == s - m->session)))
            return r->handle;
    }
    return 0;
}

/* Tokens that are the same for everybody at a position, but for variant 1 from some position on. */
static int32_t token_at(uint64_t position, uint32_t variant)
{
    return (int32_t)(variant * 1000 + position % 700) - 3;
}

static void pick_segment(play *p, const at *a, m_insert *in, int *never, int32_t tokens[M_SEGMENT])
{
    const m_node *above = a->s->state == MOOR_SESSION_LIVE ? m_nearest(a->s, a->key, a->length) : NULL;
    uint64_t end = above ? above->start + above->n : 0;
    uint32_t how = play_take(p, 256), few = play_take(p, 8), variant = how >> 7;
    in->handle = pick_record(p, a->s, end, never);
    const m_record *r = in->handle ? m_by_handle(&p->l->m, in->handle) : NULL;
    in->start = how & 3 ? MOOR_TRACE_BEHIND : how & 4 ? end : few * 5;
    if ((how & 127) == 77)
        in->start = few & 1 ? UINT64_MAX - few : INT64_MAX - few;
    in->n = MOOR_TRACE_ROWS;
    uint64_t rows = r && r->end > end ? r->end - end : few;
    if (how & 16) /* with the last sampled token, or without it, or too many */
        rows += how & 8 ? 1 : few % 3;
    if (how & 32) {
        in->n_tokens = (uint32_t)(rows < M_SEGMENT ? rows : M_SEGMENT);
        in->tokens = tokens;
        for (uint32_t i = 0; i < in->n_tokens; i++)
            tokens[i] = token_at(end + i, variant);
    }
    if (how & 64)
        in->n = in->tokens ? in->n_tokens + (few == 7) : rows;
    if ((how & 127) == 85)
        in->n = (uint64_t)1 << (30 + 4 * few); /* of which nobody knows the tokens */
}

static int op_insert(play *p)
{
    lab *l = p->l;
    at a;
    static _Thread_local int32_t tokens[M_SEGMENT];
    m_insert in = {0};
    int never, bad;
    uint32_t free = 0;
    pick(p, &a);
    uint32_t client = play_take(p, M_CLIENTS + 1);
    pick_key(p, &a);
    pick_segment(p, &a, &in, &never, tokens);
    in.create = play_take(p, 8) != 0;
    for (uint32_t i = 0; i < M_NODES; i++)
        free += !a.s->node[i].used;
    if (a.s->state == MOOR_SESSION_LIVE && !free)
        return 0; /* the model's array is full */
    SAY("session %s: insert key of %u, record %llx, start %lld, length %lld, %u tokens, create %u, client %u\n", a.id,
        a.length, (unsigned long long)in.handle, (long long)in.start, (long long)in.n, in.n_tokens, in.create, client);
    moor_trace_in call = {.handle = in.handle,
                          .start = in.start,
                          .length = in.n,
                          .tokens = in.tokens,
                          .n_tokens = in.n_tokens,
                          .create = (int)in.create};
    moor_fault_arm(p->fault);
    moor_status got = moor_session_insert(l->s, client, a.id, 2, a.key, a.length, &call);
    if (without_memory(got))
        return 0;
    moor_status want = m_session_insert(&l->m, a.s, client, a.key, a.length, &in);
    if (want == MOOR_E_STALE && never)
        want = MOOR_E_INVALID;
    done(p, got, want, "session_insert", &bad);
    return bad;
}

static int op_release_key(play *p)
{
    at a;
    int bad;
    pick(p, &a);
    pick_key(p, &a);
    SAY("session %s: release key of %u\n", a.id, a.length);
    moor_fault_arm(p->fault);
    moor_status got = moor_session_release_key(p->l->s, a.id, 2, a.key, a.length);
    if (moor_fault_fired())
        return check_fail(p->l, "a release needs memory");
    done(p, got, m_session_release_key(&p->l->m, a.s, a.key, a.length), "session_release_key", &bad);
    return bad;
}

static int found_agrees(lab *l, const at *a, const moor_trace_found *found, const m_node *want)
{
    if (!found || !want)
        return !found == !want ? 0 : check_fail(l, "session %s: search finds %s", a->id, found ? "a key" : "nothing");
    const m_record *r = want->record == M_NONE ? NULL : &l->m.record[want->record];
    uint64_t tokens = want->has_tokens ? want->n : 0;
    AGREE(found->key_len, want->length, "session %s: search: key", a->id);
    AGREE(found->start, want->start, "session %s: search: start", a->id);
    AGREE(found->length, want->n, "session %s: search: length", a->id);
    AGREE(found->has_tokens, want->has_tokens || !want->n, "session %s: search: tokens known", a->id);
    AGREE(found->n_tokens, tokens, "session %s: search: tokens", a->id);
    AGREE(found->handle, r ? r->handle : 0, "session %s: search: record", a->id);
    if (memcmp(found->tokens, want->token, tokens * sizeof(int32_t)) != 0)
        return check_fail(l, "session %s: search: other tokens", a->id);
    if (strcmp(found->request, r ? check_id(r->name) : "") != 0)
        return check_fail(l, "session %s: search: request %s", a->id, found->request);
    return 0;
}

static int op_search(play *p)
{
    at a;
    int bad;
    m_node *want;
    moor_trace_found *found = NULL;
    pick(p, &a);
    pick_key(p, &a);
    SAY("session %s: search of %u bytes\n", a.id, a.length);
    moor_fault_arm(p->fault);
    moor_status got = moor_session_search(p->l->s, a.id, 2, a.key, a.length, &found);
    if (done(p, got, m_session_search(a.s, a.key, a.length, &want), "session_search", &bad))
        bad = found_agrees(p->l, &a, found, want);
    moor_trace_free(found);
    return bad;
}

static int list_agrees(lab *l, const at *a, const moor_trace_keys *list)
{
    int32_t order[M_NODES];
    char key[M_KEY];
    uint32_t n = m_keys(a->s, 0, order), seen = 0;
    uint64_t size = 0;
    for (uint32_t i = 0; i < n; i++) {
        const m_node *want = &a->s->node[order[i]];
        uint32_t head[2];
        if (!want->valued)
            continue;
        if (size + sizeof(head) > list->size)
            return check_fail(l, "session %s: keys end after %u", a->id, seen);
        memcpy(head, list->data + size, sizeof(head));
        size += sizeof(head);
        AGREE((uint64_t)head[0] + head[1], want->length, "session %s: key %u: bytes", a->id, seen);
        memcpy(key + head[0], list->data + size, head[1]);
        size += head[1];
        if (memcmp(key, want->key, want->length) != 0)
            return check_fail(l, "session %s: key %u is another", a->id, seen);
        seen++;
    }
    AGREE(list->n, seen, "session %s: listed keys", a->id);
    AGREE(list->size, size, "session %s: bytes of listed keys", a->id);
    return 0;
}

static int op_list(play *p)
{
    at a;
    int bad;
    moor_trace_keys *list = NULL;
    pick(p, &a);
    moor_status want = a.s->state == MOOR_SESSION_LIVE   ? MOOR_OK
                       : a.s->state == MOOR_SESSION_GONE ? MOOR_E_GONE
                                                         : MOOR_E_NOT_FOUND;
    SAY("session %s: keys\n", a.id);
    moor_fault_arm(p->fault);
    moor_status got = moor_session_keys(p->l->s, a.id, 2, &list);
    if (done(p, got, want, "session_keys", &bad))
        bad = list_agrees(p->l, &a, list);
    moor_trace_free(list);
    return bad;
}

/* ---- traces ---- */

/* An export that had no memory for its third part opened two, and closed them. */
static void undone(lab *l, const m_trace *want, uint32_t client)
{
    uint64_t opened = l->counter[MOOR_C_OPENS] - l->m.count[MOOR_C_OPENS];
    for (uint64_t row = 0; opened && row < want->rows; row++) {
        m_record *r = &l->m.record[want->of_row[row] - l->m.record];
        if (row && want->of_row[row - 1] == r)
            continue;
        m_lease(&l->m, r, client, 1);
        m_unlease(&l->m, r, client);
        opened--;
    }
}

/* S3.3, S1.9: each row from the record that has it, in as few parts as can be; and the leases. */
static int trace_agrees(lab *l, const at *a, const moor_trace *trace, const m_trace *want, uint32_t client)
{
    uint64_t covered = 0, token = 0;
    AGREE(trace->n_segments, want->n, "session %s: export: segments", a->id);
    AGREE(trace->n_tokens, want->n_tokens, "session %s: export: tokens", a->id);
    AGREE(trace->rows, want->rows, "session %s: export: rows", a->id);
    AGREE(trace->has_tokens, want->has_tokens, "session %s: export: tokens known", a->id);
    for (uint32_t i = 0; i < want->n; i++) {
        const moor_trace_segment *segment = &trace->segments[i];
        const m_node *node = want->segment[i];
        AGREE(segment->start, node->start, "session %s: export: segment %u", a->id, i);
        AGREE(segment->length, node->n, "session %s: export: length of segment %u", a->id, i);
        AGREE(segment->key_len, node->length, "session %s: export: key of segment %u", a->id, i);
        AGREE(segment->handle, node->record == M_NONE ? 0 : l->m.record[node->record].handle,
              "session %s: export: record of segment %u", a->id, i);
        for (uint64_t t = 0; want->has_tokens && t < node->n; t++, token++)
            AGREE(trace->tokens[token], node->token[t], "session %s: export: token %llu", a->id,
                  (unsigned long long)token);
    }
    for (uint32_t i = 0; i < trace->n_parts; i++) {
        const moor_trace_part *part = &trace->parts[i];
        m_record *r = &l->m.record[want->of_row[covered] - l->m.record];
        AGREE(part->from, covered, "session %s: export: part %u", a->id, i);
        while (covered < want->rows && want->of_row[covered] == r)
            covered++;
        AGREE(part->to, covered, "session %s: export: end of part %u", a->id, i);
        m_lease(&l->m, r, client, 1);
        if (check_view(l, part->view, r, part->to, M_NAMES + M_ALIASES))
            return 1;
    }
    AGREE(covered, want->rows, "session %s: export: rows in parts", a->id);
    return 0;
}

/* A key that is there, mostly. */
static void pick_known_key(play *p, at *a)
{
    int32_t order[M_NODES];
    uint32_t n = a->s->state == MOOR_SESSION_LIVE ? m_keys(a->s, 0, order) : 0;
    if (!n || !play_take(p, 8)) {
        pick_key(p, a);
        return;
    }
    for (uint32_t first = play_take(p, n), i = 0; i < n; i++) {
        const m_node *node = &a->s->node[order[(first + i) % n]];
        if (!node->valued)
            continue;
        a->length = node->length;
        memcpy(a->key, node->key, node->length);
        return;
    }
}

static int op_export(play *p)
{
    lab *l = p->l;
    at a;
    int bad;
    static _Thread_local m_trace want;
    moor_trace *trace = NULL;
    pick(p, &a);
    uint32_t client = play_take(p, M_CLIENTS + 1);
    pick_known_key(p, &a);
    SAY("session %s: export key of %u, client %u\n", a.id, a.length, client);
    moor_status status = m_session_export(&l->m, a.s, a.key, a.length, &want);
    moor_fault_arm(p->fault);
    moor_status got = moor_session_export(l->s, client, a.id, 2, a.key, a.length, &trace);
    if (!done(p, got, status, "session_export", &bad)) {
        if (without_memory(got))
            undone(l, &want, client);
        return bad ? bad : trace ? check_fail(l, "a trace in spite of an error") : 0;
    }
    bad = trace_agrees(l, &a, trace, &want, client);
    for (uint32_t i = 0; i < trace->n_parts; i++) {
        moor_view *view = trace->parts[i].view;
        if (bad)
            moor_view_free(view);
        else
            bad = keep_view(p, view, m_by_handle(&l->m, view->handle), client);
    }
    moor_trace_free(trace);
    return bad;
}

/* S1.10: tokens that differ somewhere, or are fewer, or more. */
static int op_rollback(play *p)
{
    lab *l = p->l;
    at a;
    int bad;
    static _Thread_local int32_t tokens[M_SEGMENT * 4];
    static _Thread_local m_trace way;
    moor_rollback got = {0}, want = {0};
    pick(p, &a);
    pick_known_key(p, &a);
    uint32_t n = 0, differs = play_take(p, 256), least = play_take(p, 4) ? 0 : play_take(p, 40);
    (void)m_session_export(&l->m, a.s, a.key, a.length, &way);
    for (uint32_t i = 0; i < way.n; i++)
        for (uint32_t t = 0; way.segment[i]->has_tokens && t < way.segment[i]->n && n < M_SEGMENT * 4; t++)
            tokens[n++] = way.segment[i]->token[t];
    if (n && differs & 1)
        tokens[n - 1 - (differs >> 2) % n] ^= 1;
    if (n && !(differs & 3))
        n -= (differs >> 2) % n;
    SAY("session %s: roll back key of %u with %u tokens, at least %u\n", a.id, a.length, n, least);
    moor_fault_arm(p->fault);
    moor_status status = moor_session_rollback(l->s, a.id, 2, a.key, a.length, tokens, n, least, &got);
    if (without_memory(status))
        return 0;
    done(p, status, m_session_rollback(&l->m, a.s, a.key, a.length, tokens, n, least, &want.kept, &want.key_len),
         "session_rollback", &bad);
    if (bad)
        return bad;
    AGREE(got.kept, want.kept, "session %s: roll back: tokens kept", a.id);
    AGREE(got.key_len, want.key_len, "session %s: roll back: key", a.id);
    return 0;
}

int op_session(play *p)
{
    static int (*const table[])(play *) = {op_insert, op_insert, op_insert, op_insert,      op_insert, op_insert,
                                           op_export, op_export, op_search, op_release_key, op_list,   op_rollback,
                                           op_start,  op_start,  op_start,  op_release};
    uint32_t what = play_take(p, 256);
    if (what >= 240)
        p->fault = 1 + play_take(p, 10);
    return table[what % (sizeof(table) / sizeof(table[0]))](p);
}
