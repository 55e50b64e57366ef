/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <stdlib.h>
#include <string.h>

#include "wire.h"

#define ULL(x) ((unsigned long long)(x))

enum { NEVER = 0, LIVE = 1, GONE = 2 }; /* moor_wire_session_state */

/* A request, and the stores it may go to. */
struct asking {
    moor_client *client;
    const char *id, *key;
    uint32_t id_len, key_len;
    const int32_t *tokens;
    moor_wire_session head;
    int opens;          /* records, whose leases are the client's own connections' */
    moor_client *asked; /* whose connections these are */
    uint32_t n;
    moor_connection *connections[MOOR_CLIENT_STORES];
};

static void end(struct asking *a)
{
    moor_client_give(a->connections, a->n);
}

/* Checks what all of them have in common and takes the stores; `end` gives them back. */
static moor_status begin(struct asking *a, const char *what)
{
    moor_status status = moor_client_check(a->client, what);
    if (!status && (!a->id || !a->id_len))
        status = moor_fail(MOOR_E_INVALID, "%s: the session's id is empty", what);
    if (!status && ((a->key_len && !a->key) || (a->head.n_tokens && !a->tokens)))
        status = moor_fail(MOOR_E_INVALID, "%s: key or tokens are NULL", what);
    moor_client *asked = a->client;
    if (!status && !a->opens)
        status = moor_client_for_sessions(a->client, &asked);
    if (!status)
        status = moor_client_take(asked, a->connections, &a->n);
    a->asked = asked;
    if (!status && !a->n && !(status = moor_client_unanswered(asked, what)))
        status = moor_fail(MOOR_E_NOT_FOUND, "instance \"%s\" has no store: no session %.*s",
                           moor_client_instance(a->client), (int)a->id_len, a->id);
    return status;
}

static moor_status call(const struct asking *a, uint32_t store, uint16_t type, void **payload, size_t *n)
{
    moor_wire_buffer body = {0};
    moor_wire_session head = a->head;
    head.id_len = a->id_len;
    head.key_len = a->key_len;
    moor_wire_put(&body, a->tokens, (size_t)head.n_tokens * sizeof(int32_t));
    moor_wire_put(&body, a->id, a->id_len);
    moor_wire_put(&body, a->key, a->key_len);
    if (body.failed) {
        moor_wire_buffer_free(&body);
        return moor_fail(MOOR_E_NOMEM, "session %.*s: no memory for a request", (int)a->id_len, a->id);
    }
    moor_status status = moor_connection_call(a->connections[store], type, &head, sizeof(head), body.data, body.used,
                                              moor_now_ns() + moor_client_patience_ns(a->client), payload, n);
    moor_wire_buffer_free(&body);
    return status;
}

/* The same without anything in the reply. */
static moor_status tell(const struct asking *a, uint32_t store, uint16_t type)
{
    void *payload = NULL;
    size_t n;
    moor_status status = call(a, store, type, &payload, &n);
    free(payload);
    return status;
}

static moor_status corrupt(const struct asking *a, const char *what)
{
    return moor_fail(MOOR_E_CORRUPT, "session %.*s: the store answered with %s", (int)a->id_len, a->id, what);
}

/* ---- which store ------------------------------------------------------------------------------------------------ */

/* What all stores know of the session; indices, -1: none. */
struct known {
    int holds, live, gone; /* has keys; lives; was released */
};

static moor_status look(const struct asking *a, struct known *out)
{
    *out = (struct known){-1, -1, -1};
    for (uint32_t i = 0; i < a->n; i++) {
        struct asking bare = *a;
        moor_wire_session_state state;
        void *payload = NULL;
        size_t n;
        bare.key_len = 0;
        bare.head = (moor_wire_session){.handle = 0};
        moor_status status = call(&bare, i, MOOR_WIRE_SESSION_STATE, &payload, &n);
        if (!status && n != sizeof(state))
            status = corrupt(a, "a state of another size");
        if (!status)
            memcpy(&state, payload, sizeof(state));
        free(payload);
        if (status == MOOR_E_CLOSED)
            continue; /* a replica that just went */
        if (status)
            return status;
        if (state.state == LIVE && state.values && out->holds >= 0)
            return moor_fail(MOOR_E_AMBIGUOUS, "session %.*s has keys in stores %u and %u", (int)a->id_len, a->id,
                             moor_connection_shape(a->connections[out->holds])->store_index,
                             moor_connection_shape(a->connections[i])->store_index);
        int *place = state.state == LIVE ? (state.values ? &out->holds : &out->live) : &out->gone;
        if (state.state != NEVER && *place < 0)
            *place = (int)i;
    }
    return out->holds < 0 ? moor_client_unanswered(a->asked, "session")
                          : MOOR_OK; /* which may be the one that holds it */
}

static int only_one(const struct asking *a)
{
    return a->n == 1 && !moor_client_unanswered(a->asked, "session");
}

/* The store a reader asks: the one that holds it, else one that knows it. */
static moor_status find(const struct asking *a, uint32_t *store)
{
    struct known known;
    *store = 0;
    if (only_one(a))
        return MOOR_OK;
    moor_status status = look(a, &known);
    int best = known.holds >= 0 ? known.holds : known.live >= 0 ? known.live : known.gone;
    *store = best > 0 ? (uint32_t)best : 0;
    return status;
}

/* One request to the store that has the session. */
static moor_status ask(struct asking *a, const char *what, uint16_t type, uint32_t *store, void **payload, size_t *n)
{
    moor_status status = begin(a, what);
    if (status)
        return status;
    status = find(a, store);
    if (!status)
        status = call(a, *store, type, payload, n);
    if (status)
        end(a);
    return status;
}

static int same_store(const moor_shape *a, const moor_shape *b)
{
    return a->store_index == b->store_index && a->nonce == b->nonce;
}

/* The store of the record, if the session may live there. */
static moor_status place(struct asking *a, const moor_record *record, uint32_t *store)
{
    struct known known = {-1, -1, -1};
    const moor_shape *home = NULL;
    moor_status status = record ? moor_record_home(record, &home, &a->head.handle) : MOOR_OK;
    uint32_t at = 0;
    while (!status && home && at < a->n && !same_store(moor_connection_shape(a->connections[at]), home))
        at++;
    if (!status && home && at == a->n)
        status = moor_fail(MOOR_E_INVALID, "session %.*s: the record is of another server, or of a store that is gone",
                           (int)a->id_len, a->id);
    int alone = only_one(a);
    if (!status && !alone)
        status = look(a, &known);
    *store = at;
    if (status || alone)
        return status;
    if (!home)
        *store = (uint32_t)(known.holds >= 0 ? known.holds : known.live >= 0 ? known.live : 0);
    if (known.holds >= 0 && (uint32_t)known.holds != *store)
        return moor_fail(MOOR_E_STATE, "session %.*s is in store %u, the record in store %u: it is in one",
                         (int)a->id_len, a->id, moor_connection_shape(a->connections[known.holds])->store_index,
                         moor_connection_shape(a->connections[*store])->store_index);
    if (known.holds < 0 && known.live < 0 && known.gone >= 0)
        *store = (uint32_t)known.gone; /* which says so */
    return MOOR_OK;
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

moor_status moor_client_session_start(moor_client *client, const char *id, uint32_t id_len, uint32_t flags)
{
    struct asking a = {.client = client, .id = id, .id_len = id_len};
    if (flags & ~(uint32_t)MOOR_SESSION_KEEP)
        return moor_fail(MOOR_E_INVALID, "session_start: flags %#x", flags);
    a.head.flags = flags & MOOR_SESSION_KEEP ? MOOR_WIRE_KEEP : 0;
    moor_status status = begin(&a, "session_start");
    if (status)
        return status;
    for (uint32_t i = 0; i < a.n && !status; i++)
        status = tell(&a, i, MOOR_WIRE_SESSION_START);
    end(&a);
    return status;
}

moor_status moor_client_session_insert(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                       uint32_t key_len, const moor_segment_args *args)
{
    struct asking a = {.client = client, .id = id, .id_len = id_len, .key = key, .key_len = key_len};
    moor_segment_args given = MOOR_SEGMENT_ARGS_INIT;
    uint32_t store;
    if (!args || args->size < 2 * sizeof(uint32_t))
        return moor_fail(MOOR_E_INVALID, "session_insert: args is NULL or its size is not set");
    memcpy(&given, args, args->size < sizeof(given) ? args->size : sizeof(given));
    if (given.n_tokens > MOOR_WIRE_REQUEST_LIMIT / sizeof(int32_t))
        return moor_fail(MOOR_E_INVALID, "session %.*s: %llu tokens in one segment", (int)id_len, id,
                         ULL(given.n_tokens));
    a.tokens = given.tokens;
    a.head = (moor_wire_session){.start = given.start,
                                 .length = given.length,
                                 .n_tokens = (uint32_t)given.n_tokens,
                                 .flags = MOOR_WIRE_CREATE | (given.tokens ? MOOR_WIRE_TOKENS : 0)};
    moor_status status = begin(&a, "session_insert");
    if (status)
        return status;
    status = place(&a, given.record, &store);
    if (!status)
        status = tell(&a, store, MOOR_WIRE_SESSION_INSERT);
    end(&a);
    return status;
}

moor_status moor_client_session_release_key(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                            uint32_t key_len)
{
    struct asking a = {.client = client, .id = id, .id_len = id_len, .key = key, .key_len = key_len};
    void *payload = NULL;
    size_t n;
    uint32_t store;
    a.head.flags = MOOR_WIRE_ONE_KEY;
    moor_status status = ask(&a, "session_release_key", MOOR_WIRE_SESSION_RELEASE, &store, &payload, &n);
    if (status)
        return status;
    free(payload);
    end(&a);
    return MOOR_OK;
}

moor_status moor_client_session_release(moor_client *client, const char *id, uint32_t id_len)
{
    struct asking a = {.client = client, .id = id, .id_len = id_len};
    moor_status status = begin(&a, "session_release"), result = MOOR_E_NOT_FOUND;
    if (status)
        return status;
    for (uint32_t i = 0; i < a.n; i++) {
        status = tell(&a, i, MOOR_WIRE_SESSION_RELEASE);
        if (result == MOOR_E_NOT_FOUND || (status && status != MOOR_E_NOT_FOUND))
            result = status;
    }
    end(&a);
    if (result == MOOR_E_NOT_FOUND && moor_client_unanswered(a.asked, "session_release"))
        result = MOOR_E_TIMEOUT;
    return result;
}

moor_status moor_client_session_rollback(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                         uint32_t key_len, const int32_t *tokens, uint64_t n_tokens,
                                         uint64_t min_tokens, uint64_t *kept, uint32_t *key_left)
{
    struct asking a = {.client = client, .id = id, .id_len = id_len, .key = key, .key_len = key_len, .tokens = tokens};
    moor_wire_rollback done;
    void *payload = NULL;
    size_t n;
    uint32_t store;
    if (!kept || !key_left || !tokens || n_tokens > MOOR_WIRE_REQUEST_LIMIT / sizeof(int32_t))
        return moor_fail(MOOR_E_INVALID, "session_rollback: an output or the tokens are NULL, or %llu tokens",
                         ULL(n_tokens));
    a.head = (moor_wire_session){.start = min_tokens, .n_tokens = (uint32_t)n_tokens, .flags = MOOR_WIRE_TOKENS};
    moor_status status = ask(&a, "session_rollback", MOOR_WIRE_SESSION_ROLLBACK, &store, &payload, &n);
    if (status)
        return status;
    if (n == sizeof(done))
        memcpy(&done, payload, sizeof(done));
    if (n != sizeof(done) || done.key_len > key_len)
        status = corrupt(&a, "a rollback that does not add up");
    free(payload);
    end(&a);
    if (status)
        return status;
    *kept = done.kept;
    *key_left = done.key_len;
    return MOOR_OK;
}

/* ---- results ---------------------------------------------------------------------------------------------------- */

void moor_client_session_free(void *result)
{
    free(result);
}

static moor_status make_found(const struct asking *a, uint32_t store, const void *payload, size_t n,
                              moor_found_key **out)
{
    moor_wire_reader reader = {payload, n};
    moor_wire_found wire;
    *out = NULL;
    if (!n)
        return MOOR_OK;
    if (!moor_wire_get(&reader, &wire, sizeof(wire)) ||
        (uint64_t)wire.n_tokens * sizeof(int32_t) + wire.request_len != reader.left || wire.key_len > a->key_len ||
        !wire.key_len || (wire.n_tokens && wire.n_tokens != wire.length))
        return corrupt(a, "a key that does not add up");
    moor_found_key *found = malloc(sizeof(*found) + reader.left + 1);
    if (!found)
        return moor_fail(MOOR_E_NOMEM, "no memory for %u tokens", wire.n_tokens);
    int32_t *tokens = (int32_t *)(void *)(found + 1);
    char *request = (char *)(tokens + wire.n_tokens);
    *found = (moor_found_key){.size = sizeof(*found),
                              .version = 1,
                              .key_len = wire.key_len,
                              .has_tokens = (wire.flags & MOOR_WIRE_TOKENS) != 0,
                              .start = wire.start,
                              .length = wire.length,
                              .handle = wire.handle,
                              .tokens = tokens,
                              .n_tokens = wire.n_tokens,
                              .request_id = request,
                              .store_index = moor_connection_shape(a->connections[store])->store_index};
    moor_wire_get(&reader, tokens, wire.n_tokens * sizeof(int32_t));
    moor_wire_get(&reader, request, wire.request_len);
    request[wire.request_len] = 0;
    *out = found;
    return MOOR_OK;
}

moor_status moor_client_session_search(moor_client *client, const char *id, uint32_t id_len, const char *text,
                                       uint32_t text_len, moor_found_key **out)
{
    struct asking a = {.client = client, .id = id, .id_len = id_len, .key = text, .key_len = text_len};
    void *payload = NULL;
    size_t n;
    uint32_t store;
    if (!out)
        return moor_fail(MOOR_E_INVALID, "session_search: out is NULL");
    moor_status status = ask(&a, "session_search", MOOR_WIRE_SESSION_SEARCH, &store, &payload, &n);
    if (status)
        return status;
    moor_found_key *found;
    status = make_found(&a, store, payload, n, &found);
    free(payload);
    end(&a);
    if (!status)
        *out = found;
    return status;
}

/* Every key must lie inside of the data, and share no more than the one before it has. */
static int keys_fit(const uint8_t *data, uint64_t size, uint64_t n)
{
    moor_wire_reader reader = {data, size};
    uint64_t before = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t head[2];
        if (!moor_wire_get(&reader, head, sizeof(head)) || head[0] > before || !moor_wire_take(&reader, head[1]))
            return 0;
        before = (uint64_t)head[0] + head[1];
    }
    return !reader.left;
}

moor_status moor_client_session_keys(moor_client *client, const char *id, uint32_t id_len, moor_key_list **out)
{
    struct asking a = {.client = client, .id = id, .id_len = id_len};
    moor_wire_keys wire;
    void *payload = NULL;
    size_t n;
    uint32_t store;
    if (!out)
        return moor_fail(MOOR_E_INVALID, "session_keys: out is NULL");
    moor_status status = ask(&a, "session_keys", MOOR_WIRE_SESSION_KEYS, &store, &payload, &n);
    if (status)
        return status;
    moor_wire_reader reader = {payload, n};
    moor_key_list *list = NULL;
    if (!moor_wire_get(&reader, &wire, sizeof(wire)) || wire.size != reader.left ||
        !keys_fit(reader.at, wire.size, wire.n))
        status = corrupt(&a, "keys that do not add up");
    else if (!(list = malloc(sizeof(*list) + wire.size)))
        status = moor_fail(MOOR_E_NOMEM, "no memory for %llu keys", ULL(wire.n));
    if (list) {
        memcpy(list + 1, reader.at, wire.size);
        *list = (moor_key_list){.size = sizeof(*list),
                                .version = 1,
                                .n = wire.n,
                                .data_size = wire.size,
                                .data = (const uint8_t *)(list + 1)};
        *out = list;
    }
    free(payload);
    end(&a);
    return status;
}

/* An export, its parts still on the wire. */
struct exported {
    moor_wire_trace head;
    const unsigned char *segments, *parts, *tokens;
    uint64_t n_tokens; /* on the wire */
};

static int take_exported(moor_wire_reader *reader, struct exported *out)
{
    if (!moor_wire_get(reader, &out->head, sizeof(out->head)))
        return 0;
    out->n_tokens = out->head.flags & MOOR_WIRE_TOKENS ? out->head.n_tokens : 0;
    if (out->n_tokens > reader->left / sizeof(int32_t))
        return 0;
    out->segments = moor_wire_take(reader, (size_t)out->head.n_segments * sizeof(moor_wire_trace_segment));
    out->parts =
        out->segments ? moor_wire_take(reader, (size_t)out->head.n_parts * sizeof(moor_wire_trace_part)) : NULL;
    size_t bytes = (size_t)out->n_tokens * sizeof(int32_t);
    out->tokens = out->parts ? moor_wire_take(reader, bytes) : NULL;
    return out->tokens && moor_wire_take(reader, (8 - bytes % 8) % 8);
}

/* Parts must follow each other from row 0 to the last, each inside its record. */
static moor_status fill_exported(const struct asking *a, const struct exported *e, moor_record **records, uint32_t n,
                                 moor_exported *out)
{
    moor_trace_rows *parts = (moor_trace_rows *)(void *)(out + 1);
    moor_trace_key *keys = (moor_trace_key *)(void *)(parts + n);
    int32_t *tokens = (int32_t *)(void *)(keys + e->head.n_segments);
    uint64_t row = 0, token = 0;
    for (uint32_t i = 0; i < n; i++) {
        moor_wire_trace_part wire;
        moor_record_info info = MOOR_RECORD_INFO_INIT;
        memcpy(&wire, e->parts + i * sizeof(wire), sizeof(wire));
        if (moor_record_get_info(records[i], &info) || wire.from != row || wire.to <= row || wire.to > info.rows)
            return corrupt(a, "rows that do not follow each other");
        parts[i] = (moor_trace_rows){records[i], wire.from, wire.to};
        row = wire.to;
    }
    for (uint32_t i = 0; i < e->head.n_segments; i++) {
        moor_wire_trace_segment wire;
        memcpy(&wire, e->segments + i * sizeof(wire), sizeof(wire));
        if (wire.start != token || wire.length > e->head.n_tokens - token || wire.key_len > a->key_len)
            return corrupt(a, "segments that do not follow each other");
        keys[i] = (moor_trace_key){wire.start, wire.length, wire.handle, wire.key_len, 0};
        token += wire.length;
    }
    if (row != e->head.rows || token != e->head.n_tokens || row > token)
        return corrupt(a, "rows or tokens that do not add up");
    memcpy(tokens, e->tokens, (size_t)e->n_tokens * sizeof(int32_t));
    *out = (moor_exported){.size = sizeof(*out),
                           .version = 1,
                           .n_tokens = e->head.n_tokens,
                           .rows = e->head.rows,
                           .tokens = e->head.flags & MOOR_WIRE_TOKENS ? tokens : NULL,
                           .n_parts = n,
                           .n_keys = e->head.n_segments,
                           .parts = parts,
                           .keys = keys};
    return MOOR_OK;
}

int moor_client_exported_views(moor_wire_reader *reader)
{
    struct exported e = {0};
    return take_exported(reader, &e);
}

static moor_status make_exported(const struct asking *a, uint32_t store, const void *payload, size_t n,
                                 moor_exported **out)
{
    moor_wire_reader reader = {payload, n};
    struct exported e = {0};
    moor_record **records = NULL;
    uint32_t count = 0;
    if (!take_exported(&reader, &e))
        return corrupt(a, "a trace that ends too early");
    moor_status status = moor_records_from_reply(a->connections[store], reader.at, reader.left, &records, &count);
    if (status)
        return status;
    moor_exported *made = NULL;
    if (count != e.head.n_parts)
        status = corrupt(a, "another number of records than of parts");
    else if (!(made = malloc(sizeof(*made) + count * sizeof(moor_trace_rows) +
                             e.head.n_segments * sizeof(moor_trace_key) + (size_t)e.n_tokens * sizeof(int32_t) + 1)))
        status = moor_fail(MOOR_E_NOMEM, "no memory for a trace of %llu tokens", ULL(e.head.n_tokens));
    else
        status = fill_exported(a, &e, records, count, made);
    for (uint32_t i = 0; status && i < count; i++)
        moor_record_release(records[i]);
    free(records);
    if (status)
        free(made);
    else
        *out = made;
    return status;
}

moor_status moor_client_session_export(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                       uint32_t key_len, moor_exported **out)
{
    struct asking a = {.client = client, .id = id, .id_len = id_len, .key = key, .key_len = key_len, .opens = 1};
    void *payload = NULL;
    size_t n;
    uint32_t store;
    if (!out)
        return moor_fail(MOOR_E_INVALID, "session_export: out is NULL");
    moor_status status = ask(&a, "session_export", MOOR_WIRE_SESSION_EXPORT, &store, &payload, &n);
    if (status)
        return status;
    status = make_exported(&a, store, payload, n, out);
    free(payload);
    end(&a);
    return status;
}
