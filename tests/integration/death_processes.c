/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process may die at any instruction, and the shared state has no lock that somebody else could give up for it. Here a child dies
 * after its first store into the shared state, after its second one, and so on through a whole operation; each time the
 * survivor must find a way on: no wait to the deadline, nothing left in flight, nothing taken for whole that was not.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "allocator/idhash.h"
#include "hooks/barrier.h"
#include "hooks/gate.h"
#include "hooks/ticket.h"
#include "hooks/weights.h"
#include "tests/unit/support/member.h"
#include "tests/unit/support/stepper.h"

enum { SURVIVED = 7, MOST_STORES = 400 };

static const char id[] = "request-1";
static moor_process *process, *self; /* the survivor's; the child's */

static int start(void **state)
{
    (void)state;
    process = support_start("\"gate\":{\"mode\":\"enforce\"},\"barrier\":{\"mode\":\"enforce\"}", MOOR_ROLE_CORE);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return support_end(process) ? 0 : -1;
}

#define assert_ok(call) assert_int_equal((call), MOOR_OK)

/* ---- dying after the nth store ----------------------------------------------------------------------------------- */

/* What the operations write. Compared after each instruction: a difference is one store (or one locked instruction). */
typedef struct seen {
    unsigned char gate[offsetof(moor_state_gate, labels)];
    moor_state_weights weights;
    moor_state_ticket ticket;
    uint64_t barrier[8], arrived[2];
} seen;

static seen before;
static int stores_left;

static void take(seen *now)
{
    const moor_state *state = self->state;
    memcpy(now->gate, (const void *)&state->gate, sizeof(now->gate));
    memcpy((void *)&now->weights, (const void *)&state->weights, sizeof(now->weights));
    memcpy((void *)&now->ticket, (const void *)&state->tickets[moor_id_hash(id, sizeof(id) - 1).lo % MOOR_MAX_TICKETS],
           sizeof(now->ticket));
    memcpy(now->barrier, (const void *)&state->resume[0], sizeof(now->barrier));
    memcpy(now->arrived, (const void *)state->resume[0].arrived, sizeof(now->arrived));
}

static int die_after(void *user)
{
    static seen now;
    (void)user;
    take(&now);
    if (memcmp(&now, &before, sizeof(now)) == 0)
        return 0;
    memcpy(&before, &now, sizeof(now));
    if (--stores_left == 0)
        raise(SIGKILL);
    return 0;
}

/* Runs the operation in a process that joins as this rank of two and dies after `stores` stores. 1: it died, 0: it was through. */
static int dies(void (*operation)(void *), int stores, uint32_t rank)
{
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        self = support_join(MOOR_ROLE_WORKER, rank, 2, 0);
        stores_left = stores;
        take(&before);
        stepper_run(operation, NULL, die_after, NULL);
        support_leave(self);
        _exit(SURVIVED);
    }
    int status = support_wait(pid);
    atomic_store(&process->state->gate.swept_at_ns, 0); /* the next drain looks for the dead at once */
    assert_true(status == SURVIVED || status == 128 + SIGKILL);
    return status != SURVIVED;
}

/* Each n until the operation is through; returns how many stores it makes. */
static int at_each_store(void (*operation)(void *), uint32_t rank, void (*survivor)(void))
{
    for (int n = 1; n < MOST_STORES; n++) {
        int died = dies(operation, n, rank);
        survivor();
        if (!died)
            return n - 1;
    }
    fail_msg("no end after %d stores", MOST_STORES);
    return 0;
}

/* ---- the gate ---------------------------------------------------------------------------------------------------- */

/* Seals, drains within the deadline or hears of the poison, and reopens; afterwards nothing is left. */
static void gate_goes_on(void)
{
    moor_gate_status status = MOOR_GATE_STATUS_INIT;
    uint64_t begun = moor_now_ns();
    assert_ok(moor_gate_seal(process));
    moor_status drained = moor_gate_drain(process, 20);
    if (drained == MOOR_E_POISONED) {
        assert_ok(moor_gate_acknowledge(process));
        drained = moor_gate_drain(process, 20);
    }
    assert_ok(drained);
    assert_ok(moor_gate_install(process, "next", 0, NULL));
    assert_ok(moor_gate_reopen(process, 20));
    assert_true(moor_now_ns() - begun < 20000000000ull); /* none of them ran into its deadline */
    assert_ok(moor_gate_get_status(process, &status));
    assert_int_equal(status.in_flight, 0);
    assert_int_equal(status.state, MOOR_GATE_OPEN);
    moor_ticket ticket = {0}; /* and the next request passes */
    assert_ok(moor_gate_enter(process, id, sizeof(id) - 1, 0, 0, &ticket));
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL));
}

static void pass_the_gate(void *unused)
{
    (void)unused;
    moor_ticket ticket = {0};
    const moor_hash128 hash = moor_id_hash(id, sizeof(id) - 1), none = {0, 0};
    if (moor_gate_enter(self, id, sizeof(id) - 1, 1, 0, &ticket))
        _exit(1);
    moor_gate_record_stored(self->state, hash, none, 5);
    moor_gate_leave(self, &ticket, MOOR_OUTCOME_FINISHED, NULL);
}

static void S4_4_a_request_dies_at_each_store(void **state)
{
    (void)state;
    if (!stepper_works())
        skip();
    assert_true(at_each_store(pass_the_gate, 1, gate_goes_on) >= 6);
}

static void seal_and_reopen(void *unused)
{
    (void)unused;
    moor_gate_seal(self);
    moor_gate_drain(self, 0);
    moor_gate_install(self, "label", 0, NULL);
    moor_gate_poison(self, "for the test");
    moor_gate_acknowledge(self);
    moor_gate_reopen(self, 0);
}

static void S4_3_whoever_drives_the_gate_dies_at_each_store(void **state)
{
    (void)state;
    if (!stepper_works())
        skip();
    assert_true(at_each_store(seal_and_reopen, 1, gate_goes_on) >= 12);
}

/* ---- updates ----------------------------------------------------------------------------------------------------- */

static uint64_t epoch_before;

static void update(void *unused)
{
    (void)unused;
    moor_weights_begin(self, MOOR_WEIGHTS_UPDATE);
    moor_weights_touched(self, MOOR_WEIGHTS_LOAD, "load_weights");
    moor_weights_end(self, 1, NULL);
}

/* The next update closes the dead one's session, and makes its version known again. */
static void updates_go_on(void)
{
    gate_goes_on();
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_int_equal(moor_weights_sessions(process->state, NULL, 0), 0);
    assert_int_equal(moor_weights_unknown(process->state), 0);
    assert_true(moor_weights_epoch(process) > epoch_before);
    epoch_before = moor_weights_epoch(process);
}

static void S4_9_an_updater_dies_at_each_store(void **state)
{
    (void)state;
    epoch_before = 0;
    if (!stepper_works())
        skip();
    assert_true(at_each_store(update, 1, updates_go_on) >= 5);
}

/* ---- the barrier ------------------------------------------------------------------------------------------------- */

static void arrive(void *unused)
{
    (void)unused;
    moor_resume_arrive(self, 1, 2, 0, "cpu:0", 0, NULL);
}

static void meet(void *unused)
{
    (void)unused;
    if (moor_resume_arrive(self, 1, 2, 0, "cpu:0", 30, NULL))
        _exit(1);
}

/* This rank's round ends at once, one way or the other; and with a new process as rank 1 the next one is whole. */
static void ranks_go_on(void)
{
    uint64_t begun = moor_now_ns();
    moor_status status = moor_resume_arrive(process, 0, 2, 0, "cpu:0", 20, NULL);
    /* MOOR_E_TIMEOUT, but not at this rank's own deadline: the round that the child itself let time out before it died. */
    assert_true(moor_now_ns() - begun < 20000000000ull);
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        self = support_join(MOOR_ROLE_WORKER, 1, 2, 0);
        meet(NULL);
        support_leave(self);
        _exit(0);
    }
    do /* rounds in which the dead one is still found are broken, and end */
        status = moor_resume_arrive(process, 0, 2, 0, "cpu:0", 20, NULL);
    while (status == MOOR_E_BROKEN && moor_now_ns() - begun < 15000000000ull);
    assert_ok(status);
    assert_int_equal(support_wait(pid), 0);
}

static void S5_3_a_rank_dies_at_each_store(void **state)
{
    (void)state;
    if (!stepper_works())
        skip();
    assert_true(at_each_store(arrive, 1, ranks_go_on) >= 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(S4_4_a_request_dies_at_each_store, start, stop),
        cmocka_unit_test_setup_teardown(S4_3_whoever_drives_the_gate_dies_at_each_store, start, stop),
        cmocka_unit_test_setup_teardown(S4_9_an_updater_dies_at_each_store, start, stop),
        cmocka_unit_test_setup_teardown(S5_3_a_rank_dies_at_each_store, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
