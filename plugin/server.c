/* SPDX-License-Identifier: Apache-2.0 */
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../allocator/forkfd.h"
#include "../hooks/futex.h"
#include "../hooks/persist.h"
#include "address.h"
#include "peer.h"
#include "process.h"
#include "saver.h"
#include "state.h"

enum {
    MAX_CLIENTS = 1024,
    GREETING_MS = 5000,  /* a connection that has not greeted by then is closed */
    TICK_WAITING_MS = 1, /* how often the seal ring is looked at while an open waits or the gate is not open */
    TICK_IDLE_MS = 20,
    EXPIRE_MS = 1000,
    STOP_MS = 5000,
    FIXED_FDS = 4 /* wake, notify, listen twice: the first entries of the poll set */
};

struct connection {
    int fd, closing;
    int starved; /* the kernel had no memory for what is to be sent: the next round tries again */
    uint64_t since_ns;
    moor_peer *peer;
};

typedef struct moor_server {
    moor_peer_home home;
    moor_saver saver;
    pthread_t thread;
    moor_address address;
    int wake_fd;
    _Atomic int stop;
    _Atomic uint32_t ended; /* as in saver.h */
    uint64_t next_client, accept_again_ns, next_expire_ns;
    uint32_t n;
    struct connection connections[MAX_CLIENTS];
    struct pollfd polls[FIXED_FDS + MAX_CLIENTS];
    unsigned char bytes[MOOR_WIRE_LIMIT]; /* what was just read */
    int32_t layer_ids[];
} moor_server;

/* ---- one connection --------------------------------------------------------------------------------------------- */

static void connection_close(moor_server *server, uint32_t i)
{
    moor_forkfd_close(server->connections[i].fd);
    moor_peer_destroy(server->connections[i].peer);
    server->connections[i] = server->connections[--server->n];
}

/* Sends what the socket takes. 0: the connection is broken. */
static int connection_send(struct connection *connection)
{
    moor_peer_reply *reply;
    connection->starved = 0;
    while ((reply = moor_peer_first(connection->peer))) {
        union {
            struct cmsghdr header;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec part = {reply->data + reply->sent, reply->length - reply->sent};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (reply->fd >= 0) {
            memset(&control, 0, sizeof(control));
            message.msg_control = control.bytes;
            message.msg_controllen = sizeof(control.bytes);
            control.header.cmsg_level = SOL_SOCKET;
            control.header.cmsg_type = SCM_RIGHTS;
            control.header.cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(&control.header), &reply->fd, sizeof(int));
        }
        ssize_t sent = sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            /* ETOOMANYREFS: descriptors on their way, of all consumers. To close would end leases of what is being read. */
            connection->starved = errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS;
            return connection->starved || errno == EAGAIN || errno == EINTR;
        }
        moor_peer_sent(connection->peer, (size_t)sent);
    }
    return 1;
}

/* n of server->bytes; 0: the connection is over. */
static int connection_input(moor_server *server, const struct connection *connection, size_t n, uint64_t now_ns)
{
    if (!moor_peer_input(connection->peer, server->bytes, n, now_ns))
        return 1;
    moor_log(MOOR_LOG_WARN, "store %u: connection closed: %s", server->home.store->store_index, moor_last_error());
    return 0;
}

/* The same. */
static int connection_read(moor_server *server, const struct connection *connection, uint64_t now_ns)
{
    ssize_t got = recv(connection->fd, server->bytes, sizeof(server->bytes), MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    if (got == 0)
        return 0;
    return connection_input(server, connection, (size_t)got, now_ns);
}

/* fd: of a new connection, ours from here on, whatever happens. */
static void connection_add(moor_server *server, int fd, uint64_t now_ns)
{
    struct ucred peer_is = {0};
    socklen_t size = sizeof(peer_is);
    struct connection *connection = &server->connections[server->n];
    if (moor_peer_create(&server->home, ++server->next_client, &connection->peer)) {
        moor_forkfd_close(fd);
        return;
    }
    connection->fd = fd;
    connection->since_ns = now_ns;
    connection->closing = connection->starved = 0;
    server->n++;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer_is, &size) < 0 || peer_is.uid != geteuid()) {
        char text[128];
        snprintf(text, sizeof(text), "the store belongs to uid %u, the client runs as uid %u", (unsigned)geteuid(),
                 (unsigned)peer_is.uid);
        moor_peer_refuse(connection->peer, MOOR_E_ACCESS, text);
        connection->closing = 1;
    } else if (server->n == MAX_CLIENTS) {
        moor_peer_refuse(connection->peer, MOOR_E_FULL, "the store has no place for another connection");
        connection->closing = 1;
    }
}

static void accept_all(moor_server *server, int listen_fd, uint64_t now_ns)
{
    while (server->n < MAX_CLIENTS) {
        int fd = moor_forkfd_accept(listen_fd);
        if (fd < 0) {
            /* Out of descriptors or memory, say: the socket stays readable, so look away for a moment. */
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
                server->accept_again_ns = now_ns + 100000000;
            return;
        }
        connection_add(server, fd, now_ns);
    }
}

/* ---- the loop --------------------------------------------------------------------------------------------------- */

static int gate_is_open(const moor_server *server)
{
    return (atomic_load_explicit(&server->home.store->process->state->gate.word, memory_order_relaxed) & 15) ==
           MOOR_GATE_OPEN;
}

static int poll_timeout(const moor_server *server, uint64_t now_ns)
{
    uint64_t deadline = UINT64_MAX;
    int timeout = gate_is_open(server) ? TICK_IDLE_MS : TICK_WAITING_MS;
    for (uint32_t i = 0; i < server->n; i++) {
        uint64_t next = moor_peer_next_deadline(server->connections[i].peer);
        if (moor_peer_waiting(server->connections[i].peer))
            timeout = TICK_WAITING_MS;
        if (next < deadline)
            deadline = next;
    }
    return deadline <= now_ns ? 0 : timeout;
}

static void poll_set(moor_server *server, uint64_t now_ns)
{
    int listening = server->n < MAX_CLIENTS && now_ns >= server->accept_again_ns;
    server->polls[0] = (struct pollfd){server->wake_fd, POLLIN, 0};
    server->polls[1] = (struct pollfd){moor_records_notify_fd(server->home.store->records), POLLIN, 0};
    server->polls[2] = (struct pollfd){listening ? server->address.fd : -1, POLLIN, 0};
    server->polls[3] = (struct pollfd){listening ? server->address.spare_fd : -1, POLLIN, 0};
    for (uint32_t i = 0; i < server->n; i++) {
        const struct connection *connection = &server->connections[i];
        size_t queued = moor_peer_queued(connection->peer);
        int reads = queued < MOOR_PEER_MAX_QUEUED && !connection->closing && !moor_peer_starved(connection->peer);
        int events = (queued && !connection->starved ? POLLOUT : 0) | (reads ? POLLIN : 0);
        server->polls[FIXED_FDS + i] = (struct pollfd){connection->fd, (short)events, 0};
    }
}

static void serve_connections(moor_server *server, uint32_t polled, uint64_t now_ns)
{
    /* From the end: a closed one is replaced by the last, which was served already or is new. */
    for (uint32_t i = polled; i-- > 0;) {
        struct connection *connection = &server->connections[i];
        short events = server->polls[FIXED_FDS + i].revents;
        int good = !(events & (POLLERR | POLLNVAL));
        if (good && (events & POLLIN))
            good = connection_read(server, connection, now_ns);
        else if (events & POLLHUP)
            good = 0;
        else if (good && moor_peer_starved(connection->peer))
            good = connection_input(server, connection, 0, now_ns);
        if (!moor_peer_greeted(connection->peer) && now_ns - connection->since_ns > GREETING_MS * 1000000ull)
            good = 0;
        if (!connection_send(connection) || !good || (connection->closing && !moor_peer_queued(connection->peer)))
            connection_close(server, i);
    }
}

/* Seals first, then whoever waited for them. `fresh`: something may have happened to records. */
static void serve_waiting(moor_server *server, int fresh, uint64_t now_ns)
{
    if (moor_records_drain(server->home.store->records))
        fresh = 1;
    for (uint32_t i = 0; i < server->n; i++) {
        struct connection *connection = &server->connections[i];
        if (!moor_peer_waiting(connection->peer))
            continue;
        moor_peer_retry(connection->peer, now_ns, fresh);
        connection_send(connection); /* a broken one is found by poll */
    }
}

/* A snapshot is ready, or will not be: whoever asked is told, if he is still there. */
static void serve_saved(moor_server *server)
{
    moor_saved saved;
    if (!moor_saver_take(&server->saver, &saved))
        return;
    for (uint32_t i = 0; i < server->n; i++) {
        struct connection *connection = &server->connections[i];
        if (moor_peer_client(connection->peer) != saved.client)
            continue;
        moor_peer_saved(connection->peer, &saved);
        connection_send(connection); /* a broken one is found by poll */
        return;
    }
}

static void *server_main(void *user)
{
    moor_server *server = user;
    moor_records *records = server->home.store->records;
    while (!atomic_load(&server->stop)) {
        uint64_t now_ns = moor_now_ns();
        uint32_t polled = server->n;
        poll_set(server, now_ns);
        if (poll(server->polls, FIXED_FDS + polled, poll_timeout(server, now_ns)) < 0)
            continue; /* EINTR or no kernel memory for a moment */
        now_ns = moor_now_ns();
        if (server->polls[0].revents)
            serve_saved(server);
        int notified = server->polls[1].revents & POLLIN;
        if (notified)
            moor_records_notified(records);
        serve_connections(server, polled, now_ns);
        if (server->polls[2].revents)
            accept_all(server, server->address.fd, now_ns);
        if (server->polls[3].revents)
            accept_all(server, server->address.spare_fd, now_ns);
        serve_waiting(server, notified, now_ns);
        if (now_ns >= server->next_expire_ns) {
            moor_records_expire(records, now_ns);
            moor_address_tend(&server->address, now_ns);
            server->next_expire_ns = now_ns + EXPIRE_MS * 1000000ull;
        }
    }
    while (server->n)
        connection_close(server, server->n - 1);
    moor_futex_raise(&server->ended);
    return NULL;
}

/* ---- start and stop --------------------------------------------------------------------------------------------- */

static moor_status start_thread(moor_server *server)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&server->thread, NULL, server_main, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err)
        return moor_fail_errno(MOOR_E_NOMEM, err, "%s: no thread", server->address.path);
    pthread_setname_np(server->thread, "moor-store");
    return MOOR_OK;
}

static void server_free(moor_server *server)
{
    moor_address_close(&server->address);
    if (server->wake_fd >= 0)
        close(server->wake_fd);
    free(server);
}

/* All but the thread. The socket comes before the records: it tells whether somebody else owns this store and its ring. */
static moor_status server_make(moor_process *process, const moor_store_args *args, moor_server **out)
{
    moor_server *server = calloc(1, sizeof(*server) + args->layers * sizeof(int32_t));
    if (!server)
        return moor_fail(MOOR_E_NOMEM, "store %u: no memory for the server", args->store_index);
    memcpy(server->layer_ids, args->layer_ids, args->layers * sizeof(int32_t));
    server->home = (moor_peer_home){.layers = args->layers,
                                    .top_k = args->top_k,
                                    .num_experts = args->num_experts,
                                    .model_layers = args->model_layers,
                                    .layer_ids = server->layer_ids,
                                    .saver = &server->saver};
    if (getrandom(&server->home.nonce, sizeof(server->home.nonce), GRND_NONBLOCK) < 0)
        server->home.nonce = (uint32_t)moor_now_ns();
    server->address.fd = server->address.spare_fd = -1;
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    moor_saver_init(&server->saver, server->wake_fd);
    moor_status status = server->wake_fd >= 0 ? MOOR_OK : moor_fail_errno(MOOR_E_IO, errno, "eventfd");
    if (!status)
        status = moor_address_open(&server->address, process, args->store_index);
    if (status)
        server_free(server);
    else
        *out = server;
    return status;
}

/* 1 when the thread is gone and everything of the server with it. */
static int server_stop(moor_store *store)
{
    moor_server *server = store->server;
    uint64_t one = 1;
    uint64_t deadline_ns = moor_now_ns() + STOP_MS * 1000000ull;
    atomic_store(&server->stop, 1);
    ssize_t wrote = write(server->wake_fd, &one, sizeof(one)); /* a full eventfd wakes as well */
    (void)wrote;
    while (!atomic_load(&server->ended) && moor_now_ns() < deadline_ns)
        moor_futex_wait(&server->ended, 0, deadline_ns);
    if (!atomic_load(&server->ended) || !moor_saver_stop(&server->saver, deadline_ns)) {
        moor_log(MOOR_LOG_ERROR, "store %u: its thread did not end within %d s; its memory is left to it",
                 store->store_index, STOP_MS / 1000);
        return 0;
    }
    pthread_join(server->thread, NULL); /* it has nothing left to do */
    server_free(server);
    store->server = NULL;
    return 1;
}

static moor_status check_args(const moor_store_args *given, moor_store_args *args)
{
    *args = (moor_store_args)MOOR_STORE_ARGS_INIT;
    if (!given || given->size < 2 * sizeof(uint32_t))
        return moor_fail(MOOR_E_INVALID, "store_open: args is NULL or its size is not set");
    memcpy(args, given, given->size < sizeof(*args) ? given->size : sizeof(*args));
    args->size = sizeof(*args);
    if (args->store_index >= MOOR_MAX_STORES)
        return moor_fail(MOOR_E_INVALID, "store_open: store_index is %u, an instance has at most %d stores",
                         args->store_index, MOOR_MAX_STORES);
    if (args->layers < 1 || args->layers > MOOR_MAX_LAYERS || !args->layer_ids)
        return moor_fail(MOOR_E_INVALID, "store_open: layers is %u (1 to %d), layer_ids is %s", args->layers,
                         MOOR_MAX_LAYERS, args->layer_ids ? "given" : "NULL");
    int32_t first = args->layer_ids[0], last = args->layer_ids[args->layers - 1];
    if (args->model_layers == 0)
        args->model_layers = (uint32_t)last + 1;
    if (first < 0 || last < 0 || (uint32_t)last >= args->model_layers) /* they ascend: the record store checks it */
        return moor_fail(MOOR_E_INVALID, "store_open: layer_ids run from %d to %d, the model has %u layers", first,
                         last, args->model_layers);
    return MOOR_OK;
}

/* record.restore: what is wrong with the snapshot is wrong with the configuration. */
static moor_status restore_configured(const moor_process *process, moor_store *store)
{
    char why[MOOR_ERROR_TEXT - 64];
    const char *dir = process->config.record_restore;
    moor_status status = dir ? moor_store_restore(store, dir) : MOOR_OK;
    if (!status || status == MOOR_E_NOMEM)
        return status;
    snprintf(why, sizeof(why), "%s", moor_last_error());
    return moor_fail(MOOR_E_CONFIG, "\"record.restore\": %s", why);
}

moor_status moor_store_open(moor_process *process, const moor_store_args *given, moor_store **out)
{
    moor_store_args args;
    moor_store *store = NULL;
    moor_server *server = NULL;
    moor_status status = moor_process_check(process, "store_open");
    if (!status && !out)
        status = moor_fail(MOOR_E_INVALID, "store_open: out is NULL");
    if (!status)
        status = check_args(given, &args);
    if (!status)
        status = moor_state_reserve_ring(moor_process_dir_fd(process), process->dir, args.store_index);
    if (!status)
        status = server_make(process, &args, &server);
    if (!status)
        status = moor_recorder_create(process, &args, &store);
    if (!status)
        status = restore_configured(process, store);
    if (!status) {
        store->server = server;
        server->home.store = store;
        status = start_thread(server);
    }
    if (status) {
        if (store)
            moor_recorder_destroy(store);
        if (server)
            server_free(server);
        return status;
    }
    moor_process_retain(process);
    *out = store;
    return MOOR_OK;
}

void moor_store_close(moor_store *store)
{
    if (!store || store->pid != getpid())
        return;
    moor_process *process = store->process;
    if (!server_stop(store))
        return; /* its thread still uses the shared state: it keeps this process in the instance */
    moor_recorder_destroy(store);
    moor_process_leave(process);
}
