/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../allocator/locks.h"
#include "wire.h"

enum {
    SETTLED_MS = 100, /* coarser than any clock that files are stamped by */
    LOOK_MS = 20,     /* how often attach looks again */
    ASK_MIN_MS = 1,   /* how often several stores are asked again: from … to */
    ASK_MAX_MS = 10,
    SLICE_S = 1, /* an open waits at a store at most this long before new stores are looked for */
    ANSWER_S = 5 /* a store that does not answer for so long after it should is given up */
};

struct moor_client {
    pid_t pid;
    moor_located where;
    int dir_fd;
    uint64_t patience_ns; /* ANSWER_S, or less for one who only has a look */
    pthread_mutex_t mutex;
    moor_connection *stores[MOOR_CLIENT_STORES];
    struct timespec seen; /* the directory's mtime when it was last read; 0: read it again */
    void *visit;
    void (*end_visit)(void *visit);
};

static uint64_t deadline_of(double timeout)
{
    if (!(timeout > 0))
        return moor_now_ns();
    return moor_now_ns() + (timeout > 1e9 ? (uint64_t)1e18 : (uint64_t)(timeout * 1e9));
}

static void sleep_ms(long ms, uint64_t deadline_ns)
{
    uint64_t now_ns = moor_now_ns(), ns = (uint64_t)ms * 1000000;
    if (deadline_ns > now_ns && deadline_ns - now_ns < ns)
        ns = deadline_ns - now_ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* ---- the table of connections ----------------------------------------------------------------------------------- */

/* 1 when there is a live connection to the store; a dead one is dropped. */
static int known(moor_client *client, uint32_t index)
{
    moor_connection *dropped = NULL;
    pthread_mutex_lock(&client->mutex);
    if (client->stores[index] && moor_connection_dead(client->stores[index])) {
        dropped = client->stores[index];
        client->stores[index] = NULL;
        client->seen = (struct timespec){0};
    }
    int is_known = client->stores[index] != NULL;
    pthread_mutex_unlock(&client->mutex);
    moor_connection_release(dropped);
    return is_known;
}

static moor_status connect_store(moor_client *client, uint32_t index)
{
    moor_connection *connection;
    moor_status status = moor_connection_open(client->where.dir, client->where.name, index,
                                              moor_now_ns() + client->patience_ns, &connection);
    if (status == MOOR_E_CLOSED)
        return MOOR_OK; /* about to come, or a killed worker's: no store to be asked */
    if (status)
        return status;
    pthread_mutex_lock(&client->mutex);
    if (!client->stores[index]) {
        client->stores[index] = connection;
        connection = NULL;
    }
    pthread_mutex_unlock(&client->mutex);
    moor_connection_release(connection); /* another thread was faster */
    return MOOR_OK;
}

/* 1 when nothing has to be looked at: all connections live, there is one, and the directory is as it was. */
static int unchanged(moor_client *client, const struct timespec *mtime)
{
    int live = 0, dead = 0;
    pthread_mutex_lock(&client->mutex);
    for (uint32_t i = 0; i < MOOR_CLIENT_STORES; i++)
        if (client->stores[i]) {
            live = 1;
            dead |= moor_connection_dead(client->stores[i]);
        }
    int same = live && !dead && client->seen.tv_sec == mtime->tv_sec && client->seen.tv_nsec == mtime->tv_nsec;
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

/* Connects to stores that appeared. Cheap when nothing changed: one fstat. MOOR_E_CLOSED: the instance is gone. */
static moor_status refresh(moor_client *client)
{
    struct stat st;
    struct dirent *entry;
    moor_status status = MOOR_OK;
    int all_known = 1, there = fstat(client->dir_fd, &st) == 0 && st.st_nlink > 0;
    if (there && unchanged(client, &st.st_mtim))
        return MOOR_OK;
    struct timespec settled_at = there ? settled(&st.st_mtim) : (struct timespec){0}; /* before it is read */
    if (!there || !moor_locks_server_alive(client->dir_fd))
        return moor_fail(MOOR_E_CLOSED, "the server of instance \"%s\" in %s is gone", client->where.name,
                         client->where.dir);
    for (uint32_t i = 0; i < MOOR_CLIENT_STORES; i++)
        known(client, i); /* drops the dead ones */
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
        if (!known(client, index))
            status = connect_store(client, index);
        all_known &= known(client, index);
    }
    closedir(dir);
    pthread_mutex_lock(&client->mutex);
    client->seen = status || !all_known ? (struct timespec){0} : settled_at;
    pthread_mutex_unlock(&client->mutex);
    return status;
}

/* The live connections, one reference each. */
static uint32_t take_all(moor_client *client, moor_connection *out[MOOR_CLIENT_STORES])
{
    uint32_t n = 0;
    pthread_mutex_lock(&client->mutex);
    for (uint32_t i = 0; i < MOOR_CLIENT_STORES; i++)
        if (client->stores[i])
            out[n++] = moor_connection_retain(client->stores[i]);
    pthread_mutex_unlock(&client->mutex);
    return n;
}

static void give_all(moor_connection **connections, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        moor_connection_release(connections[i]);
}

/* ---- attach ----------------------------------------------------------------------------------------------------- */

moor_status moor_client_make(const moor_located *where, double patience, moor_client **out)
{
    moor_client *client = calloc(1, sizeof(*client));
    if (!client)
        return moor_fail(MOOR_E_NOMEM, "attach: no memory");
    client->pid = getpid();
    client->where = *where;
    client->patience_ns = (uint64_t)(patience * 1e9);
    pthread_mutex_init(&client->mutex, NULL);
    moor_status status = moor_dirs_open(where->dir, 0, &client->dir_fd);
    if (status) {
        pthread_mutex_destroy(&client->mutex);
        free(client);
        return status;
    }
    status = refresh(client);
    if (status) {
        moor_detach(client);
        return status;
    }
    *out = client;
    return MOOR_OK;
}

moor_status moor_attach(const char *instance, const char *dir, double timeout, moor_client **out)
{
    uint64_t deadline_ns = deadline_of(timeout);
    if (!out)
        return moor_fail(MOOR_E_INVALID, "attach: out is NULL");
    for (;;) {
        moor_located where;
        moor_status status = moor_locate(instance, dir, &where);
        if (!status)
            status = moor_client_make(&where, ANSWER_S, out);
        /* CLOSED, NOT_FOUND: it is going, or not there yet. */
        if ((status != MOOR_E_NOT_FOUND && status != MOOR_E_CLOSED) || moor_now_ns() >= deadline_ns)
            return status;
        sleep_ms(LOOK_MS, deadline_ns);
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
    for (uint32_t i = 0; i < MOOR_CLIENT_STORES; i++)
        if (client->stores[i]) {
            moor_connection_end(client->stores[i]);
            moor_connection_release(client->stores[i]);
        }
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

/* ---- open ------------------------------------------------------------------------------------------------------- */

/* What is asked for: an id, and how. */
struct request {
    uint16_t type;
    const char *id;
    uint32_t id_len;
    moor_wire_open open;
};

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
                             moor_now_ns() + timeout_ns + client->patience_ns, &payload, &size);
    if (!status)
        status = moor_records_from_reply(connection, payload, size, records, n);
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
    for (uint32_t i = 0; i < found->n; i++)
        moor_record_release(found->records[i]);
    free(found->records);
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
        for (uint32_t i = 0; i < n; i++)
            moor_record_release(records[i]);
        free(records);
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
static moor_status ask_all(moor_client *client, const struct request *request, uint64_t wait_ns, struct found *found)
{
    moor_connection *connections[MOOR_CLIENT_STORES];
    uint32_t n = take_all(client, connections);
    moor_status final = MOOR_OK;
    moor_connection *waits = found->waits;
    found->waits = NULL;
    found->status = MOOR_E_NOT_FOUND;
    if (n == 0)
        snprintf(found->text, sizeof(found->text), "instance \"%s\" has no store yet: request %.*s is not known",
                 client->where.name, (int)request->id_len, request->id);
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
    give_all(connections, n);
    if (final)
        return final;
    return found->n ? MOOR_OK : found->status;
}

/* Until it is found, refused, or the deadline passed. */
static moor_status find(moor_client *client, const struct request *request, double timeout, struct found *found)
{
    uint64_t deadline_ns = deadline_of(timeout);
    long pause_ms = ASK_MIN_MS;
    for (;;) {
        uint64_t now_ns = moor_now_ns(), wait_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        moor_status status = refresh(client);
        if (status)
            return status;
        if (wait_ns > SLICE_S * 1000000000ull)
            wait_ns = SLICE_S * 1000000000ull;
        status = ask_all(client, request, wait_ns, found);
        if (status != MOOR_E_TIMEOUT && status != MOOR_E_NOT_FOUND && status != MOOR_E_CLOSED) {
            if (status)
                found_drop(found);
            return status;
        }
        if (moor_now_ns() >= deadline_ns)
            return moor_fail(status, "%s", found->text);
        if (!found->waits) {
            sleep_ms(pause_ms, deadline_ns);
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
    struct request request = {MOOR_WIRE_OPEN, id, id_len, {.rows = rows, .flags = flags, .id_len = id_len}};
    struct found found = {.n = 0};
    moor_status status = check_open(client, "open", id, id_len, out);
    if (!status)
        status = find(client, &request, timeout, &found);
    if (status)
        return status;
    if (found.n > 1)
        return ambiguous(&found, id, id_len);
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
    moor_status status = refresh(client);
    if (status)
        return status;
    uint32_t n = take_all(client, connections), count = 0, i = 0;
    while (i < n && moor_connection_shape(connections[i])->store_index != store_index)
        i++;
    if (i == n)
        status = moor_fail(MOOR_E_CLOSED, "instance \"%s\" has no store %u", client->where.name, store_index);
    else if (moor_connection_shape(connections[i])->nonce != nonce)
        status =
            moor_fail(MOOR_E_STALE, "the ref is of an earlier life of store %u of instance \"%s\" (%08x, now %08x)",
                      store_index, client->where.name, nonce, moor_connection_shape(connections[i])->nonce);
    else
        status = moor_connection_call(connections[i], MOOR_WIRE_OPEN_HANDLE, &message, sizeof(message), NULL, 0,
                                      moor_now_ns() + client->patience_ns, &payload, &size);
    if (!status)
        status = moor_records_from_reply(connections[i], payload, size, &records, &count);
    if (!status && count != 1)
        status = moor_fail(MOOR_E_CORRUPT, "store %u answered with %u records", store_index, count);
    if (!status)
        *out = records[0];
    free(records);
    free(payload);
    give_all(connections, n);
    return status;
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

moor_status moor_client_take(moor_client *client, moor_connection *out[MOOR_CLIENT_STORES], uint32_t *n)
{
    moor_status status = refresh(client);
    if (!status)
        *n = take_all(client, out);
    return status;
}

void moor_client_give(moor_connection **connections, uint32_t n)
{
    give_all(connections, n);
}

uint64_t moor_client_patience_ns(const moor_client *client)
{
    return client->patience_ns;
}

moor_status moor_client_truncate_within(moor_client *client, const char *id, uint32_t id_len, uint64_t rows,
                                        uint64_t min_rows)
{
    moor_connection *connections[MOOR_CLIENT_STORES];
    moor_wire_truncate message = {.rows = rows, .min_rows = min_rows, .id_len = id_len};
    moor_status status = check_open(client, "truncate", id, id_len, client);
    if (!status)
        status = refresh(client);
    if (status)
        return status;
    uint32_t n = take_all(client, connections);
    status = n ? MOOR_OK : moor_fail(MOOR_E_NOT_FOUND, "instance \"%s\" has no store", client->where.name);
    for (uint32_t i = 0; i < n; i++) {
        void *payload = NULL;
        size_t size;
        status = moor_connection_call(connections[i], MOOR_WIRE_TRUNCATE, &message, sizeof(message), id, id_len,
                                      moor_now_ns() + client->patience_ns, &payload, &size);
        free(payload);
        if (status != MOOR_E_NOT_FOUND)
            break;
    }
    give_all(connections, n);
    return status;
}

moor_status moor_client_truncate(moor_client *client, const char *id, uint32_t id_len, uint64_t rows)
{
    return moor_client_truncate_within(client, id, id_len, rows, 0);
}

moor_status moor_client_store_stats(moor_client *client, double timeout, char **json)
{
    moor_connection *connections[MOOR_CLIENT_STORES];
    moor_wire_buffer text = {0};
    moor_status status = refresh(client);
    if (status)
        return status;
    uint64_t deadline_ns = deadline_of(timeout);
    uint32_t n = take_all(client, connections);
    moor_wire_put(&text, "[", 1);
    for (uint32_t i = 0; i < n && !status; i++) {
        void *payload = NULL;
        size_t size = 0;
        status = moor_connection_call(connections[i], MOOR_WIRE_STATS, NULL, 0, NULL, 0, deadline_ns, &payload, &size);
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
