/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting at the gate in an event loop: a descriptor that is readable when another look is worth while. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hooks/ticket.h"
#include "hooks/watch.h"
#include "hooks/weights.h"
#include "support/gate.h"

enum { LONG_MS = 60000 };

/* 1 when fd is readable within ms, and then read. */
static int told(int fd, int ms)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    uint64_t n;
    int ready = poll(&one, 1, ms);
    if (ready == 1)
        assert_int_equal(read(fd, &n, sizeof(n)), sizeof(n));
    return ready == 1;
}

static int watched(uint32_t call)
{
    int fd = -1;
    assert_ok(moor_gate_watch(process, call, &fd));
    assert_true(fd >= 0);
    return fd;
}

static void S4_1_it_tells_when_the_gate_opens(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    assert_ok(moor_gate_seal(process));
    assert_int_equal(enter("waits", 0, 0, &ticket), MOOR_E_TIMEOUT);
    int fd = watched(MOOR_GATE_FOR_ENTER);
    assert_false(told(fd, 600)); /* longer than the thread's own looks */
    assert_ok(moor_gate_reopen(process, 0));
    assert_true(told(fd, LONG_MS));
    assert_ok(moor_gate_enter_again(process, "waits", 5, 0, &ticket));
    assert_false(told(fd, 600)); /* once for each change */
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_gate_reopen(process, 0));
    assert_true(told(fd, LONG_MS));
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL));
    moor_gate_unwatch(fd);
}

static void S4_1_it_tells_at_once_what_has_happened(void **state)
{
    (void)state;
    int first = watched(MOOR_GATE_FOR_REOPEN);
    assert_true(told(first, LONG_MS)); /* the thread has looked, and sleeps */
    int fd = watched(MOOR_GATE_FOR_ENTER);
    assert_true(told(fd, 0));
    moor_gate_unwatch(fd);
    moor_gate_unwatch(first);
}

static void S4_1_it_tells_when_a_cell_is_free(void **state)
{
    (void)state;
    static moor_ticket fill[MOOR_TICKET_WINDOW];
    moor_ticket one_more = {0};
    for (int i = 0; i < MOOR_TICKET_WINDOW; i++)
        assert_ok(enter("same-id", 0, 0, &fill[i]));
    int fd = watched(MOOR_GATE_FOR_ENTER);
    assert_true(told(fd, 0)); /* the gate is open: a look, that finds no cell */
    assert_int_equal(enter("same-id", 0, 0, &one_more), MOOR_E_FULL);
    assert_ok(moor_gate_leave(process, &fill[3], MOOR_OUTCOME_FINISHED, NULL));
    assert_true(told(fd, LONG_MS));
    assert_ok(moor_gate_enter_again(process, "same-id", 7, 0, &fill[3]));
    for (int i = 0; i < MOOR_TICKET_WINDOW; i++)
        assert_ok(moor_gate_leave(process, &fill[i], MOOR_OUTCOME_FINISHED, NULL));
    moor_gate_unwatch(fd);
}

static void S4_3_it_tells_when_the_last_request_settles(void **state)
{
    (void)state;
    moor_ticket a = {0}, b = {0};
    assert_ok(enter("a", 0, 0, &a));
    assert_ok(enter("b", 0, 0, &b));
    assert_ok(moor_gate_seal(process));
    int fd = watched(MOOR_GATE_FOR_DRAIN);
    assert_ok(moor_gate_leave(process, &a, MOOR_OUTCOME_FINISHED, NULL));
    assert_false(told(fd, 600));
    assert_int_equal(moor_gate_drain(process, 0), MOOR_E_TIMEOUT);
    assert_ok(moor_gate_leave(process, &b, MOOR_OUTCOME_FINISHED, NULL));
    assert_true(told(fd, LONG_MS));
    assert_ok(moor_gate_drain(process, 0));
    moor_gate_unwatch(fd);
}

static void S4_8_it_tells_that_requests_are_kept(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    assert_ok(enter("kept", 0, 0, &ticket));
    assert_ok(moor_gate_seal(process));
    int fd = watched(MOOR_GATE_FOR_DRAIN);
    assert_ok(moor_gate_close(process, MOOR_GATE_KEPT, NULL));
    assert_true(told(fd, LONG_MS));
    assert_ok(moor_gate_drain(process, 0));
    moor_gate_unwatch(fd);
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL));
}

static void S4_4_it_tells_of_poison(void **state)
{
    (void)state;
    moor_ticket a = {0};
    assert_ok(enter("a", 0, 0, &a));
    assert_ok(moor_gate_seal(process));
    int fd = watched(MOOR_GATE_FOR_DRAIN);
    assert_ok(moor_gate_poison(process, "for a test"));
    assert_true(told(fd, LONG_MS));
    assert_int_equal(moor_gate_drain(process, 0), MOOR_E_POISONED);
    moor_gate_unwatch(fd);
    assert_ok(moor_gate_leave(process, &a, MOOR_OUTCOME_FINISHED, NULL));
}

static void S4_9_it_tells_when_the_update_session_ends(void **state)
{
    (void)state;
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    int fd = watched(MOOR_GATE_FOR_REOPEN);
    assert_false(told(fd, 600));
    assert_int_equal(moor_gate_reopen(process, 0), MOOR_E_TIMEOUT);
    uint32_t before = atomic_load(&process->state->gate.settled);
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_int_not_equal(atomic_load(&process->state->gate.settled),
                         before); /* it wakes: the thread's own looks are rare */
    assert_true(told(fd, LONG_MS));
    assert_ok(moor_gate_reopen(process, 0));
    moor_gate_unwatch(fd);
}

/* A drain that a blocked thread waited for, and one that an event loop did. */
static void S4_14_a_drain_that_meets_its_deadline_is_counted(void **state)
{
    (void)state;
    moor_ticket a = {0};
    assert_ok(enter("a", 0, 0, &a));
    assert_ok(moor_gate_seal(process));
    assert_int_equal(moor_gate_drain(process, 0), MOOR_E_TIMEOUT);
    assert_null(strstr(moor_last_error(), "after")); /* it was asked, and did not wait */
    assert_int_equal(process->state->counters[MOOR_C_GATE_DRAIN_TIMEOUTS], 0);
    assert_int_equal(moor_gate_drain(process, 0.05), MOOR_E_TIMEOUT);
    assert_non_null(strstr(moor_last_error(), "1 request not settled after 0.050 s: a"));
    assert_int_equal(process->state->counters[MOOR_C_GATE_DRAIN_TIMEOUTS], 1);
    assert_int_equal(moor_gate_drain_late(process, 3600), MOOR_E_TIMEOUT);
    assert_non_null(strstr(moor_last_error(), "1 request not settled after 3600.000 s: a"));
    assert_int_equal(process->state->counters[MOOR_C_GATE_DRAIN_TIMEOUTS], 2);
    assert_ok(moor_gate_leave(process, &a, MOOR_OUTCOME_FINISHED, NULL));
    assert_ok(moor_gate_drain_late(process, 3600));
    assert_int_equal(process->state->counters[MOOR_C_GATE_DRAIN_TIMEOUTS], 2);
}

static void S4_14_who_waits_in_an_event_loop_is_counted(void **state)
{
    (void)state;
    assert_ok(moor_gate_waiting(process, 3));
    assert_ok(moor_gate_waiting(process, -1));
    assert_int_equal(status_now().waiting, 2);
    assert_ok(moor_gate_waiting(process, -2));
    assert_int_equal(status_now().waiting, 0);
}

static int threads(void)
{
    char line[128];
    int n = 0;
    FILE *status = fopen("/proc/self/status", "r");
    assert_non_null(status);
    while (fgets(line, sizeof(line), status))
        if (sscanf(line, "Threads: %d", &n) == 1)
            break;
    fclose(status);
    return n;
}

/* The thread is there while somebody watches, and a second watch is served by the first one's. */
static void its_thread_ends_with_the_last_watch(void **state)
{
    (void)state;
    int before = threads();
    assert_ok(moor_gate_seal(process));
    int a = watched(MOOR_GATE_FOR_ENTER), b = watched(MOOR_GATE_FOR_ENTER);
    assert_int_equal(threads(), before + 1);
    moor_gate_unwatch(a);
    assert_ok(moor_gate_reopen(process, 0));
    assert_true(told(b, LONG_MS));
    moor_gate_unwatch(b);
    moor_gate_unwatch(b); /* twice is nothing */
    for (int i = 0; i < LONG_MS && threads() != before; i++)
        support_sleep_ms(1);
    assert_int_equal(threads(), before);
}

static void it_survives_its_process(void **state)
{
    (void)state;
    assert_ok(moor_gate_seal(process));
    int fd = watched(MOOR_GATE_FOR_ENTER);
    int unused = moor_watch_leave(process);
    assert_true(unused);
    assert_true(told(fd, 0)); /* look again: there is nothing to wait for */
    assert_ok(moor_gate_reopen(process, 0));
    assert_false(told(fd, 600));
    moor_gate_unwatch(fd);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void a_forked_child_has_no_watch(void **state)
{
    (void)state;
    assert_ok(moor_gate_seal(process));
    int fd = watched(MOOR_GATE_FOR_ENTER);
    pid_t child = fork();
    if (!child) {
        int gone = fcntl(fd, F_GETFD) < 0 && errno == EBADF;
        int other = -1;
        moor_gate_unwatch(fd);
        _exit(gone && moor_gate_watch(process, MOOR_GATE_FOR_ENTER, &other) == MOOR_E_FORKED ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_ok(moor_gate_reopen(process, 0));
    assert_true(told(fd, LONG_MS)); /* the parent's is as it was */
    moor_gate_unwatch(fd);
}

static void what_cannot_be_watched_is_said(void **state)
{
    (void)state;
    int fd = -1;
    assert_int_equal(moor_gate_watch(process, 3, &fd), MOOR_E_INVALID);
    assert_int_equal(moor_gate_watch(process, MOOR_GATE_FOR_ENTER, NULL), MOOR_E_INVALID);
    assert_int_equal(moor_gate_watch(NULL, MOOR_GATE_FOR_ENTER, &fd), MOOR_E_INVALID);
    assert_int_equal(fd, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENFORCED(S4_1_it_tells_when_the_gate_opens),
        ENFORCED(S4_1_it_tells_at_once_what_has_happened),
        ENFORCED(S4_1_it_tells_when_a_cell_is_free),
        ENFORCED(S4_3_it_tells_when_the_last_request_settles),
        ENFORCED(S4_8_it_tells_that_requests_are_kept),
        ENFORCED(S4_4_it_tells_of_poison),
        ENFORCED(S4_9_it_tells_when_the_update_session_ends),
        ENFORCED(S4_14_a_drain_that_meets_its_deadline_is_counted),
        ENFORCED(S4_14_who_waits_in_an_event_loop_is_counted),
        ENFORCED(its_thread_ends_with_the_last_watch),
        ENFORCED(it_survives_its_process),
        ENFORCED(a_forked_child_has_no_watch),
        ENFORCED(what_cannot_be_watched_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
