/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../client/wire.h"
#include "config.h"
#include "peer_reply.h"
#include "peer_session.h"

/* An open that found its record not sealed yet, or not there yet. */
struct waiting {
    struct waiting *next;
    uint64_t deadline_ns;
    int looked; /* since it said that it waits */
    moor_wire_header header;
    moor_wire_open open;
    char id[];
};

struct moor_peer {
    const moor_peer_home *home;
    moor_records *records; /* home->store's */
    uint64_t client;
    uint32_t n_waiting;
    int greeted;
    size_t queued, have; /* bytes of replies; bytes of `input` */
    moor_peer_reply *first, **last;
    struct waiting *waiting, **waiting_last; /* oldest first */
    moor_wire_header piece;                  /* of the request whose payload is being collected; length 0: none */
    moor_wire_buffer pieces;
    unsigned char input[MOOR_WIRE_LIMIT];
};

moor_status moor_peer_create(const moor_peer_home *home, uint64_t client, moor_peer **out)
{
    moor_peer *peer = malloc(sizeof(*peer)); /* the input is not cleared: most connections touch a page of it */
    if (!peer)
        return moor_fail(MOOR_E_NOMEM, "no memory for a connection");
    memset(peer, 0, offsetof(moor_peer, input));
    peer->home = home;
    peer->records = home->store->records;
    peer->client = client;
    peer->last = &peer->first;
    peer->waiting_last = &peer->waiting;
    *out = peer;
    return MOOR_OK;
}

static void reply_free(moor_peer_reply *reply)
{
    if (reply->fd >= 0)
        close(reply->fd);
    free(reply);
}

void moor_peer_destroy(moor_peer *peer)
{
    while (peer->first) {
        moor_peer_reply *next = peer->first->next;
        reply_free(peer->first);
        peer->first = next;
    }
    while (peer->waiting) {
        struct waiting *next = peer->waiting->next;
        free(peer->waiting);
        moor_records_wait(peer->records, -1);
        peer->waiting = next;
    }
    moor_records_disconnect(peer->records, peer->client);
    moor_wire_buffer_free(&peer->pieces);
    free(peer);
}

int moor_peer_greeted(const moor_peer *peer)
{
    return peer->greeted;
}

uint32_t moor_peer_waiting(const moor_peer *peer)
{
    return peer->n_waiting;
}

moor_peer_reply *moor_peer_first(moor_peer *peer)
{
    return peer->first;
}

size_t moor_peer_queued(const moor_peer *peer)
{
    return peer->queued;
}

void moor_peer_sent(moor_peer *peer, size_t n)
{
    moor_peer_reply *reply = peer->first;
    if (reply->fd >= 0 && n) {
        close(reply->fd);
        reply->fd = -1;
    }
    reply->sent += (uint32_t)n;
    peer->queued -= n;
    if (reply->sent < reply->length)
        return;
    peer->first = reply->next;
    if (!peer->first)
        peer->last = &peer->first;
    reply_free(reply);
}

/* ---- replies ---------------------------------------------------------------------------------------------------- */

/* Queues one; fd is taken over. Without memory for it the connection ends: the client would wait for ever. */
static moor_status queue(moor_peer *peer, const moor_wire_header *request, moor_status status, uint16_t flags,
                         const void *payload, size_t n, int fd)
{
    moor_wire_header header = {.length = (uint32_t)(sizeof(header) + n),
                               .type = request->type,
                               .flags = (uint16_t)(MOOR_WIRE_REPLY | flags),
                               .tag = request->tag,
                               .status = status};
    moor_peer_reply *reply = malloc(sizeof(*reply) + header.length);
    if (!reply) {
        if (fd >= 0)
            close(fd);
        return moor_fail(MOOR_E_NOMEM, "no memory for a reply");
    }
    *reply = (moor_peer_reply){.fd = fd, .length = header.length};
    memcpy(reply->data, &header, sizeof(header));
    if (n)
        memcpy(reply->data + sizeof(header), payload, n);
    *peer->last = reply;
    peer->last = &reply->next;
    peer->queued += header.length;
    return MOOR_OK;
}

/* The calling thread's error text goes along. */
static moor_status queue_error(moor_peer *peer, const moor_wire_header *request, moor_status status)
{
    const char *text = moor_last_error();
    return queue(peer, request, status, 0, text, strlen(text), -1);
}

static moor_status queue_status(moor_peer *peer, const moor_wire_header *request, moor_status status)
{
    return status ? queue_error(peer, request, status) : queue(peer, request, MOOR_OK, 0, NULL, 0, -1);
}

void moor_peer_refuse(moor_peer *peer, moor_status status, const char *text)
{
    moor_wire_header hello = {.type = MOOR_WIRE_HELLO};
    queue(peer, &hello, status, 0, text, strlen(text), -1);
}

/* A payload of any size; the buffer is freed. */
static moor_status queue_buffer(moor_peer *peer, const moor_wire_header *request, moor_wire_buffer *payload)
{
    moor_status status;
    int fd;
    if (payload->failed) {
        status = moor_fail(MOOR_E_NOMEM, "no memory for a reply");
    } else if (payload->used <= MOOR_WIRE_LIMIT - sizeof(moor_wire_header)) {
        status = queue(peer, request, MOOR_OK, 0, payload->data, payload->used, -1);
    } else {
        status = moor_wire_large_make(payload->data, payload->used, &fd);
        if (!status) {
            moor_wire_large large = {.length = payload->used};
            status = queue(peer, request, MOOR_OK, MOOR_WIRE_IN_FD, &large, sizeof(large), fd);
        }
    }
    moor_wire_buffer_free(payload);
    return status;
}

/* Views were opened for this client: they are told to it, or their leases end here. */
static moor_status queue_views(moor_peer *peer, const moor_wire_header *request, moor_view *const *views, uint32_t n)
{
    moor_wire_buffer payload = {0};
    moor_peer_put_views(&payload, views, n, peer->home->store->process->state);
    moor_status status = queue_buffer(peer, request, &payload);
    if (!status)
        return MOOR_OK;
    for (uint32_t i = 0; i < n; i++)
        moor_records_close(peer->records, peer->client, views[i]->handle);
    return queue_error(peer, request, status);
}

/* ---- opens ------------------------------------------------------------------------------------------------------ */

/* "Not yet" is no refusal: another store may have it, and a caller that does not wait asks again. */
static moor_status refuse_open(moor_peer *peer, const moor_wire_header *request, moor_status status)
{
    moor_count_add(peer->home->store->process, MOOR_C_OPEN_ERRORS, 1);
    return queue_error(peer, request, status);
}

/* Tries once. MOOR_E_TIMEOUT or MOOR_E_NOT_FOUND: nothing was queued, waiting may help. */
static moor_status try_open(moor_peer *peer, const moor_wire_header *request, const moor_wire_open *open,
                            const char *id)
{
    moor_records *records = peer->records;
    moor_view *view, **views;
    uint32_t n;
    moor_status status;
    if (request->type == MOOR_WIRE_OPEN_ALL) {
        status = moor_records_open_all(records, peer->client, id, open->id_len, &views, &n);
        if (!status) {
            status = queue_views(peer, request, views, n);
            moor_views_free(views, n);
            return status;
        }
    } else {
        status = moor_records_open(records, peer->client, id, open->id_len, open->flags, open->rows, &view);
        if (!status) {
            status = queue_views(peer, request, &view, 1);
            moor_view_free(view);
            return status;
        }
    }
    if (status == MOOR_E_TIMEOUT || status == MOOR_E_NOT_FOUND)
        return status;
    return refuse_open(peer, request, status);
}

static moor_status add_waiting(moor_peer *peer, const moor_wire_header *request, const moor_wire_open *open,
                               const char *id, uint64_t now_ns)
{
    struct waiting *waiting;
    if (peer->n_waiting >= MOOR_PEER_MAX_WAITING)
        return refuse_open(peer, request,
                           moor_fail(MOOR_E_FULL, "%d opens of this connection wait already", MOOR_PEER_MAX_WAITING));
    waiting = malloc(sizeof(*waiting) + open->id_len);
    if (!waiting)
        return refuse_open(peer, request, moor_fail(MOOR_E_NOMEM, "no memory for an open that waits"));
    waiting->next = NULL;
    waiting->looked = 0;
    waiting->deadline_ns = open->timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + open->timeout_ns;
    waiting->header = *request;
    waiting->open = *open;
    memcpy(waiting->id, id, open->id_len);
    *peer->waiting_last = waiting;
    peer->waiting_last = &waiting->next;
    peer->n_waiting++;
    moor_records_wait(peer->records, 1);
    return MOOR_OK;
}

/* The last part of a message, whose head says how long it is; NULL: it is not. */
static const char *take_last(moor_wire_reader *reader, uint32_t n)
{
    return n == reader->left ? moor_wire_take(reader, n) : NULL;
}

static moor_status handle_open(moor_peer *peer, const moor_wire_header *request, moor_wire_reader *reader,
                               uint64_t now_ns)
{
    moor_wire_open open;
    const char *id = NULL;
    if (!moor_wire_get(reader, &open, sizeof(open)) || !(id = take_last(reader, open.id_len)))
        return moor_fail(MOOR_E_CORRUPT, "an open of %u bytes whose id has another length", request->length);
    moor_status status = try_open(peer, request, &open, id);
    if (status != MOOR_E_TIMEOUT && status != MOOR_E_NOT_FOUND)
        return status;
    if (!open.timeout_ns)
        return queue_error(peer, request, status);
    /* The caller looks once more (moor_peer_retry) before it sleeps: what happened meanwhile was not announced to us. */
    return add_waiting(peer, request, &open, id, now_ns);
}

uint64_t moor_peer_next_deadline(const moor_peer *peer)
{
    uint64_t next = UINT64_MAX;
    for (const struct waiting *waiting = peer->waiting; waiting; waiting = waiting->next)
        if (waiting->deadline_ns < next)
            next = waiting->deadline_ns;
    return next;
}

void moor_peer_retry(moor_peer *peer, uint64_t now_ns, int all)
{
    for (struct waiting **at = &peer->waiting; *at;) {
        struct waiting *waiting = *at;
        int late = waiting->deadline_ns <= now_ns;
        moor_status status = MOOR_E_TIMEOUT;
        if (all || late || !waiting->looked)
            status = try_open(peer, &waiting->header, &waiting->open, waiting->id);
        if (status == MOOR_E_TIMEOUT || status == MOOR_E_NOT_FOUND) {
            waiting->looked = 1;
            if (!late) {
                at = &waiting->next;
                continue;
            }
            queue_error(peer, &waiting->header, status);
        }
        *at = waiting->next;
        if (!*at)
            peer->waiting_last = at;
        peer->n_waiting--;
        free(waiting);
        moor_records_wait(peer->records, -1);
    }
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

static moor_status handle_hello(moor_peer *peer, const moor_wire_header *request, moor_wire_reader *reader)
{
    moor_wire_hello hello = {0};
    moor_wire_buffer payload = {0};
    int fd;
    /* Only the first 8 bytes are the same in every version. */
    if (peer->greeted || !moor_wire_get(reader, &hello, 8) || hello.magic != MOOR_WIRE_MAGIC)
        return moor_fail(MOOR_E_CORRUPT, "the first message is no greeting of Moor's");
    if (hello.version != MOOR_WIRE_VERSION) {
        moor_status status = moor_fail(MOOR_E_VERSION, "the store speaks wire version %u, the client %u",
                                       MOOR_WIRE_VERSION, hello.version);
        queue_error(peer, request, status);
        return status;
    }
    moor_status status = moor_records_arena_fd(peer->records, &fd);
    if (status) {
        queue_error(peer, request, status);
        return status;
    }
    moor_peer_put_welcome(&payload, peer->home);
    if (payload.failed) {
        close(fd);
        status = moor_fail(MOOR_E_NOMEM, "no memory for a greeting");
    } else {
        status = queue(peer, request, MOOR_OK, 0, payload.data, payload.used, fd);
    }
    moor_wire_buffer_free(&payload);
    peer->greeted = !status;
    return status;
}

static moor_status handle_by_handle(moor_peer *peer, const moor_wire_header *request, moor_wire_reader *reader)
{
    moor_records *records = peer->records;
    moor_wire_handle handle;
    moor_view *view;
    if (!moor_wire_get(reader, &handle, sizeof(handle)) || reader->left)
        return moor_fail(MOOR_E_CORRUPT, "a message of type %u has %u bytes", request->type, request->length);
    switch (request->type) {
    case MOOR_WIRE_OPEN_HANDLE: {
        moor_status status = moor_records_open_handle(records, peer->client, handle.handle, &view);
        if (status)
            return queue_error(peer, request, status);
        status = queue_views(peer, request, &view, 1);
        moor_view_free(view);
        return status;
    }
    case MOOR_WIRE_RELEASE:
        moor_records_close(records, peer->client, handle.handle);
        return MOOR_OK;
    case MOOR_WIRE_EVENT:
        return queue_status(peer, request, moor_records_event(records, handle.handle, handle.value));
    default:
        return queue_status(peer, request, moor_records_claim(records, handle.handle, handle.value));
    }
}

static moor_status handle_truncate(moor_peer *peer, const moor_wire_header *request, moor_wire_reader *reader)
{
    moor_wire_truncate cut;
    const char *id = NULL;
    if (!moor_wire_get(reader, &cut, sizeof(cut)) || !(id = take_last(reader, cut.id_len)))
        return moor_fail(MOOR_E_CORRUPT, "a truncation of %u bytes whose id has another length", request->length);
    return queue_status(peer, request, moor_records_truncate(peer->records, id, cut.id_len, cut.rows, cut.min_rows));
}

static moor_status handle_session(moor_peer *peer, const moor_wire_header *request, moor_wire_reader *reader)
{
    moor_wire_buffer payload = {0};
    moor_trace *trace;
    moor_status status = moor_peer_session(peer->home, peer->client, request->type, reader, &payload, &trace);
    if (status) {
        moor_wire_buffer_free(&payload);
        return status == MOOR_E_CORRUPT ? status : queue_error(peer, request, status);
    }
    status = queue_buffer(peer, request, &payload);
    if (status && trace)
        moor_trace_close(peer->records, peer->client, trace);
    if (trace)
        moor_peer_trace_free(trace);
    return status ? queue_error(peer, request, status) : MOOR_OK;
}

uint64_t moor_peer_client(const moor_peer *peer)
{
    return peer->client;
}

void moor_peer_saved(moor_peer *peer, const moor_saved *saved)
{
    if (saved->status)
        moor_fail(saved->status, "%s", saved->text);
    queue_status(peer, &saved->request, saved->status);
}

/* Answered by moor_peer_saved; what cannot even begin is answered here. */
static moor_status handle_save(moor_peer *peer, const moor_wire_header *request, moor_wire_reader *reader,
                               uint64_t now_ns)
{
    moor_wire_open open;
    const char *dir = NULL;
    if (!moor_wire_get(reader, &open, sizeof(open)) || !(dir = take_last(reader, open.id_len)))
        return moor_fail(MOOR_E_CORRUPT, "a request of %u bytes for a snapshot, whose directory has another length",
                         request->length);
    moor_status status = MOOR_OK;
    if (!peer->home->saver)
        status = moor_fail(MOOR_E_UNSUPPORTED, "store %u writes no snapshots", peer->home->store->store_index);
    else if (!open.id_len || open.id_len >= PATH_MAX || memchr(dir, 0, open.id_len))
        status = moor_fail(MOOR_E_INVALID, "a snapshot's directory of %u bytes", open.id_len);
    else
        status = moor_saver_start(peer->home->saver, peer->home->store, peer->client, request, dir, open.id_len,
                                  open.timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + open.timeout_ns);
    return status ? queue_error(peer, request, status) : MOOR_OK;
}

static moor_status handle_stats(moor_peer *peer, const moor_wire_header *request, moor_wire_reader *reader)
{
    moor_wire_buffer payload = {0};
    if (reader->left)
        return moor_fail(MOOR_E_CORRUPT, "a question for statistics has %u bytes", request->length);
    moor_peer_put_stats(&payload, peer->home->store);
    return queue_buffer(peer, request, &payload);
}

static moor_status handle(moor_peer *peer, const moor_wire_header *request, moor_wire_reader *reader, uint64_t now_ns)
{
    if (request->type == MOOR_WIRE_HELLO)
        return handle_hello(peer, request, reader);
    if (!peer->greeted)
        return moor_fail(MOOR_E_CORRUPT, "a message of type %u comes before the greeting", request->type);
    switch (request->type) {
    case MOOR_WIRE_OPEN:
    case MOOR_WIRE_OPEN_ALL:
        return handle_open(peer, request, reader, now_ns);
    case MOOR_WIRE_OPEN_HANDLE:
    case MOOR_WIRE_RELEASE:
    case MOOR_WIRE_EVENT:
    case MOOR_WIRE_CLAIM:
        return handle_by_handle(peer, request, reader);
    case MOOR_WIRE_TRUNCATE:
        return handle_truncate(peer, request, reader);
    case MOOR_WIRE_SAVE:
        return handle_save(peer, request, reader, now_ns);
    case MOOR_WIRE_STATS:
        return handle_stats(peer, request, reader);
    default:
        if (moor_peer_is_session(request->type))
            return handle_session(peer, request, reader);
        return moor_fail(MOOR_E_CORRUPT, "a message of unknown type %u", request->type);
    }
}

/* A message of a request that comes in several. With the last one it is handled. */
static moor_status collect(moor_peer *peer, const moor_wire_header *header, const moor_wire_reader *reader,
                           uint64_t now_ns)
{
    moor_wire_buffer *pieces = &peer->pieces;
    if (!peer->greeted || !moor_peer_is_session(header->type) ||
        (peer->piece.length && (peer->piece.type != header->type || peer->piece.tag != header->tag)))
        return moor_fail(MOOR_E_CORRUPT, "a piece of a message of type %u that is none of one", header->type);
    if (reader->left > MOOR_WIRE_REQUEST_LIMIT - pieces->used)
        return moor_fail(MOOR_E_CORRUPT, "a request of more than %d bytes", MOOR_WIRE_REQUEST_LIMIT);
    peer->piece = *header;
    moor_wire_put(pieces, reader->at, reader->left);
    if (pieces->failed)
        return moor_fail(MOOR_E_NOMEM, "no memory for a request of %zu bytes", pieces->used + reader->left);
    if (header->flags)
        return MOOR_OK;
    moor_wire_reader all = {pieces->data, pieces->used};
    moor_status status = handle(peer, header, &all, now_ns);
    moor_wire_buffer_free(pieces);
    peer->piece = (moor_wire_header){.length = 0};
    return status;
}

moor_status moor_peer_input(moor_peer *peer, const void *data, size_t n, uint64_t now_ns)
{
    const unsigned char *from = data;
    while (n) {
        size_t part = sizeof(peer->input) - peer->have, begin = 0;
        if (part > n)
            part = n;
        memcpy(peer->input + peer->have, from, part);
        peer->have += part;
        from += part;
        n -= part;
        for (;;) {
            moor_wire_header header;
            int whole = moor_wire_frame(peer->input + begin, peer->have - begin, &header);
            if (whole < 0 || (whole && header.flags & ~MOOR_WIRE_MORE))
                return moor_fail(MOOR_E_CORRUPT, "a message with length %u, flags %u", header.length, header.flags);
            if (!whole)
                break;
            moor_wire_reader reader = {peer->input + begin + sizeof(header), header.length - sizeof(header)};
            moor_status status = header.flags || peer->piece.length ? collect(peer, &header, &reader, now_ns)
                                                                    : handle(peer, &header, &reader, now_ns);
            if (status)
                return status;
            begin += header.length;
        }
        memmove(peer->input, peer->input + begin, peer->have - begin);
        peer->have -= begin;
    }
    return MOOR_OK;
}
