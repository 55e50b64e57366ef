/* SPDX-License-Identifier: Apache-2.0 */
#include "forkfd.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int *fds;
static size_t used, room;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int once_error;

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
    for (size_t i = 0; i < used; i++)
        close(fds[i]);
    used = 0;
    pthread_mutex_unlock(&mutex);
}

static void register_fork(void)
{
    once_error = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* With the mutex, and room for one more; -1 with errno and without it. */
static int begin(void)
{
    pthread_once(&once, register_fork);
    if (once_error) {
        errno = once_error;
        return -1;
    }
    pthread_mutex_lock(&mutex);
    if (used == room) {
        size_t more = room ? 2 * room : 16;
        int *grown = realloc(fds, more * sizeof(*fds));
        if (!grown) {
            pthread_mutex_unlock(&mutex);
            errno = ENOMEM;
            return -1;
        }
        fds = grown;
        room = more;
    }
    return 0;
}

static int end(int fd)
{
    if (fd >= 0)
        fds[used++] = fd;
    pthread_mutex_unlock(&mutex);
    return fd;
}

int moor_forkfd_socket(void)
{
    return begin() ? -1 : end(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int moor_forkfd_accept(int listen_fd)
{
    return begin() ? -1 : end(accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

void moor_forkfd_close(int fd)
{
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < used; i++)
        if (fds[i] == fd) {
            fds[i] = fds[--used];
            break;
        }
    close(fd); /* under the mutex: a fork in between would find the number taken off and yet open */
    pthread_mutex_unlock(&mutex);
}
