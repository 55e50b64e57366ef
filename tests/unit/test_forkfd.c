/* SPDX-License-Identifier: Apache-2.0 */
/* allocator/forkfd.c beside a thread that forks: compiled in, with an accept4 that gives the fork the time it wants. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

static int accept_slowly(int listen_fd, void *address, void *size, int flags);
#define accept4 accept_slowly
#include "allocator/forkfd.c" /* NOLINT(bugprone-suspicious-include) */
#undef accept4

static _Atomic int accepted = -1, forked, tid;
static int leaked;

/* In the child: 1 when it has the descriptor. */
static void *fork_beside(void *unused)
{
    struct timespec nap = {.tv_nsec = 1000000};
    int status = -1;
    while (accepted < 0)
        nanosleep(&nap, NULL);
    tid = (int)syscall(SYS_gettid);
    pid_t child = fork();
    if (child == 0)
        _exit(fcntl(accepted, F_GETFD) >= 0);
    forked = 1;
    waitpid(child, &status, 0);
    leaked = status;
    return unused;
}

static int sleeps(int of)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", of);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof(line), file))
        line[0] = 0;
    if (file)
        fclose(file);
    const char *end = strrchr(line, ')');
    return end && end[2] == 'S';
}

/* Returns once the other thread has forked, or waits until it may. */
static int accept_slowly(int listen_fd, void *address, void *size, int flags)
{
    accepted = accept4(listen_fd, address, size, flags);
    while (!forked && !(tid && sleeps(tid)))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return accepted;
}

static void a_fork_beside_an_accept_inherits_nothing(void **state)
{
    (void)state;
    pthread_t thread;
    struct sockaddr address = {.sa_family = AF_UNIX};
    socklen_t size = sizeof(address.sa_family); /* autobind: a name of the kernel's choice */
    char name[128];
    socklen_t name_size = sizeof(name);
    int listens = moor_forkfd_socket(), client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listens, &address, size), 0);
    assert_int_equal(listen(listens, 1), 0);
    assert_int_equal(getsockname(listens, (struct sockaddr *)name, &name_size), 0);
    assert_int_equal(connect(client, (struct sockaddr *)name, name_size), 0);
    assert_int_equal(pthread_create(&thread, NULL, fork_beside, NULL), 0);
    int fd = moor_forkfd_accept(listens);
    assert_true(fd >= 0);
    pthread_join(thread, NULL);
    assert_int_equal(leaked, 0);
    moor_forkfd_close(fd);
    moor_forkfd_close(listens);
    close(client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_fork_beside_an_accept_inherits_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
