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
#include "../allocator/living.h"
#include "../allocator/memfd.h"

#define STALE_TEMPORARY_S 60

enum { HOLD_BYTES = 256 }; /* of a hold's file, at most */

struct moor_hold {
    struct moor_hold *next;
    pid_t pid; /* of the taker: in a forked child the hold is not ours */
    char name[64], device[MOOR_LABEL_BYTES];
    moor_holder as_seen;
    int n; /* files, one a base directory */
    struct {
        int fd;
        char base[PATH_MAX];
    } file[MOOR_DIRS_MAX];
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

/* <base>/holds/<device>; -1 with errno. */
static int open_device(int base_fd, const char *name, int create)
{
    int holds = open_folder(base_fd, "holds", create);
    if (holds < 0)
        return -1;
    int device = open_folder(holds, name, create);
    int saved = errno;
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

/* The file under its temporary name, locked and written; then it gets its name. Its descriptor, or -1 with errno. */
static int make_file(const moor_hold *hold, int folder)
{
    char temporary[sizeof(hold->name) + 1], text[HOLD_BYTES];
    snprintf(temporary, sizeof(temporary), ".%s", hold->name);
    int fd = openat(folder, temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -1;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int len = snprintf(text, sizeof(text), "moor-hold 1\npid %d\nbytes %llu\nlabel %s\n", (int)hold->pid,
                       (unsigned long long)hold->as_seen.bytes, hold->as_seen.label);
    int saved = 0;
    if (fcntl(fd, F_SETLK, &lock) == 0) {
        ssize_t wrote = write(fd, text, (size_t)len);
        if (wrote == len && renameat(folder, temporary, folder, hold->name) == 0)
            return fd;
        saved = wrote >= 0 && wrote != len ? ENOSPC : errno; /* a short write leaves no errno of its own */
    } else {
        saved = errno;
    }
    unlinkat(folder, temporary, 0);
    close(fd);
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

static moor_hold *new_hold(const char *device, const char *label, uint64_t bytes)
{
    static _Atomic uint32_t number;
    moor_hold *hold = calloc(1, sizeof(*hold));
    struct timespec now;
    if (!hold)
        return NULL;
    clock_gettime(CLOCK_REALTIME, &now);
    hold->pid = getpid();
    hold->as_seen.pid = (uint32_t)hold->pid;
    hold->as_seen.bytes = bytes;
    clean_label(label, hold->as_seen.label);
    snprintf(hold->device, sizeof(hold->device), "%s", device);
    /* pids repeat (namespaces, reuse): the time makes the name one of its own. */
    snprintf(hold->name, sizeof(hold->name), "%d.%u.%llx", (int)hold->pid, atomic_fetch_add(&number, 1),
             (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec);
    /* In the list before the name exists: a scan of another thread must not open and close the file. */
    pthread_mutex_lock(&own_lock);
    hold->next = own;
    own = hold;
    pthread_mutex_unlock(&own_lock);
    return hold;
}

/* One try; errno, or 0. A release elsewhere may remove the empty folder under us: ENOENT, and the caller tries again. */
static int take_once(moor_hold *hold, int base_fd)
{
    int folder = open_device(base_fd, hold->device, 1);
    if (folder < 0)
        return errno;
    int fd = make_file(hold, folder), error = fd < 0 ? errno : 0;
    if (!error)
        hold->file[hold->n].fd = fd;
    close(folder);
    return error;
}

/* Removes the hold's file, and the device's folder and "holds" when they are empty. */
static void remove_file(const moor_hold *hold, const char *base)
{
    char path[MOOR_LABEL_BYTES + sizeof(hold->name) + sizeof("holds//")];
    int base_fd = open(base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (base_fd < 0)
        return;
    snprintf(path, sizeof(path), "holds/%s/%s", hold->device, hold->name);
    unlinkat(base_fd, path, 0);
    snprintf(path, sizeof(path), "holds/%s", hold->device);
    if (unlinkat(base_fd, path, AT_REMOVEDIR) == 0)
        unlinkat(base_fd, "holds", AT_REMOVEDIR);
    close(base_fd);
}

/* The hold's file in one more base directory, made when it is absent; nothing where it has one already (a directory of two names). */
static moor_status take_in(moor_hold *hold, const char *base)
{
    int base_fd, error = ENOENT;
    char path[PATH_MAX];
    moor_status status = moor_dirs_open(base, 1, &base_fd);
    if (status)
        return status;
    snprintf(path, sizeof(path), "holds/%s/%s", hold->device, hold->name);
    if (faccessat(base_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        close(base_fd);
        return MOOR_OK;
    }
    for (int i = 0; error == ENOENT && i < 100; i++)
        error = take_once(hold, base_fd);
    close(base_fd);
    if (error) {
        remove_file(hold, base); /* the folders that were made for it */
        return moor_fail_errno(error == EPERM || error == EACCES ? MOOR_E_ACCESS : MOOR_E_IO, error,
                               "hold on %s in %s/holds/%s", hold->device, base, hold->device);
    }
    snprintf(hold->file[hold->n++].base, PATH_MAX, "%s", base);
    return MOOR_OK;
}

moor_status moor_hold_take(const char *dir, const char *device, const char *label, uint64_t bytes, moor_hold **out)
{
    moor_dirs bases;
    char name[MOOR_LABEL_BYTES], why[MOOR_ERROR_TEXT - 64] = "";
    if (!out)
        return moor_fail(MOOR_E_INVALID, "hold: out is NULL");
    pthread_once(&watch_fork, register_fork);
    if (fork_error)
        return moor_fail_errno(MOOR_E_NOMEM, fork_error, "hold: pthread_atfork");
    moor_status status = moor_hold_device_name(device, name);
    if (!status)
        status = moor_file_fits("hold", HOLD_BYTES);
    if (status || (status = moor_dirs_all(dir, &bases)))
        return status;
    moor_hold *hold = new_hold(name, label, bytes);
    if (!hold)
        return moor_fail(MOOR_E_NOMEM, "hold on %s: %zu bytes", device, sizeof(*hold));
    for (int i = 0; i < bases.n; i++) {
        size_t used = strlen(why);
        if (!(status = take_in(hold, bases.path[i])))
            continue;
        if (bases.named && i == 0) {
            moor_hold_release(hold);
            return status;
        }
        snprintf(why + used, sizeof(why) - used, "%s%s", used ? "; " : "", moor_last_error());
    }
    if (!hold->n) {
        moor_hold_release(hold);
        return moor_fail(status, "hold on %s: no usable directory: %s", device, why);
    }
    *out = hold;
    return MOOR_OK;
}

void moor_hold_release(moor_hold *hold)
{
    if (!hold)
        return;
    for (int i = 0; i < hold->n; i++) {
        if (hold->pid == getpid())
            remove_file(hold, hold->file[i].base); /* before the lock ends: it never shows as dead */
        close(hold->file[i].fd);
    }
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

/* 1 when it is this process' own; *holder (may be NULL): what others see of it. */
static int is_own(const char *name, moor_holder *holder)
{
    int found = 0;
    pid_t pid = getpid();
    pthread_mutex_lock(&own_lock);
    for (const moor_hold *hold = own; hold && !found; hold = hold->next) {
        found = hold->pid == pid && !strcmp(hold->name, name[0] == '.' ? name + 1 : name);
        if (found && holder)
            *holder = hold->as_seen;
    }
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

/* A hold lies in several directories under one name, and is one. */
static void add_holder(moor_holders *out, const char *name, const moor_holder *holder)
{
    uint64_t hash = moor_id_hash(name, strlen(name)).lo;
    for (uint32_t i = 0; i < out->count && i < MOOR_HOLDS_TOLD_APART; i++)
        if (out->names[i] == hash)
            return;
    if (out->count < MOOR_HOLDS_TOLD_APART)
        out->names[out->count] = hash;
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
static void look_at(int folder, const char *name, uint32_t except_pid, int own_too, moor_holders *out)
{
    moor_holder holder = {.label = "a hold that cannot be opened"};
    if (is_own(name, &holder)) {
        if (own_too && name[0] != '.')
            add_holder(out, name, &holder);
        return;
    }
    if (name[0] == '.') {
        if (strcmp(name, ".") && strcmp(name, ".."))
            drop_stale_temporary(folder, name);
        return;
    }
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        if (errno != ENOENT && errno != ELOOP) /* released meanwhile; a link is none of ours */
            add_holder(out, name, &holder);
        return;
    }
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int asked = fcntl(fd, F_GETLK, &lock) == 0;
    read_file(fd, &holder);
    if (asked && lock.l_type == F_UNLCK)
        unlinkat(folder, name, 0); /* names are never used twice: this is the dead holder's */
    else if (!is_of(except_pid, asked ? lock.l_pid : 0, holder.pid))
        add_holder(out, name, &holder);
    close(fd);
}

/* Takes the descriptor of a device's folder. */
static moor_status look_into(int folder, uint32_t except_pid, int own_too, moor_holders *out)
{
    DIR *files = fdopendir(folder);
    if (!files) {
        int error = errno;
        close(folder);
        return moor_fail_errno(MOOR_E_NOMEM, error, "holds: reading a device's folder");
    }
    for (struct dirent *entry; (entry = readdir(files));)
        look_at(folder, entry->d_name, except_pid, own_too, out);
    closedir(files);
    return MOOR_OK;
}

/* The device's holds in one base directory. One that is not there (any more) has none. */
static moor_status read_in(const char *base, const char *name, uint32_t except_pid, int own_too, moor_holders *out)
{
    int base_fd;
    moor_status status = moor_dirs_open(base, 0, &base_fd);
    if (status)
        return status == MOOR_E_NOT_FOUND ? MOOR_OK : status;
    int folder = open_device(base_fd, name, 0), error = errno;
    close(base_fd);
    if (folder < 0)
        return error == ENOENT ? MOOR_OK
                               : moor_fail_errno(MOOR_E_IO, error, "holds: directory %s/holds/%s", base, name);
    return look_into(folder, except_pid, own_too, out);
}

static moor_status read_all(const moor_dirs *bases, const char *device, uint32_t except_pid, int own_too,
                            moor_holders *out)
{
    char name[MOOR_LABEL_BYTES];
    moor_status status = moor_hold_device_name(device, name);
    for (int i = 0; i < bases->n && !status; i++) {
        status = read_in(bases->path[i], name, except_pid, own_too, out);
        if (status == MOOR_E_ACCESS && (i || !bases->named))
            status = MOOR_OK; /* nobody can take one there either */
    }
    return status;
}

moor_status moor_holds_read(const moor_dirs *bases, const char *device, uint32_t except_pid, moor_holders *out)
{
    return read_all(bases, device, except_pid, 0, out);
}

/* Calls each() for every folder of a device; each() has the folder's parent. */
static void each_device(int base_fd, void (*each)(void *user, int holds, const char *device), void *user)
{
    int holds = open_folder(base_fd, "holds", 0);
    DIR *devices = holds >= 0 ? fdopendir(holds) : NULL;
    for (struct dirent *entry; devices && (entry = readdir(devices));)
        if (entry->d_name[0] != '.')
            each(user, holds, entry->d_name);
    if (devices)
        closedir(devices);
    else if (holds >= 0)
        close(holds);
}

static void sweep_device(void *user, int holds, const char *device)
{
    moor_holders ignored = {0};
    int folder = open_folder(holds, device, 0);
    (void)user;
    if (folder >= 0)
        look_into(folder, 0, 0, &ignored);
    unlinkat(holds, device, AT_REMOVEDIR); /* when it is empty */
}

void moor_holds_sweep(const moor_dirs *bases)
{
    for (int i = 0; i < bases->n; i++) {
        int base_fd;
        if (moor_dirs_open(bases->path[i], 0, &base_fd))
            continue;
        each_device(base_fd, sweep_device, NULL);
        unlinkat(base_fd, "holds", AT_REMOVEDIR);
        close(base_fd);
    }
}

/* ---- for people --------------------------------------------------------------------------------------------------- */

struct devices {
    uint32_t n;
    char name[MOOR_HOLDS_DEVICES][MOOR_LABEL_BYTES];
};

static void note_device(void *user, int holds, const char *device)
{
    struct devices *devices = user;
    (void)holds;
    for (uint32_t i = 0; i < devices->n; i++)
        if (!strcmp(devices->name[i], device))
            return;
    if (devices->n < MOOR_HOLDS_DEVICES && strlen(device) < MOOR_LABEL_BYTES)
        strcpy(devices->name[devices->n++], device);
}

void moor_holds_each(const moor_dirs *bases, void (*each)(void *user, const char *device, const moor_holder *holder),
                     void *user)
{
    struct devices devices = {.n = 0};
    for (int i = 0; i < bases->n; i++) {
        int base_fd;
        if (moor_dirs_open(bases->path[i], 0, &base_fd))
            continue;
        each_device(base_fd, note_device, &devices);
        close(base_fd);
    }
    for (uint32_t i = 0; i < devices.n; i++) {
        moor_holders holders = {0};
        read_all(bases, devices.name[i], 0, 1, &holders);
        for (uint32_t j = 0; j < holders.count && j < MOOR_HOLDS_NAMED; j++)
            each(user, devices.name[i], &holders.named[j]);
    }
}

struct living {
    const char *base;
    char *text;
    size_t used;
    int failed;
};

static void name_living(void *user, int base_fd, const char *name)
{
    struct living *living = user;
    size_t more = strlen(living->base) + strlen(name) + sizeof("/\n");
    if (living->failed || !moor_living(base_fd, name))
        return;
    char *grown = realloc(living->text, living->used + more);
    living->failed = !grown;
    if (!grown)
        return;
    living->text = grown;
    living->used += (size_t)snprintf(grown + living->used, more, "%s/%s\n", living->base, name);
}

moor_status moor_hold_seen_by(const moor_hold *hold, char **out, size_t *len)
{
    struct living living = {.text = calloc(1, 1)};
    if (!hold || !out || !len) {
        free(living.text);
        return moor_fail(MOOR_E_INVALID, "hold_seen_by: hold, out or len is NULL");
    }
    if (hold->pid != getpid()) {
        free(living.text);
        return moor_fail(MOOR_E_FORKED, "the hold on %s is of process %d, this is %d", hold->device, (int)hold->pid,
                         (int)getpid());
    }
    for (int i = 0; i < hold->n; i++) {
        int base_fd;
        living.base = hold->file[i].base;
        if (moor_dirs_open(living.base, 0, &base_fd))
            continue;
        moor_living_each(base_fd, name_living, &living);
        close(base_fd);
    }
    if (living.failed || !living.text) {
        free(living.text);
        return moor_fail(MOOR_E_NOMEM, "hold_seen_by: no memory");
    }
    *out = living.text;
    *len = living.used;
    return MOOR_OK;
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
