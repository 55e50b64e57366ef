/* SPDX-License-Identifier: Apache-2.0 */
/* S5.1 across environments: a server and a trainer that would each choose another directory for themselves meet at the barrier. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hooks/barrier.h"
#include "hooks/holds.h"
#include "plugin/config.h"
#include "plugin/process.h"
#include "tests/unit/support/member.h"

enum {
    UNSET,
    RUNTIME,
    NAMED,
    GIVEN,
    PLACES
}; /* $XDG_RUNTIME_DIR, $MOOR_DIR, the configuration's or the caller's own */

static char top[64], device[64], instance[32];

static int start(void **state)
{
    (void)state;
    snprintf(top, sizeof(top), "/tmp/moor-places-XXXXXX");
    snprintf(device, sizeof(device), "test:%d", (int)getpid()); /* of nobody else on this machine */
    snprintf(instance, sizeof(instance), "places-%d", (int)getpid());
    return mkdtemp(top) ? 0 : -1;
}

static int stop(void **state)
{
    char command[96];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", top);
    return system(command);
}

/* The environment of one side; `who` has directories of its own. What dir= should be, or NULL. */
static const char *go_to(int place, const char *who)
{
    static char path[128];
    unsetenv("MOOR_HOLDS_DIR");
    unsetenv("MOOR_DIR");
    unsetenv("MOOR_INSTANCE");
    unsetenv("MOOR_CONFIG");
    unsetenv("XDG_RUNTIME_DIR");
    snprintf(path, sizeof(path), "%s/%s-%d", top, who, place);
    if (place == RUNTIME && (mkdir(path, 0700) | setenv("XDG_RUNTIME_DIR", path, 1)))
        _exit(90);
    if (place == NAMED)
        setenv("MOOR_DIR", path, 1);
    return place == GIVEN ? path : NULL;
}

/* A child that does what it is told, a byte at a time, and answers with one. */
struct side {
    pid_t pid;
    int in, out;
};

static struct side begin(int place, const char *who, void (*body)(const char *dir, int in, int out))
{
    int in[2], out[2];
    assert_int_equal(pipe(in) | pipe(out), 0);
    struct side side = {fork(), in[1], out[0]};
    if (!side.pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(in[1]);
        close(out[0]);
        body(go_to(place, who), in[0], out[1]);
        _exit(0);
    }
    close(in[0]);
    close(out[1]);
    return side;
}

static int ask(const struct side *side, char what)
{
    char answer = -1;
    assert_int_equal(write(side->in, &what, 1), 1);
    assert_int_equal(read(side->out, &answer, 1), 1);
    return answer;
}

static void end(struct side *side, int signal_number)
{
    if (signal_number)
        kill(side->pid, signal_number);
    close(side->in);
    assert_int_equal(support_wait(side->pid), signal_number ? 128 + signal_number : 0);
    close(side->out);
}

static void answer(int out, int value)
{
    char byte = (char)value;
    if (write(out, &byte, 1) != 1)
        _exit(91);
}

/* 'r': what a resume of one rank says, waiting as long as it takes to look once. */
static void server(const char *dir, int in, int out)
{
    char text[256], what;
    moor_config *config;
    moor_process *process;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    snprintf(text, sizeof(text), "{\"instance\":\"%s\",\"barrier\":{\"mode\":\"enforce\"}%s%s%s}", instance,
             dir ? ",\"dir\":\"" : "", dir ? dir : "", dir ? "\"" : "");
    args.roles = MOOR_ROLE_WORKER;
    if (moor_config_parse(text, strlen(text), &config) || moor_process_join(config, &args, &process))
        _exit(92);
    while (read(in, &what, 1) == 1)
        answer(out, moor_resume_arrive(process, 0, 1, 0, device, 0, NULL));
    moor_process_leave(process);
    moor_config_free(config);
}

/* 't': takes, 'n': the number of servers that it is told of, 'l': lets go. */
static void trainer(const char *dir, int in, int out)
{
    moor_hold *hold = NULL;
    char what, *text;
    size_t len;
    while (read(in, &what, 1) == 1) {
        int said = 0;
        if (what == 't')
            said = moor_hold_take(dir, device, "trainer", 5, &hold);
        else if (what == 'l')
            moor_hold_release(hold);
        else if (!(said = moor_hold_seen_by(hold, &text, &len))) {
            said = strstr(text, instance) != NULL;
            free(text);
        }
        answer(out, said);
    }
}

static void S5_1_a_hold_is_seen_whatever_the_environments_are(void **state)
{
    (void)state;
    for (int here = UNSET; here < PLACES; here++)
        for (int there = UNSET; there < PLACES; there++) {
            struct side of_server = begin(here, "server", server), of_trainer = begin(there, "trainer", trainer);
            assert_int_equal(ask(&of_server, 'r'), MOOR_OK);
            assert_int_equal(ask(&of_trainer, 't'), MOOR_OK);
            if (ask(&of_server, 'r') != MOOR_E_TIMEOUT)
                fail_msg("server in place %d: it resumed beside the hold of a trainer in place %d", here, there);
            if (here == UNSET) /* a directory that every candidate list has */
                assert_int_equal(ask(&of_trainer, 'n'), 1);
            assert_int_equal(ask(&of_trainer, 'l'), MOOR_OK);
            assert_int_equal(ask(&of_server, 'r'), MOOR_OK);
            assert_int_equal(ask(&of_trainer, 't'), MOOR_OK);
            assert_int_equal(ask(&of_server, 'r'), MOOR_E_TIMEOUT);
            end(&of_trainer, SIGKILL);
            assert_int_equal(ask(&of_server, 'r'), MOOR_OK); /* in none of its directories a file counts any more */
            end(&of_server, 0);
            stop(NULL);
            assert_int_equal(mkdir(top, 0700), 0);
        }
}

/* One hold in several directories is one. */
static void S5_3_a_hold_is_counted_once(void **state)
{
    (void)state;
    struct side of_trainer = begin(GIVEN, "trainer", trainer);
    moor_dirs bases;
    moor_holders seen = {0};
    char dir[128];
    snprintf(dir, sizeof(dir), "%s", go_to(GIVEN, "trainer"));
    assert_int_equal(ask(&of_trainer, 't'), MOOR_OK);
    assert_int_equal(moor_dirs_all(dir, &bases), MOOR_OK);
    assert_true(bases.n >= 3);
    assert_int_equal(moor_holds_read(&bases, device, 0, &seen), MOOR_OK);
    assert_int_equal(seen.count, 1);
    end(&of_trainer, 0);
}

/* The directory that the caller names must do; of the others one is enough. */
static void a_directory_that_is_no_use_is_passed_over(void **state)
{
    (void)state;
    char dir[128];
    moor_hold *hold;
    go_to(RUNTIME, "trainer");
    snprintf(dir, sizeof(dir), "%s/moor", getenv("XDG_RUNTIME_DIR"));
    assert_int_equal(mkdir(dir, 0755), 0);
    assert_int_equal(moor_hold_take(NULL, device, "trainer", 5, &hold), MOOR_OK);
    moor_hold_release(hold);
    assert_int_equal(moor_hold_take(dir, device, "trainer", 5, &hold), MOOR_E_ACCESS);
    go_to(UNSET, "trainer");
    setenv("MOOR_DIR", dir, 1);
    assert_int_equal(moor_hold_take(NULL, device, "trainer", 5, &hold), MOOR_E_ACCESS);
    go_to(UNSET, "trainer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(S5_1_a_hold_is_seen_whatever_the_environments_are, start, stop),
        cmocka_unit_test_setup_teardown(S5_3_a_hold_is_counted_once, start, stop),
        cmocka_unit_test_setup_teardown(a_directory_that_is_no_use_is_passed_over, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
