/* SPDX-License-Identifier: Apache-2.0 */
#include "instance.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "../allocator/dirs.h"
#include "../allocator/living.h"
#include "../allocator/locks.h"
#include "../hooks/holds.h"
#include "state.h"

_Static_assert((int)MOOR_LOCKS_SLOTS == (int)MOOR_MAX_PROCESSES, "one lock byte a process cell");

enum { LOCK_WAIT_S = 10, DYING_WAIT_MS = 3000, DYING_LOOK_MS = 2, MAX_SUFFIX = 99 };

/* ---- removal ---------------------------------------------------------------------------------------------------- */

/* Removes the plain files of an instance and its directory. A directory inside is not ours and stays, with its parent. */
static void remove_instance(int base_fd, const char *name, int dir_fd)
{
    int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    struct dirent *entry;
    if (!dir) {
        if (copy >= 0)
            close(copy);
        return;
    }
    while ((entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            unlinkat(dir_fd, entry->d_name, 0);
    closedir(dir);
    unlinkat(base_fd, name, AT_REMOVEDIR);
}

/* 1 when base/name is an instance whose server lives. A dead one is removed. */
static int alive_or_removed(int base_fd, const char *name)
{
    int dir_fd = openat(base_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir_fd < 0)
        return 0;
    int alive = moor_locks_server_alive(dir_fd);
    if (!alive)
        remove_instance(base_fd, name, dir_fd);
    close(dir_fd);
    return alive;
}

/* What killed servers left. */
static void remove_dead(void *user, int base_fd, const char *name)
{
    (void)user;
    alive_or_removed(base_fd, name);
}

/* ---- the name --------------------------------------------------------------------------------------------------- */

static int same_directory(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* *given: somebody asked for this name, which is checked. */
static moor_status wanted_name(const char *configured, const char **name, int *given)
{
    const char *env_name = getenv("MOOR_INSTANCE");
    *name = configured ? configured : env_name && env_name[0] ? env_name : "default";
    *given = configured || (env_name && env_name[0]);
    if (moor_dirs_name_ok(*name))
        return MOOR_OK;
    return moor_fail(MOOR_E_INVALID,
                     "\"%.100s\" ($MOOR_INSTANCE) is no instance name: 1 to %d letters, digits, '.', '_', '-'", *name,
                     MOOR_NAME_MAX);
}

/* Under the base's lock. *join: the instance lives and is our server's; else `name` is free. */
static moor_status choose_name(moor_instance *in, const char *name, int given, int *join)
{
    const char *env_name = getenv("MOOR_INSTANCE"), *env_dir = getenv("MOOR_DIR");
    snprintf(in->name, sizeof(in->name), "%s", name);
    *join = 0;
    if (!alive_or_removed(in->base_fd, in->name))
        return MOOR_OK;
    if (env_name && env_dir && strcmp(name, env_name) == 0 && same_directory(in->base_fd, env_dir)) {
        *join = 1;
        return MOOR_OK;
    }
    if (given)
        return moor_fail(MOOR_E_EXISTS, "a live server has the instance name \"%s\" in %s", name, in->base);
    for (int suffix = 2; suffix <= MAX_SUFFIX; suffix++) {
        snprintf(in->name, sizeof(in->name), "%.*s-%d", MOOR_NAME_MAX - 3, name, suffix);
        if (!alive_or_removed(in->base_fd, in->name)) {
            snprintf(in->note[0], sizeof(in->note[0]),
                     "a live server has the instance name \"%s\" in %.120s: this one is \"%s\"", name, in->base,
                     in->name);
            return MOOR_OK;
        }
    }
    return moor_fail(MOOR_E_EXISTS, "live servers have the instance names \"%s\" and \"%s-2\" to \"%s-%d\" in %s", name,
                     name, name, MAX_SUFFIX, in->base);
}

/* ---- enter and leave -------------------------------------------------------------------------------------------- */

/* Under the base's lock. On failure everything is given back but base_fd. */
static moor_status make_or_join(moor_instance *in, int join)
{
    char socket_path[MOOR_SOCKET_PATH_MAX + 1];
    snprintf(in->dir, sizeof(in->dir), "%.*s/%s", (int)(sizeof(in->dir) - sizeof(in->name) - 2), in->base, in->name);
    moor_status status = moor_dirs_socket_path(in->dir, MOOR_MAX_STORES - 1, socket_path);
    if (status)
        return status;
    if (!join && mkdirat(in->base_fd, in->name, 0700) < 0 && errno != EEXIST)
        return moor_fail_errno(MOOR_E_IO, errno, "directory %s cannot be made", in->dir);
    status = moor_dirs_open(in->dir, 0, &in->dir_fd);
    if (status)
        return status;
    if (join)
        status = moor_state_map(in->dir_fd, in->dir, 1, &in->state);
    else
        status = moor_state_create(in->dir_fd, in->dir, in->name, &in->state);
    if (!status) {
        uint8_t avoid[MOOR_LOCKS_SLOTS];
        for (uint32_t slot = 0; slot < MOOR_LOCKS_SLOTS; slot++)
            avoid[slot] = atomic_load(&in->state->processes[slot].used) != 0;
        status = moor_locks_join(in->dir_fd, in->dir, 1, avoid, &in->locks_fd, &in->slot);
    }
    if (status) {
        moor_state_unmap(in->state);
        if (!join)
            remove_instance(in->base_fd, in->name, in->dir_fd);
        close(in->dir_fd);
    }
    return status;
}

static void tell_about_disk(moor_instance *in)
{
    struct statfs fs;
    if (fstatfs(in->base_fd, &fs) == 0 && fs.f_type != TMPFS_MAGIC && fs.f_type != RAMFS_MAGIC)
        snprintf(in->note[1], sizeof(in->note[1]),
                 "%.160s is not on a tmpfs: its few shared pages are written to a disk now and then", in->base);
}

moor_status moor_instance_enter(const char *name, const char *dir, moor_instance *out)
{
    moor_instance *in = out;
    int join = 0, given;
    memset(in, 0, sizeof(*in));
    moor_status status = wanted_name(name, &name, &given);
    if (!status)
        status = moor_dirs_choose(dir, name, in->base, &in->base_fd);
    if (status)
        return status;
    status = moor_dirs_all(in->base, &in->hold_bases);
    if (!status)
        status = moor_dirs_lock(in->base_fd, in->base, LOCK_WAIT_S);
    if (!status) {
        moor_holds_sweep(&in->hold_bases);
        moor_living_each(in->base_fd, remove_dead, NULL);
        status = choose_name(in, name, given, &join);
        if (!status)
            status = make_or_join(in, join);
        flock(in->base_fd, LOCK_UN);
    }
    if (status) {
        close(in->base_fd);
        return status;
    }
    in->created = !join;
    if (in->created)
        tell_about_disk(in);
    return MOOR_OK;
}

/* What a line "Name:\thex" of /proc/PID/status says, 0 without it. */
static unsigned long long hex_after(const char *status, const char *name)
{
    const char *at = strstr(status, name);
    return at ? strtoull(at + strlen(name), NULL, 16) : 0;
}

static ssize_t read_proc(pid_t pid, const char *name, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    return n;
}

/* 1 when the process is on its way out: a SIGKILL waits for it, or the kernel is taking it apart (proc(5): SigPnd and ShdPnd in
 * status; state and PF_EXITING, 4, of the flags in stat). */
static int is_dying(pid_t pid)
{
    enum { SIGKILL_BIT = 1 << 8, PF_EXITING = 4 };
    char text[4096], state = 0;
    unsigned flags = 0;
    if (pid <= 0)
        return 0;
    if (read_proc(pid, "status", text, sizeof(text)) < 0)
        return errno == ENOENT || errno == ESRCH;
    if ((hex_after(text, "\nSigPnd:") | hex_after(text, "\nShdPnd:")) & SIGKILL_BIT)
        return 1;
    read_proc(pid, "stat", text, sizeof(text));
    const char *after_name = strrchr(text, ')');
    if (!after_name || sscanf(after_name, ") %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2)
        return 0;
    return state == 'Z' || state == 'X' || (flags & PF_EXITING);
}

/* 1 when another process of the server remains. An engine ends its workers with SIGKILL and is gone before they are (two gigabytes
 * take a while to take apart): those are waited for, or each would leave the files to the other. */
static int others_remain(int locks_fd)
{
    uint64_t deadline = moor_now_ns() + DYING_WAIT_MS * 1000000ull;
    pid_t who;
    while (moor_locks_other_server(locks_fd, &who)) {
        if (!is_dying(who) || moor_now_ns() > deadline)
            return 1;
        nanosleep(&(struct timespec){.tv_nsec = DYING_LOOK_MS * 1000000}, NULL);
    }
    return 0;
}

void moor_instance_leave(moor_instance *in, int unmap)
{
    /* Leaving is ordered by the base's lock: of two processes that go at the same time, the second one finds itself alone. */
    int locked = moor_dirs_lock(in->base_fd, in->base, LOCK_WAIT_S) == MOOR_OK;
    int last = locked && !others_remain(in->locks_fd);
    if (last)
        remove_instance(in->base_fd, in->name, in->dir_fd);
    moor_locks_leave(in->locks_fd, 1);
    if (locked)
        flock(in->base_fd, LOCK_UN);
    if (!unmap)
        return;
    moor_state_unmap(in->state);
    close(in->dir_fd);
    close(in->base_fd);
}
