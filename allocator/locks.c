/* SPDX-License-Identifier: Apache-2.0 */
#include "locks.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct entry {
    struct entry *next;
    dev_t dev;
    ino_t ino;
    int fd;
    uint32_t slot, refs, servers;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static moor_status once_status;

/* fork: the mutex is held across it, so that the child finds the registry whole. The child has none of the locks; it
 * gives up the inherited descriptors now, before it may take locks of its own that closing them would drop. */
static void before_fork(void)
{
    pthread_mutex_lock(&mutex);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&mutex);
}

static void after_fork_child(void)
{
    for (struct entry *entry = entries; entry; entry = entry->next)
        close(entry->fd);
    entries = NULL; /* the few bytes are left: free() is no call for a forked child of a threaded process */
    pthread_mutex_unlock(&mutex);
}

static void register_fork(void)
{
    int err = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    if (err)
        once_status = moor_fail_errno(MOOR_E_NOMEM, err, "pthread_atfork");
}

static int lock_bytes(int fd, int command, short type, off_t start, struct flock *out)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    int rc;
    do
        rc = fcntl(fd, command, &lock);
    while (rc < 0 && errno == EINTR);
    if (out)
        *out = lock;
    return rc;
}

static struct entry *find_file(const struct stat *st)
{
    for (struct entry *entry = entries; entry; entry = entry->next)
        if (entry->dev == st->st_dev && entry->ino == st->st_ino)
            return entry;
    return NULL;
}

static struct entry *find_fd(int fd)
{
    for (struct entry *entry = entries; entry; entry = entry->next)
        if (entry->fd == fd)
            return entry;
    return NULL;
}

static moor_status take_slot(int dir_fd, const char *dir, int create, const uint8_t *avoid, struct entry **out)
{
    struct stat st;
    int fd = openat(dir_fd, "locks", O_RDWR | O_NOFOLLOW | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
    if (fd < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "%s/locks cannot be opened", dir);
    struct entry *entry = fstat(fd, &st) == 0 ? calloc(1, sizeof(*entry)) : NULL;
    if (!entry) {
        close(fd);
        return moor_fail(MOOR_E_NOMEM, "%s/locks: no memory", dir);
    }
    for (uint32_t i = 0; i < 2 * MOOR_LOCKS_SLOTS; i++) {
        uint32_t slot = i % MOOR_LOCKS_SLOTS;
        if (avoid && avoid[slot] && i < MOOR_LOCKS_SLOTS)
            continue;
        if (lock_bytes(fd, F_SETLK, F_WRLCK, slot, NULL) == 0) {
            *entry = (struct entry){.next = entries, .dev = st.st_dev, .ino = st.st_ino, .fd = fd, .slot = slot};
            *out = entries = entry;
            return MOOR_OK;
        }
        if (errno != EACCES && errno != EAGAIN)
            break;
    }
    int err = errno; /* of the last lock that was refused */
    close(fd);
    free(entry);
    if (err == EACCES || err == EAGAIN)
        return moor_fail(MOOR_E_FULL, "%s: all %d process slots are taken", dir, MOOR_LOCKS_SLOTS);
    return moor_fail_errno(MOOR_E_IO, err, "%s/locks cannot be locked", dir);
}

static void drop(struct entry *entry, int server)
{
    if (server && --entry->servers == 0)
        lock_bytes(entry->fd, F_SETLK, F_UNLCK, MOOR_LOCKS_SERVER, NULL);
    if (--entry->refs)
        return;
    struct entry **at = &entries;
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    close(entry->fd);
    free(entry);
}

moor_status moor_locks_join(int dir_fd, const char *dir, int server, const uint8_t *avoid, int *locks_fd,
                            uint32_t *slot)
{
    struct stat st;
    struct entry *entry;
    moor_status status = MOOR_OK;
    pthread_once(&once, register_fork);
    if (once_status)
        return moor_fail(once_status, "%s: pthread_atfork failed", dir);
    pthread_mutex_lock(&mutex);
    entry = fstatat(dir_fd, "locks", &st, AT_SYMLINK_NOFOLLOW) == 0 ? find_file(&st) : NULL;
    if (!entry)
        status = take_slot(dir_fd, dir, server, avoid, &entry);
    if (!status) {
        entry->refs++;
        entry->servers += server != 0;
        if (server && entry->servers == 1 && lock_bytes(entry->fd, F_SETLK, F_RDLCK, MOOR_LOCKS_SERVER, NULL) < 0) {
            status = moor_fail_errno(MOOR_E_IO, errno, "%s/locks cannot be locked", dir);
            drop(entry, server);
        } else {
            *locks_fd = entry->fd;
            *slot = entry->slot;
        }
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

void moor_locks_leave(int locks_fd, int server)
{
    pthread_mutex_lock(&mutex);
    struct entry *entry = find_fd(locks_fd);
    if (entry)
        drop(entry, server);
    pthread_mutex_unlock(&mutex);
}

/* Whether another process holds a lock on the byte. A question that the kernel cannot answer counts as yes: to take a
 * living process for dead is worse than the opposite. *who (may be NULL): that process, 0 when it cannot be named. */
static int held_by_other(int fd, off_t byte, pid_t *who)
{
    struct flock lock;
    int answered = lock_bytes(fd, F_GETLK, F_WRLCK, byte, &lock) == 0;
    int held = !answered || lock.l_type != F_UNLCK;
    if (who)
        *who = answered && held && lock.l_pid > 0 ? lock.l_pid : 0;
    return held;
}

int moor_locks_slot_alive(int locks_fd, uint32_t slot)
{
    pthread_mutex_lock(&mutex);
    struct entry *entry = find_fd(locks_fd);
    int alive = entry && (entry->slot == slot || held_by_other(locks_fd, slot, NULL));
    pthread_mutex_unlock(&mutex);
    return alive;
}

int moor_locks_server_lives(int locks_fd)
{
    pthread_mutex_lock(&mutex);
    struct entry *entry = find_fd(locks_fd);
    int alive = entry && (entry->servers || held_by_other(locks_fd, MOOR_LOCKS_SERVER, NULL));
    pthread_mutex_unlock(&mutex);
    return alive;
}

int moor_locks_other_server(int locks_fd, pid_t *who)
{
    *who = 0;
    pthread_mutex_lock(&mutex);
    int alive = find_fd(locks_fd) && held_by_other(locks_fd, MOOR_LOCKS_SERVER, who);
    pthread_mutex_unlock(&mutex);
    return alive;
}

enum { ABSENT = -1, CANNOT_ASK = -2 };

/* Under the mutex: a descriptor to ask with, ours when this process is a member (*entry), else opened for the question; ABSENT
 * without such a file, CANNOT_ASK when it cannot be opened (no descriptor is left, say). Given back with done_asking. */
static int ask_fd(int dir_fd, struct entry **entry)
{
    struct stat st;
    *entry = fstatat(dir_fd, "locks", &st, AT_SYMLINK_NOFOLLOW) == 0 ? find_file(&st) : NULL;
    if (*entry)
        return (*entry)->fd;
    int fd = openat(dir_fd, "locks", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 ? fd : errno == ENOENT ? ABSENT : CANNOT_ASK;
}

/* The same for what ask_fd gave. Files of a server that is taken for dead are removed: who cannot ask must not say so. */
static int held(int fd, off_t byte)
{
    return fd == CANNOT_ASK || (fd >= 0 && held_by_other(fd, byte, NULL));
}

static void done_asking(int fd, const struct entry *entry)
{
    if (!entry && fd >= 0)
        close(fd);
}

int moor_locks_server_alive(int dir_fd)
{
    struct entry *entry;
    pthread_mutex_lock(&mutex);
    int fd = ask_fd(dir_fd, &entry);
    int alive = (entry && entry->servers) || held(fd, MOOR_LOCKS_SERVER);
    done_asking(fd, entry);
    pthread_mutex_unlock(&mutex);
    return alive;
}

void moor_locks_slots_alive(int dir_fd, uint8_t alive[MOOR_LOCKS_SLOTS])
{
    struct entry *entry;
    pthread_mutex_lock(&mutex);
    int fd = ask_fd(dir_fd, &entry);
    for (uint32_t slot = 0; slot < MOOR_LOCKS_SLOTS; slot++)
        if (alive[slot])
            alive[slot] = (entry && entry->slot == slot) || held(fd, slot);
    done_asking(fd, entry);
    pthread_mutex_unlock(&mutex);
}
