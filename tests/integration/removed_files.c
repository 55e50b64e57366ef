/* SPDX-License-Identifier: Apache-2.0 */
/* Somebody removes the files of a server that lives: rm -rf at a logout, a cleaner that goes by age. Real processes. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "support/actors.h"

static void remove_files(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s/default", actors_dir);
    assert_int_equal(system(command), 0);
}

static void who_is_attached_goes_on(void **state)
{
    (void)state;
    actor server, consumer, late;
    start_server(&server);
    record(&server, "before", 10);
    start_consumer(&consumer);
    start_consumer(&late); /* has not connected to anything that a fork could have kept */
    actor_say(&consumer, "ok before rows=10", "open before 1");
    remove_files();
    record(&server, "after", 20);
    actor_say(&consumer, "ok after rows=20", "open after 1");
    assert_non_null(strstr(consumer.line, "good"));
    actor_say(&late, "ok after rows=20", "open after 1");
    actor_say(&consumer, "MOOR_E_NOT_FOUND", "open nobody 0");
    actor_say(&consumer, "MOOR_E_CLOSED client_stats: the files of instance \"default\"", "stats");
    assert_non_null(strstr(consumer.line, "were removed while its server runs"));
    actor_kill(&server);
    actor_say(&consumer, "MOOR_E_CLOSED", "open after 1");
    actor_say(&consumer, "MOOR_E_CLOSED the server of instance \"default\"", "open after 0");
}

/* Of two stores the connection to one is handed on to a child: that store is asked over a new one, though the other's lives. */
static void a_store_is_found_again_after_a_fork(void **state)
{
    (void)state;
    actor server, other, consumer;
    start_server(&server);
    start_another(&other, 1);
    record(&server, "first", 10);
    start_consumer(&consumer);
    remove_files();
    actor_say(&consumer, "ok first rows=10", "open first 1");
    actor_say(&consumer, "ok ", "child"); /* it has the record, too */
    record(&server, "second", 20);
    actor_say(&consumer, "ok second rows=20", "open second 1");
    actor_say(&other, "ok", "step third 0 30");
    actor_say(&other, "ok", "seal third 30 1");
    actor_say(&consumer, "ok third rows=30", "open third 1");
    actor_kill(&other);
    actor_say(&consumer, "ok second rows=20", "open second 1");
    actor_kill(&server);
    actor_say(&consumer, "MOOR_E_CLOSED", "open second 1");
}

/* The same of one that hung. */
static void a_store_that_hung_is_found_again(void **state)
{
    (void)state;
    actor server, other, consumer;
    start_server(&server);
    start_another(&other, 1);
    record(&server, "first", 10);
    start_consumer(&consumer);
    remove_files();
    actor_say(&consumer, "ok first rows=10", "open first 1");
    actor_stop(&server);
    actor_say(&consumer, "MOOR_E_CLOSED", "open nobody 0");
    assert_int_equal(kill(server.pid, SIGCONT), 0);
    record(&server, "second", 20);
    actor_say(&consumer, "ok second rows=20", "open second 10");
}

/* A front end that has delivered nothing yet, and another server that takes the name: it finds its own store, and no other. */
static void a_process_finds_its_own_store_and_no_other(void **state)
{
    (void)state;
    actor server, other, consumer;
    start_server(&server);
    remove_files();
    record(&server, "ours", 10);
    start_server(&other);
    record(&other, "theirs", 20);
    actor_say(&server, "ok", "own");
    actor_say(&server, "ok ours rows=10", "open ours 0");
    actor_say(&server, "MOOR_E_NOT_FOUND", "open theirs 0");
    actor_say(&server, "ok", "release");
    actor_say(&server, "ok", "detach");
    actor_say(&server, "ok", "close"); /* and takes nothing of the other's away */
    actor_say(&server, "ok", "leave");
    actor_exit(&server);
    char path[128];
    snprintf(path, sizeof(path), "%s/default/store-0.sock", actors_dir);
    assert_int_equal(access(path, F_OK), 0);
    start_consumer(&consumer);
    actor_say(&consumer, "ok theirs rows=20", "open theirs 1");
    actor_say(&consumer, "MOOR_E_NOT_FOUND", "open ours 0");
}

static void a_newcomer_is_told_why(void **state)
{
    (void)state;
    actor server, consumer;
    char expected[256];
    start_server(&server);
    remove_files();
    actor_start(&consumer, NULL);
    snprintf(
        expected, sizeof(expected),
        "MOOR_E_NOT_FOUND the files of instance \"default\" in %s/default were removed while its server (pid %d) runs",
        actors_dir, (int)server.pid);
    actor_say(&consumer, expected, "attach - 0");
    actor_kill(&server);
    actor_say(&consumer, "MOOR_E_NOT_FOUND no live instance \"default\"", "attach - 0");
}

static void a_socket_that_was_removed_comes_back(void **state)
{
    (void)state;
    actor server, consumer;
    char path[128];
    start_server(&server);
    record(&server, "one", 10);
    snprintf(path, sizeof(path), "%s/default/store-0.sock", actors_dir);
    assert_int_equal(unlink(path), 0);
    while (access(path, F_OK)) /* the test's own deadline */
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    start_consumer(&consumer);
    actor_say(&consumer, "ok one rows=10", "open one 5");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, actors_begin, actors_end)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(who_is_attached_goes_on),          TEST(a_store_is_found_again_after_a_fork),
        TEST(a_store_that_hung_is_found_again), TEST(a_process_finds_its_own_store_and_no_other),
        TEST(a_newcomer_is_told_why),           TEST(a_socket_that_was_removed_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
