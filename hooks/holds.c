/* SPDX-License-Identifier: Apache-2.0 */
#include "holds.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../allocator/dirs.h"
#include "../allocator/idhash.h"
#include "../allocator/memfd.h"

#define STALE_TEMPORARY_S 60

enum { HOLD_BYTES = 256 }; /* of a hold's file, at most */

struct moor_hold {
    struct moor_hold *next;
    pid_t pid; /* of the taker: in a forked child the hold is not ours */
    int fd;
    char name[64];
    char path[PATH_MAX];
};

static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;
static moor_hold *own; /* this process' holds; under own_lock */

moor_status moor_hold_device_name(const char *device, char out[MOOR_LABEL_BYTES])
{
    if (!device || !*device)
        return moor_fail(MOOR_E_INVALID, "hold: no device");
    const char *safe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_:";
    const size_t hash_bytes = 17;
    size_t len = strlen(device), n = 0;
    if (device[0] != '.' && len < MOOR_LABEL_BYTES && strspn(device, safe) == len) {
        memcpy(out, device, len + 1); /* so that a name made safe stays itself */
        return MOOR_OK;
    }
    for (; n < len && n < MOOR_LABEL_BYTES - 1 - hash_bytes; n++)
        out[n] = strchr(safe, device[n]) && (n || device[n] != '.') ? device[n] : '_';
    /* Two devices must not share a folder because their names were made safe. */
    snprintf(out + n, MOOR_LABEL_BYTES - n, "-%016llx", (unsigned long long)moor_id_hash(device, len).lo);
    return MOOR_OK;
}

/* ---- folders ---------------------------------------------------------------------------------------------------- */

/* A folder below the base, made 0700 unless it is there; it must be ours. Returns a descriptor, or -1 with errno. */
static int open_folder(int parent, const char *name, int create)
{
    if (create && mkdirat(parent, name, 0700) != 0 && errno != EEXIST)
        return -1;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) != 0 || st.st_uid != geteuid())) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    return fd;
}

/* <base>/holds/<device>. Takes top, the base's descriptor; -1 with errno. */
static int open_device(int top, const char *name, int create)
{
    int holds = open_folder(top, "holds", create);
    int saved = errno;
    close(top);
    errno = saved;
    if (holds < 0)
        return -1;
    int device = open_folder(holds, name, create);
    saved = errno;
    close(holds);
    errno = saved;
    return device;
}

/* ---- taking ------------------------------------------------------------------------------------------------------ */

/* One line of at most MOOR_LABEL_BYTES - 1 bytes. */
static void clean_label(const char *label, char out[MOOR_LABEL_BYTES])
{
    snprintf(out, MOOR_LABEL_BYTES, "%s", label && *label ? label : "unnamed");
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

/* The file under its temporary name, locked and written; then it gets its name. errno on failure. */
static int make_file(moor_hold *hold, int folder, const char *label, uint64_t bytes)
{
    char temporary[sizeof(hold->name) + 1], text[HOLD_BYTES], clean[MOOR_LABEL_BYTES];
    snprintf(temporary, sizeof(temporary), ".%s", hold->name);
    hold->fd = openat(folder, temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (hold->fd < 0)
        return -1;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    clean_label(label, clean);
    int len = snprintf(text, sizeof(text), "moor-hold 1\npid %d\nbytes %llu\nlabel %s\n", (int)hold->pid,
                       (unsigned long long)bytes, clean);
    int saved = 0;
    if (fcntl(hold->fd, F_SETLK, &lock) == 0) {
        ssize_t wrote = write(hold->fd, text, (size_t)len);
        if (wrote == len && renameat(folder, temporary, folder, hold->name) == 0)
            return 0;
        saved = wrote >= 0 && wrote != len ? ENOSPC : errno; /* a short write leaves no errno of its own */
    } else {
        saved = errno;
    }
    unlinkat(folder, temporary, 0);
    close(hold->fd);
    hold->fd = -1;
    errno = saved;
    return -1;
}

/* own_lock is held across a fork, so that the child finds the list whole and the mutex free. */
static void before_fork(void)
{
    pthread_mutex_lock(&own_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&own_lock);
}

static pthread_once_t watch_fork = PTHREAD_ONCE_INIT;
static int fork_error;

static void register_fork(void)
{
    fork_error = pthread_atfork(before_fork, after_fork, after_fork);
}

static moor_hold *new_hold(const char *base, const char *device)
{
    static _Atomic uint32_t number;
    moor_hold *hold = calloc(1, sizeof(*hold));
    struct timespec now;
    if (!hold)
        return NULL;
    clock_gettime(CLOCK_REALTIME, &now);
    hold->fd = -1;
    hold->pid = getpid();
    /* pids repeat (namespaces, reuse): the time makes the name one of its own. */
    snprintf(hold->name, sizeof(hold->name), "%d.%u.%llx", (int)hold->pid, atomic_fetch_add(&number, 1),
             (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec);
    snprintf(hold->path, sizeof(hold->path), "%.*s/holds/%s/%s", PATH_MAX - 192, base, device, hold->name);
    /* In the list before the name exists: a scan of another thread must not open and close the file. */
    pthread_mutex_lock(&own_lock);
    hold->next = own;
    own = hold;
    pthread_mutex_unlock(&own_lock);
    return hold;
}

/* One try; errno, or 0. A release elsewhere may remove the empty folder under us: ENOENT, and the caller tries again. */
static int take_once(moor_hold *hold, const char *base, const char *device, const char *label, uint64_t bytes)
{
    int top = open(base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (top < 0)
        return errno;
    int folder = open_device(top, device, 1);
    if (folder < 0)
        return errno;
    int error = make_file(hold, folder, label, bytes) == 0 ? 0 : errno;
    close(folder);
    return error;
}

moor_status moor_hold_take(const char *dir, const char *device, const char *label, uint64_t bytes, moor_hold **out)
{
    char base[PATH_MAX], name[MOOR_LABEL_BYTES];
    int top;
    if (!out)
        return moor_fail(MOOR_E_INVALID, "hold: no place for the result");
    pthread_once(&watch_fork, register_fork);
    if (fork_error)
        return moor_fail_errno(MOOR_E_NOMEM, fork_error, "hold: pthread_atfork");
    moor_status status = moor_hold_device_name(device, name);
    if (!status)
        status = moor_file_fits("hold", HOLD_BYTES);
    if (status || (status = moor_dirs_choose(dir, base, &top)))
        return status;
    close(top);
    if (strlen(base) > PATH_MAX - 192)
        return moor_fail(MOOR_E_INVALID, "hold: the directory's path has %zu bytes", strlen(base));
    moor_hold *hold = new_hold(base, name);
    if (!hold)
        return moor_fail(MOOR_E_NOMEM, "hold on %s: %zu bytes", device, sizeof(*hold));
    int error = ENOENT;
    for (int i = 0; error == ENOENT && i < 100; i++)
        error = take_once(hold, base, name, label, bytes);
    if (error) {
        moor_hold_release(hold);
        return moor_fail_errno(error == EPERM || error == EACCES ? MOOR_E_ACCESS : MOOR_E_IO, error,
                               "hold on %s in %s/holds/%s", device, base, name);
    }
    *out = hold;
    return MOOR_OK;
}

/* Removes the device's folder and "holds" when they are empty. */
static void tidy(char *path)
{
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(path, '/');
        if (!slash)
            return;
        *slash = 0;
        if (rmdir(path) != 0)
            return;
    }
}

void moor_hold_release(moor_hold *hold)
{
    if (!hold)
        return;
    if (hold->pid == getpid() && hold->fd >= 0) {
        unlink(hold->path); /* before the lock ends: it never shows as dead */
        tidy(hold->path);
    }
    if (hold->fd >= 0)
        close(hold->fd);
    pthread_mutex_lock(&own_lock);
    for (moor_hold **at = &own; *at; at = &(*at)->next)
        if (*at == hold) {
            *at = hold->next;
            break;
        }
    pthread_mutex_unlock(&own_lock);
    free(hold);
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static int is_own(const char *name)
{
    int found = 0;
    pid_t pid = getpid();
    pthread_mutex_lock(&own_lock);
    for (const moor_hold *hold = own; hold && !found; hold = hold->next)
        found = hold->pid == pid && !strcmp(hold->name, name[0] == '.' ? name + 1 : name);
    pthread_mutex_unlock(&own_lock);
    return found;
}

static void read_file(int fd, moor_holder *out)
{
    char text[256];
    ssize_t len = pread(fd, text, sizeof(text) - 1, 0);
    unsigned long long bytes = 0;
    unsigned pid = 0;
    memset(out, 0, sizeof(*out));
    text[len > 0 ? len : 0] = 0;
    if (sscanf(text, "moor-hold 1\npid %u\nbytes %llu\nlabel %63[^\n]", &pid, &bytes, out->label) < 3)
        snprintf(out->label, sizeof(out->label), "unreadable hold");
    out->pid = pid;
    out->bytes = bytes;
}

/* A file that was never renamed: its maker died at it, or is at it now. */
static void drop_stale_temporary(int folder, const char *name)
{
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
        time(NULL) - st.st_mtime > STALE_TEMPORARY_S)
        unlinkat(folder, name, 0);
}

static void add_holder(moor_holders *out, const moor_holder *holder)
{
    if (out->count < MOOR_HOLDS_NAMED)
        out->named[out->count] = *holder;
    out->count++;
}

/* The kernel says whose lock it is, in our numbers; 0 when the process is in a PID namespace that we do not see. Only then is the
 * number in the file believed: in another container it may be a rank's number and another process. */
static int is_of(uint32_t pid, pid_t by_kernel, uint32_t by_file)
{
    return pid && (by_kernel > 0 ? (uint32_t)by_kernel : by_file) == pid;
}

/* A file that cannot be looked at counts as a hold: to resume into memory in use is worse than to wait. */
static void look_at(int folder, const char *name, uint32_t except_pid, moor_holders *out)
{
    moor_holder holder = {.label = "a hold that cannot be opened"};
    if (is_own(name))
        return;
    if (name[0] == '.') {
        if (strcmp(name, ".") && strcmp(name, ".."))
            drop_stale_temporary(folder, name);
        return;
    }
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        if (errno != ENOENT && errno != ELOOP) /* released meanwhile; a link is none of ours */
            add_holder(out, &holder);
        return;
    }
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int asked = fcntl(fd, F_GETLK, &lock) == 0;
    read_file(fd, &holder);
    if (asked && lock.l_type == F_UNLCK)
        unlinkat(folder, name, 0); /* names are never used twice: this is the dead holder's */
    else if (!is_of(except_pid, asked ? lock.l_pid : 0, holder.pid))
        add_holder(out, &holder);
    close(fd);
}

moor_status moor_holds_read(const char *base, const char *device, uint32_t except_pid, moor_holders *out)
{
    char name[MOOR_LABEL_BYTES];
    moor_status status = moor_hold_device_name(device, name);
    if (status)
        return status;
    int top;
    if ((status = moor_dirs_open(base, 0, &top)))
        return status;
    int folder = open_device(top, name, 0);
    if (folder < 0)
        return errno == ENOENT ? MOOR_OK
                               : moor_fail_errno(MOOR_E_IO, errno, "holds: directory %s/holds/%s", base, name);
    DIR *files = fdopendir(folder);
    if (!files) {
        int error = errno;
        close(folder);
        return moor_fail_errno(MOOR_E_NOMEM, error, "holds: reading %s/holds/%s", base, name);
    }
    for (struct dirent *entry; (entry = readdir(files));)
        look_at(folder, entry->d_name, except_pid, out);
    closedir(files);
    return MOOR_OK;
}

/* Clears one device's folder away; takes the descriptor. */
static void sweep_device(int folder)
{
    moor_holders ignored = {0};
    DIR *files = fdopendir(folder);
    if (!files) {
        close(folder);
        return;
    }
    for (struct dirent *file; (file = readdir(files));)
        look_at(folder, file->d_name, 0, &ignored);
    closedir(files);
}

void moor_holds_sweep(const char *base)
{
    int top = open(base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int holds = top >= 0 ? open_folder(top, "holds", 0) : -1;
    DIR *devices = holds >= 0 ? fdopendir(holds) : NULL;
    for (struct dirent *entry; devices && (entry = readdir(devices));) {
        int folder = entry->d_name[0] != '.' ? open_folder(holds, entry->d_name, 0) : -1;
        if (folder >= 0)
            sweep_device(folder);
        if (entry->d_name[0] != '.')
            unlinkat(holds, entry->d_name, AT_REMOVEDIR); /* when it is empty */
    }
    if (devices)
        closedir(devices);
    else if (holds >= 0)
        close(holds);
    if (top >= 0) {
        unlinkat(top, "holds", AT_REMOVEDIR);
        close(top);
    }
}

void moor_holders_text(const moor_holders *holders, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < holders->count && i < MOOR_HOLDS_NAMED && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s (pid %u, %llu bytes)", i ? ", " : "",
                                 holders->named[i].label, holders->named[i].pid,
                                 (unsigned long long)holders->named[i].bytes);
    if (holders->count > MOOR_HOLDS_NAMED && used < size)
        snprintf(out + used, size - used, " and %u more", holders->count - MOOR_HOLDS_NAMED);
}
