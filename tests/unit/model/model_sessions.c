/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions (SEMANTICS 3): keys in an array, in the order they came; every question is a walk over all of them. */
#include "model_parts.h"

#include <string.h>

#include "allocator/sessions.h"

/* ---- the trie ---- */

/* 1: the key is a prefix of the text. */
static int begins(const m_node *node, const char *text, uint32_t length)
{
    return node->used && node->length <= length && !memcmp(node->key, text, node->length);
}

static int32_t find(const m_session *s, const char *key, uint32_t length)
{
    for (int32_t i = 0; i < M_NODES; i++)
        if (s->node[i].length == length && begins(&s->node[i], key, length))
            return i;
    return M_NONE;
}

/* Where a key hangs that comes now: under the longest one, with or without a value, that it goes on from. */
static int32_t parent_for(const m_session *s, const char *key, uint32_t length)
{
    int32_t longest = 0;
    for (int32_t i = 0; i < M_NODES; i++)
        if (s->node[i].length < length && s->node[i].length >= s->node[longest].length &&
            begins(&s->node[i], key, length))
            longest = i;
    return longest;
}

static int32_t child_after(const m_session *s, int32_t parent, uint64_t came)
{
    int32_t next = M_NONE;
    for (int32_t i = 1; i < M_NODES; i++)
        if (s->node[i].used && s->node[i].parent == parent && s->node[i].came > came &&
            (next == M_NONE || s->node[i].came < s->node[next].came))
            next = i;
    return next;
}

static uint32_t walk(const m_session *s, int32_t at, int children_first, int32_t *order, uint32_t n)
{
    if (!children_first)
        order[n++] = at;
    for (int32_t child = child_after(s, at, 0); child != M_NONE; child = child_after(s, at, s->node[child].came))
        n = walk(s, child, children_first, order, n);
    if (children_first)
        order[n++] = at;
    return n;
}

uint32_t m_keys(const m_session *s, int children_first, int32_t order[M_NODES])
{
    return walk(s, 0, children_first, order, 0);
}

uint32_t m_values(const m_session *s)
{
    uint32_t n = 0;
    for (int32_t i = 0; i < M_NODES; i++)
        n += s->node[i].used && s->node[i].valued;
    return n;
}

m_node *m_node_of(m_session *s, const char *key, uint32_t length)
{
    int32_t at = find(s, key, length);
    return at != M_NONE && s->node[at].valued ? &s->node[at] : NULL;
}

static m_node *valued_from(m_session *s, int32_t at)
{
    while (at != M_NONE && !s->node[at].valued)
        at = s->node[at].parent;
    return at == M_NONE ? NULL : &s->node[at];
}

m_node *m_nearest(m_session *s, const char *key, uint32_t length)
{
    int32_t at = find(s, key, length);
    if (!length)
        return NULL;
    return valued_from(s, at == M_NONE ? parent_for(s, key, length) : s->node[at].parent);
}

/* A node without a value that nothing hangs on goes, and so do those above it. */
static void prune(m_session *s, int32_t at)
{
    while (at > 0 && !s->node[at].valued && child_after(s, at, 0) == M_NONE) {
        s->node[at].used = 0;
        at = s->node[at].parent;
    }
}

static int hangs_on(const m_session *s, int32_t at, int32_t above)
{
    while (at != M_NONE && at != above)
        at = s->node[at].parent;
    return at == above;
}

/* ---- records of a session ---- */

static int has_place(const m_session *s, int32_t record)
{
    for (int32_t i = 0; i < M_NODES; i++)
        if (s->node[i].used && s->node[i].valued && s->node[i].record == record)
            return 1;
    return 0;
}

static void free_record(model *m, m_record *r)
{
    r->session = M_NONE;
    m_release_owner(m, r);
}

/* The key's value goes, and its record unless another key holds it, or it was overwritten once (S2.3, S2.4). */
static void drop(model *m, m_session *s, int32_t at)
{
    int32_t record = s->node[at].record;
    s->node[at].valued = 0;
    prune(s, at);
    s->dirty = 1;
    if (record != M_NONE && !has_place(s, record) && !m->record[record].parked)
        free_record(m, &m->record[record]);
}

/* ---- life ---- */

void m_session_start(model *m, m_session *s, uint32_t client)
{
    (void)m;
    if (s->state == MOOR_SESSION_LIVE)
        return;
    memset(s, 0, sizeof(*s));
    s->state = MOOR_SESSION_LIVE;
    s->client = client;
    s->dirty = s->node[0].used = 1;
    s->node[0].parent = s->node[0].record = M_NONE;
}

static moor_status is_live(const m_session *s)
{
    return s->state == MOOR_SESSION_LIVE ? MOOR_OK : s->state == MOOR_SESSION_GONE ? MOOR_E_GONE : MOOR_E_NOT_FOUND;
}

moor_status m_session_release(model *m, m_session *s)
{
    moor_status status = is_live(s);
    if (status)
        return status == MOOR_E_GONE ? MOOR_OK : status;
    for (uint32_t i = 0; i < M_RECORDS; i++)
        if (m->record[i].used && m->record[i].session == s - m->session)
            free_record(m, &m->record[i]); /* once, parked ones too */
    s->state = MOOR_SESSION_GONE;
    s->dirty = 1;
    return MOOR_OK;
}

void m_sessions_disconnect(model *m, uint32_t client)
{
    for (uint32_t i = 0; client && i < M_SESSIONS; i++)
        if (m->session[i].state == MOOR_SESSION_LIVE && m->session[i].client == client)
            m_session_release(m, &m->session[i]);
}

/* ---- values ---- */

static moor_status may_insert(model *m, const m_session *s, const m_insert *in, uint64_t start, uint64_t *n)
{
    const m_record *r = m_by_handle(m, in->handle);
    if (*n != MOOR_TRACE_ROWS && (start > INT64_MAX || *n > INT64_MAX - start))
        return MOOR_E_RANGE;
    if (!in->handle)
        return MOOR_OK;
    if (!r || r->dead)
        return MOOR_E_STALE;
    if (!r->sealed || (r->session != M_NONE && r->session != s - m->session))
        return MOOR_E_STATE;
    if (*n == MOOR_TRACE_ROWS)
        *n = r->end > start ? r->end - start : 0;
    return r->end + 1 < start + *n ? MOOR_E_RANGE : MOOR_OK; /* but for the last sampled token: S1.1 */
}

static void set_value(model *m, m_session *s, int32_t at, const m_insert *in, uint64_t start, uint64_t n)
{
    m_node *node = &s->node[at];
    m_record *r = in->handle ? m_by_handle(m, in->handle) : NULL;
    int32_t before = node->valued ? node->record : M_NONE;
    node->valued = 1;
    node->record = r ? (int32_t)(r - m->record) : M_NONE;
    node->start = start;
    node->n = n;
    node->has_tokens = in->tokens != NULL;
    if (in->tokens)
        memcpy(node->token, in->tokens, in->n_tokens * sizeof(node->token[0]));
    if (before != M_NONE && !has_place(s, before))
        m->record[before].parked = m->record[before].dirty = 1; /* S2.4 */
    if (!r)
        return;
    r->owner = MOOR_OWNER_TRACE_STORE;
    r->dirty = 1;
    if (r->session != M_NONE)
        return;
    r->session = (int32_t)(s - m->session);
    r->parked = r->kept = 0;
    r->taken = ++m->came;
}

moor_status m_session_insert(model *m, m_session *s, uint32_t client, const char *key, uint32_t length,
                             const m_insert *in)
{
    uint64_t start = in->start, n = in->tokens ? in->n_tokens : in->n;
    if (in->tokens ? in->n != MOOR_TRACE_ROWS && in->n != in->n_tokens : !in->handle && in->n == MOOR_TRACE_ROWS)
        return MOOR_E_INVALID;
    m_session fresh = {.state = s->state};
    m_session_start(m, &fresh, client);
    int starts = s->state == MOOR_SESSION_NEVER && in->create;
    moor_status status = starts ? MOOR_OK : is_live(s);
    if (status)
        return status;
    const m_node *above = starts ? NULL : m_nearest(s, key, length);
    if (start == MOOR_TRACE_BEHIND)
        start = above ? above->start + above->n : 0;
    status = may_insert(m, s, in, start, &n);
    if (status)
        return status; /* nothing changed, nothing was started */
    if (starts)
        *s = fresh;
    int32_t at = find(s, key, length), parent = parent_for(s, key, length);
    for (int32_t i = 1; at == M_NONE && i < M_NODES; i++) {
        if (s->node[i].used)
            continue;
        at = i;
        s->node[i] = (m_node){.used = 1, .length = length, .parent = parent, .came = ++m->came};
        memcpy(s->node[i].key, key, length);
    }
    if (at == M_NONE) {
        m->table_full = 1;
        return MOOR_OK;
    }
    s->dirty = 1;
    set_value(m, s, at, in, start, n);
    return MOOR_OK;
}

moor_status m_session_release_key(model *m, m_session *s, const char *key, uint32_t length)
{
    moor_status status = is_live(s);
    const m_node *node = status ? NULL : m_node_of(s, key, length);
    if (node)
        drop(m, s, (int32_t)(node - s->node));
    return status;
}

/* ---- reading ---- */

moor_status m_session_search(m_session *s, const char *text, uint32_t length, m_node **out)
{
    moor_status status = is_live(s);
    *out = NULL;
    for (int32_t i = 1; !status && i < M_NODES; i++) /* "" is never a result: S3.2 */
        if (s->node[i].valued && begins(&s->node[i], text, length) && (!*out || s->node[i].length > (*out)->length))
            *out = &s->node[i];
    return status;
}

/* The values from the root to a key, and whether they follow each other from 0 on. */
static moor_status way_to(m_session *s, const char *key, uint32_t length, m_trace *out)
{
    moor_status status = is_live(s);
    const m_node *end = status ? NULL : m_node_of(s, key, length);
    memset(out, 0, sizeof(*out));
    if (!end)
        return status ? status : MOOR_E_NOT_FOUND;
    for (const m_node *node = end; node; node = node->parent == M_NONE ? NULL : &s->node[node->parent]) {
        if (!node->valued)
            continue;
        memmove(out->segment + 1, out->segment, out->n++ * sizeof(out->segment[0]));
        out->segment[0] = node;
    }
    out->has_tokens = 1;
    for (uint32_t i = 0; i < out->n; i++) {
        if (out->segment[i]->start != out->n_tokens)
            return MOOR_E_INCOMPLETE;
        out->n_tokens += out->segment[i]->n;
        out->has_tokens &= out->segment[i]->has_tokens || !out->segment[i]->n;
    }
    return MOOR_OK;
}

/* Whose row `at` of the trace is: of the first record on the way that has it and whose segment reaches that far. */
static const m_record *row_of(const model *m, const m_trace *trace, uint64_t at)
{
    for (uint32_t i = 0; i < trace->n; i++) {
        const m_node *node = trace->segment[i];
        if (node->record != M_NONE && at < m->record[node->record].end && at < node->start + node->n)
            return &m->record[node->record];
    }
    return NULL;
}

moor_status m_session_export(const model *m, m_session *s, const char *key, uint32_t length, m_trace *out)
{
    int any = 0;
    moor_status status = way_to(s, key, length, out);
    if (status)
        return status;
    for (uint32_t i = 0; i < out->n; i++) {
        const m_node *node = out->segment[i];
        any |= node->record != M_NONE;
        if (node->record != M_NONE && m->record[node->record].end + 1 < node->start + node->n)
            return MOOR_E_INCOMPLETE;
    }
    while (out->rows < M_ROWS && (out->of_row[out->rows] = row_of(m, out, out->rows)))
        out->rows++;
    return any && out->rows + 1 < out->n_tokens ? MOOR_E_INCOMPLETE : MOOR_OK;
}

/* ---- cuts ---- */

static int is_on(const m_trace *way, uint32_t from, const m_node *node)
{
    for (uint32_t i = from; i < way->n; i++)
        if (way->segment[i] == node)
            return 1;
    return 0;
}

/* 1: a value hangs on the node that is not on the way, from its segment `from` on. */
static int others_hang(const m_session *s, const m_node *node, const m_trace *way, uint32_t from)
{
    int32_t top = (int32_t)(node - s->node);
    for (int32_t i = 0; i < M_NODES; i++)
        if (i != top && s->node[i].used && s->node[i].valued && hangs_on(s, i, top) &&
            (!way || !is_on(way, from, &s->node[i])))
            return 1;
    return 0;
}

moor_status m_may_cut(model *m, const m_record *r, uint64_t rows)
{
    const m_session *s = r->session == M_NONE ? NULL : &m->session[r->session];
    for (int32_t i = 0; s && i < M_NODES; i++) {
        const m_node *node = &s->node[i];
        if (!node->used || !node->valued || node->record != r - m->record || rows >= r->end ||
            rows >= node->start + node->n)
            continue;
        if (rows <= node->start || others_hang(s, node, NULL, 0))
            return MOOR_E_STATE;
    }
    return MOOR_OK;
}

void m_cut_values(model *m, const m_record *r, uint64_t rows)
{
    m_session *s = r->session == M_NONE ? NULL : &m->session[r->session];
    for (int32_t i = 0; s && i < M_NODES; i++) {
        m_node *node = &s->node[i];
        if (!node->used || !node->valued || node->record != r - m->record || rows >= r->end ||
            rows >= node->start + node->n)
            continue;
        node->n = rows - node->start;
        s->dirty = 1;
    }
}

/* Does anybody but the segments from `first` on need rows or tokens from `keep` on? */
static int needed(const m_session *s, const m_trace *way, uint32_t first, uint64_t keep)
{
    if (others_hang(s, way->segment[first], way, first + 1))
        return 1;
    for (uint32_t i = first; i < way->n; i++)
        for (int32_t k = 0; way->segment[i]->record != M_NONE && k < M_NODES; k++) {
            const m_node *node = &s->node[k];
            if (node->used && node->valued && node->record == way->segment[i]->record && !is_on(way, first, node) &&
                node->start + node->n > keep)
                return 1;
        }
    return 0;
}

static void roll_back(model *m, m_session *s, const m_trace *way, uint32_t first, uint64_t keep)
{
    for (uint32_t i = first; i < way->n; i++) {
        if (way->segment[i]->record == M_NONE)
            continue;
        m_record *r = &m->record[way->segment[i]->record];
        r->end = r->end < keep ? r->end : keep;
        r->accepted = r->accepted < keep ? r->accepted : keep;
        r->told = r->told < keep ? r->told : keep;
        r->dirty = 1;
    }
    s->dirty = 1;
    for (uint32_t i = way->n; i-- > first;) {
        m_node *node = &s->node[way->segment[i] - s->node];
        if (node->start < keep)
            node->n = keep - node->start;
        else
            drop(m, s, (int32_t)(node - s->node));
    }
}

moor_status m_session_rollback(model *m, m_session *s, const char *key, uint32_t length, const int32_t *tokens,
                               uint64_t n_tokens, uint64_t least, uint64_t *kept, uint32_t *key_len)
{
    m_trace way;
    uint64_t keep = 0;
    uint32_t first = 0;
    moor_status status = way_to(s, key, length, &way);
    if (!status && !way.has_tokens)
        status = MOOR_E_STATE;
    if (status)
        return status;
    for (uint32_t i = 0, same = 1; i < way.n; i++)
        for (uint64_t t = 0; same && t < way.segment[i]->n; t++) {
            same = keep < n_tokens && tokens[keep] == way.segment[i]->token[t];
            keep += same;
        }
    if (keep < way.n_tokens && keep < least)
        return MOOR_E_RANGE;
    while (first < way.n && way.segment[first]->start + way.segment[first]->n <= keep)
        first++;
    if (first < way.n && needed(s, &way, first, keep))
        return MOOR_E_STATE;
    *kept = keep;
    *key_len = 0;
    for (uint32_t i = 0; i < way.n; i++)
        if (way.segment[i]->start < keep)
            *key_len = way.segment[i]->length;
    if (first < way.n)
        roll_back(m, s, &way, first, keep);
    return MOOR_OK;
}
