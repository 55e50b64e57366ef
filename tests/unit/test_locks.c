/* SPDX-License-Identifier: Apache-2.0 */
/* allocator/locks.c where the question itself fails: who cannot ask takes nobody for dead. More: tests/integration/instance_processes.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "allocator/locks.h"

static char dir[32];
static int dir_fd;
static pid_t server;

static int begin(void **state)
{
    (void)state;
    int ready[2];
    char byte;
    strcpy(dir, "/tmp/moor-locks-XXXXXX");
    if (!mkdtemp(dir) || (dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 || pipe(ready))
        return -1;
    server = fork();
    if (server == 0) {
        int locks_fd;
        uint32_t slot;
        if (moor_locks_join(dir_fd, dir, 1, NULL, &locks_fd, &slot) || write(ready[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    int good = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    close(ready[1]);
    return good ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    unlinkat(dir_fd, "locks", 0);
    close(dir_fd);
    return rmdir(dir);
}

static void the_dead_and_the_absent_are_told_apart_from_the_living(void **state)
{
    (void)state;
    uint8_t alive[MOOR_LOCKS_SLOTS] = {1, 1, 0};
    assert_int_equal(moor_locks_server_alive(dir_fd), 1);
    moor_locks_slots_alive(dir_fd, alive);
    assert_true(alive[0] && !alive[1] && !alive[2]);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    assert_int_equal(moor_locks_server_alive(dir_fd), 0);
    unlinkat(dir_fd, "locks", 0);
    assert_int_equal(moor_locks_server_alive(dir_fd), 0);
    alive[0] = 1;
    moor_locks_slots_alive(dir_fd, alive);
    assert_int_equal(alive[0], 0);
}

/* Whoever is taken for dead has his files removed by the next process that enters. */
static void without_a_descriptor_left_everybody_lives(void **state)
{
    (void)state;
    struct rlimit before, none;
    uint8_t alive[MOOR_LOCKS_SLOTS] = {1, 1, 0};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int lives = moor_locks_server_alive(dir_fd);
    moor_locks_slots_alive(dir_fd, alive);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(lives, 1);
    assert_true(alive[0] && alive[1] && !alive[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_dead_and_the_absent_are_told_apart_from_the_living, begin, end),
        cmocka_unit_test_setup_teardown(without_a_descriptor_left_everybody_lives, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
