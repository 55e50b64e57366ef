/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../abi/state.h"
#include "../allocator/locks.h"
#include "deadline.h"
#include "wire.h"

enum {
    SETTLED_MS = 100, /* coarser than any clock that files are stamped by */
    LOOK_MS = 20      /* how often attach looks again */
};

struct moor_client {
    pid_t pid;
    moor_located where;
    int dir_fd;
    uint64_t patience_ns; /* MOOR_CLIENT_PATIENCE_S, or less for one who only has a look */
    pthread_mutex_t mutex;
    moor_connection *stores[MOOR_CLIENT_STORES];
    moor_connection
        *hung[MOOR_CLIENT_STORES]; /* of stores that did not answer: left alone until something comes from them */
    _Atomic int knows_removed;     /* that somebody has removed the directory */
    _Atomic uint64_t met;          /* bit n: store n has listened when it was asked last */
    struct timespec seen;          /* the directory's mtime when it was last read; 0: read it again */
    moor_client
        *sessions; /* the same without a record ever: its connections, and so what hangs on them, outlive a fork */
    void *visit;
    void (*end_visit)(void *visit);
};

/* ---- the table of connections ----------------------------------------------------------------------------------- */

/* 1 when there is a live connection to the store; a spent one is dropped. */
static int known(moor_client *client, uint32_t index)
{
    moor_connection *dropped = NULL;
    pthread_mutex_lock(&client->mutex);
    if (client->stores[index] && moor_connection_spent(client->stores[index])) {
        dropped = client->stores[index];
        client->stores[index] = NULL;
        client->seen = (struct timespec){0};
        if (moor_connection_hung(dropped) && !client->hung[index]) {
            client->hung[index] = dropped;
            dropped = NULL;
        }
    }
    int is_known = client->stores[index] != NULL;
    pthread_mutex_unlock(&client->mutex);
    moor_connection_disown(dropped);
    return is_known;
}

/* 1 when the store did not answer, and nothing has come from it since; there: its socket is. */
static int still_hung(moor_client *client, uint32_t index, int there)
{
    pthread_mutex_lock(&client->mutex);
    moor_connection *hung = client->hung[index] ? moor_connection_retain(client->hung[index]) : NULL;
    pthread_mutex_unlock(&client->mutex);
    int still = hung && there && !moor_connection_stirs(hung);
    pthread_mutex_lock(&client->mutex);
    int drops = hung && !still && client->hung[index] == hung;
    if (drops)
        client->hung[index] = NULL;
    pthread_mutex_unlock(&client->mutex);
    moor_connection_release(hung);
    if (drops)
        moor_connection_disown(hung);
    return still;
}

static moor_status connect_store(moor_client *client, uint32_t index, int without_file)
{
    moor_connection *connection;
    uint64_t deadline_ns = moor_now_ns() + client->patience_ns;
    moor_status status =
        without_file ? moor_connection_open_without_file(client->dir_fd, client->where.dir, client->where.name, index,
                                                         deadline_ns, &connection)
                     : moor_connection_open(client->where.dir, client->where.name, index, deadline_ns, &connection);
    if (status == MOOR_E_CLOSED) {
        atomic_fetch_and(&client->met, ~(1ull << index));
        return MOOR_OK; /* about to come, or a killed worker's: no store to be asked */
    }
    if (status && status != MOOR_E_TIMEOUT)
        return status;
    atomic_fetch_or(&client->met, 1ull << index);
    pthread_mutex_lock(&client->mutex);
    moor_connection **at = status ? &client->hung[index] : &client->stores[index];
    if (!*at) {
        *at = connection;
        connection = NULL;
    }
    pthread_mutex_unlock(&client->mutex);
    moor_connection_disown(connection); /* another thread was faster */
    return MOOR_OK;
}

/* 1 when nothing has to be looked at: all connections live, there is one, and the directory is as it was. */
static int unchanged(moor_client *client, const struct timespec *mtime)
{
    int live = 0, spent = 0;
    pthread_mutex_lock(&client->mutex);
    for (uint32_t i = 0; i < MOOR_CLIENT_STORES; i++)
        if (client->stores[i]) {
            live = 1;
            spent |= moor_connection_spent(client->stores[i]);
        }
    int same = live && !spent && client->seen.tv_sec == mtime->tv_sec && client->seen.tv_nsec == mtime->tv_nsec;
    pthread_mutex_unlock(&client->mutex);
    return same;
}

/* The directory's time, if it tells of all that is in it; 0 while another store may yet appear without changing it, in the same tick. */
static struct timespec settled(const struct timespec *mtime)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double ms = 1e3 * (double)(now.tv_sec - mtime->tv_sec) + 1e-6 * (double)(now.tv_nsec - mtime->tv_nsec);
    return ms > SETTLED_MS ? *mtime : (struct timespec){0};
}

/* The live connections, one reference each. *spent: one of them was handed on to a forked child since they were looked at; asked only once
 * it is retained, after which nobody closes it. */
static uint32_t take_all(moor_client *client, moor_connection *out[MOOR_CLIENT_STORES], int *spent)
{
    uint32_t n = 0;
    *spent = 0;
    pthread_mutex_lock(&client->mutex);
    for (uint32_t i = 0; i < MOOR_CLIENT_STORES; i++)
        if (client->stores[i]) {
            out[n++] = moor_connection_retain(client->stores[i]);
            *spent |= moor_connection_handed_on(client->stores[i]);
        }
    pthread_mutex_unlock(&client->mutex);
    return n;
}

static void give_all(moor_connection **connections, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        moor_connection_release(connections[i]);
}

/* Asks the sockets: who has a connection need not have used it since its store went. */
static int any_live(moor_client *client)
{
    moor_connection *connections[MOOR_CLIENT_STORES];
    int live = 0, spent;
    uint32_t n = take_all(client, connections, &spent);
    for (uint32_t i = 0; i < n; i++)
        moor_connection_look(connections[i]);
    give_all(connections, n);
    for (uint32_t i = 0; i < MOOR_CLIENT_STORES; i++)
        live |= known(client, i) || still_hung(client, i, 1); /* drops the spent ones */
    return live;
}

static int has_files(const moor_client *client)
{
    struct stat st;
    return fstat(client->dir_fd, &st) == 0 && st.st_nlink > 0 && moor_locks_server_alive(client->dir_fd);
}

/* A client is of one server's life: the next one of that name has another directory, other weights and gate, and perhaps the same ids for
 * other requests. */
moor_status moor_client_lives(moor_client *client)
{
    if (has_files(client) || any_live(client))
        return MOOR_OK;
    return moor_fail(MOOR_E_CLOSED, "the server of instance \"%s\" in %s is gone; attach finds the next one",
                     client->where.name, client->where.dir);
}

moor_status moor_client_has_files(moor_client *client, const char *what)
{
    moor_status status = has_files(client) ? MOOR_OK : moor_client_lives(client);
    if (status || has_files(client))
        return status;
    return moor_fail(
        MOOR_E_CLOSED,
        "%s: the files of instance \"%s\" in %s were removed while its server runs; it must be started again", what,
        client->where.name, client->where.dir);
}

/* Its directory was removed, by somebody or by the server that ended. A server that lives is used over the connections that there are;
 * those that are missing are looked for once by the stores' other names, and again when none is left. A store whose connection was handed
 * on to a child, or which hung, listens still: it is asked again. */
static moor_status refresh_removed(moor_client *client)
{
    moor_status status = MOOR_OK;
    int all = !atomic_exchange(&client->knows_removed, 1) || !any_live(client);
    uint64_t met = atomic_load(&client->met);
    for (uint32_t i = 0; i < MOOR_CLIENT_STORES && !status; i++)
        if ((all || met >> i & 1) && !known(client, i) && !still_hung(client, i, 1))
            status = connect_store(client, i, 1);
    return status || !all ? status : moor_client_lives(client);
}

/* Connects to stores that appeared. Cheap when nothing changed: one fstat. MOOR_E_CLOSED: the instance is gone. */
static moor_status refresh(moor_client *client)
{
    struct stat st;
    struct dirent *entry;
    moor_status status = MOOR_OK;
    uint64_t sockets = 0; /* bit n: that of store n is there */
    int all_known = 1, there = fstat(client->dir_fd, &st) == 0 && st.st_nlink > 0;
    if (there && unchanged(client, &st.st_mtim))
        return MOOR_OK;
    if (!there)
        return refresh_removed(client);
    struct timespec settled_at = settled(&st.st_mtim); /* before it is read */
    status = moor_client_lives(client);
    if (status)
        return status;
    for (uint32_t i = 0; i < MOOR_CLIENT_STORES; i++)
        known(client, i); /* drops the spent ones */
    int copy = openat(client->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    if (!dir) {
        if (copy >= 0)
            close(copy);
        return moor_fail(MOOR_E_IO, "directory %s cannot be read", client->where.dir);
    }
    while (!status && (entry = readdir(dir))) {
        unsigned index;
        int end = 0;
        if (sscanf(entry->d_name, "store-%u.sock%n", &index, &end) != 1 || !end || entry->d_name[end] ||
            index >= MOOR_CLIENT_STORES)
            continue;
        sockets |= 1ull << index;
        if (!known(client, index) && !still_hung(client, index, 1))
            status = connect_store(client, index, 0);
        all_known &= known(client, index);
    }
    closedir(dir);
    for (uint32_t i = 0; i < MOOR_CLIENT_STORES; i++)
        if (!(sockets >> i & 1))
            still_hung(client, i, 0);
    pthread_mutex_lock(&client->mutex);
    client->seen = status || !all_known ? (struct timespec){0} : settled_at;
    pthread_mutex_unlock(&client->mutex);
    return status;
}

/* ---- attach ----------------------------------------------------------------------------------------------------- */

moor_status moor_client_make_at(const moor_located *where, int dir_fd, double patience, moor_client **out)
{
    moor_client *client = calloc(1, sizeof(*client));
    if (!client) {
        close(dir_fd);
        return moor_fail(MOOR_E_NOMEM, "attach: no memory");
    }
    client->pid = getpid();
    client->where = *where;
    client->dir_fd = dir_fd;
    client->patience_ns = (uint64_t)(patience * 1e9);
    pthread_mutex_init(&client->mutex, NULL);
    *out = client;
    return MOOR_OK;
}

/* The same, connected. */
static moor_status make(const moor_located *where, int dir_fd, double patience, moor_client **out)
{
    moor_client *client;
    moor_status status = moor_client_make_at(where, dir_fd, patience, &client);
    if (status)
        return status;
    status = refresh(client);
    if (status)
        moor_detach(client);
    else
        *out = client;
    return status;
}

moor_status moor_client_make(const moor_located *where, double patience, moor_client **out)
{
    int dir_fd;
    moor_status status = moor_dirs_open(where->dir, 0, &dir_fd);
    return status ? status : make(where, dir_fd, patience, out);
}

moor_status moor_client_for_sessions(moor_client *client, moor_client **out)
{
    pthread_mutex_lock(&client->mutex);
    *out = client->sessions;
    pthread_mutex_unlock(&client->mutex);
    if (*out)
        return MOOR_OK;
    moor_client *made = NULL;
    int dir_fd = fcntl(client->dir_fd, F_DUPFD_CLOEXEC, 0);
    moor_status status = dir_fd < 0 ? moor_fail_errno(MOOR_E_IO, errno, "no descriptor for %s", client->where.dir)
                                    : make(&client->where, dir_fd, (double)client->patience_ns * 1e-9, &made);
    if (status)
        return status;
    pthread_mutex_lock(&client->mutex);
    if (!client->sessions) {
        client->sessions = made;
        made = NULL;
    }
    *out = client->sessions;
    pthread_mutex_unlock(&client->mutex);
    moor_detach(made); /* another thread was faster */
    return MOOR_OK;
}

moor_status moor_attach(const char *instance, const char *dir, double timeout, moor_client **out)
{
    uint64_t deadline_ns = moor_deadline_of(timeout);
    if (!out)
        return moor_fail(MOOR_E_INVALID, "attach: out is NULL");
    for (;;) {
        moor_located where;
        moor_status status = moor_locate(instance, dir, &where);
        if (!status)
            status = moor_client_make(&where, MOOR_CLIENT_PATIENCE_S, out);
        /* CLOSED, NOT_FOUND: it is going, or not there yet. */
        if ((status != MOOR_E_NOT_FOUND && status != MOOR_E_CLOSED) || moor_now_ns() >= deadline_ns)
            return status == MOOR_E_NOT_FOUND ? moor_locate_why(instance, dir) : status;
        if (moor_interrupted())
            return moor_fail(MOOR_E_INTERRUPTED, "attach: interrupted while it waited for the server");
        moor_sleep_ms(LOOK_MS, deadline_ns);
    }
}

moor_status moor_client_check(const moor_client *client, const char *what)
{
    if (!client)
        return moor_fail(MOOR_E_INVALID, "%s: no client", what);
    if (client->pid != getpid())
        return moor_fail(MOOR_E_FORKED, "%s: attached by process %d, called in its forked child %d", what,
                         (int)client->pid, (int)getpid());
    return MOOR_OK;
}

void moor_detach(moor_client *client)
{
    if (!client || client->pid != getpid())
        return;
    if (client->visit)
        client->end_visit(client->visit);
    for (uint32_t i = 0; i < MOOR_CLIENT_STORES; i++) {
        moor_connection_disown(client->stores[i]);
        moor_connection_disown(client->hung[i]);
    }
    moor_detach(client->sessions);
    close(client->dir_fd);
    pthread_mutex_destroy(&client->mutex);
    free(client);
}

const char *moor_client_instance(const moor_client *client)
{
    return client ? client->where.name : NULL;
}

const moor_located *moor_client_where(const moor_client *client)
{
    return &client->where;
}

int moor_client_dir_fd(const moor_client *client)
{
    return client->dir_fd;
}

int moor_client_recording_off(const moor_client *client, char *why, size_t size)
{
    struct {
        uint64_t magic;
        uint32_t version;
    } head = {0};
    uint32_t off = 0;
    ssize_t text = -1;
    int fd = openat(client->dir_fd, "state", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return 0;
    if (pread(fd, &head, sizeof(head), 0) == (ssize_t)sizeof(head) && head.magic == MOOR_STATE_MAGIC &&
        head.version == MOOR_STATE_VERSION &&
        pread(fd, &off, sizeof(off), offsetof(moor_state, recording_off)) == (ssize_t)sizeof(off) && off)
        text = pread(fd, why, size - 1, offsetof(moor_state, recording_off_why));
    close(fd);
    why[text > 0 ? text : 0] = 0;
    return off != 0;
}

void *moor_client_visit(moor_client *client)
{
    pthread_mutex_lock(&client->mutex);
    void *visit = client->visit;
    pthread_mutex_unlock(&client->mutex);
    return visit;
}

void *moor_client_set_visit(moor_client *client, void *visit, void (*end)(void *visit))
{
    pthread_mutex_lock(&client->mutex);
    if (!client->visit) {
        client->visit = visit;
        client->end_visit = end;
    }
    void *stays = client->visit;
    pthread_mutex_unlock(&client->mutex);
    return stays;
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

moor_status moor_client_take(moor_client *client, moor_connection *out[MOOR_CLIENT_STORES], uint32_t *n)
{
    for (;;) {
        int spent;
        moor_status status = refresh(client);
        if (status)
            return status;
        *n = take_all(client, out, &spent);
        if (!spent)
            return MOOR_OK;
        give_all(out, *n);
    }
}

moor_status moor_client_unanswered(moor_client *client, const char *what)
{
    uint32_t n = 0, first = 0;
    pthread_mutex_lock(&client->mutex);
    for (uint32_t i = MOOR_CLIENT_STORES; i-- > 0;)
        if (client->hung[i])
            n++, first = i;
    pthread_mutex_unlock(&client->mutex);
    if (!n)
        return MOOR_OK;
    char more[32] = "";
    if (n > 1)
        snprintf(more, sizeof(more), " (and %u more)", n - 1);
    return moor_fail(MOOR_E_TIMEOUT, "%.600s: store %u of instance \"%s\"%s does not answer", what, first,
                     client->where.name, more);
}

void moor_client_give(moor_connection **connections, uint32_t n)
{
    give_all(connections, n);
}

uint64_t moor_client_patience_ns(const moor_client *client)
{
    return client->patience_ns;
}

moor_status moor_client_store_stats(moor_client *client, char **json)
{
    moor_connection *connections[MOOR_CLIENT_STORES];
    moor_wire_buffer text = {0};
    uint32_t n;
    moor_status status = moor_client_take(client, connections, &n);
    if (!status && (status = moor_client_unanswered(client, "stats")))
        give_all(connections, n);
    if (status)
        return status;
    moor_wire_put(&text, "[", 1);
    for (uint32_t i = 0; i < n && !status; i++) {
        void *payload = NULL;
        size_t size = 0;
        status = moor_connection_call(connections[i], MOOR_WIRE_STATS, NULL, 0, NULL, 0,
                                      moor_now_ns() + client->patience_ns, &payload, &size);
        if (!status) {
            moor_wire_put(&text, ",", i > 0);
            moor_wire_put(&text, payload, size);
        }
        free(payload);
    }
    give_all(connections, n);
    moor_wire_put(&text, "]", 2); /* with its NUL */
    if (!status && text.failed)
        status = moor_fail(MOOR_E_NOMEM, "no memory for the stores' statistics");
    if (status)
        moor_wire_buffer_free(&text);
    else
        *json = (char *)text.data;
    return status;
}
