/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../allocator/heap.h"
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
    int piece_lost;                           /* there was no memory for it */
    int starved;                              /* a request waits until there is memory for an answer */
    moor_peer_reply *spare;                   /* the answer when there is no memory: no request is begun without it */
    moor_peer_reply *saved_spare;             /* the same for the one snapshot that this client may be waiting for */
    unsigned char input[2 * MOOR_WIRE_LIMIT]; /* a message that is not whole, and what was read at once */
};

enum { SPARE_TEXT = 512, AGAIN_MS = 20 };

moor_status moor_peer_create(const moor_peer_home *home, uint64_t client, moor_peer **out)
{
    moor_peer *peer = moor_heap_raw(sizeof(*peer)); /* the input is not cleared: most connections touch a page of it */
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
    free(peer->spare); /* never queued: it has no descriptor */
    free(peer->saved_spare);
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

static moor_peer_reply *reply_make(size_t n)
{
    return moor_heap_raw(sizeof(moor_peer_reply) + sizeof(moor_wire_header) + n);
}

static void append(moor_peer *peer, moor_peer_reply *reply, const moor_wire_header *request, moor_status status,
                   uint16_t flags, const void *payload, size_t n, int fd)
{
    moor_wire_header header = {.length = (uint32_t)(sizeof(header) + n),
                               .type = request->type,
                               .flags = (uint16_t)(MOOR_WIRE_REPLY | flags),
                               .tag = request->tag,
                               .status = status};
    *reply = (moor_peer_reply){.fd = fd, .length = header.length};
    memcpy(reply->data, &header, sizeof(header));
    if (n)
        memcpy(reply->data + sizeof(header), payload, n);
    *peer->last = reply;
    peer->last = &reply->next;
    peer->queued += header.length;
}

/* Queues a good one; fd is taken over. MOOR_E_NOMEM: it is not queued. */
static moor_status queue(moor_peer *peer, const moor_wire_header *request, uint16_t flags, const void *payload,
                         size_t n, int fd)
{
    moor_peer_reply *reply = reply_make(n);
    if (!reply) {
        if (fd >= 0)
            close(fd);
        return moor_fail(MOOR_E_NOMEM, "no memory for a reply");
    }
    append(peer, reply, request, MOOR_OK, flags, payload, n, fd);
    return MOOR_OK;
}

static int has_spare(moor_peer *peer)
{
    if (!peer->spare)
        peer->spare = reply_make(SPARE_TEXT);
    return peer->spare != NULL;
}

/* Queues a status, with a text when it is an error: without memory by the spare one. MOOR_E_NOMEM: that is used up as well. */
static moor_status queue_text(moor_peer *peer, const moor_wire_header *request, moor_status status, const char *text)
{
    size_t n = strlen(text);
    moor_peer_reply *reply = reply_make(n);
    if (!reply) {
        if (!peer->spare)
            return MOOR_E_NOMEM;
        reply = peer->spare;
        peer->spare = NULL;
        n = n < SPARE_TEXT ? n : SPARE_TEXT;
    }
    append(peer, reply, request, status, 0, text, n, -1);
    return MOOR_OK;
}

/* The calling thread's error text goes along. */
static moor_status queue_error(moor_peer *peer, const moor_wire_header *request, moor_status status)
{
    return queue_text(peer, request, status, moor_last_error());
}

static moor_status queue_status(moor_peer *peer, const moor_wire_header *request, moor_status status)
{
    return queue_text(peer, request, status, status ? moor_last_error() : "");
}

void moor_peer_refuse(moor_peer *peer, moor_status status, const char *text)
{
    moor_wire_header hello = {.type = MOOR_WIRE_HELLO};
    (void)has_spare(peer);
    queue_text(peer, &hello, status, text);
}

/* A payload of any size; the buffer is freed. */
static moor_status queue_buffer(moor_peer *peer, const moor_wire_header *request, moor_wire_buffer *payload)
{
    moor_status status;
    int fd;
    if (payload->failed) {
        status = moor_fail(MOOR_E_NOMEM, "no memory for a reply");
    } else if (payload->used <= MOOR_WIRE_LIMIT - sizeof(moor_wire_header)) {
        status = queue(peer, request, 0, payload->data, payload->used, -1);
    } else {
        status = moor_wire_large_make(payload->data, payload->used, &fd);
        if (!status) {
            moor_wire_large large = {.length = payload->used};
            status = queue(peer, request, MOOR_WIRE_IN_FD, &large, sizeof(large), fd);
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

/* Tries once. MOOR_E_TIMEOUT or MOOR_E_NOT_FOUND: nothing was queued, waiting may help; MOOR_E_NOMEM: nothing was queued. */
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
    waiting = moor_heap_raw(sizeof(*waiting) + open->id_len);
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
        (void)has_spare(peer); /* else it waits until there is memory */
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
            status = queue_error(peer, &waiting->header, status);
        }
        if (status == MOOR_E_NOMEM) {
            uint64_t again_ns = now_ns + AGAIN_MS * 1000000ull;
            waiting->looked = 0;
            waiting->deadline_ns = waiting->deadline_ns > again_ns ? waiting->deadline_ns : again_ns;
            at = &waiting->next;
            continue;
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
        status = queue(peer, request, 0, payload.data, payload.used, fd);
    }
    moor_wire_buffer_free(&payload);
    peer->greeted = !status;
    if (status)
        queue_error(peer, request, status);
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
    if (!has_spare(peer)) {
        peer->spare = peer->saved_spare;
        peer->saved_spare = NULL;
    }
    queue_text(peer, &saved->request, saved->status, saved->text);
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
    else if (!peer->saved_spare && !(peer->saved_spare = reply_make(SPARE_TEXT)))
        status = moor_fail(MOOR_E_NOMEM, "no memory for a reply");
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
    moor_status status = queue_buffer(peer, request, &payload);
    return status ? queue_error(peer, request, status) : MOOR_OK;
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
    if (!peer->piece_lost)
        moor_wire_put(pieces, reader->at, reader->left);
    if (pieces->failed) {
        peer->piece_lost = 1;
        moor_wire_buffer_free(pieces);
    }
    if (header->flags)
        return MOOR_OK;
    moor_wire_reader all = {pieces->data, pieces->used};
    moor_status status =
        peer->piece_lost
            ? queue_error(peer, header, moor_fail(MOOR_E_NOMEM, "no memory for a request in several messages"))
            : handle(peer, header, &all, now_ns);
    moor_wire_buffer_free(pieces);
    peer->piece = (moor_wire_header){.length = 0};
    peer->piece_lost = 0;
    return status;
}

/* All whole messages, as long as there is memory for an answer to each. */
static moor_status take_messages(moor_peer *peer, uint64_t now_ns)
{
    size_t begin = 0;
    moor_status status = MOOR_OK;
    peer->starved = 0;
    for (;;) {
        moor_wire_header header;
        int whole = moor_wire_frame(peer->input + begin, peer->have - begin, &header);
        if (whole < 0 || (whole && header.flags & ~MOOR_WIRE_MORE))
            return moor_fail(MOOR_E_CORRUPT, "a message with length %u, flags %u", header.length, header.flags);
        peer->starved = whole && !has_spare(peer);
        if (!whole || peer->starved)
            break;
        moor_wire_reader reader = {peer->input + begin + sizeof(header), header.length - sizeof(header)};
        status = header.flags || peer->piece.length ? collect(peer, &header, &reader, now_ns)
                                                    : handle(peer, &header, &reader, now_ns);
        if (status)
            return status;
        begin += header.length;
    }
    memmove(peer->input, peer->input + begin, peer->have - begin);
    peer->have -= begin;
    return MOOR_OK;
}

int moor_peer_starved(const moor_peer *peer)
{
    return peer->starved;
}

moor_status moor_peer_input(moor_peer *peer, const void *data, size_t n, uint64_t now_ns)
{
    const unsigned char *from = data;
    moor_status status = MOOR_OK;
    do {
        size_t part = sizeof(peer->input) - peer->have;
        part = part < n ? part : n;
        if (n && !part)
            return moor_fail(MOOR_E_NOMEM, "no memory for an answer, and more requests come");
        if (part)
            memcpy(peer->input + peer->have, from, part);
        peer->have += part;
        from += part;
        n -= part;
        status = take_messages(peer, now_ns);
    } while (n && !status);
    return status;
}
