/* SPDX-License-Identifier: Apache-2.0 */
/* Requests by id: open, open_all, truncate; and by handle, which is how a ref is opened. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "deadline.h"
#include "stages.h"
#include "wire.h"

enum {
    ASK_MIN_MS = 1, /* how often several stores are asked again: from … to */
    ASK_MAX_MS = 10,
    SLICE_MS = 1000,            /* an open waits at a store at most this long before new stores are looked for, */
    INTERRUPTIBLE_SLICE_MS = 40 /* and so long by a thread that may be interrupted: then nothing is under way */
};

/* What is asked for: an id, and how. */
struct request {
    uint16_t type;
    const char *id;
    uint32_t id_len;
    moor_wire_open open;
};

/* A reply's records, of which there must be 1…most. */
static moor_status take_records(moor_connection *connection, const void *payload, size_t size, uint32_t most,
                                moor_record ***out, uint32_t *n)
{
    moor_record **records;
    uint32_t count;
    moor_status status = moor_records_from_reply(connection, payload, size, &records, &count);
    if (status)
        return status;
    if (count && count <= most) {
        *out = records;
        *n = count;
        return MOOR_OK;
    }
    moor_records_drop(records, count);
    return moor_fail(MOOR_E_CORRUPT, "store %u answered with %u records",
                     moor_connection_shape(connection)->store_index, count);
}

/* One store, waiting there up to timeout_ns. */
static moor_status ask(const moor_client *client, moor_connection *connection, const struct request *request,
                       uint64_t timeout_ns, moor_record ***records, uint32_t *n)
{
    moor_wire_open open = request->open;
    void *payload = NULL;
    size_t size;
    open.timeout_ns = timeout_ns;
    moor_status status =
        moor_connection_call(connection, request->type, &open, sizeof(open), request->id, request->id_len,
                             moor_now_ns() + timeout_ns + moor_client_patience_ns(client), &payload, &size);
    if (!status)
        status = take_records(connection, payload, size, request->type == MOOR_WIRE_OPEN ? 1 : UINT32_MAX, records, n);
    free(payload);
    return status;
}

struct found {
    moor_record **records;
    uint32_t n;
    moor_connection *waits; /* it knows the id, but has not sealed it; no reference of its own */
    moor_status status;     /* when nothing was found: the best reason */
    char text[MOOR_ERROR_TEXT];
};

static void found_drop(struct found *found)
{
    moor_records_drop(found->records, found->n);
    found->records = NULL;
    found->n = 0;
}

static void found_reason(struct found *found, moor_status status)
{
    found->status = status;
    snprintf(found->text, sizeof(found->text), "%s", moor_last_error());
}

/* Adds what one more store has. */
static moor_status found_add(struct found *found, moor_record **records, uint32_t n)
{
    if (!found->n) {
        free(found->records);
        found->records = records;
        found->n = n;
        return MOOR_OK;
    }
    moor_record **grown = realloc(found->records, (found->n + n + 1) * sizeof(*grown));
    if (!grown) {
        moor_records_drop(records, n);
        return moor_fail(MOOR_E_NOMEM, "no memory for %u records", found->n + n);
    }
    found->records = grown;
    memcpy(grown + found->n, records, n * sizeof(*grown));
    found->n += n;
    free(records);
    return MOOR_OK;
}

/* Asks every store once. wait_ns: how long the only store, or the one that has the request, is waited on. Anything but OK,
 * NOT_FOUND, TIMEOUT and CLOSED is final. */
static moor_status ask_all(const moor_client *client, moor_connection *const *connections, uint32_t n,
                           const struct request *request, uint64_t wait_ns, struct found *found)
{
    moor_status final = MOOR_OK;
    moor_connection *waits = found->waits;
    found->waits = NULL;
    found->status = MOOR_E_NOT_FOUND;
    if (n == 0)
        snprintf(found->text, sizeof(found->text), "request %.*s is not known: instance \"%s\" has no store yet",
                 (int)request->id_len, request->id, moor_client_instance(client));
    for (uint32_t i = 0; i < n && !final; i++) {
        moor_record **records;
        uint32_t count;
        int may_wait = n == 1 || connections[i] == waits;
        moor_status status = ask(client, connections[i], request, may_wait ? wait_ns : 0, &records, &count);
        if (status == MOOR_OK) {
            final = found_add(found, records, count);
        } else if (status == MOOR_E_TIMEOUT) {
            found->waits = connections[i];
            found_reason(found, status);
        } else if (status == MOOR_E_NOT_FOUND || status == MOOR_E_CLOSED) {
            if (found->status == MOOR_E_NOT_FOUND)
                found_reason(found, status);
        } else {
            final = status;
        }
    }
    if (final || !found->n)
        return final ? final : found->status;
    if (found->waits) { /* what one store has sealed is not all that the id means, nor the only one */
        found_drop(found);
        return found->status;
    }
    final = moor_stages_join(found->records, &found->n);
    if (final == MOOR_E_TIMEOUT) { /* not yet of every stage */
        found_drop(found);
        found_reason(found, final);
    }
    return final;
}

/* Until it is found, refused, or the deadline passed. */
static moor_status find(moor_client *client, const struct request *request, double timeout, struct found *found)
{
    uint64_t deadline_ns = moor_deadline_of(timeout);
    long pause_ms = ASK_MIN_MS;
    for (;;) {
        moor_connection *connections[MOOR_CLIENT_STORES];
        uint32_t n;
        uint64_t now_ns = moor_now_ns(), wait_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        moor_status status = moor_client_take(client, connections, &n);
        char why[192];
        if (!status && !n && moor_client_recording_off(client, why, sizeof(why)))
            status =
                moor_fail(MOOR_E_UNSUPPORTED, "instance \"%s\" records nothing: %s", moor_client_instance(client), why);
        if (status)
            return status;
        uint64_t slice_ns = (moor_interruptible() ? INTERRUPTIBLE_SLICE_MS : SLICE_MS) * 1000000ull;
        if (wait_ns > slice_ns)
            wait_ns = slice_ns;
        status = ask_all(client, connections, n, request, wait_ns, found);
        moor_client_give(connections, n);
        if (!status && request->type == MOOR_WIRE_OPEN_ALL && moor_client_unanswered(client, "open_all")) {
            found_drop(found);
            status = MOOR_E_TIMEOUT; /* they may not be all */
            snprintf(found->text, sizeof(found->text), "request %.*s", (int)request->id_len, request->id);
        }
        if (status != MOOR_E_TIMEOUT && status != MOOR_E_NOT_FOUND && status != MOOR_E_CLOSED) {
            if (status)
                found_drop(found);
            return status;
        }
        if (moor_now_ns() >= deadline_ns)
            return moor_client_unanswered(client, found->text) ? MOOR_E_TIMEOUT : moor_fail(status, "%s", found->text);
        if (moor_interrupted_before(slice_ns))
            return moor_fail(MOOR_E_INTERRUPTED, "open: interrupted while it waited: %s", found->text);
        if (!found->waits) {
            moor_sleep_ms(pause_ms, deadline_ns);
            pause_ms = pause_ms * 2 > ASK_MAX_MS ? ASK_MAX_MS : pause_ms * 2;
        }
    }
}

static moor_status check_open(const moor_client *client, const char *what, const char *id, uint32_t id_len,
                              const void *out)
{
    moor_status status = moor_client_check(client, what);
    if (!status && (!out || !id || !id_len))
        status = moor_fail(MOOR_E_INVALID, "%s: out or id is NULL, or id is empty", what);
    if (!status && id_len > MOOR_WIRE_LIMIT - sizeof(moor_wire_header) - sizeof(moor_wire_open))
        status = moor_fail(MOOR_E_INVALID, "%s: an id of %u bytes", what, id_len);
    return status;
}

static moor_status ambiguous(struct found *found, const char *id, uint32_t id_len)
{
    char text[MOOR_ERROR_TEXT - 128];
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < found->n && used < sizeof(text); i++) {
        moor_record_info info = MOOR_RECORD_INFO_INIT;
        moor_record_get_info(found->records[i], &info);
        int n = snprintf(text + used, sizeof(text) - used, "%s%s (store %u)", i ? ", " : "", info.request_id,
                         info.store_index);
        used += n > 0 ? (size_t)n : 0;
    }
    found_drop(found);
    return moor_fail(MOOR_E_AMBIGUOUS, "id %.*s means several records: %s", (int)(id_len > 96 ? 96 : id_len), id, text);
}

moor_status moor_open(moor_client *client, const char *id, uint32_t id_len, double timeout, uint32_t flags,
                      uint64_t rows, moor_record **out)
{
    struct request request = {
        MOOR_WIRE_OPEN, id, id_len, {.rows = rows, .flags = flags & MOOR_OPEN_PREFIX, .id_len = id_len}};
    struct found found = {.n = 0};
    moor_status status = check_open(client, "open", id, id_len, out);
    if (!status && flags & ~(uint32_t)(MOOR_OPEN_PREFIX | MOOR_OPEN_PRIVATE))
        status = moor_fail(MOOR_E_INVALID, "open: flags %#x", flags);
    if (!status)
        status = find(client, &request, timeout, &found);
    if (status)
        return status;
    if (found.n > 1)
        return ambiguous(&found, id, id_len);
    if (flags & MOOR_OPEN_PRIVATE)
        moor_record_make_private(found.records[0]);
    *out = found.records[0];
    free(found.records);
    return MOOR_OK;
}

static int by_index(const void *a, const void *b)
{
    uint32_t x = moor_record_alias_index(*(moor_record *const *)a),
             y = moor_record_alias_index(*(moor_record *const *)b);
    return (x > y) - (x < y);
}

moor_status moor_open_all(moor_client *client, const char *id, uint32_t id_len, double timeout, moor_record ***out,
                          uint32_t *n)
{
    struct request request = {MOOR_WIRE_OPEN_ALL, id, id_len, {.id_len = id_len}};
    struct found found = {.n = 0};
    moor_status status = check_open(client, "open_all", id, id_len, out);
    if (!status && !n)
        status = moor_fail(MOOR_E_INVALID, "open_all: n is NULL");
    if (!status)
        status = find(client, &request, timeout, &found);
    if (status)
        return status;
    qsort(found.records, found.n, sizeof(moor_record *), by_index);
    *out = found.records;
    *n = found.n;
    return MOOR_OK;
}

void moor_records_free(moor_record **records, uint32_t n)
{
    (void)n;
    free(records);
}

moor_status moor_client_open_handle(moor_client *client, uint32_t store_index, uint32_t nonce, moor_handle handle,
                                    moor_record **out)
{
    moor_connection *connections[MOOR_CLIENT_STORES];
    moor_wire_handle message = {.handle = handle};
    moor_record **records = NULL;
    void *payload = NULL;
    size_t size;
    uint32_t n, count = 0, i = 0;
    moor_status status = moor_client_take(client, connections, &n);
    if (status)
        return status;
    while (i < n && moor_connection_shape(connections[i])->store_index != store_index)
        i++;
    if (i == n && (status = moor_client_unanswered(client, "resolve")))
        ;
    else if (i == n)
        status = moor_fail(MOOR_E_CLOSED, "instance \"%s\" has no store %u", moor_client_instance(client), store_index);
    else if (moor_connection_shape(connections[i])->nonce != nonce)
        status =
            moor_fail(MOOR_E_STALE, "the ref is of an earlier life of store %u of instance \"%s\" (%08x, now %08x)",
                      store_index, moor_client_instance(client), nonce, moor_connection_shape(connections[i])->nonce);
    else
        status = moor_connection_call(connections[i], MOOR_WIRE_OPEN_HANDLE, &message, sizeof(message), NULL, 0,
                                      moor_now_ns() + moor_client_patience_ns(client), &payload, &size);
    if (!status)
        status = take_records(connections[i], payload, size, 1, &records, &count);
    if (!status)
        *out = records[0];
    free(records);
    free(payload);
    moor_client_give(connections, n);
    return status;
}

moor_status moor_client_truncate_within(moor_client *client, const char *id, uint32_t id_len, uint64_t rows,
                                        uint64_t min_rows)
{
    moor_connection *connections[MOOR_CLIENT_STORES];
    moor_wire_truncate message = {.rows = rows, .min_rows = min_rows, .id_len = id_len};
    moor_status status = check_open(client, "truncate", id, id_len, client);
    uint32_t n;
    if (!status)
        status = moor_client_take(client, connections, &n);
    if (status)
        return status;
    status = n ? MOOR_OK
               : moor_fail(MOOR_E_NOT_FOUND, "truncate: instance \"%s\" has no store", moor_client_instance(client));
    const moor_shape *cut = NULL; /* of a store that has cut it; the other stages of its replica follow */
    for (uint32_t i = 0; i < n; i++) {
        const moor_shape *shape = moor_connection_shape(connections[i]);
        void *payload = NULL;
        size_t size;
        if (cut && moor_stages_replica(cut) != moor_stages_replica(shape))
            continue;
        status = moor_connection_call(connections[i], MOOR_WIRE_TRUNCATE, &message, sizeof(message), id, id_len,
                                      moor_now_ns() + moor_client_patience_ns(client), &payload, &size);
        free(payload);
        if (!status)
            cut = shape;
        if ((status && status != MOOR_E_NOT_FOUND) || (cut && cut->stages == 1))
            break;
    }
    moor_client_give(connections, n);
    if (status == MOOR_E_NOT_FOUND && !cut && moor_client_unanswered(client, "truncate"))
        return MOOR_E_TIMEOUT;
    return cut && status == MOOR_E_NOT_FOUND ? MOOR_OK : status;
}

moor_status moor_client_truncate(moor_client *client, const char *id, uint32_t id_len, uint64_t rows)
{
    return moor_client_truncate_within(client, id, id_len, rows, 0);
}
