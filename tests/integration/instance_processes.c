/* SPDX-License-Identifier: Apache-2.0 */
/* Membership in an instance, by real processes: names, directories, death (plugin/instance.c, process.c, allocator/locks.c). */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/state.h"
#include "support/actors.h"

static char path_text[512];
static const char *path(const char *name)
{
    snprintf(path_text, sizeof(path_text), "%s/%s", actors_dir, name);
    return path_text;
}

static void last_one_out_removes_the_files(void **state)
{
    (void)state;
    actor a, b;
    char inherits[128];
    actor_start(&a, NULL);
    actor_say(&a, "ok default ", "join {}");
    assert_int_equal(files_in(path("default")), 2);
    /* exported for the children of the first */
    actor_say(&a, "ok default", "env MOOR_INSTANCE");
    snprintf(inherits, sizeof(inherits), "ok %s", actors_dir);
    actor_say(&a, inherits, "env MOOR_DIR");
    actor_start(&b, "MOOR_INSTANCE=default", NULL);
    actor_say(&b, "ok default ", "join {}");
    actor_say(&a, "ok", "leave");
    actor_say(&a, "ok -", "env MOOR_INSTANCE");
    assert_int_equal(files_in(path("default")), 2);
    actor_say(&b, "ok", "leave");
    assert_int_equal(files_in(actors_dir), 0);
}

static void exit_without_leaving_removes_the_files(void **state)
{
    (void)state;
    actor a, b;
    actor_start(&a, NULL);
    actor_start(&b, "MOOR_INSTANCE=default", NULL);
    actor_say(&a, "ok default ", "join {}");
    actor_say(&b, "ok default ", "join {}");
    actor_exit(&a);
    assert_int_equal(files_in(path("default")), 2);
    actor_exit(&b);
    assert_int_equal(files_in(actors_dir), 0);
}

static void killed_servers_are_swept_at_the_next_start(void **state)
{
    (void)state;
    actor a, b, c;
    actor_start(&a, NULL);
    actor_start(&b, "MOOR_INSTANCE=default", NULL);
    actor_say(&a, "ok default ", "join {}");
    actor_say(&b, "ok default ", "join {}");
    actor_kill(&a);
    /* one of two killed: the instance lives, and its child still joins it */
    actor_start(&c, "MOOR_INSTANCE=default", NULL);
    actor_say(&c, "ok default ", "join {}");
    actor_kill(&b);
    actor_kill(&c);
    assert_int_equal(files_in(path("default")), 2);
    /* the next start of any server finds and removes it, whatever its own name */
    actor_start(&a, NULL);
    actor_say(&a, "ok other ", "join {\"instance\":\"other\"}");
    assert_int_equal(files_in(path("default")), -1);
    actor_exit(&a);
    assert_int_equal(files_in(actors_dir), 0);
}

/* vLLM kills its workers with SIGKILL and ends at once: the front end must not leave the files to a worker that is being killed. */
static void the_last_waits_for_one_that_is_being_killed(void **state)
{
    (void)state;
    actor a, b;
    actor_start(&a, NULL);
    actor_start(&b, "MOOR_INSTANCE=default", NULL);
    actor_say(&a, "ok default ", "join {}");
    actor_say(&b, "ok default ", "join {}");
    actor_say(&b, "ok", "weigh 512");
    kill(b.pid, SIGKILL);
    actor_say(&a, "ok", "leave");
    assert_int_equal(files_in(actors_dir), 0);
    actor_kill(&b);
}

static void sweeping_leaves_alone_what_is_not_ours(void **state)
{
    (void)state;
    actor a;
    char file[600];
    assert_int_equal(mkdir(path("pulse"), 0700), 0);
    snprintf(file, sizeof(file), "%s/pulse/native", actors_dir);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    actor_start(&a, NULL);
    actor_say(&a, "ok default ", "join {}");
    actor_exit(&a);
    assert_int_equal(access(file, F_OK), 0);
}

static void taken_name_gets_a_suffix_unless_it_was_given(void **state)
{
    (void)state;
    actor a, b, c, d;
    actor_start(&a, NULL);
    actor_say(&a, "ok default ", "join {}");
    actor_start(&b, NULL);
    actor_say(&b, "ok default-2 ", "join {}");
    actor_say(&b, "ok default-2", "env MOOR_INSTANCE");
    actor_start(&c, NULL);
    actor_say(&c, "MOOR_E_EXISTS a live server has the instance name \"default\"", "join {\"instance\":\"default\"}");
    /* a name in the environment alone, without the directory, was given by somebody too */
    actor_start(&d, "MOOR_INSTANCE=default", "MOOR_DIR", NULL);
    char config[128], expected[128];
    snprintf(config, sizeof(config), "join {\"dir\":\"%s\"}", actors_dir);
    actor_say(&d, "MOOR_E_EXISTS", "%s", config);
    /* the same server's worker, with the configuration that gives the name */
    actor_exit(&d);
    actor_start(&d, "MOOR_INSTANCE=default", NULL);
    snprintf(expected, sizeof(expected), "ok default %s/default", actors_dir);
    actor_say(&d, expected, "join {\"instance\":\"default\"}");
    actor_kill(&a);
    actor_kill(&d);
    /* a stale name is free again */
    actor_exit(&c);
    actor_start(&c, NULL);
    actor_say(&c, "ok default ", "join {\"instance\":\"default\"}");
}

static void refused_directories_name_owner_and_mode(void **state)
{
    (void)state;
    actor a;
    char expected[256];
    assert_int_equal(chmod(actors_dir, 0755), 0);
    actor_start(&a, NULL);
    snprintf(expected, sizeof(expected),
             "MOOR_E_ACCESS directory %s belongs to uid %u and has mode 0755; it must belong to uid %u with mode 0700",
             actors_dir, (unsigned)geteuid(), (unsigned)geteuid());
    actor_say(&a, expected, "join {}");
    actor_exit(&a);
    assert_int_equal(chmod(actors_dir, 0700), 0);
    actor_start(&a, "MOOR_DIR=/nonexistent/somewhere", NULL);
    actor_say(&a, "MOOR_E_NOT_FOUND directory /nonexistent/somewhere cannot be made", "join {}");
    actor_exit(&a);
    assert_int_equal(symlink(actors_dir, path("link")), 0);
    char env[600];
    snprintf(env, sizeof(env), "MOOR_DIR=%s/link", actors_dir);
    actor_start(&a, env, NULL);
    actor_say(&a, "MOOR_E_ACCESS", "join {}");
    actor_exit(&a);
    actor_start(&a, "MOOR_DIR=relative", NULL);
    actor_say(&a, "MOOR_E_INVALID $MOOR_DIR: \"relative\" is not an absolute path", "join {}");
    actor_exit(&a);
}

/* A socket's address has 107 bytes: a directory that is one too long is not even made. Nor is one for a name that is none. */
static void directories_that_are_too_long_are_not_made(void **state)
{
    (void)state;
    actor a;
    char env[600], expected[700], name[200];
    int longest = 107 - (int)strlen(actors_dir) - 1 - (int)strlen("/default/store-63.sock");
    for (int over = 0; over < 2; over++) {
        snprintf(name, sizeof(name), "%0*d", longest + over, 7);
        snprintf(env, sizeof(env), "MOOR_DIR=%s", path(name));
        actor_start(&a, env, NULL);
        snprintf(expected, sizeof(expected),
                 over ? "MOOR_E_INVALID socket path %s/default/store-63.sock is 108 bytes long"
                      : "ok default %s/default",
                 path(name));
        actor_say(&a, expected, "join {}");
        actor_exit(&a);
        assert_int_equal(access(path(name), F_OK), over ? -1 : 0);
    }
    snprintf(env, sizeof(env), "MOOR_DIR=%s", path("new"));
    actor_start(&a, env, "MOOR_INSTANCE=a b", NULL);
    actor_say(&a, "MOOR_E_INVALID \"a b\" ($MOOR_INSTANCE) is no instance name", "join {}");
    actor_exit(&a);
    assert_int_equal(access(path("new"), F_OK), -1);
}

/* Nobody named it: the next one is taken. */
static void a_candidate_that_is_too_long_is_passed_over(void **state)
{
    (void)state;
    actor a;
    char env[600], expected[100], name[120];
    snprintf(name, sizeof(name), "%0100d", 7);
    snprintf(env, sizeof(env), "XDG_RUNTIME_DIR=%s", path(name));
    assert_int_equal(mkdir(path(name), 0700), 0);
    actor_start(&a, "MOOR_DIR", env, NULL);
    snprintf(expected, sizeof(expected), "ok moor-test-%d /", (int)getpid());
    actor_say(&a, expected, "join {\"instance\":\"moor-test-%d\"}", (int)getpid());
    assert_null(strstr(a.line, actors_dir));
    actor_exit(&a);
    assert_int_equal(files_in(path(name)), 0);
}

static void foreign_directory_is_refused(void **state)
{
    (void)state;
    actor a;
    if (geteuid() != 0) {
        print_message("only root can make a directory that belongs to somebody else\n");
        skip();
    }
    assert_int_equal(chown(actors_dir, 4321, 4321), 0);
    actor_start(&a, NULL);
    actor_say(&a, "MOOR_E_ACCESS directory", "join {}");
    assert_non_null(strstr(a.line, "belongs to uid 4321"));
}

static void candidates_are_tried_in_order(void **state)
{
    (void)state;
    actor a;
    char env[600], expected[700];
    snprintf(env, sizeof(env), "XDG_RUNTIME_DIR=%s", actors_dir);
    actor_start(&a, "MOOR_DIR", env, NULL);
    snprintf(expected, sizeof(expected), "ok default %s/moor/default", actors_dir);
    actor_say(&a, expected, "join {}");
    actor_exit(&a);
    /* one that nobody named and that is not usable is passed over */
    assert_int_equal(chmod(path("moor"), 0755), 0);
    actor_start(&a, "MOOR_DIR", env, NULL);
    snprintf(expected, sizeof(expected), "ok moor-test-%d ", (int)getpid());
    actor_say(&a, expected, "join {\"instance\":\"moor-test-%d\"}", (int)getpid());
    assert_null(strstr(a.line, actors_dir));
    actor_exit(&a);
}

static void other_version_is_told_with_both_numbers(void **state)
{
    (void)state;
    actor a, b;
    char file[600], told[100];
    uint32_t version = 77;
    actor_start(&a, NULL);
    actor_say(&a, "ok default ", "join {}");
    snprintf(file, sizeof(file), "%s/default/state", actors_dir);
    int fd = open(file, O_WRONLY);
    assert_int_equal(pwrite(fd, &version, sizeof(version), offsetof(moor_state, version)), sizeof(version));
    actor_start(&b, "MOOR_INSTANCE=default", NULL);
    actor_say(&b, "MOOR_E_VERSION", "join {}");
    snprintf(told, sizeof(told), "has version 77, this library understands version %u", MOOR_STATE_VERSION);
    assert_non_null(strstr(b.line, told));
    uint64_t magic = 1;
    assert_int_equal(pwrite(fd, &magic, sizeof(magic), 0), sizeof(magic));
    actor_say(&b, "MOOR_E_CORRUPT", "join {}");
    magic = MOOR_STATE_MAGIC;
    version = MOOR_STATE_VERSION;
    assert_int_equal(pwrite(fd, &magic, sizeof(magic), 0), sizeof(magic));
    assert_int_equal(pwrite(fd, &version, sizeof(version), offsetof(moor_state, version)), sizeof(version));
    assert_int_equal(ftruncate(fd, 100), 0);
    close(fd);
    actor_say(&b, "MOOR_E_CORRUPT", "join {}");
    /* the failed joiner took no part: the first one is alone, and its leaving removes everything */
    actor_exit(&b);
    actor_kill(&a);
}

/* What a dead process left in the state (a ticket, an arrival) names its slot: a newcomer takes another one. */
static void the_slot_of_the_dead_is_taken_last(void **state)
{
    (void)state;
    actor a, b, c;
    char file[600];
    uint32_t pid = 0;
    actor_start(&a, NULL);
    actor_say(&a, "ok default ", "join {}");
    actor_start(&b, "MOOR_INSTANCE=default", NULL);
    actor_say(&b, "ok default ", "join {}");
    actor_kill(&b);
    actor_start(&c, "MOOR_INSTANCE=default", NULL);
    actor_say(&c, "ok default ", "join {}");
    snprintf(file, sizeof(file), "%s/default/state", actors_dir);
    int fd = open(file, O_RDONLY);
    off_t cell =
        (off_t)(offsetof(moor_state, processes) + 2 * sizeof(moor_state_process) + offsetof(moor_state_process, pid));
    assert_int_equal(pread(fd, &pid, sizeof(pid), cell), sizeof(pid));
    close(fd);
    assert_int_equal(pid, c.pid);
}

static void forked_child_has_nothing_and_joins_by_itself(void **state)
{
    (void)state;
    actor a;
    actor_start(&a, NULL);
    actor_say(&a, "ok default ", "join {}");
    actor_say(&a, "ok open=- info=- event=- count=MOOR_E_FORKED step=- join=MOOR_OK default", "fork");
    /* the child's coming and going did not take the parent's lock away */
    actor b;
    actor_start(&b, NULL);
    actor_say(&b, "ok default-2 ", "join {}");
    actor_say(&a, "ok open=- info=- event=- count=MOOR_E_FORKED step=- join=MOOR_OK default", "fork");
    actor_say(&a, "ok", "leave");
    assert_int_equal(files_in(path("default")), -1);
}

/* Many processes at once: one name each, nothing left. */
static void racing_servers_get_names_of_their_own(void **state)
{
    (void)state;
    enum { N = 12 };
    actor a[N];
    int seen[N + 2] = {0};
    for (int i = 0; i < N; i++)
        actor_start(&a[i], NULL);
    for (int i = 0; i < N; i++)
        actor_send(&a[i], "join {}");
    for (int i = 0; i < N; i++) {
        int number = 1;
        actor_hear(&a[i], "ok default");
        sscanf(a[i].line, "ok default-%d", &number);
        assert_true(number >= 1 && number <= N);
        assert_int_equal(seen[number]++, 0);
    }
    for (int i = 0; i < N; i++)
        actor_send(&a[i], "leave");
    for (int i = 0; i < N; i++)
        actor_hear(&a[i], "ok");
    assert_int_equal(files_in(actors_dir), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, actors_begin, actors_end)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(last_one_out_removes_the_files),
        TEST(exit_without_leaving_removes_the_files),
        TEST(killed_servers_are_swept_at_the_next_start),
        TEST(the_last_waits_for_one_that_is_being_killed),
        TEST(sweeping_leaves_alone_what_is_not_ours),
        TEST(taken_name_gets_a_suffix_unless_it_was_given),
        TEST(refused_directories_name_owner_and_mode),
        TEST(directories_that_are_too_long_are_not_made),
        TEST(a_candidate_that_is_too_long_is_passed_over),
        TEST(foreign_directory_is_refused),
        TEST(candidates_are_tried_in_order),
        TEST(other_version_is_told_with_both_numbers),
        TEST(the_slot_of_the_dead_is_taken_last),
        TEST(forked_child_has_nothing_and_joins_by_itself),
        TEST(racing_servers_get_names_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
