/* SPDX-License-Identifier: Apache-2.0 */
#include "address.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../allocator/forkfd.h"
#include "process.h"

enum { LOCK_WAIT_S = 5, BACKLOG = 128 };

/* ---- the socket's file ------------------------------------------------------------------------------------------ */

static const char *file_name(const moor_address *address)
{
    return strrchr(address->path, '/') + 1;
}

/* One process at a time looks whether a socket is a dead one's and puts its own in that place; another would remove the new one. */
static moor_status lock_sockets(const moor_process *process, int wait_s, int *fd)
{
    int lock = openat(moor_process_dir_fd(process), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "directory %s cannot be opened", process->dir);
    moor_status status = moor_dirs_lock(lock, process->dir, wait_s);
    if (status)
        close(lock);
    else
        *fd = lock;
    return status;
}

static void unlock_sockets(int lock)
{
    flock(lock, LOCK_UN); /* a child that was forked just now may have the descriptor too */
    close(lock);
}

/* 1 when somebody listens on the path. */
static int is_served(const struct sockaddr_un *address)
{
    int fd = moor_forkfd_socket();
    if (fd < 0)
        return 1;
    int served = connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ||
                 (errno != ECONNREFUSED && errno != ENOENT);
    moor_forkfd_close(fd);
    return served;
}

/* Under the lock. The path is ours only while the directory of this name is: another server's may have taken its place. */
static moor_status listen_on_file(const moor_address *address, int *out)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int dir_fd = moor_process_dir_fd(address->process);
    memcpy(name.sun_path, address->path, sizeof(address->path));
    int fd = moor_forkfd_socket();
    if (fd < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "%s: socket", address->path);
    int rc = bind(fd, (struct sockaddr *)&name, sizeof(name));
    if (rc < 0 && errno == EADDRINUSE) {
        if (is_served(&name)) {
            moor_forkfd_close(fd);
            return moor_fail(MOOR_E_EXISTS, "%s is served by a live process", address->path);
        }
        unlinkat(dir_fd, file_name(address), 0); /* of a worker that was killed */
        rc = bind(fd, (struct sockaddr *)&name, sizeof(name));
    }
    if (rc < 0 || listen(fd, BACKLOG) < 0) {
        int err = errno;
        moor_forkfd_close(fd);
        return moor_fail_errno(MOOR_E_IO, err, "%s cannot be listened on", address->path);
    }
    *out = fd;
    return MOOR_OK;
}

/* ---- the second name -------------------------------------------------------------------------------------------- */

/* Without it a store works as long as its file is there. */
static void listen_on_name(moor_address *address)
{
    struct sockaddr_un name;
    socklen_t size;
    int fd = moor_forkfd_socket();
    if (fd < 0)
        return;
    if (moor_dirs_abstract_name(moor_process_dir_fd(address->process), address->process->dir, address->store_index,
                                &name, &size) == 0 &&
        bind(fd, (struct sockaddr *)&name, size) == 0 && listen(fd, BACKLOG) == 0)
        address->spare_fd = fd;
    else
        moor_forkfd_close(fd);
}

moor_status moor_address_open(moor_address *address, const moor_process *process, uint32_t store_index)
{
    int lock;
    *address = (moor_address){.process = process, .store_index = store_index, .fd = -1, .spare_fd = -1};
    moor_status status = moor_dirs_socket_path(process->dir, store_index, address->path);
    if (!status)
        status = lock_sockets(process, LOCK_WAIT_S, &lock);
    if (status)
        return status;
    status = listen_on_file(address, &address->fd);
    unlock_sockets(lock);
    if (!status)
        listen_on_name(address);
    return status;
}

void moor_address_close(moor_address *address)
{
    if (address->fd >= 0) {
        unlinkat(moor_process_dir_fd(address->process), file_name(address), 0);
        moor_forkfd_close(address->fd);
    }
    if (address->spare_fd >= 0)
        moor_forkfd_close(address->spare_fd);
    address->fd = address->spare_fd = -1;
}

/* ---- tending ---------------------------------------------------------------------------------------------------- */

static int is_there(const moor_address *address, const char *name)
{
    return faccessat(moor_process_dir_fd(address->process), name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

/* "" while all are there. */
static const char *what_is_gone(const moor_address *address)
{
    struct stat st;
    if (fstat(moor_process_dir_fd(address->process), &st) == 0 && st.st_nlink == 0)
        return "the directory";
    if (!is_there(address, "locks"))
        return "its file \"locks\"";
    if (!is_there(address, "state"))
        return "its file \"state\"";
    return "";
}

static void put_socket_back(moor_address *address)
{
    int lock, fd;
    if (lock_sockets(address->process, 0, &lock)) /* the next second will do */
        return;
    if (!is_there(address, file_name(address)) && listen_on_file(address, &fd) == MOOR_OK) {
        moor_log(MOOR_LOG_WARN, "%s was removed, and is there again", address->path);
        moor_forkfd_close(address->fd);
        address->fd = fd;
    }
    unlock_sockets(lock);
}

/* Cleaners of /tmp and /dev/shm go by the last use, which a mapped file and a socket do not show. */
static void keep_young(const moor_address *address)
{
    const char *names[] = {"state", "locks", file_name(address), "."};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        utimensat(moor_process_dir_fd(address->process), names[i], NULL, AT_SYMLINK_NOFOLLOW);
}

void moor_address_tend(moor_address *address, uint64_t now_ns)
{
    const moor_process *process = address->process;
    if (address->said)
        return;
    const char *gone = what_is_gone(address);
    if (*gone) {
        address->said = 1;
        moor_log(MOOR_LOG_ERROR,
                 "store %u of instance \"%s\": %s %s was removed while this server runs. Requests are recorded and "
                 "delivered as before, and "
                 "who is attached goes on; nobody else can attach until the server is started again",
                 address->store_index, process->instance, gone, process->dir);
        return;
    }
    if (!is_there(address, file_name(address)))
        put_socket_back(address);
    if (now_ns >= address->touch_ns) {
        keep_young(address);
        address->touch_ns = now_ns + MOOR_ADDRESS_TOUCH_S * 1000000000ull;
    }
}
