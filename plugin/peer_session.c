/* SPDX-License-Identifier: Apache-2.0 */
#include "peer_session.h"

#include <stdlib.h>
#include <string.h>

#include "peer_reply.h"

/* A request with its parts. `tokens` is a copy: on the wire they are not aligned. */
struct request {
    moor_wire_session head;
    int32_t *tokens;
    const char *id, *key;
};

static moor_status take(moor_wire_reader *reader, struct request *request)
{
    size_t size = reader->left;
    const void *tokens = NULL;
    request->tokens = NULL;
    if (!moor_wire_get(reader, &request->head, sizeof(request->head)))
        return moor_fail(MOOR_E_CORRUPT, "a request about a session of %zu bytes", size);
    const moor_wire_session *head = &request->head;
    uint64_t bytes = (uint64_t)head->n_tokens * sizeof(int32_t) + head->id_len + head->key_len;
    if (bytes != reader->left || (head->n_tokens && !(head->flags & MOOR_WIRE_TOKENS)))
        return moor_fail(MOOR_E_CORRUPT, "a request about a session of %zu bytes: %u tokens, an id of %u, a key of %u",
                         size, head->n_tokens, head->id_len, head->key_len);
    tokens = moor_wire_take(reader, head->n_tokens * sizeof(int32_t));
    request->id = moor_wire_take(reader, head->id_len);
    request->key = moor_wire_take(reader, head->key_len);
    if (!(head->flags & MOOR_WIRE_TOKENS))
        return MOOR_OK;
    request->tokens = malloc(head->n_tokens * sizeof(int32_t) + 1);
    if (!request->tokens)
        return moor_fail(MOOR_E_NOMEM, "no memory for %u tokens", head->n_tokens);
    memcpy(request->tokens, tokens, head->n_tokens * sizeof(int32_t));
    return MOOR_OK;
}

static moor_status insert(moor_records *records, uint64_t client, const struct request *r)
{
    moor_trace_in in = {.handle = r->head.handle,
                        .start = r->head.start,
                        .length = r->head.length,
                        .tokens = r->tokens,
                        .n_tokens = r->head.n_tokens,
                        .create = (r->head.flags & MOOR_WIRE_CREATE) != 0};
    return moor_session_insert(records, client, r->id, r->head.id_len, r->key, r->head.key_len, &in);
}

static moor_status search(moor_records *records, const struct request *r, moor_wire_buffer *payload)
{
    moor_trace_found *found;
    moor_status status = moor_session_search(records, r->id, r->head.id_len, r->key, r->head.key_len, &found);
    if (status || !found)
        return status;
    moor_wire_found head = {.handle = found->handle,
                            .start = found->start,
                            .length = found->length,
                            .key_len = found->key_len,
                            .n_tokens = found->n_tokens,
                            .request_len = found->request_len,
                            .flags = found->has_tokens ? MOOR_WIRE_TOKENS : 0};
    moor_wire_put(payload, &head, sizeof(head));
    moor_wire_put(payload, found->tokens, found->n_tokens * sizeof(int32_t));
    moor_wire_put(payload, found->request, found->request_len);
    moor_trace_free(found);
    return MOOR_OK;
}

static moor_status keys(moor_records *records, const struct request *r, moor_wire_buffer *payload)
{
    moor_trace_keys *list;
    moor_status status = moor_session_keys(records, r->id, r->head.id_len, &list);
    if (status)
        return status;
    moor_wire_keys head = {.n = list->n, .size = list->size};
    moor_wire_put(payload, &head, sizeof(head));
    moor_wire_put(payload, list->data, list->size);
    moor_trace_free(list);
    return MOOR_OK;
}

static moor_status put_trace(moor_wire_buffer *payload, const moor_trace *trace, moor_state *state)
{
    moor_wire_trace head = {.n_tokens = trace->n_tokens,
                            .rows = trace->rows,
                            .n_segments = trace->n_segments,
                            .n_parts = trace->n_parts,
                            .flags = trace->has_tokens ? MOOR_WIRE_TOKENS : 0};
    moor_wire_put(payload, &head, sizeof(head));
    for (uint32_t i = 0; i < trace->n_segments; i++) {
        const moor_trace_segment *s = &trace->segments[i];
        moor_wire_trace_segment wire = {s->start, s->length, s->handle, s->key_len, 0};
        moor_wire_put(payload, &wire, sizeof(wire));
    }
    for (uint32_t i = 0; i < trace->n_parts; i++) {
        moor_wire_trace_part wire = {trace->parts[i].from, trace->parts[i].to};
        moor_wire_put(payload, &wire, sizeof(wire));
    }
    if (trace->has_tokens)
        moor_wire_put(payload, trace->tokens, trace->n_tokens * sizeof(int32_t));
    moor_wire_pad(payload);
    moor_view **views = malloc((trace->n_parts + 1u) * sizeof(moor_view *));
    if (!views)
        return moor_fail(MOOR_E_NOMEM, "no memory for %u parts of a trace", trace->n_parts);
    for (uint32_t i = 0; i < trace->n_parts; i++)
        views[i] = trace->parts[i].view;
    moor_peer_put_views(payload, views, trace->n_parts, state);
    free(views);
    return MOOR_OK;
}

static moor_status export(const moor_peer_home *home, uint64_t client, const struct request *r,
                          moor_wire_buffer *payload, moor_trace **trace)
{
    moor_records *records = home->store->records;
    moor_status status = moor_session_export(records, client, r->id, r->head.id_len, r->key, r->head.key_len, trace);
    if (status)
        return status;
    status = put_trace(payload, *trace, home->store->process->state);
    if (status) {
        moor_trace_close(records, client, *trace);
        moor_peer_trace_free(*trace);
        *trace = NULL;
    }
    return status;
}

static moor_status rollback(moor_records *records, const struct request *r, moor_wire_buffer *payload)
{
    moor_rollback done;
    moor_status status = moor_session_rollback(records, r->id, r->head.id_len, r->key, r->head.key_len, r->tokens,
                                               r->head.n_tokens, r->head.start, &done);
    if (status)
        return status;
    moor_wire_rollback wire = {.kept = done.kept, .key_len = done.key_len};
    moor_wire_put(payload, &wire, sizeof(wire));
    return MOOR_OK;
}

static void put_state(moor_records *records, const struct request *r, moor_wire_buffer *payload)
{
    moor_wire_session_state wire = {0};
    moor_session_state(records, r->id, r->head.id_len, &wire.state, &wire.values);
    moor_wire_put(payload, &wire, sizeof(wire));
}

static moor_status answer(const moor_peer_home *home, uint64_t client, uint16_t type, const struct request *r,
                          moor_wire_buffer *payload, moor_trace **trace)
{
    moor_records *records = home->store->records;
    switch (type) {
    case MOOR_WIRE_SESSION_START:
        return moor_session_start(records, client, r->id, r->head.id_len, (r->head.flags & MOOR_WIRE_KEEP) != 0);
    case MOOR_WIRE_SESSION_STATE:
        put_state(records, r, payload);
        return MOOR_OK;
    case MOOR_WIRE_SESSION_INSERT:
        return insert(records, client, r);
    case MOOR_WIRE_SESSION_SEARCH:
        return search(records, r, payload);
    case MOOR_WIRE_SESSION_KEYS:
        return keys(records, r, payload);
    case MOOR_WIRE_SESSION_EXPORT:
        return export(home, client, r, payload, trace);
    case MOOR_WIRE_SESSION_RELEASE:
        if (r->head.flags & MOOR_WIRE_ONE_KEY)
            return moor_session_release_key(records, r->id, r->head.id_len, r->key, r->head.key_len);
        return moor_session_release(records, r->id, r->head.id_len);
    default:
        return rollback(records, r, payload);
    }
}

moor_status moor_peer_session(const moor_peer_home *home, uint64_t client, uint16_t type, moor_wire_reader *reader,
                              moor_wire_buffer *payload, moor_trace **trace)
{
    struct request request;
    *trace = NULL;
    moor_status status = take(reader, &request);
    if (!status)
        status = answer(home, client, type, &request, payload, trace);
    free(request.tokens);
    return status;
}

void moor_peer_trace_free(moor_trace *trace)
{
    for (uint32_t i = 0; i < trace->n_parts; i++)
        moor_view_free(trace->parts[i].view);
    moor_trace_free(trace);
}
