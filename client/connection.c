/* SPDX-License-Identifier: Apache-2.0 */
#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../allocator/dirs.h"
#include "../allocator/heap.h"
#include "copy.h"
#include "inherit.h"
#include "record.h"
#include "wire.h"

enum {
    MAX_FDS = 16,
    POST_MS = 1000,
    AGAIN_S = 30,
    PIECE = MOOR_WIRE_LIMIT - sizeof(moor_wire_header) /* payload of a message */
};

/* A call that waits for its reply. Lives on its caller's stack. */
struct call {
    struct call *next;
    uint32_t tag;
    uint16_t type;
    int done;
    moor_status status;
    void *payload; /* malloc'ed */
    size_t n;
};

struct moor_connection {
    _Atomic uint32_t refs, users; /* users: references but the owner's */
    pid_t pid;
    moor_inherit inherit; /* with the socket */
    moor_shape shape;
    int32_t *layer_ids;

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a call is done, or a right is free, or the connection is dead */
    int dead, reading, writing;
    int kept;          /* dead, but the server shall not know: records are being read under its leases */
    int hung;          /* dead because nothing was answered in time */
    int stirred;       /* and something came after all */
    uint64_t again_ns; /* without a socket: when to look again */
    char why[160];     /* it is dead */
    uint32_t next_tag;
    struct call *calls;

    /* The reader's own. */
    size_t have;
    int n_fds, fds[MAX_FDS];
    unsigned char input[MOOR_WIRE_LIMIT];
};

/* ---- life ------------------------------------------------------------------------------------------------------- */

/* Under the mutex. The socket is closed by whoever is the last to use it. */
static void close_if_unused(moor_connection *connection)
{
    if (connection->dead && !connection->kept && !connection->reading && !connection->writing)
        moor_inherit_close(&connection->inherit);
}

/* Ends calls, and no lease. Who sleeps on the socket as the reader goes on until its own deadline. */
static void give_up_locked(moor_connection *connection, const char *why)
{
    if (connection->dead)
        return;
    connection->dead = connection->kept = 1;
    snprintf(connection->why, sizeof(connection->why), "%s", why);
    pthread_cond_broadcast(&connection->changed);
}

/* The store may only sleep, or be stopped: moor_connection_stirs tells when it is back. */
static void give_up_hung_locked(moor_connection *connection, const char *why)
{
    connection->hung |= !connection->dead;
    give_up_locked(connection, why);
}

/* Never a shutdown(): of a connection that was handed on it would end the child's leases. Nobody sleeps on the socket when its last user
 * ends it, and whose peer is gone wakes. */
static void kill_locked(moor_connection *connection, const char *why)
{
    give_up_locked(connection, why);
    connection->kept = 0;
    close_if_unused(connection);
    pthread_cond_broadcast(&connection->changed);
}

int moor_connection_handed_on(const moor_connection *connection)
{
    return atomic_load(&connection->inherit.handed_on);
}

int moor_connection_spent(moor_connection *connection)
{
    if (connection->pid != getpid() || moor_connection_handed_on(connection))
        return 1;
    pthread_mutex_lock(&connection->mutex);
    int dead = connection->dead;
    pthread_mutex_unlock(&connection->mutex);
    return dead;
}

int moor_connection_hung(moor_connection *connection)
{
    if (connection->pid != getpid())
        return 0;
    pthread_mutex_lock(&connection->mutex);
    int hung = connection->hung;
    pthread_mutex_unlock(&connection->mutex);
    return hung;
}

int moor_connection_stirs(moor_connection *connection)
{
    pthread_mutex_lock(&connection->mutex);
    int stirs = !connection->kept || connection->stirred;
    if (!stirs && connection->inherit.fd < 0)
        stirs = moor_now_ns() >= connection->again_ns;
    else if (!stirs && !connection->reading) { /* else the reader finds it */
        connection->reading = 1;
        pthread_mutex_unlock(&connection->mutex);
        struct pollfd poll_fd = {connection->inherit.fd, POLLIN, 0};
        stirs = poll(&poll_fd, 1, 0) > 0;
        pthread_mutex_lock(&connection->mutex);
        connection->reading = 0;
        close_if_unused(connection);
        pthread_cond_broadcast(&connection->changed);
    }
    pthread_mutex_unlock(&connection->mutex);
    return stirs;
}

moor_connection *moor_connection_retain(moor_connection *connection)
{
    atomic_fetch_add_explicit(&connection->refs, 1, memory_order_relaxed);
    atomic_fetch_add(&connection->users, 1);
    return connection;
}

/* The owner may never look again, and the leases of what is released end with the socket alone. */
static void end_if_handed_on(moor_connection *connection)
{
    if (!moor_connection_handed_on(connection))
        return;
    pthread_mutex_lock(&connection->mutex);
    kill_locked(connection, "a forked child has its leases, too");
    pthread_mutex_unlock(&connection->mutex);
}

void moor_connection_release(moor_connection *connection)
{
    if (!connection || connection->pid != getpid())
        return;
    if (atomic_fetch_sub(&connection->users, 1) == 1)
        end_if_handed_on(connection);
    moor_connection_disown(connection);
}

void moor_connection_disown(moor_connection *connection)
{
    if (!connection || connection->pid != getpid() ||
        atomic_fetch_sub_explicit(&connection->refs, 1, memory_order_acq_rel) != 1)
        return;
    moor_inherit_end(&connection->inherit);
    while (connection->n_fds)
        close(connection->fds[--connection->n_fds]);
    if (connection->shape.arena)
        munmap((void *)(uintptr_t)connection->shape.arena, connection->shape.arena_bytes);
    free(connection->layer_ids);
    pthread_cond_destroy(&connection->changed);
    pthread_mutex_destroy(&connection->mutex);
    free(connection);
}

pid_t moor_connection_pid(const moor_connection *connection)
{
    return connection->pid;
}

const moor_shape *moor_connection_shape(const moor_connection *connection)
{
    return &connection->shape;
}

static moor_status allocate(const char *instance, moor_connection **out)
{
    moor_connection *connection = malloc(sizeof(*connection));
    pthread_condattr_t attributes;
    if (!connection)
        return moor_fail(MOOR_E_NOMEM, "no memory for a connection");
    memset(connection, 0, offsetof(moor_connection, input));
    atomic_store(&connection->refs, 1);
    connection->pid = getpid();
    moor_status status = moor_inherit_begin(&connection->inherit);
    if (status) {
        free(connection);
        return status;
    }
    snprintf(connection->shape.instance, sizeof(connection->shape.instance), "%s", instance);
    pthread_mutex_init(&connection->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&connection->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    *out = connection;
    return MOOR_OK;
}

/* ---- reading: the reader only ----------------------------------------------------------------------------------- */

static int wait_for(int fd, short events, uint64_t deadline_ns)
{
    uint64_t now_ns = moor_now_ns();
    struct pollfd poll_fd = {fd, events, 0};
    uint64_t ms = deadline_ns > now_ns ? (deadline_ns - now_ns + 999999) / 1000000 : 0;
    int rc = poll(&poll_fd, 1, ms > 60000 ? 60000 : (int)ms);
    return rc > 0 || (rc < 0 && errno == EINTR);
}

static const char gone[] = "the store's process is gone";

/* Text of what went wrong, or NULL. */
static const char *receive(moor_connection *connection)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int) * MAX_FDS)];
    } control;
    struct iovec part = {connection->input + connection->have, sizeof(connection->input) - connection->have};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    ssize_t got = recvmsg(connection->inherit.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? NULL : gone;
    for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
            if (connection->n_fds < MAX_FDS)
                connection->fds[connection->n_fds++] = fd;
            else
                close(fd);
        }
    }
    if (message.msg_flags & MSG_CTRUNC)
        return "a descriptor that the store sent was lost (has this process any left?)";
    if (got == 0)
        return gone;
    connection->have += (size_t)got;
    return NULL;
}

static int take_fd(moor_connection *connection)
{
    if (!connection->n_fds)
        return -1;
    int fd = connection->fds[0];
    memmove(connection->fds, connection->fds + 1, (size_t)--connection->n_fds * sizeof(int));
    return fd;
}

static moor_status map_arena(moor_connection *connection, const moor_wire_welcome *welcome)
{
    struct stat st;
    int fd = take_fd(connection);
    int seals = fd >= 0 ? fcntl(fd, F_GET_SEALS) : -1;
    moor_status status = MOOR_OK;
    /* Without the seal the file could shrink below the mapping, and reading would be a SIGBUS. */
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) < 0 || (uint64_t)st.st_size < welcome->arena_bytes ||
        !welcome->arena_bytes)
        status = moor_fail(MOOR_E_CORRUPT, "store %u: what it sent is no arena of %llu bytes", welcome->store_index,
                           (unsigned long long)welcome->arena_bytes);
    void *at = status ? MAP_FAILED : mmap(NULL, welcome->arena_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (!status && at == MAP_FAILED)
        status = moor_fail_errno(MOOR_E_IO, errno, "store %u: its arena of %llu bytes cannot be mapped",
                                 welcome->store_index, (unsigned long long)welcome->arena_bytes);
    if (!status) {
        connection->shape.arena = at;
        connection->shape.arena_bytes = welcome->arena_bytes;
    }
    if (fd >= 0)
        close(fd);
    return status;
}

/* The payload of a greeting's answer: fills the shape, maps the arena. */
static moor_status take_welcome(moor_connection *connection, moor_wire_reader reader)
{
    moor_wire_welcome welcome = {0};
    moor_shape *shape = &connection->shape;
    if (!moor_wire_get(&reader, &welcome, 4) || welcome.version != MOOR_WIRE_VERSION)
        return moor_fail(MOOR_E_VERSION, "the store speaks wire version %u, this library %u", welcome.version,
                         MOOR_WIRE_VERSION);
    if (!moor_wire_get(&reader, (char *)&welcome + 4, sizeof(welcome) - 4) ||
        reader.left != (size_t)welcome.layers * sizeof(int32_t) || !welcome.layers || !welcome.top_k ||
        (welcome.dtype != MOOR_DTYPE_U8 && welcome.dtype != MOOR_DTYPE_U16) || !welcome.num_experts ||
        !moor_copy_dtype_holds(welcome.dtype, welcome.num_experts) ||
        welcome.row_bytes != (uint64_t)welcome.layers * welcome.top_k * welcome.dtype ||
        welcome.stages > MOOR_CLIENT_STORES)
        return moor_fail(MOOR_E_CORRUPT, "store %u: a greeting of %zu bytes that does not add up", shape->store_index,
                         reader.left);
    shape->layers = welcome.layers;
    shape->top_k = welcome.top_k;
    shape->num_experts = welcome.num_experts;
    shape->model_layers = welcome.model_layers;
    shape->dtype = welcome.dtype; /* MOOR_DTYPE_U8 and _U16 are their own width in bytes */
    shape->row_bytes = welcome.row_bytes;
    shape->nonce = welcome.nonce;
    shape->stages = welcome.stages ? welcome.stages : 1; /* 0: a store of an earlier version */
    connection->layer_ids = malloc(reader.left);
    if (!connection->layer_ids)
        return moor_fail(MOOR_E_NOMEM, "no memory for the list of layers");
    shape->layer_ids = connection->layer_ids;
    moor_wire_get(&reader, connection->layer_ids, reader.left);
    for (uint32_t i = 0; i < shape->layers; i++)
        if (connection->layer_ids[i] < 0 || (uint32_t)connection->layer_ids[i] >= shape->model_layers ||
            (i && connection->layer_ids[i] <= connection->layer_ids[i - 1]))
            return moor_fail(MOOR_E_CORRUPT, "store %u: column %u is layer %d of %u, behind layer %d",
                             shape->store_index, i, connection->layer_ids[i], shape->model_layers,
                             i ? connection->layer_ids[i - 1] : -1);
    return map_arena(connection, &welcome);
}

/* Makes the payload of a reply that the caller keeps. status is the store's, or why its reply could not be taken. */
static moor_status take_payload(moor_connection *connection, const moor_wire_header *header, moor_wire_reader reader,
                                void **payload, size_t *n)
{
    moor_wire_large large;
    *payload = NULL;
    *n = 0;
    if (header->status == MOOR_OK && header->type == MOOR_WIRE_HELLO)
        return take_welcome(connection, reader);
    if (header->flags & MOOR_WIRE_IN_FD) {
        int fd = take_fd(connection);
        if (fd < 0 || !moor_wire_get(&reader, &large, sizeof(large))) {
            if (fd >= 0)
                close(fd);
            return moor_fail(MOOR_E_CORRUPT, "a large reply came without its descriptor");
        }
        moor_status status = moor_wire_large_read(fd, large.length, payload);
        if (status == MOOR_E_NOMEM && header->status == MOOR_OK)
            moor_records_refuse_reply(connection, header->type, NULL, fd, large.length);
        close(fd);
        *n = large.length;
        return status ? status : header->status;
    }
    *payload = moor_heap_raw(reader.left + 1);
    if (!*payload) {
        if (header->status == MOOR_OK)
            moor_records_refuse_reply(connection, header->type, reader.at, -1, reader.left);
        return moor_fail(MOOR_E_NOMEM, "no memory for a reply of %zu bytes", reader.left);
    }
    *n = reader.left;
    moor_wire_get(&reader, *payload, *n);
    ((char *)*payload)[*n] = 0;
    return header->status;
}

/* Under the mutex: where the call is listed that the message answers; NULL there: none does. Tag 0: the store refuses us before it
 * read anything. */
static struct call **awaiting(moor_connection *connection, const moor_wire_header *header)
{
    struct call **at = &connection->calls;
    while (*at && ((header->tag && (*at)->tag != header->tag) || (*at)->type != header->type))
        at = &(*at)->next;
    return at;
}

/* Hands one whole message to the call that waits for it. Text of what is wrong with it, or NULL. */
static const char *deliver(moor_connection *connection, const moor_wire_header *header)
{
    moor_wire_reader reader = {connection->input + sizeof(*header), header->length - sizeof(*header)};
    void *payload;
    size_t n;
    moor_status status;
    if (!(header->flags & MOOR_WIRE_REPLY) || header->status > 0)
        return "the store sent something else than a reply";
    pthread_mutex_lock(&connection->mutex);
    int awaited = *awaiting(connection, header) != NULL; /* a greeting that nobody asked for would change the shape */
    pthread_mutex_unlock(&connection->mutex);
    if (!awaited)
        return "the store answered what nobody asked";
    status = take_payload(connection, header, reader, &payload, &n);
    if (status && !payload) {                /* ours: the text of this thread goes to the thread that waits */
        payload = strdup(moor_last_error()); /* without memory the status says enough */
        n = payload ? strlen(payload) : 0;
    }
    pthread_mutex_lock(&connection->mutex);
    struct call **at = awaiting(connection, header), *call = *at;
    if (call) {
        *at = call->next;
        call->status = status;
        call->payload = payload;
        call->n = n;
        call->done = 1;
        pthread_cond_broadcast(&connection->changed);
    }
    pthread_mutex_unlock(&connection->mutex);
    if (!call) /* it has just given up */
        free(payload);
    return call ? NULL : "the store answered what nobody asked";
}

/* One round as the reader: waits up to the deadline, takes what is there. Text of what is wrong, or NULL. */
static const char *read_some(moor_connection *connection, uint64_t deadline_ns)
{
    if (!wait_for(connection->inherit.fd, POLLIN, deadline_ns))
        return NULL;
    const char *wrong = receive(connection);
    while (!wrong) {
        moor_wire_header header;
        int whole = moor_wire_frame(connection->input, connection->have, &header);
        if (whole < 0)
            return "the store sent a malformed message";
        if (!whole)
            return NULL;
        wrong = deliver(connection, &header);
        connection->have -= header.length;
        memmove(connection->input, connection->input + header.length, connection->have);
    }
    return wrong;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

/* Under the mutex; returns with it. 0: the deadline passed. */
static int wait_changed(moor_connection *connection, uint64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(&connection->changed, &connection->mutex, &until) != ETIMEDOUT;
}

/* The bytes of a request as they go over the socket: one message, or several where one cannot hold it. */
static void put_frames(unsigned char *out, const moor_wire_header *header, const void *head, size_t head_n,
                       const void *tail, size_t tail_n)
{
    size_t left = head_n + tail_n, at = 0;
    do {
        moor_wire_header part = *header;
        size_t n = left < PIECE ? left : PIECE, of_head = at < head_n ? head_n - at : 0;
        of_head = of_head < n ? of_head : n;
        part.length = (uint32_t)(sizeof(part) + n);
        part.flags = n < left ? MOOR_WIRE_MORE : 0;
        memcpy(out, &part, sizeof(part));
        if (of_head)
            memcpy(out + sizeof(part), (const unsigned char *)head + at, of_head);
        if (n > of_head)
            memcpy(out + sizeof(part) + of_head, (const unsigned char *)tail + (at + of_head - head_n), n - of_head);
        out += part.length;
        at += n;
        left -= n;
    } while (left);
}

enum { NO_MEMORY = -2 };

/* 1: sent; 0: not until the deadline; -1: the other side is gone (and may have said why before it went); NO_MEMORY: nothing was sent. */
static int send_all(int fd, const moor_wire_header *header, const void *head, size_t head_n, const void *tail,
                    size_t tail_n, uint64_t deadline_ns)
{
    unsigned char small[512];
    size_t payload = head_n + tail_n, frames = payload ? (payload + PIECE - 1) / PIECE : 1;
    size_t total = frames * sizeof(*header) + payload, sent = 0;
    unsigned char *data = total <= sizeof(small) ? small : moor_heap_raw(total);
    int result = 1;
    if (!data)
        return NO_MEMORY;
    put_frames(data, header, head, head_n, tail, tail_n);
    while (sent < total && result > 0) {
        ssize_t n = send(fd, data + sent, total - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            sent += (size_t)n;
        else if (n < 0 && errno == EAGAIN && !wait_for(fd, POLLOUT, deadline_ns))
            result = 0;
        else if (n < 0 && errno != EAGAIN && errno != EINTR)
            result = -1;
    }
    if (data != small)
        free(data);
    return result;
}

/* Under the mutex; returns with it. Takes the right to write, sends, gives it back. 0: the connection is dead; or NO_MEMORY. */
static int send_locked(moor_connection *connection, const moor_wire_header *header, const void *head, size_t head_n,
                       const void *tail, size_t tail_n, uint64_t deadline_ns)
{
    while (connection->writing && !connection->dead)
        if (!wait_changed(connection, deadline_ns)) {
            give_up_hung_locked(connection, "the store took no message until the deadline");
            return 0;
        }
    if (connection->dead)
        return 0;
    connection->writing = 1;
    pthread_mutex_unlock(&connection->mutex);
    int sent = send_all(connection->inherit.fd, header, head, head_n, tail, tail_n, deadline_ns);
    pthread_mutex_lock(&connection->mutex);
    connection->writing = 0;
    if (!sent)
        give_up_hung_locked(connection, "the store took no message until the deadline");
    close_if_unused(connection);
    pthread_cond_broadcast(&connection->changed);
    return sent == NO_MEMORY ? NO_MEMORY : sent != 0; /* when it is gone, reading finds its last words, or its end */
}

/* Under the mutex; returns with it. Until the call is done or the connection is dead. */
static void wait_done(moor_connection *connection, struct call *call, uint64_t deadline_ns)
{
    while (!call->done && !connection->dead) {
        if (moor_now_ns() >= deadline_ns) {
            give_up_hung_locked(connection, "the store did not answer in time");
        } else if (connection->reading) {
            wait_changed(connection, deadline_ns);
        } else {
            connection->reading = 1;
            pthread_mutex_unlock(&connection->mutex);
            const char *wrong = read_some(connection, deadline_ns);
            pthread_mutex_lock(&connection->mutex);
            connection->reading = 0;
            connection->stirred |= connection->dead && moor_now_ns() < deadline_ns;
            if (wrong == gone)
                kill_locked(connection, wrong);
            else if (wrong)
                give_up_locked(connection, wrong);
            close_if_unused(connection);
            pthread_cond_broadcast(&connection->changed);
        }
    }
}

static void forget_call(moor_connection *connection, struct call *call)
{
    for (struct call **at = &connection->calls; *at; at = &(*at)->next)
        if (*at == call) {
            *at = call->next;
            return;
        }
}

moor_status moor_connection_call(moor_connection *connection, uint16_t type, const void *head, size_t head_n,
                                 const void *tail, size_t tail_n, uint64_t deadline_ns, void **payload, size_t *n)
{
    moor_wire_header header = {.type = type};
    int in_pieces = type >= MOOR_WIRE_SESSION_START && type <= MOOR_WIRE_SESSION_ROLLBACK;
    size_t limit = in_pieces ? (size_t)MOOR_WIRE_REQUEST_LIMIT : PIECE;
    struct call call = {.type = type};
    uint32_t store = connection->shape.store_index;
    if (connection->pid != getpid())
        return moor_fail(MOOR_E_FORKED, "the connection to store %u belongs to the parent process %d", store,
                         (int)connection->pid);
    if (head_n + tail_n > limit)
        return moor_fail(MOOR_E_INVALID, "a request of %zu bytes; at most %zu travel", head_n + tail_n, limit);
    pthread_mutex_lock(&connection->mutex);
    if (!++connection->next_tag) /* after 2^32 calls; 0 is nobody's */
        connection->next_tag = 1;
    header.tag = call.tag = connection->next_tag;
    call.next = connection->calls;
    connection->calls = &call;
    int sent = send_locked(connection, &header, head, head_n, tail, tail_n, deadline_ns);
    if (sent == 1)
        wait_done(connection, &call, deadline_ns);
    if (!call.done && sent == NO_MEMORY) {
        forget_call(connection, &call);
        pthread_mutex_unlock(&connection->mutex);
        return moor_fail(MOOR_E_NOMEM, "no memory for a request of %zu bytes", head_n + tail_n);
    }
    if (!call.done) {
        forget_call(connection, &call);
        moor_status status = moor_fail(MOOR_E_CLOSED, "the connection to store %u of instance \"%s\" is closed: %s",
                                       store, connection->shape.instance, connection->why);
        pthread_mutex_unlock(&connection->mutex);
        return status;
    }
    pthread_mutex_unlock(&connection->mutex);
    if (call.status) {
        static const char no_text[] = "no memory for a reply";
        moor_fail(call.status, "%.*s", call.payload ? (int)call.n : (int)sizeof(no_text) - 1,
                  call.payload ? (char *)call.payload : no_text);
        free(call.payload);
        return call.status;
    }
    *payload = call.payload;
    *n = call.n;
    return MOOR_OK;
}

/* ---- leases ----------------------------------------------------------------------------------------------------- */

void moor_connection_lease(moor_connection *connection)
{
    moor_connection_retain(connection);
    atomic_fetch_add(&connection->inherit.leases, 1);
}

void moor_connection_make_private(moor_connection *connection)
{
    atomic_fetch_sub(&connection->inherit.leases, 1);
}

int moor_connection_reads(const moor_connection *connection)
{
    return moor_inherit_reads(&connection->inherit);
}

/* The parent's threads are not here: whatever else refers to the connection stays as it was found. */
static void unlease_in_child(moor_connection *connection)
{
    if (atomic_fetch_sub(&connection->inherit.leases, 1) != 1)
        return;
    moor_inherit_close(&connection->inherit);
    if (connection->shape.arena)
        munmap((void *)(uintptr_t)connection->shape.arena, connection->shape.arena_bytes);
    connection->shape.arena = NULL;
}

void moor_connection_unlease(moor_connection *connection, uint64_t handle)
{
    if (!moor_connection_reads(connection))
        return;
    if (connection->pid != getpid()) {
        unlease_in_child(connection);
        return;
    }
    atomic_fetch_sub(&connection->inherit.leases, 1); /* first: a fork from here on hands nothing on */
    if (!moor_connection_handed_on(connection))
        moor_connection_post_release(connection, handle);
    moor_connection_release(connection);
}

void moor_connection_post_release(moor_connection *connection, uint64_t handle)
{
    moor_wire_handle message = {.handle = handle};
    moor_wire_header header = {.type = MOOR_WIRE_RELEASE};
    if (connection->pid != getpid())
        return;
    pthread_mutex_lock(&connection->mutex);
    if (!connection->dead)
        send_locked(connection, &header, &message, sizeof(message), NULL, 0, moor_now_ns() + POST_MS * 1000000ull);
    pthread_mutex_unlock(&connection->mutex);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static moor_status connect_to(moor_connection *connection, const char *dir, uint64_t deadline_ns)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[MOOR_SOCKET_PATH_MAX + 1];
    moor_status status = moor_dirs_socket_path(dir, connection->shape.store_index, path);
    if (status)
        return status;
    memcpy(address.sun_path, path, sizeof(path));
    int fd = moor_inherit_socket(&connection->inherit);
    if (fd < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "%s: socket", path);
    /* EAGAIN: its queue of newcomers is full. */
    while (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        int err = errno;
        if (err == EINTR)
            continue;
        if (err == EAGAIN && moor_now_ns() >= deadline_ns) {
            connection->again_ns = moor_now_ns() + AGAIN_S * 1000000000ull;
            moor_inherit_close(&connection->inherit);
            give_up_hung_locked(connection, "its queue of newcomers is full"); /* nobody else has it yet */
            return moor_fail(MOOR_E_TIMEOUT, "%s: its queue of newcomers is full", path);
        }
        if (err != EAGAIN)
            return moor_fail_errno(err == ECONNREFUSED || err == ENOENT ? MOOR_E_CLOSED : MOOR_E_IO, err, "%s", path);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return MOOR_OK;
}

moor_status moor_connection_open(const char *dir, const char *instance, uint32_t store_index, uint64_t deadline_ns,
                                 moor_connection **out)
{
    moor_connection *connection = NULL;
    moor_wire_hello hello = {.magic = MOOR_WIRE_MAGIC, .version = MOOR_WIRE_VERSION, .pid = (uint32_t)getpid()};
    void *payload = NULL;
    size_t n;
    moor_status status = allocate(instance, &connection);
    if (status)
        return status;
    connection->shape.store_index = store_index;
    status = connect_to(connection, dir, deadline_ns);
    if (!status)
        status = moor_connection_call(connection, MOOR_WIRE_HELLO, &hello, sizeof(hello), NULL, 0, deadline_ns,
                                      &payload, &n);
    free(payload);
    if (status && !connection->hung) {
        moor_connection_disown(connection);
        return status == MOOR_E_TIMEOUT ? moor_fail(MOOR_E_CORRUPT, "store %u greets with a timeout", store_index)
                                        : status;
    }
    *out = connection;
    return status ? moor_fail(MOOR_E_TIMEOUT, "store %u of instance \"%s\" does not answer", store_index, instance)
                  : status;
}
