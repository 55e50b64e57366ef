/* SPDX-License-Identifier: Apache-2.0 */
#include "connection.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../allocator/dirs.h"
#include "../allocator/heap.h"
#include "../allocator/interrupt.h"
#include "inherit.h"
#include "late.h"
#include "record.h"
#include "send.h"
#include "welcome.h"
#include "wire.h"

enum {
    MAX_FDS = 16,
    MAX_LEFT = 64,
    POST_MS = 1000,
    AGAIN_S = 30,
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
    short sign;        /* what poll says of the socket when it is worth another look */
    int stirred;       /* and something came after all */
    uint64_t again_ns; /* without a socket: when to look again */
    char why[160];     /* it is dead */
    uint32_t next_tag;
    struct call *calls;
    uint32_t n_left; /* calls whose callers were interrupted, and whose replies are still to come */
    struct {
        uint32_t tag;
        uint16_t type;
    } left[MAX_LEFT];

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

/* The store may only sleep, or be stopped: moor_connection_stirs tells when it is back. sign: what poll will say then. POLLIN, for an answer;
 * POLLOUT where it took no whole message, which it will never answer. */
static void give_up_hung_locked(moor_connection *connection, short sign, const char *why)
{
    if (!connection->dead) {
        connection->hung = 1;
        connection->sign = sign;
    }
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
        struct pollfd poll_fd = {connection->inherit.fd, (short)(POLLIN | connection->sign), 0};
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
    if (!atomic_load(&connection->users)) /* else one came before the fork, and is the last */
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

static const char gone[] = "the store's process is gone";

void moor_connection_look(moor_connection *connection)
{
    if (connection->pid != getpid())
        return;
    pthread_mutex_lock(&connection->mutex);
    struct pollfd poll_fd = {connection->inherit.fd, POLLRDHUP, 0};
    if (!connection->dead && poll(&poll_fd, 1, 0) == 1)
        kill_locked(connection, gone);
    pthread_mutex_unlock(&connection->mutex);
}

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

/* Makes the payload of a reply that the caller keeps. status is the store's, or why its reply could not be taken. */
static moor_status take_payload(moor_connection *connection, const moor_wire_header *header, moor_wire_reader reader,
                                void **payload, size_t *n)
{
    moor_wire_large large;
    *payload = NULL;
    *n = 0;
    if (header->status == MOOR_OK && header->type == MOOR_WIRE_HELLO)
        return moor_welcome_take(reader, take_fd(connection), &connection->shape, &connection->layer_ids);
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

/* Under the mutex: 1 when its caller was interrupted; it is forgotten. */
static int was_left(moor_connection *connection, const moor_wire_header *header)
{
    for (uint32_t i = 0; i < connection->n_left; i++)
        if (connection->left[i].tag == header->tag && connection->left[i].type == header->type) {
            connection->left[i] = connection->left[--connection->n_left];
            return 1;
        }
    return 0;
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
    int late = !awaited && was_left(connection, header);
    pthread_mutex_unlock(&connection->mutex);
    if (!awaited && !late)
        return "the store answered what nobody asked";
    status = take_payload(connection, header, reader, &payload, &n);
    if (late) {
        if (!status)
            moor_late_reply(connection, header->type, payload, n);
        free(payload);
        return NULL;
    }
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
    late = !call && was_left(connection, header);
    pthread_mutex_unlock(&connection->mutex);
    if (late && !status)
        moor_late_reply(connection, header->type, payload, n);
    if (!call) /* it has just given up, or was interrupted */
        free(payload);
    return call || late ? NULL : "the store answered what nobody asked";
}

/* One round as the reader: waits up to the deadline, takes what is there. Text of what is wrong, or NULL. */
static const char *read_some(moor_connection *connection, uint64_t deadline_ns)
{
    if (!moor_send_wait(connection->inherit.fd, POLLIN, deadline_ns))
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

/* Under the mutex; returns with it. 1: the caller's host wants it back. */
static int interrupted(moor_connection *connection)
{
    if (!moor_interruptible())
        return 0;
    pthread_mutex_unlock(&connection->mutex);
    int result = moor_interrupted();
    pthread_mutex_lock(&connection->mutex);
    return result;
}

/* Under the mutex; returns with it. 0: the deadline passed. */
static int wait_changed(moor_connection *connection, uint64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(&connection->changed, &connection->mutex, &until) != ETIMEDOUT;
}

/* Under the mutex; returns with it. Takes the right to write, sends, gives it back. UNSENT: the connection is dead, or the caller was
 * interrupted before anything was sent. Interrupted in the middle of a message, it is given up. */
static enum moor_sent send_locked(moor_connection *connection, const moor_wire_header *header, const void *head,
                                  size_t head_n, const void *tail, size_t tail_n, uint64_t deadline_ns)
{
    int patient =
        header->type == MOOR_WIRE_RELEASE; /* what ends a lease is sent, also for a caller that is interrupted */
    while (connection->writing && !connection->dead) {
        if (wait_changed(connection, patient ? deadline_ns : moor_interrupt_slice(deadline_ns)))
            continue;
        if (!patient && interrupted(connection))
            return MOOR_UNSENT;
        if (connection->writing && moor_now_ns() >= deadline_ns)
            give_up_hung_locked(connection, POLLOUT, "the store took no message until the deadline");
    }
    if (connection->dead)
        return MOOR_UNSENT;
    connection->writing = 1;
    pthread_mutex_unlock(&connection->mutex);
    enum moor_sent sent = moor_send_request(connection->inherit.fd, header, head, head_n, tail, tail_n, deadline_ns);
    int late = moor_now_ns() >= deadline_ns;
    pthread_mutex_lock(&connection->mutex);
    connection->writing = 0;
    if (sent == MOOR_STUCK && late)
        give_up_hung_locked(connection, POLLOUT, "the store took no message until the deadline");
    else if (sent == MOOR_STUCK)
        give_up_locked(connection, "interrupted in the middle of a message");
    close_if_unused(connection);
    pthread_cond_broadcast(&connection->changed);
    if (sent == MOOR_STUCK)
        return MOOR_UNSENT;
    return sent == MOOR_GONE ? MOOR_SENT : sent; /* when it is gone, reading finds its last words, or its end */
}

/* Under the mutex; returns with it. Until the call is done, the connection is dead, or the caller was interrupted. Who comes back late from
 * what interrupts it, or was not run for long, looks once more: that he did not look is not the store's fault. */
static void wait_done(moor_connection *connection, struct call *call, uint64_t deadline_ns)
{
    int looked_late = 0;
    while (!interrupted(connection) && !call->done && !connection->dead) {
        int late = moor_now_ns() >= deadline_ns;
        if (late && (looked_late || connection->reading)) {
            give_up_hung_locked(connection, POLLIN, "the store did not answer in time");
        } else if (connection->reading) {
            wait_changed(connection, moor_interrupt_slice(deadline_ns));
        } else {
            connection->reading = 1;
            pthread_mutex_unlock(&connection->mutex);
            uint64_t until_ns = moor_interrupt_slice(deadline_ns);
            const char *wrong = read_some(connection, until_ns);
            looked_late = late;
            pthread_mutex_lock(&connection->mutex);
            connection->reading = 0;
            connection->stirred |= connection->dead && moor_now_ns() < until_ns;
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

/* Under the mutex: the reply of a call that was sent is dropped when it comes. */
static void leave_call(moor_connection *connection, const struct call *call)
{
    if (connection->n_left == MAX_LEFT) {
        give_up_locked(connection, "too many calls were interrupted, and the store answers none");
        return;
    }
    connection->left[connection->n_left].tag = call->tag;
    connection->left[connection->n_left++].type = call->type;
}

/* Under the mutex: a call that has no answer, or whose caller does not want it any more. Why, as its status. */
static moor_status end_call(moor_connection *connection, struct call *call, enum moor_sent how)
{
    const moor_shape *shape = &connection->shape;
    int sent = how == MOOR_SENT;
    forget_call(connection, call);
    if (how == MOOR_NO_MEMORY && !connection->dead)
        return moor_fail(MOOR_E_NOMEM, "no memory for a request to store %u of instance \"%s\"", shape->store_index,
                         shape->instance);
    if (connection->dead && !moor_was_interrupted())
        return moor_fail(MOOR_E_CLOSED, "the connection to store %u of instance \"%s\" is closed: %s",
                         shape->store_index, shape->instance, connection->why);
    if (sent && !call->done && !connection->dead)
        leave_call(connection, call);
    return moor_fail(MOOR_E_INTERRUPTED, "interrupted while store %u of instance \"%s\" %s", shape->store_index,
                     shape->instance, sent ? "had not answered; its answer is dropped" : "took no message");
}

moor_status moor_connection_call(moor_connection *connection, uint16_t type, const void *head, size_t head_n,
                                 const void *tail, size_t tail_n, uint64_t deadline_ns, void **payload, size_t *n)
{
    moor_wire_header header = {.type = type};
    int in_pieces = type >= MOOR_WIRE_SESSION_START && type <= MOOR_WIRE_SESSION_ROLLBACK;
    size_t limit = in_pieces ? (size_t)MOOR_WIRE_REQUEST_LIMIT : MOOR_SEND_PIECE;
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
    enum moor_sent sent = send_locked(connection, &header, head, head_n, tail, tail_n, deadline_ns);
    if (sent == MOOR_SENT)
        wait_done(connection, &call, deadline_ns);
    int ended = !call.done || moor_was_interrupted();
    moor_status status = ended ? end_call(connection, &call, sent) : MOOR_OK;
    pthread_mutex_unlock(&connection->mutex);
    if (ended) {
        if (call.done && !call.status)
            moor_late_reply(connection, type, call.payload, call.n);
        free(call.payload);
        return status;
    }
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

/* Anybody may take a name in the abstract namespace; what listens on ours must be of our user. */
static int is_ours(int fd)
{
    struct ucred peer = {0};
    socklen_t size = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

/* dir_fd: -1, or of a directory whose files were removed. */
static moor_status connect_to(moor_connection *connection, int dir_fd, const char *dir, uint64_t deadline_ns)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t address_size = sizeof(address);
    char path[MOOR_SOCKET_PATH_MAX + 1];
    moor_status status = moor_dirs_socket_path(dir, connection->shape.store_index, path);
    if (status)
        return status;
    memcpy(address.sun_path, path, sizeof(path));
    if (dir_fd >= 0 && moor_dirs_abstract_name(dir_fd, dir, connection->shape.store_index, &address, &address_size))
        return moor_fail_errno(MOOR_E_IO, errno, "%s: its directory", path);
    int fd = moor_inherit_socket(&connection->inherit);
    if (fd < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "%s: socket", path);
    /* EAGAIN: its queue of newcomers is full. */
    while (connect(fd, (struct sockaddr *)&address, address_size) < 0) {
        int err = errno;
        if (err == EINTR)
            continue;
        if (err == EAGAIN && moor_interrupted())
            return moor_fail(MOOR_E_INTERRUPTED, "interrupted while %s took no connection", path);
        if (err == EAGAIN && moor_now_ns() >= deadline_ns) {
            connection->again_ns = moor_now_ns() + AGAIN_S * 1000000000ull;
            moor_inherit_close(&connection->inherit);
            give_up_hung_locked(connection, POLLIN, "its queue of newcomers is full"); /* nobody else has it yet */
            return moor_fail(MOOR_E_TIMEOUT, "%s: its queue of newcomers is full", path);
        }
        if (err != EAGAIN)
            return moor_fail_errno(err == ECONNREFUSED || err == ENOENT ? MOOR_E_CLOSED : MOOR_E_IO, err, "%s", path);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return dir_fd < 0 || is_ours(fd) ? MOOR_OK : moor_fail(MOOR_E_CLOSED, "%s: nobody of ours listens", path);
}

static moor_status open_by(int dir_fd, const char *dir, const char *instance, uint32_t store_index,
                           uint64_t deadline_ns, moor_connection **out)
{
    moor_connection *connection = NULL;
    moor_wire_hello hello = {.magic = MOOR_WIRE_MAGIC, .version = MOOR_WIRE_VERSION, .pid = (uint32_t)getpid()};
    void *payload = NULL;
    size_t n;
    moor_status status = allocate(instance, &connection);
    if (status)
        return status;
    connection->shape.store_index = store_index;
    status = connect_to(connection, dir_fd, dir, deadline_ns);
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

moor_status moor_connection_open(const char *dir, const char *instance, uint32_t store_index, uint64_t deadline_ns,
                                 moor_connection **out)
{
    return open_by(-1, dir, instance, store_index, deadline_ns, out);
}

moor_status moor_connection_open_without_file(int dir_fd, const char *dir, const char *instance, uint32_t store_index,
                                              uint64_t deadline_ns, moor_connection **out)
{
    return open_by(dir_fd, dir, instance, store_index, deadline_ns, out);
}
