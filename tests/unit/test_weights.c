/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 4.5, 4.7, 4.9: when the weight epoch moves, and what a failed update leaves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hooks/cleanup.h"
#include "hooks/gate.h"
#include "hooks/weights.h"
#include "support/member.h"
#include "support/stepper.h"

static moor_process *process;

static int start_enforce(void **state)
{
    (void)state;
    process = support_start("\"gate\":{\"mode\":\"enforce\"}", MOOR_ROLE_WORKER);
    return 0;
}

static int start_observe(void **state)
{
    (void)state;
    process = support_start(NULL, MOOR_ROLE_WORKER);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return support_end(process) ? 0 : -1;
}

#define assert_ok(call) assert_int_equal((call), MOOR_OK)

static uint64_t epoch(void)
{
    return moor_weights_epoch(process);
}

static void record(void)
{
    assert_int_equal(moor_weights_mark_used(process->state), epoch());
}

static int poisoned(void)
{
    moor_gate_status status = MOOR_GATE_STATUS_INIT;
    assert_ok(moor_gate_get_status(process, &status));
    return (int)status.poisoned;
}

static void S4_7_a_change_after_rows_moves_the_epoch_once(void **state)
{
    (void)state;
    assert_int_equal(epoch(), 1);
    assert_ok(moor_weights_touched(process, MOOR_WEIGHTS_LOAD, "load_weights at start-up"));
    assert_int_equal(epoch(), 1); /* nothing was recorded with other weights */
    record();
    for (int i = 0; i < 20; i++) /* one update in many calls */
        assert_ok(moor_weights_touched(process, MOOR_WEIGHTS_RPC, "update_weights_from_ipc"));
    assert_int_equal(epoch(), 2);
    record();
    record();
    assert_int_equal(epoch(), 2);
    assert_ok(moor_weights_touched(process, MOOR_WEIGHTS_LORA, "add_lora"));
    assert_int_equal(epoch(), 3);
    assert_int_equal(process->state->weights.seen[MOOR_WEIGHTS_RPC], 20);
    assert_int_equal(process->state->weights.seen[MOOR_WEIGHTS_LORA], 1);
    assert_int_equal(process->state->counters[MOOR_C_WEIGHT_UPDATES], 2);
}

static void S4_7_an_admission_counts_as_use(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    assert_ok(moor_gate_enter(process, "a", 1, 0, 0, &ticket));
    assert_ok(moor_weights_touched(process, MOOR_WEIGHTS_UPDATE, "x"));
    assert_int_equal(epoch(), 2);
    moor_receipt receipt = MOOR_RECEIPT_INIT;
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, &receipt));
    assert_int_equal(receipt.epoch_start, 1);
    assert_int_equal(receipt.epoch_end, 2);
}

static void S4_5_a_session_moves_the_epoch_once_by_itself(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 3; i++) { /* updates in a row, nothing recorded between them: versions of their own */
        assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
        assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
        assert_int_equal(epoch(), 1 + i);
        for (int k = 0; k < 5; k++)
            assert_ok(moor_weights_touched(process, MOOR_WEIGHTS_UPDATE, "bucket"));
        assert_int_equal(epoch(), 2 + i);
        assert_ok(moor_weights_end(process, 1, NULL));
        assert_int_equal(moor_weights_sessions(process->state, NULL, 0), 1);
        assert_ok(moor_weights_touched(process, MOOR_WEIGHTS_UPDATE, "bucket"));
        assert_ok(moor_weights_end(process, 1, NULL));
        assert_int_equal(moor_weights_sessions(process->state, NULL, 0), 0);
        assert_int_equal(epoch(), 2 + i);
    }
}

/* A session of which nothing but begin and end was seen changed the weights all the same. */
static void S4_7_a_session_that_was_not_seen_inside_moves_the_epoch(void **state)
{
    (void)state;
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    assert_int_equal(epoch(), 1);
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_int_equal(epoch(), 2);
}

/* Without a gate rows may be recorded amid an update: they share an epoch with neither side. */
static void S4_7_rows_amid_an_update_have_an_epoch_of_their_own(void **state)
{
    (void)state;
    record();
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    assert_ok(moor_weights_touched(process, MOOR_WEIGHTS_UPDATE, "bucket 1"));
    assert_int_equal(moor_weights_mark_used(process->state), 2);
    assert_ok(moor_weights_touched(process, MOOR_WEIGHTS_UPDATE, "bucket 2"));
    assert_int_equal(moor_weights_mark_used(process->state), 3);
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_int_equal(epoch(), 4);
}

/* The update moves the epoch when it happens; the install that follows names that epoch and makes no further one. */
static void S4_5_install_labels_what_the_update_moved(void **state)
{
    (void)state;
    char label[MOOR_LABEL_BYTES];
    uint64_t now = 0;
    record();
    for (uint64_t i = 0; i < 3; i++) {
        assert_ok(moor_gate_seal(process));
        assert_ok(moor_gate_drain(process, 0));
        assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
        assert_ok(moor_weights_touched(process, MOOR_WEIGHTS_UPDATE, "bucket"));
        assert_ok(moor_weights_end(process, 1, NULL));
        assert_ok(moor_gate_install(process, "step", 0, &now));
        assert_int_equal(now, 2 + i);
        assert_ok(moor_gate_reopen(process, 0));
        moor_weights_label_of(process->state, 2 + i, label, sizeof(label));
        assert_string_equal(label, "step");
    }
    /* An install without an update seen is a version all the same. */
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_gate_drain(process, 0));
    assert_ok(moor_gate_install(process, "a", 0, &now));
    assert_int_equal(now, 5);
    assert_ok(moor_gate_install(process, "b", 0, &now));
    assert_int_equal(now, 6);
    assert_ok(moor_gate_reopen(process, 0));
}

static void labels_name_the_current_epoch(void **state)
{
    (void)state;
    char label[MOOR_LABEL_BYTES];
    assert_ok(moor_weights_label(process, "initial"));
    moor_weights_label_of(process->state, 1, label, sizeof(label));
    assert_string_equal(label, "initial");
    assert_ok(moor_weights_label(process, NULL));
    moor_weights_label_of(process->state, 1, label, sizeof(label));
    assert_string_equal(label, "");
}

static void S4_9_a_failed_update_poisons_and_moves_the_epoch(void **state)
{
    (void)state;
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_gate_drain(process, 0));
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    assert_ok(moor_weights_end(process, 0, "rank 1: shape mismatch in layer 3"));
    assert_int_equal(epoch(), 2);
    assert_true(moor_weights_unknown(process->state));
    assert_true(poisoned());
    assert_int_equal(moor_gate_install(process, "8", 0, NULL), MOOR_E_POISONED);
    assert_non_null(strstr(moor_last_error(), "shape mismatch in layer 3"));
    assert_int_equal(moor_gate_reopen(process, 0), MOOR_E_POISONED);
    /* Another rank's good end belongs to the same failed update only if its session does; a LoRA makes nothing good. */
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_LORA));
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_true(moor_weights_unknown(process->state));
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_false(moor_weights_unknown(process->state));
    assert_true(poisoned()); /* sticky: somebody must have looked at it */
    assert_ok(moor_gate_acknowledge(process));
    assert_ok(moor_gate_install(process, "8", 0, NULL));
    assert_ok(moor_gate_reopen(process, 0));
}

static void S4_9_an_inner_failure_is_not_made_good_by_the_outer_end(void **state)
{
    (void)state;
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    assert_ok(moor_weights_end(process, 0, NULL));
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_true(moor_weights_unknown(process->state));
    assert_int_equal(moor_weights_sessions(process->state, NULL, 0), 0);
}

/* Observe refuses nothing; the failure is in the log and in the state. */
static void S4_8_observe_does_not_poison(void **state)
{
    (void)state;
    support_log_clear();
    assert_ok(moor_weights_end(process, 0, "no space"));
    assert_false(poisoned());
    assert_true(moor_weights_unknown(process->state));
    assert_int_equal(epoch(), 2);
    assert_non_null(strstr(support_log(), "no space"));
}

static void S4_10_end_without_begin_is_a_no_op_that_says_so(void **state)
{
    (void)state;
    support_log_clear();
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_int_equal(epoch(), 1);
    assert_non_null(strstr(support_log(), "no update session is open"));
    assert_int_equal(moor_weights_begin(process, MOOR_WEIGHTS_KINDS), MOOR_E_INVALID);
    assert_int_equal(moor_weights_touched(process, 99, "x"), MOOR_E_INVALID);
}

/* SEMANTICS 6 */
static void S6_windows_nest_and_phases_count(void **state)
{
    (void)state;
    assert_int_equal(moor_cleanup_window(process, 0), 0);
    assert_int_equal(moor_cleanup_window(process, 1), 1);
    assert_int_equal(moor_cleanup_window(process, 1), 2);
    assert_int_equal(moor_cleanup_window(process, -1), 1);
    assert_int_equal(moor_cleanup_window(process, -1), 0);
    support_log_clear();
    assert_int_equal(moor_cleanup_window(process, -1), 0);
    assert_non_null(strstr(support_log(), "cleanup_window"));
    assert_int_equal(moor_cleanup_window(NULL, 1), 0);
    assert_ok(moor_cleanup_count(process, MOOR_PHASE_BEFORE_KV, MOOR_CLEAN_EMPTY_CACHE, 500));
    assert_ok(moor_cleanup_count(process, MOOR_PHASE_BEFORE_KV, MOOR_CLEAN_EMPTY_CACHE, 700));
    assert_int_equal(process->state->cleanup.count[MOOR_PHASE_BEFORE_KV][MOOR_CLEAN_EMPTY_CACHE], 2);
    assert_int_equal(process->state->cleanup.ns[MOOR_PHASE_BEFORE_KV][MOOR_CLEAN_EMPTY_CACHE], 1200);
    assert_int_equal(moor_cleanup_count(process, MOOR_PHASES, 0, 0), MOOR_E_INVALID);
    assert_int_equal(moor_cleanup_count(process, 0, MOOR_CLEAN_KINDS, 0), MOOR_E_INVALID);
}

/* Another thread begins an update between two instructions of the end of ours: it is inside, whatever ours does next. */
static int begin_when_ended(void *user)
{
    moor_state_weights *weights = user;
    if (atomic_load(&weights->depth[process->slot]))
        return 0;
    atomic_fetch_or(&weights->kinds[process->slot], 1u << MOOR_WEIGHTS_RPC);
    atomic_fetch_add(&weights->depth[process->slot], 1);
    atomic_fetch_or(&weights->open[process->slot / 64], (uint64_t)1 << process->slot % 64);
    return 1;
}

static void end_here(void *unused)
{
    (void)unused;
    (void)moor_weights_end(process, 1, NULL);
}

static void sessions_of_two_threads_do_not_end_each_other(void **state)
{
    (void)state;
    if (!stepper_works())
        skip();
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    stepper_run(end_here, NULL, begin_when_ended, &process->state->weights);
    assert_int_equal(moor_weights_sessions(process->state, NULL, 0), 1);
    assert_int_equal(process->state->weights.depth[process->slot], 1);
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_int_equal(moor_weights_sessions(process->state, NULL, 0), 0);
    assert_int_equal(process->state->weights.kinds[process->slot], 0);
}

/* The first moment at which the session of the dead holds no reopen up. */
static int no_session_is_open(void *user)
{
    if (atomic_load(&process->state->weights.open[process->slot / 64]))
        return 0;
    *(int *)user = (atomic_load(&process->state->gate.word) >> 4 & 1) != 0; /* the poison's bit */
    return 1;
}

static void declare_dead_here(void *unused)
{
    moor_member member = moor_member_of(process);
    (void)unused;
    moor_weights_slot_ended(&member, process->slot);
}

static void S4_9_the_session_of_the_dead_is_open_until_the_poison(void **state)
{
    int was_poisoned = -1;
    (void)state;
    if (!stepper_works())
        skip();
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    stepper_run(declare_dead_here, NULL, no_session_is_open, &was_poisoned);
    assert_int_equal(moor_weights_sessions(process->state, NULL, 0), 0);
    assert_int_equal(was_poisoned, 1);
}

int main(void)
{
#define ENFORCED(f) cmocka_unit_test_setup_teardown(f, start_enforce, stop)
#define OBSERVED(f) cmocka_unit_test_setup_teardown(f, start_observe, stop)
    const struct CMUnitTest tests[] = {
        OBSERVED(S4_7_a_change_after_rows_moves_the_epoch_once),
        OBSERVED(S4_7_an_admission_counts_as_use),
        OBSERVED(S4_5_a_session_moves_the_epoch_once_by_itself),
        OBSERVED(S4_7_a_session_that_was_not_seen_inside_moves_the_epoch),
        OBSERVED(S4_7_rows_amid_an_update_have_an_epoch_of_their_own),
        OBSERVED(labels_name_the_current_epoch),
        OBSERVED(sessions_of_two_threads_do_not_end_each_other),
        OBSERVED(S4_8_observe_does_not_poison),
        OBSERVED(S4_10_end_without_begin_is_a_no_op_that_says_so),
        OBSERVED(S6_windows_nest_and_phases_count),
        ENFORCED(S4_5_install_labels_what_the_update_moved),
        ENFORCED(S4_9_a_failed_update_poisons_and_moves_the_epoch),
        ENFORCED(S4_9_an_inner_failure_is_not_made_good_by_the_outer_end),
        ENFORCED(S4_9_the_session_of_the_dead_is_open_until_the_poison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
