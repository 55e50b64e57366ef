/* SPDX-License-Identifier: Apache-2.0 */
/* The names that process_join puts into the environment, beside threads that read it (plugin/environment.c). */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "plugin/config.h"
#include "plugin/environment.h"
#include "plugin/process.h"

extern char **environ;

static char dir[64];

static int begin(void **state)
{
    (void)state;
    unsetenv("MOOR_INSTANCE");
    unsetenv("MOOR_CONFIG");
    strcpy(dir, "/tmp/moor-environment-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    return rmdir(dir);
}

static atomic_int readers, stop;

/* Walks the whole environment, as each getenv of a name that is not there does; *lost: a name that stays was not found. */
static void *read_environment(void *lost)
{
    unsigned looks = 0;
    atomic_fetch_add(&readers, 1);
    do {
        if (getenv("MOOR_NOT_THERE") || !getenv("MOOR_TEST_STAYS"))
            *(int *)lost = 1;
        if (++looks % 64 == 0)
            sched_yield(); /* the join is to come to its end on a busy machine */
    } while (!atomic_load(&stop));
    return NULL;
}

enum { THREADS = 2, STARTS = 20, LOST = 3 };

/* A process of its own: threads that read the environment, and a join and a leave meanwhile. */
static _Noreturn void join_beside_readers(int with_names)
{
    pthread_t thread[THREADS];
    int lost[THREADS] = {0};
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    moor_process *process;
    signal(SIGSEGV, SIG_DFL);
    if (!with_names) {
        unsetenv("MOOR_INSTANCE");
        unsetenv("MOOR_DIR");
    }
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, read_environment, &lost[i]))
            _exit(1);
    while (atomic_load(&readers) < THREADS)
        sched_yield();
    moor_config *config = NULL;
    char text[128];
    int n = snprintf(text, sizeof(text), "{\"log\":\"error\",\"dir\":\"%s\"}", dir);
    if (moor_config_parse(text, (size_t)n, &config) || moor_process_join(config, &args, &process))
        _exit(1);
    moor_config_free(config);
    const char *name = getenv("MOOR_INSTANCE"), *base = getenv("MOOR_DIR");
    if (!name || strcmp(name, "default") || !base || strcmp(base, dir))
        _exit(2);
    moor_process_leave(process);
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        if (lost[i])
            _exit(LOST);
    }
    _exit(0);
}

static int count_bad_starts(int with_names)
{
    int bad = 0;
    setenv("MOOR_TEST_STAYS", "1", 1);
    for (int i = 0; i < STARTS; i++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            join_beside_readers(with_names);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status)
            print_message("start %d: %s %d\n", i, WIFSIGNALED(status) ? "signal" : "exit",
                          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        bad += status != 0;
    }
    return bad;
}

static void a_join_harms_no_thread_that_reads_the_environment(void **state)
{
    (void)state;
    assert_int_equal(count_bad_starts(0), 0);
}

static void a_join_with_the_names_already_there_harms_none_either(void **state)
{
    (void)state;
    setenv("MOOR_INSTANCE", "", 1);
    setenv("MOOR_DIR", dir, 1);
    assert_int_equal(count_bad_starts(1), 0);
    unsetenv("MOOR_INSTANCE");
    unsetenv("MOOR_DIR");
}

/* What was there before comes back; the name of a server that is gone stays as an empty one, which names nothing. */
static void leaving_gives_the_names_before_back(void **state)
{
    (void)state;
    char *before = getenv("MOOR_INSTANCE"), text[128];
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    moor_process *process;
    moor_config *config;
    assert_null(before);
    setenv("MOOR_DIR", "/before", 1);
    int n = snprintf(text, sizeof(text), "{\"log\":\"error\",\"dir\":\"%s\"}", dir);
    assert_int_equal(moor_config_parse(text, (size_t)n, &config), MOOR_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(moor_process_join(config, &args, &process), MOOR_OK);
        assert_string_equal(getenv("MOOR_INSTANCE"), "default");
        assert_string_equal(getenv("MOOR_DIR"), dir);
        moor_process_leave(process);
        assert_string_equal(getenv("MOOR_INSTANCE"), "");
        assert_string_equal(getenv("MOOR_DIR"), "/before");
    }
    moor_config_free(config);
    /* what somebody else has set since is theirs */
    assert_int_equal(moor_config_parse(text, (size_t)n, &config), MOOR_OK);
    assert_int_equal(moor_process_join(config, &args, &process), MOOR_OK);
    setenv("MOOR_INSTANCE", "theirs", 1);
    moor_process_leave(process);
    assert_string_equal(getenv("MOOR_INSTANCE"), "theirs");
    moor_config_free(config);
    unsetenv("MOOR_INSTANCE");
    unsetenv("MOOR_DIR");
}

/* clearenv() leaves no list at all. */
static void a_name_is_put_where_there_is_no_environment(void **state)
{
    (void)state;
    char **before = environ;
    clearenv();
    assert_int_equal(moor_environment_put("MOOR_INSTANCE", "one"), 0);
    assert_string_equal(getenv("MOOR_INSTANCE"), "one");
    assert_string_equal(environ[0], "MOOR_INSTANCE=one");
    assert_null(environ[1]);
    environ = before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_join_harms_no_thread_that_reads_the_environment),
        cmocka_unit_test(a_join_with_the_names_already_there_harms_none_either),
        cmocka_unit_test(leaving_gives_the_names_before_back),
        cmocka_unit_test(a_name_is_put_where_there_is_no_environment),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
