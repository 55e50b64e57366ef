/* SPDX-License-Identifier: Apache-2.0 */
#include "dirs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../abi/state.h"

static moor_status add(moor_dirs *dirs, const char *source, const char *path, const char *suffix)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (path[0] != '/')
        return moor_fail(MOOR_E_INVALID, "%s: \"%s\" is not an absolute path", source, path);
    /* The rest of the longest name below it must fit as well; sockets have their own, smaller limit. */
    if (length + strlen(suffix) + 2 * MOOR_NAME_MAX >= PATH_MAX)
        return moor_fail(MOOR_E_INVALID, "%s: a path of %zu bytes is too long", source, length);
    snprintf(dirs->path[dirs->n], PATH_MAX, "%.*s%s", (int)length, path, suffix);
    for (int i = 0; i < dirs->n; i++) /* $MOOR_DIR is often one of the others */
        if (strcmp(dirs->path[i], dirs->path[dirs->n]) == 0)
            return MOOR_OK;
    dirs->n++;
    return MOOR_OK;
}

/* $MOOR_DIR and the directories that nobody names. */
static moor_status add_unnamed(moor_dirs *out)
{
    char uid[24];
    moor_status status = MOOR_OK;
    const char *env = getenv("MOOR_DIR"), *runtime = getenv("XDG_RUNTIME_DIR");
    if (env && env[0])
        status = add(out, "$MOOR_DIR", env, "");
    if (!status && runtime && runtime[0] == '/')
        status = add(out, "$XDG_RUNTIME_DIR", runtime, "/moor");
    snprintf(uid, sizeof(uid), "/moor-%u", (unsigned)geteuid());
    if (!status)
        status = add(out, "/dev/shm", "/dev/shm", uid);
    if (!status)
        status = add(out, "/tmp", "/tmp", uid);
    return status;
}

moor_status moor_dirs_candidates(const char *given, moor_dirs *out)
{
    const char *env = getenv("MOOR_DIR");
    int is_given = given && given[0];
    out->n = 0;
    out->named = is_given || (env && env[0]);
    return is_given ? add(out, "dir", given, "") : add_unnamed(out);
}

moor_status moor_dirs_all(const char *given, moor_dirs *out)
{
    const char *env = getenv("MOOR_DIR"), *alone = getenv("MOOR_HOLDS_DIR");
    int is_given = given && given[0];
    out->n = 0;
    moor_status status = is_given ? add(out, "dir", given, "") : MOOR_OK;
    if (status)
        return status;
    if (alone && alone[0]) {
        out->named = 1;
        return add(out, "$MOOR_HOLDS_DIR", alone, "");
    }
    out->named = is_given || (env && env[0]);
    status = add_unnamed(out);
    return is_given ? MOOR_OK : status;
}

moor_status moor_dirs_open(const char *path, int create, int *fd)
{
    struct stat st;
    if (create && mkdir(path, 0700) < 0 && errno != EEXIST)
        return moor_fail_errno(errno == ENOENT ? MOOR_E_NOT_FOUND : MOOR_E_IO, errno, "directory %s cannot be made",
                               path);
    int opened = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (opened < 0) {
        int err = errno;
        moor_status status = err == ENOENT                                     ? MOOR_E_NOT_FOUND
                             : err == EACCES || err == ELOOP || err == ENOTDIR ? MOOR_E_ACCESS
                                                                               : MOOR_E_IO;
        return moor_fail_errno(status, err,
                               "directory %s cannot be opened (it must be a directory of ours, not a link)", path);
    }
    if (fstat(opened, &st) < 0) {
        int err = errno;
        close(opened);
        return moor_fail_errno(MOOR_E_IO, err, "directory %s", path);
    }
    if (st.st_uid != geteuid() || (st.st_mode & 0777) != 0700) {
        close(opened);
        return moor_fail(MOOR_E_ACCESS,
                         "directory %s belongs to uid %u and has mode %04o; it must belong to uid %u with mode 0700",
                         path, (unsigned)st.st_uid, (unsigned)(st.st_mode & 0777), (unsigned)geteuid());
    }
    *fd = opened;
    return MOOR_OK;
}

/* Looked at before the directory is made: one that is refused shall not stay behind. */
static moor_status has_room(const char *path, const char *instance)
{
    char whole[PATH_MAX + MOOR_NAME_MAX + 2], socket_path[MOOR_SOCKET_PATH_MAX + 1];
    snprintf(whole, sizeof(whole), "%s/%s", path, instance);
    return moor_dirs_socket_path(whole, MOOR_MAX_STORES - 1, socket_path);
}

moor_status moor_dirs_choose(const char *given, const char *instance, char path[PATH_MAX], int *fd)
{
    moor_dirs dirs;
    char reasons[MOOR_ERROR_TEXT - 64] = "";
    moor_status status = moor_dirs_candidates(given, &dirs);
    if (status)
        return status;
    for (int i = 0; i < (dirs.named ? 1 : dirs.n); i++) {
        status = instance ? has_room(dirs.path[i], instance) : MOOR_OK;
        if (!status)
            status = moor_dirs_open(dirs.path[i], 1, fd);
        if (!status) {
            memcpy(path, dirs.path[i], PATH_MAX);
            return MOOR_OK;
        }
        if (dirs.named)
            return status;
        size_t used = strlen(reasons);
        snprintf(reasons + used, sizeof(reasons) - used, "%s%s", used ? "; " : "", moor_last_error());
    }
    return moor_fail(MOOR_E_IO, "no usable directory: %s", reasons);
}

int moor_dirs_no_locks(int err)
{
    return err == ENOSYS || err == EOPNOTSUPP || err == ENOLCK;
}

moor_status moor_dirs_lock(int fd, const char *path, int wait_s)
{
    uint64_t deadline = moor_now_ns() + (uint64_t)wait_s * 1000000000u;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return moor_fail_errno(MOOR_E_IO, errno, "directory %s cannot be locked%s", path,
                                   moor_dirs_no_locks(errno) ? " (one on a tmpfs can, as /dev/shm)" : "");
        if (moor_now_ns() > deadline)
            return moor_fail(MOOR_E_TIMEOUT, "directory %s is locked by another process for %d s", path, wait_s);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return MOOR_OK;
}

int moor_dirs_name_ok(const char *name)
{
    size_t n = strlen(name);
    if (n < 1 || n > MOOR_NAME_MAX || name[0] == '.' || strcmp(name, "holds") == 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
            return 0;
    return 1;
}

moor_status moor_dirs_socket_path(const char *dir, unsigned store_index, char path[MOOR_SOCKET_PATH_MAX + 1])
{
    char whole[PATH_MAX + 32];
    int length = snprintf(whole, sizeof(whole), "%s/store-%u.sock", dir, store_index);
    if (length > MOOR_SOCKET_PATH_MAX)
        return moor_fail(MOOR_E_INVALID,
                         "socket path %s is %d bytes long, a socket address holds %d; choose a shorter directory",
                         whole, length, MOOR_SOCKET_PATH_MAX);
    memcpy(path, whole, (size_t)length + 1);
    return MOOR_OK;
}
