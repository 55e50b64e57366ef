/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <string.h>

#include "error.h"
#include "heap.h"
#include "records.h"
#include "view.h"

#define ULL(x) ((unsigned long long)(x))

void moor_trace_free(void *anything)
{
    moor_heap_free(anything);
}

/* ---- search and keys -------------------------------------------------------------------------------------------- */

static moor_status found_new(const moor_trie_node *node, moor_trace_found **out)
{
    const moor_trace_value *value = node->value;
    const moor_record_slot *record = value->record;
    uint32_t n = value->room ? (uint32_t)value->length : 0, id_len = record ? record->id_len : 0;
    moor_trace_found *found = moor_heap_alloc(sizeof(*found) + n * sizeof(int32_t) + id_len + 1);
    if (!found)
        return moor_fail(MOOR_E_NOMEM, "session %s: no memory for %u tokens", value->session->id, n);
    int32_t *tokens = (int32_t *)(void *)(found + 1);
    char *request = (char *)(tokens + n);
    *found = (moor_trace_found){.key_len = node->end,
                                .n_tokens = n,
                                .has_tokens = value->room != 0 || !value->length,
                                .request_len = id_len,
                                .start = value->start,
                                .length = value->length,
                                .handle = record ? moor_slot_handle(record) : 0,
                                .tokens = tokens,
                                .request = request};
    if (n)
        memcpy(tokens, value->tokens, n * sizeof(int32_t));
    if (record)
        memcpy(request, record->id, id_len); /* a session's record keeps its id and its slot */
    *out = found;
    return MOOR_OK;
}

moor_status moor_session_search(moor_records *records, const char *id, uint32_t id_len, const char *text,
                                uint32_t text_len, moor_trace_found **out)
{
    moor_sessions *sessions = records->sessions;
    moor_session *session;
    pthread_mutex_lock(&sessions->lock);
    moor_status status = moor_session_get(sessions, id, id_len, &session);
    if (!status) {
        const moor_trie_node *node = moor_trie_search(&session->trie, text, text_len);
        if (node)
            status = found_new(node, out);
        else
            *out = NULL;
    }
    pthread_mutex_unlock(&sessions->lock);
    return status;
}

/* The walk over the keys: what a key shares with the listed one before is the least that remained of it on the way. */
static uint64_t keys_walk(const moor_trie *trie, uint8_t *out, uint64_t *n)
{
    uint64_t size = 0;
    uint32_t shared = 0;
    *n = 0;
    for (const moor_trie_node *node = moor_trie_next(trie, NULL); node; node = moor_trie_next(trie, node)) {
        uint32_t parent = node->parent ? node->parent->end : 0;
        shared = parent < shared ? parent : shared;
        if (!node->value)
            continue;
        uint32_t head[2] = {shared, node->end - shared};
        if (out) {
            memcpy(out + size, head, sizeof(head));
            moor_trie_tail(node, shared, (char *)out + size + sizeof(head));
        }
        size += sizeof(head) + head[1];
        shared = node->end;
        ++*n;
    }
    return size;
}

moor_status moor_session_keys(moor_records *records, const char *id, uint32_t id_len, moor_trace_keys **out)
{
    moor_sessions *sessions = records->sessions;
    moor_session *session;
    pthread_mutex_lock(&sessions->lock);
    moor_status status = moor_session_get(sessions, id, id_len, &session);
    if (!status) {
        uint64_t n, size = keys_walk(&session->trie, NULL, &n);
        moor_trace_keys *keys = moor_heap_alloc(sizeof(*keys) + size);
        if (keys) {
            uint8_t *data = (uint8_t *)(keys + 1);
            *keys = (moor_trace_keys){.n = n, .size = size, .data = data};
            keys_walk(&session->trie, data, &n);
            *out = keys;
        } else {
            status = moor_fail(MOOR_E_NOMEM, "session %s: no memory for %llu keys", session->id, ULL(n));
        }
    }
    pthread_mutex_unlock(&sessions->lock);
    return status;
}

/* ---- export ----------------------------------------------------------------------------------------------------- */

/* The values on the way from the root to a key, shallowest first. One allocation. */
typedef struct way {
    uint32_t n;
    moor_trace_value *value[];
} way;

static moor_status way_to(moor_session *session, const char *key, uint32_t key_len, way **out)
{
    const moor_trie_node *end = moor_trie_find(&session->trie, key, key_len);
    uint32_t n = 0;
    if (!end)
        return moor_fail(MOOR_E_NOT_FOUND, "session %s has no key \"%.*s\"%s", session->id,
                         (int)(key_len > 96 ? 96 : key_len), key, key_len > 96 ? "…" : "");
    for (const moor_trie_node *node = end; node; node = node->parent)
        n += node->value != NULL;
    way *w = moor_heap_alloc(sizeof(*w) + n * sizeof(w->value[0]));
    if (!w)
        return moor_fail(MOOR_E_NOMEM, "session %s: no memory for a trace of %u segments", session->id, n);
    w->n = n;
    for (const moor_trie_node *node = end; node; node = node->parent)
        if (node->value)
            w->value[--n] = node->value;
    *out = w;
    return MOOR_OK;
}

/* Segments must follow each other from 0 on, without a hole. */
static moor_status check_way(const moor_session *session, const way *w, uint64_t *tokens)
{
    uint64_t next = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        const moor_trace_value *value = w->value[i];
        if (value->start != next)
            return moor_fail(MOOR_E_INCOMPLETE,
                             "session %s: the segment of the key of %u bytes begins at token %llu, what comes before "
                             "it ends at %llu: tokens %llu to %llu are %s",
                             session->id, value->node->end, ULL(value->start), ULL(next),
                             ULL(value->start < next ? value->start : next),
                             ULL(value->start < next ? next : value->start),
                             value->start < next ? "there twice" : "missing");
        next += value->length;
    }
    *tokens = next;
    return MOOR_OK;
}

/* Which rows come from which record: each segment's from its own; what it lacks (the last sampled token, S1.9; all, without a record) from the
 * next record of the trace, which covers everything before it. Under the store's lock. parts: room for w->n. */
static moor_status parts_of(const moor_session *session, const way *w, uint64_t tokens, moor_trace *trace,
                            moor_record_slot **record)
{
    uint64_t covered = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        const moor_trace_value *value = w->value[i];
        uint64_t end = value->start + value->length;
        if (!value->record)
            continue;
        uint64_t rows = value->record->rows.end;
        if (rows + 1 < end)
            return moor_fail(MOOR_E_INCOMPLETE,
                             "session %s: request %s has %llu rows, its segment ends at token %llu: rows %llu to %llu "
                             "are missing",
                             session->id, value->record->id, ULL(rows), ULL(end), ULL(rows), ULL(end - 1));
        uint64_t to = rows < end ? rows : end;
        if (to <= covered)
            continue;
        if (n && record[n - 1] == value->record) {
            trace->parts[n - 1].to = to;
        } else {
            record[n] = value->record;
            trace->parts[n++] = (moor_trace_part){.from = covered, .to = to};
        }
        covered = to;
    }
    int any = 0;
    for (uint32_t i = 0; i < w->n; i++)
        any |= w->value[i]->record != NULL;
    if (any && covered + 1 < tokens)
        return moor_fail(MOOR_E_INCOMPLETE, "session %s: rows %llu to %llu are missing: no record behind token %llu",
                         session->id, ULL(covered), ULL(tokens - 1), ULL(covered));
    trace->n_parts = n;
    trace->rows = covered;
    return MOOR_OK;
}

static moor_status open_parts(moor_records *records, uint64_t client, moor_trace *trace, moor_record_slot **record)
{
    uint32_t done = 0;
    moor_status status = MOOR_OK;
    for (; !status && done < trace->n_parts; done += !status)
        status = moor_view_open(records, client, record[done], 0, trace->parts[done].to, &trace->parts[done].view);
    for (uint32_t i = 0; status && i < done; i++) {
        moor_view_close(records, client, trace->parts[i].view->handle);
        moor_view_free(trace->parts[i].view);
    }
    return status;
}

static void fill_trace(moor_trace *trace, const way *w, uint64_t tokens)
{
    trace->n_segments = w->n;
    trace->n_tokens = tokens;
    trace->has_tokens = 1;
    for (uint32_t i = 0; i < w->n; i++) {
        const moor_trace_value *value = w->value[i];
        trace->segments[i] = (moor_trace_segment){.start = value->start,
                                                  .length = value->length,
                                                  .key_len = value->node->end,
                                                  .handle = value->record ? moor_slot_handle(value->record) : 0};
        trace->has_tokens &= value->room != 0 || !value->length;
    }
    for (uint32_t i = 0; i < w->n && trace->has_tokens; i++)
        if (w->value[i]->length)
            memcpy(trace->tokens + w->value[i]->start, w->value[i]->tokens, w->value[i]->length * sizeof(int32_t));
}

/* Tokens that the trace needs room for. */
static uint64_t known_tokens(const way *w, uint64_t tokens)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (!w->value[i]->room && w->value[i]->length)
            return 0;
    return tokens;
}

static moor_status export(moor_records *records, uint64_t client, moor_session *session, const way *w, moor_trace **out)
{
    uint64_t tokens = 0;
    moor_status status = check_way(session, w, &tokens);
    if (status)
        return status;
    size_t parts = w->n * sizeof(moor_trace_part), segments = w->n * sizeof(moor_trace_segment);
    size_t rest = known_tokens(w, tokens) * sizeof(int32_t), records_size = w->n * sizeof(moor_record_slot *);
    moor_trace *trace = moor_heap_alloc(sizeof(*trace) + parts + segments + records_size + rest);
    if (!trace)
        return moor_fail(MOOR_E_NOMEM, "session %s: no memory for a trace of %llu tokens", session->id, ULL(tokens));
    trace->parts = (moor_trace_part *)(void *)(trace + 1);
    trace->segments = (moor_trace_segment *)(void *)(trace->parts + w->n);
    moor_record_slot **record = (moor_record_slot **)(void *)(trace->segments + w->n);
    trace->tokens = (int32_t *)(void *)(record + w->n);
    moor_records_lock(records);
    status = parts_of(session, w, tokens, trace, record);
    if (!status)
        status = open_parts(records, client, trace, record);
    moor_records_unlock(records);
    if (status) {
        moor_heap_free(trace);
        return status;
    }
    fill_trace(trace, w, tokens);
    *out = trace;
    return MOOR_OK;
}

moor_status moor_session_export(moor_records *records, uint64_t client, const char *id, uint32_t id_len,
                                const char *key, uint32_t key_len, moor_trace **out)
{
    moor_sessions *sessions = records->sessions;
    moor_session *session;
    way *w = NULL;
    pthread_mutex_lock(&sessions->lock);
    moor_status status = moor_session_get(sessions, id, id_len, &session);
    if (!status)
        status = way_to(session, key, key_len, &w);
    if (!status)
        status = export(records, client, session, w, out);
    pthread_mutex_unlock(&sessions->lock);
    moor_heap_free(w);
    return status;
}

void moor_trace_close(moor_records *records, uint64_t client, const moor_trace *trace)
{
    for (uint32_t i = 0; i < trace->n_parts; i++)
        (void)moor_records_close(records, client, trace->parts[i].view->handle);
}

/* ---- cuts ------------------------------------------------------------------------------------------------------- */

/* 1: a value below the node, itself excepted, is none of those from w->value[from] on. */
static int others_below(const moor_session *session, const moor_trie_node *top, const way *w, uint32_t from)
{
    uint32_t at = from;
    const moor_trie_node *behind = moor_trie_behind(top);
    for (const moor_trie_node *node = moor_trie_next(&session->trie, top); node != behind;
         node = moor_trie_next(&session->trie, node)) {
        if (!node->value)
            continue;
        while (w && at < w->n && w->value[at]->node->end < node->end)
            at++;
        if (!w || at >= w->n || w->value[at] != node->value)
            return 1;
    }
    return 0;
}

/* 1: the cut of `rows` leaves all tokens of the value. */
static int untouched(const moor_trace_value *value, uint64_t rows)
{
    uint64_t before = value->record->rows.end, end = value->start + value->length;
    return rows >= before || rows >= end;
}

moor_status moor_trace_may_cut(moor_record_slot *record, uint64_t rows)
{
    for (const moor_trace_value *value = record->places; value; value = value->next) {
        if (untouched(value, rows))
            continue;
        if (rows <= value->start)
            return moor_fail(MOOR_E_STATE,
                             "request %s: %llu rows would leave nothing of tokens %llu to %llu of session %s: roll the "
                             "session back",
                             record->id, ULL(rows), ULL(value->start), ULL(value->start + value->length),
                             value->session->id);
        if (others_below(value->session, value->node, NULL, 0))
            return moor_fail(MOOR_E_STATE, "request %s: keys of session %s go on behind its %llu tokens", record->id,
                             value->session->id, ULL(value->start + value->length));
    }
    return MOOR_OK;
}

void moor_trace_cut(moor_record_slot *record, uint64_t rows, uint64_t rows_before)
{
    for (moor_trace_value *value = record->places; value; value = value->next)
        if (rows < rows_before && rows < value->start + value->length)
            value->length = rows > value->start ? rows - value->start : 0;
}

/* How many tokens of the trace are those given. */
static moor_status equal_tokens(const moor_session *session, const way *w, const int32_t *tokens, uint64_t n,
                                uint64_t *equal)
{
    uint64_t at = 0;
    int same = 1;
    for (uint32_t i = 0; i < w->n; i++) {
        const moor_trace_value *value = w->value[i];
        if (!value->room && value->length)
            return moor_fail(MOOR_E_STATE, "session %s: the tokens %llu to %llu are not known", session->id,
                             ULL(value->start), ULL(value->start + value->length));
        for (uint64_t t = 0; t < value->length && same; t++) {
            same = at < n && tokens[at] == value->tokens[t];
            at += same;
        }
    }
    *equal = at;
    return MOOR_OK;
}

/* Nobody but what goes needs rows or tokens from `keep` on. Makes room for the cut. Both locks are held. */
static moor_status may_roll_back(const moor_session *session, const way *w, uint32_t first, uint64_t keep)
{
    if (others_below(session, w->value[first]->node, w, first + 1))
        return moor_fail(MOOR_E_STATE, "session %s: other keys go on behind token %llu", session->id, ULL(keep));
    for (uint32_t i = first; i < w->n; i++) {
        moor_record_slot *record = w->value[i]->record;
        if (!record)
            continue;
        for (const moor_trace_value *place = record->places; place; place = place->next) {
            int goes = 0;
            for (uint32_t j = first; j < w->n && !goes; j++)
                goes = w->value[j] == place;
            if (!goes && place->start + place->length > keep)
                return moor_fail(MOOR_E_STATE, "session %s: request %s is also the key of %u bytes, up to token %llu",
                                 session->id, record->id, place->node->end, ULL(place->start + place->length));
        }
        if (record->in_step)
            return moor_fail(MOOR_E_STATE, "request %s: rolled back while a step records it", record->id);
        moor_status status = moor_record_can_cut(record);
        if (status)
            return status;
    }
    return MOOR_OK;
}

static moor_status roll_back(moor_records *records, moor_session *session, const way *w, uint64_t keep)
{
    uint32_t first = 0;
    while (first < w->n && w->value[first]->start + w->value[first]->length <= keep)
        first++;
    if (first == w->n)
        return MOOR_OK;
    moor_records_lock(records);
    moor_status status = may_roll_back(session, w, first, keep);
    for (uint32_t i = first; !status && i < w->n; i++) {
        moor_record_slot *record = w->value[i]->record;
        if (record && record->rows.end > keep)
            moor_record_cut(records, record, keep);
    }
    moor_records_unlock(records);
    if (status)
        return status;
    if (w->value[first]->start < keep) {
        w->value[first]->length = keep - w->value[first]->start;
        first++;
    }
    for (uint32_t i = w->n; i-- > first;)
        moor_session_drop(records, moor_trie_release(&session->trie, w->value[i]->node));
    return MOOR_OK;
}

moor_status moor_session_rollback(moor_records *records, const char *id, uint32_t id_len, const char *key,
                                  uint32_t key_len, const int32_t *tokens, uint64_t n_tokens, uint64_t min_tokens,
                                  moor_rollback *out)
{
    moor_sessions *sessions = records->sessions;
    moor_session *session;
    way *w = NULL;
    uint64_t total = 0, keep = 0;
    uint32_t left = 0;
    pthread_mutex_lock(&sessions->lock);
    moor_status status = moor_session_get(sessions, id, id_len, &session);
    if (!status)
        status = way_to(session, key, key_len, &w);
    if (!status)
        status = check_way(session, w, &total);
    if (!status)
        status = equal_tokens(session, w, tokens, n_tokens, &keep);
    if (!status && keep < total && keep < min_tokens)
        status = moor_fail(MOOR_E_RANGE,
                           "session %s: the tokens differ from %llu on, allowed are cuts to %llu to %llu of its %llu",
                           session->id, ULL(keep), ULL(min_tokens), ULL(total), ULL(total));
    if (!status) { /* while the values are all there */
        for (uint32_t i = 0; i < w->n; i++)
            left = w->value[i]->start < keep ? w->value[i]->node->end : left;
        status = roll_back(records, session, w, keep);
    }
    if (!status)
        *out = (moor_rollback){.kept = keep, .key_len = left};
    pthread_mutex_unlock(&sessions->lock);
    moor_heap_free(w);
    return status;
}
