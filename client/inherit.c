/* SPDX-License-Identifier: Apache-2.0 */
#include "inherit.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static moor_inherit *first;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int once_error;

/* Before the child exists: a release that begins once it does must find the connection handed on. */
static void before_fork(void)
{
    pthread_mutex_lock(&mutex);
    for (moor_inherit *node = first; node; node = node->next) {
        node->at_fork = node->reader == getpid() && atomic_load(&node->leases);
        if (node->at_fork)
            atomic_store(&node->handed_on, 1);
    }
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&mutex);
}

static void after_fork_child(void)
{
    for (moor_inherit *node = first; node; node = node->next) {
        if (node->at_fork && atomic_load(&node->leases)) {
            node->reader = getpid();
        } else if (node->fd >= 0) {
            close(node->fd);
            node->fd = -1;
        }
    }
    pthread_mutex_unlock(&mutex);
}

static void register_fork(void)
{
    once_error = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

moor_status moor_inherit_begin(moor_inherit *node)
{
    pthread_once(&once, register_fork);
    if (once_error)
        return moor_fail_errno(MOOR_E_NOMEM, once_error, "pthread_atfork");
    node->fd = -1;
    node->reader = getpid();
    pthread_mutex_lock(&mutex);
    node->next = first;
    node->place = &first;
    if (first)
        first->place = &node->next;
    first = node;
    pthread_mutex_unlock(&mutex);
    return MOOR_OK;
}

int moor_inherit_socket(moor_inherit *node)
{
    pthread_mutex_lock(&mutex);
    node->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    pthread_mutex_unlock(&mutex);
    return node->fd;
}

static void close_locked(moor_inherit *node)
{
    if (node->fd >= 0)
        close(node->fd);
    node->fd = -1;
}

void moor_inherit_close(moor_inherit *node)
{
    pthread_mutex_lock(&mutex);
    close_locked(node);
    pthread_mutex_unlock(&mutex);
}

void moor_inherit_end(moor_inherit *node)
{
    pthread_mutex_lock(&mutex);
    close_locked(node);
    *node->place = node->next;
    if (node->next)
        node->next->place = node->place;
    pthread_mutex_unlock(&mutex);
}

int moor_inherit_reads(const moor_inherit *node)
{
    return node->reader == getpid();
}
