/* SPDX-License-Identifier: Apache-2.0 */
#include "forkfd.h"

#include <pthread.h>
#include <stdlib.h>
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

moor_status moor_forkfd_add(int fd)
{
    moor_status status = MOOR_OK;
    pthread_once(&once, register_fork);
    if (once_error)
        return moor_fail_errno(MOOR_E_NOMEM, once_error, "pthread_atfork");
    pthread_mutex_lock(&mutex);
    if (used == room) {
        size_t more = room ? 2 * room : 16;
        int *grown = realloc(fds, more * sizeof(*fds));
        if (grown) {
            fds = grown;
            room = more;
        }
    }
    if (used < room)
        fds[used++] = fd;
    else
        status = moor_fail(MOOR_E_NOMEM, "no memory for descriptor %d", fd);
    pthread_mutex_unlock(&mutex);
    return status;
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
