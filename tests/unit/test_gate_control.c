/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 4.3 to 4.6, 4.8, 4.10, in one process: drain, poison, install, reopen, and the modes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/wait.h>

#include "hooks/shared_text.h"
#include "hooks/ticket.h"
#include "hooks/weights.h"
#include "support/gate.h"

static void S4_3_drain_lists_what_is_left_and_stays_sealed(void **state)
{
    (void)state;
    moor_ticket tickets[3];
    const char *ids[] = {"slow-a", "slow-b", "quick"};
    for (int i = 0; i < 3; i++)
        assert_ok(enter(ids[i], 0, 0, &tickets[i]));
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_gate_leave(process, &tickets[2], MOOR_OUTCOME_FINISHED, NULL));
    uint64_t start = moor_now_ns();
    assert_int_equal(moor_gate_drain(process, 0.1), MOOR_E_TIMEOUT);
    assert_true(moor_now_ns() - start >= 100000000);
    assert_non_null(strstr(moor_last_error(), "2 requests"));
    assert_non_null(strstr(moor_last_error(), "slow-a"));
    assert_non_null(strstr(moor_last_error(), "slow-b"));
    assert_null(strstr(moor_last_error(), "quick"));
    assert_int_equal(status_now().state, MOOR_GATE_SEALED);
    assert_int_equal(moor_gate_install(process, "x", 0, NULL), MOOR_E_STATE);
    assert_int_equal(status_now().epoch, 1);
    for (int i = 0; i < 2; i++)
        assert_ok(moor_gate_leave(process, &tickets[i], MOOR_OUTCOME_FINISHED, NULL));
    assert_ok(moor_gate_drain(process, 0));
    assert_int_equal(process->state->counters[MOOR_C_GATE_DRAIN_TIMEOUTS], 1);
}

/* One front end pauses and keeps, another drains, installs and opens: what they must know of each other is in the gate's word. */
static void S4_8_a_kept_gate_is_drained_at_once_for_everybody(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    int was_open = 0;
    assert_ok(enter("kept", 0, 0, &ticket));
    assert_ok(moor_gate_close(process, MOOR_GATE_KEPT, &was_open));
    assert_int_equal(was_open, 1);
    assert_int_equal(status_now().state, MOOR_GATE_SEALED);
    assert_ok(moor_gate_close(process, MOOR_GATE_OWN, &was_open));
    assert_int_equal(was_open, 0);
    assert_int_equal(status_now().flags, MOOR_GATE_KEPT | MOOR_GATE_OWN);
    assert_int_equal(status_now().seals, 1);
    assert_ok(moor_gate_close(process, 0, NULL)); /* kept stays, the closing is the caller's own now */
    assert_int_equal(status_now().flags, MOOR_GATE_KEPT);
    assert_ok(moor_gate_drain(process, 0));
    assert_int_equal(status_now().state, MOOR_GATE_SEALED);
    assert_ok(moor_gate_install(process, "7", 0, NULL));
    assert_ok(moor_gate_note(process, MOOR_GATE_SESSION, 0));
    assert_ok(moor_gate_close(process, MOOR_GATE_OWN, NULL));
    assert_ok(moor_gate_reopen(process, 0));
    assert_int_equal(status_now().state, MOOR_GATE_OPEN);
    assert_int_equal(status_now().flags, MOOR_GATE_SESSION); /* an update's, which ends it */
    assert_ok(moor_gate_note(process, 0, MOOR_GATE_SESSION));
    assert_int_equal(status_now().flags, 0);
    assert_ok(moor_gate_seal(process));
    assert_int_equal(moor_gate_drain(process, 0), MOOR_E_TIMEOUT); /* the next pause keeps nobody */
    assert_int_equal(moor_gate_install(process, "8", 0, NULL), MOOR_E_STATE);
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL));
    assert_ok(moor_gate_drain(process, 0));
}

static void *drains(void *result)
{
    *(moor_status *)result = moor_gate_drain(process, 60);
    return NULL;
}

/* A drain that waits learns at once that there is nothing to wait for. */
static void S4_8_keeping_ends_a_drain(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    for (int by_note = 0; by_note < 2; by_note++) {
        moor_status result = MOOR_E_BROKEN;
        pthread_t thread;
        assert_ok(enter("kept", 0, 0, &ticket));
        assert_ok(moor_gate_seal(process));
        assert_int_equal(pthread_create(&thread, NULL, drains, &result), 0);
        assert_ok(by_note ? moor_gate_note(process, MOOR_GATE_KEPT, 0)
                          : moor_gate_close(process, MOOR_GATE_KEPT, NULL));
        pthread_join(thread, NULL);
        assert_ok(result);
        assert_ok(moor_gate_reopen(process, 0));
        assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL));
    }
}

/* A list that does not fit says so, and is not cut inside an id. */
static void S4_3_a_long_list_is_cut_between_ids(void **state)
{
    (void)state;
    static moor_ticket tickets[200];
    char id[80], text[256];
    for (int i = 0; i < 200; i++) {
        snprintf(id, sizeof(id), "a-rather-long-request-id-as-engines-make-them-%04d", i);
        assert_ok(enter(id, 0, 0, &tickets[i]));
    }
    assert_int_equal(moor_ticket_list(process->state, text, sizeof(text)), 200);
    assert_true(strlen(text) < sizeof(text));
    assert_string_equal(text + strlen(text) - strlen(" (running), …"), " (running), …");
    for (int i = 0; i < 200; i++)
        assert_ok(moor_gate_leave(process, &tickets[i], MOOR_OUTCOME_FINISHED, NULL));
}

static void *leave_later(void *arg)
{
    support_sleep_ms(30);
    assert_ok(moor_gate_leave(process, arg, MOOR_OUTCOME_FINISHED, NULL));
    return NULL;
}

static void S4_3_drain_ends_when_the_last_one_settles(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    pthread_t thread;
    assert_ok(enter("last", 0, 0, &ticket));
    assert_ok(moor_gate_seal(process));
    assert_int_equal(pthread_create(&thread, NULL, leave_later, &ticket), 0);
    uint64_t start = moor_now_ns();
    assert_ok(moor_gate_drain(process, 20));
    assert_true(moor_now_ns() - start < 20000000000u); /* woken, not at its deadline */
    pthread_join(thread, NULL);
    assert_int_equal(status_now().state, MOOR_GATE_DRAINED);
}

/* SEMANTICS 4.4 */
/* Who gets it may know only the engine. */
static void S4_4_the_error_says_what_happened_and_the_ways_out(void **state)
{
    (void)state;
    static const char *const words[] = {"process 77 ended inside it", "moor gate acknowledge unit",
                                        "moor.attach(\"unit\").gate.acknowledge()", "poisoned 0 s ago"};
    moor_ticket ticket = {0};
    snprintf(process->state->instance, sizeof(process->state->instance), "unit");
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_gate_poison(process, "weight update failed: process 77 ended inside it"));
    assert_int_equal(moor_gate_reopen(process, 0), MOOR_E_POISONED);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        assert_non_null(strstr(moor_last_error(), words[i]));
    assert_int_equal(enter("waits", 0, 0, &ticket), MOOR_E_TIMEOUT);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        assert_non_null(strstr(moor_last_error(), words[i]));
    for (size_t i = 0; i < MOOR_TEXT_WORDS(process->state->gate.poison); i++)
        atomic_fetch_sub(&process->state->gate.poison[i].at_ns, 90000000000ull);
    assert_int_equal(moor_gate_reopen(process, 0), MOOR_E_POISONED);
    const char *since = strstr(moor_last_error(), "poisoned ");
    assert_non_null(since);
    assert_true(strtol(since + strlen("poisoned "), NULL, 10) >= 90);
    assert_ok(moor_gate_acknowledge(process));
    assert_ok(moor_gate_reopen(process, 0));
}

/* A trainer that died left its update open, the next one's failed: that it is open is not what a resume has to be told. */
static void S4_4_poison_is_told_before_an_update_that_is_open(void **state)
{
    (void)state;
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    assert_ok(moor_weights_end(process, 0, "one is open"));
    assert_int_equal(moor_gate_reopen(process, 0), MOOR_E_POISONED);
    assert_non_null(strstr(moor_last_error(), "one is open"));
    assert_ok(moor_gate_acknowledge(process));
    assert_int_equal(moor_gate_reopen(process, 0), MOOR_E_TIMEOUT);
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_ok(moor_gate_reopen(process, 0));
}

static void S4_4_unknown_outcome_poisons_until_acknowledged(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    assert_ok(enter("lost-request", 1, 0, &ticket));
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_UNKNOWN, NULL));
    moor_gate_status now = status_now();
    assert_int_equal(now.poisoned, 1);
    assert_non_null(strstr(now.poison_reason, "lost-request"));
    assert_int_equal(moor_gate_drain(process, 0), MOOR_E_POISONED);
    assert_int_equal(moor_gate_install(process, NULL, 1, NULL), MOOR_E_POISONED);
    assert_int_equal(moor_gate_reopen(process, 0), MOOR_E_POISONED);
    assert_non_null(strstr(moor_last_error(), "lost-request"));
    assert_ok(moor_gate_seal(process)); /* nothing clears it but the acknowledgement */
    assert_int_equal(status_now().poisoned, 1);
    assert_ok(moor_gate_acknowledge(process));
    assert_int_equal(status_now().poisoned, 0);
    assert_ok(moor_gate_drain(process, 0));
    assert_ok(moor_gate_install(process, NULL, 0, NULL));
    assert_ok(moor_gate_reopen(process, 0));
}

/* A trainer's error path pauses, finishes and starts again behind the poison, and each fails: who acknowledges has to know what the first was. */
static void S4_4_the_cause_is_told_not_what_followed(void **state)
{
    (void)state;
    char long_reason[256];
    assert_ok(moor_gate_poison(process, "rank 1: no such file"));
    assert_null(strstr(status_now().poison_reason, "more since"));
    assert_ok(moor_gate_poison(process, "finish without a start"));
    assert_ok(moor_gate_poison(process, "finish without a start"));
    assert_string_equal(status_now().poison_reason, "rank 1: no such file (and 2 more since, in the log)");
    assert_int_equal(moor_gate_reopen(process, 0), MOOR_E_POISONED);
    assert_non_null(strstr(moor_last_error(), "rank 1: no such file (and 2 more since, in the log). Whoever"));
    assert_ok(moor_gate_acknowledge(process));
    memset(long_reason, 'x', sizeof(long_reason) - 1);
    long_reason[sizeof(long_reason) - 1] = 0;
    for (int i = 0; i < 20; i++) /* more than there are places for reasons */
        assert_ok(moor_gate_poison(process, i ? "what followed" : long_reason));
    assert_non_null(strstr(status_now().poison_reason, "xxx (and 19 more since, in the log)"));
    assert_ok(moor_gate_acknowledge(process));
    for (int shift = 0; shift < 2; shift++) {
        for (size_t i = (size_t)shift; i + 1 < sizeof(long_reason) - 1; i += 2)
            memcpy(long_reason + i, "\xC3\xA9", 2);
        assert_ok(moor_gate_poison(process, long_reason));
        assert_ok(moor_gate_poison(process, "what followed"));
        assert_non_null(strstr(status_now().poison_reason, "\xC3\xA9 (and 1 more since, in the log)"));
        assert_ok(moor_gate_acknowledge(process));
    }
    assert_ok(moor_gate_poison(process, "nothing to write of"));
    assert_ok(moor_gate_acknowledge(process));
    assert_ok(moor_gate_poison(process, "another"));
    assert_string_equal(status_now().poison_reason, "another");
    assert_ok(moor_gate_acknowledge(process));
    assert_ok(moor_gate_reopen(process, 0));
}

static void S4_4_poison_wakes_a_drain(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    assert_ok(enter("running", 0, 0, &ticket));
    assert_ok(moor_gate_seal(process));
    pid_t child = fork();
    if (!child) {
        moor_process *self = support_join(MOOR_ROLE_CORE, 0, 1, 0);
        support_sleep_ms(30);
        moor_gate_poison(self, "connection to the core was lost");
        _exit(0);
    }
    uint64_t start = moor_now_ns();
    assert_int_equal(moor_gate_drain(process, 20), MOOR_E_POISONED);
    assert_true(moor_now_ns() - start < 20000000000u);
    assert_non_null(strstr(moor_last_error(), "connection to the core was lost"));
    assert_int_equal(support_wait(child), 0);
    assert_int_equal(moor_gate_poison(process, ""), MOOR_E_INVALID);
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL));
}

static void S4_5_install_only_when_drained_or_kept(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    uint64_t epoch = 0;
    assert_int_equal(moor_gate_install(process, "a", 0, &epoch), MOOR_E_STATE);
    assert_int_equal(moor_gate_install(process, "a", 1, &epoch), MOOR_E_STATE);
    assert_int_equal(moor_gate_drain(process, 0), MOOR_E_STATE);
    assert_ok(enter("kept", 0, 0, &ticket));
    assert_ok(moor_gate_seal(process));
    assert_int_equal(moor_gate_install(process, "a", 0, &epoch), MOOR_E_STATE);
    assert_non_null(strstr(moor_last_error(), "1 requests in flight"));
    assert_int_equal(epoch, 0); /* written only on success */
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL));
    assert_ok(moor_gate_drain(process, 0));
    assert_ok(moor_gate_install(process, "a", 0, &epoch));
    assert_int_equal(epoch, 2);
}

static void S4_6_a_kept_request_lives_through_both_versions(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    uint64_t epoch = 0;
    assert_ok(enter("kept", 0, 0, &ticket));
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_gate_install(process, "a", 1, &epoch));
    assert_int_equal(epoch, 2);
    assert_int_equal(status_now().in_flight, 1); /* neither drained nor aborted */
    assert_ok(moor_gate_reopen(process, 0));
    moor_receipt receipt = MOOR_RECEIPT_INIT;
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, &receipt));
    assert_int_equal(receipt.epoch_start, 1);
    assert_int_equal(receipt.epoch_end, 2);
}

/* What is cut must still be text for who reads it: 63 bytes would end inside a character. */
static void texts_are_cut_between_characters(void **state)
{
    (void)state;
    char label[MOOR_LABEL_BYTES], text[256] = "";
    static const char *const kinds[] = {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(kinds[i]);
        for (size_t used = 0; used + n < sizeof(text); used += n)
            memcpy(text + used, kinds[i], n + 1);
        assert_ok(moor_weights_label(process, text));
        moor_weights_label_of(process->state, moor_weights_epoch(process), label, sizeof(label));
        assert_int_equal(strlen(label), 63 / n * n);
        assert_memory_equal(label, text, strlen(label));
    }
    assert_ok(moor_weights_label(process, "whole: \xC3\xA9"));
    moor_weights_label_of(process->state, moor_weights_epoch(process), label, sizeof(label));
    assert_string_equal(label, "whole: \xC3\xA9");
    assert_ok(moor_weights_label(process, "not UTF-8: \x80\x80\x80\x80"));
    moor_weights_label_of(process->state, moor_weights_epoch(process), label, sizeof(label));
    assert_string_equal(label, "not UTF-8: \x80\x80\x80\x80");
}

static void S4_5_the_epoch_only_moves_forward_and_labels_repeat(void **state)
{
    (void)state;
    const char *labels[] = {"7", "8", "7", NULL,
                            "a label of more than sixty-three bytes, which is cut to what fits into a cell"};
    char label[MOOR_LABEL_BYTES];
    for (int i = 0; i < 5; i++) {
        uint64_t epoch = 0;
        assert_ok(moor_gate_seal(process));
        assert_ok(moor_gate_drain(process, 0));
        assert_ok(moor_gate_install(process, labels[i], 0, &epoch));
        assert_int_equal(epoch, 2 + i);
        assert_ok(moor_gate_reopen(process, 0));
    }
    moor_weights_label_of(process->state, 2, label, sizeof(label));
    assert_string_equal(label, "7");
    moor_weights_label_of(process->state, 3, label, sizeof(label));
    assert_string_equal(label, "8");
    moor_weights_label_of(process->state, 4, label, sizeof(label));
    assert_string_equal(label, "7");
    moor_weights_label_of(process->state, 5, label, sizeof(label));
    assert_string_equal(label, "");
    moor_weights_label_of(process->state, 6, label, sizeof(label));
    assert_int_equal(strlen(label), MOOR_LABEL_BYTES - 1);
    moor_weights_label_of(process->state, 6 + MOOR_EPOCH_LABELS, label, sizeof(label));
    assert_string_equal(label, ""); /* the same cell, another epoch */
}

/* SEMANTICS 4.10 */
static void S4_10_no_ops_say_so(void **state)
{
    (void)state;
    support_log_clear();
    assert_ok(moor_gate_reopen(process, 0));
    assert_non_null(strstr(support_log(), "open already"));
    assert_ok(moor_gate_acknowledge(process));
    assert_non_null(strstr(support_log(), "not poisoned"));
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_gate_seal(process));
    assert_non_null(strstr(support_log(), "sealed already"));
    assert_ok(moor_gate_drain(process, 0));
    assert_ok(moor_gate_drain(process, 0));
    assert_ok(moor_gate_reopen(process, 0));
    assert_ok(moor_gate_reopen(process, 0));
    moor_gate_status now = status_now();
    assert_int_equal(now.seals, 1);
    assert_int_equal(now.reopens, 1);
    assert_int_equal(now.epoch, 1);
}

/* Nobody is admitted to weights that are still being loaded. */
static void S4_9_reopen_waits_for_the_update_session(void **state)
{
    (void)state;
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    assert_int_equal(moor_gate_reopen(process, 0.02), MOOR_E_TIMEOUT);
    assert_non_null(strstr(moor_last_error(), "weight update"));
    assert_int_equal(status_now().state, MOOR_GATE_SEALED);
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_ok(moor_gate_reopen(process, 0.02));
}

/* SEMANTICS 4.8 */
static void S4_8_observe_never_waits_and_reports(void **state)
{
    (void)state;
    moor_ticket a = {0}, b = {0};
    uint64_t epoch = 0;
    assert_ok(enter("a", 0, 30, &a));
    assert_ok(moor_gate_seal(process));
    uint64_t start = moor_now_ns();
    assert_ok(enter("b", 0, 30, &b));
    assert_ok(moor_gate_drain(process, 30));
    assert_true(moor_now_ns() - start < 30000000000u);
    assert_int_equal(status_now().would_wait, 3); /* b at the gate; a and b in the drain */
    assert_int_equal(status_now().state, MOOR_GATE_SEALED);
    assert_ok(moor_gate_install(process, "7", 0, &epoch));
    assert_int_equal(epoch, 2);
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    start = moor_now_ns();
    assert_ok(moor_gate_reopen(process, 30)); /* though a session is open */
    assert_true(moor_now_ns() - start < 30000000000u);
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_ok(moor_gate_leave(process, &a, MOOR_OUTCOME_FINISHED, NULL));
    assert_ok(moor_gate_leave(process, &b, MOOR_OUTCOME_FINISHED, NULL));
}

static void gate_off_does_nothing_but_count_epochs(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    uint64_t epoch = 0;
    moor_receipt receipt = MOOR_RECEIPT_INIT;
    assert_ok(moor_gate_seal(process));
    assert_int_equal(status_now().state, MOOR_GATE_OPEN);
    assert_ok(enter("a", 1, 30, &ticket));
    assert_int_equal(ticket.epoch, 1);
    assert_int_equal(status_now().in_flight, 0);
    assert_ok(moor_gate_drain(process, 30));
    assert_ok(moor_gate_install(process, "7", 0, &epoch));
    assert_int_equal(epoch, 2);
    assert_ok(moor_gate_reopen(process, 30));
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, &receipt));
    assert_int_equal(receipt.epoch_end, 2);
}

static void bad_arguments_are_named(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    assert_int_equal(moor_gate_enter(NULL, "a", 1, 0, 0, &ticket), MOOR_E_INVALID);
    assert_int_equal(moor_gate_enter(process, "", 0, 0, 0, &ticket), MOOR_E_INVALID);
    assert_int_equal(moor_gate_enter(process, "a", 1, 0, 0, NULL), MOOR_E_INVALID);
    assert_int_equal(moor_gate_enter(process, "a", 1, 65536, 0, &ticket), MOOR_E_INVALID);
    assert_non_null(strstr(moor_last_error(), "65536"));
    assert_int_equal(moor_gate_leave(process, NULL, 0, NULL), MOOR_E_INVALID);
    assert_ok(enter("a", 65535, 0, &ticket));
    assert_int_equal(moor_gate_leave(process, &ticket, 4, NULL), MOOR_E_INVALID);
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FAILED, NULL));
    assert_int_equal(moor_gate_seal(NULL), MOOR_E_INVALID);
}

/* A caller compiled against a shorter struct: nothing is written beyond its size. */
static void results_are_cut_to_the_callers_size(void **state)
{
    (void)state;
    moor_gate_status status;
    memset(&status, 0xAB, sizeof(status));
    status.size = offsetof(moor_gate_status, in_flight);
    assert_ok(moor_gate_get_status(process, &status));
    assert_int_equal(status.epoch, 1);
    assert_true(status.in_flight == 0xABABABABABABABABu);
    assert_int_equal(status.size, offsetof(moor_gate_status, in_flight));
}

/* What a trainer does from outside, with no slot in the instance. */
static void the_verbs_of_a_consumer(void **state)
{
    (void)state;
    moor_member member = {process->state, MOOR_NO_SLOT, MOOR_MODE_ENFORCE, NULL, NULL};
    moor_gate_status out = MOOR_GATE_STATUS_INIT;
    assert_int_equal(moor_gate_verb(&member, "install", "9", 0, &out), MOOR_E_STATE);
    assert_ok(moor_gate_verb(&member, "seal", NULL, 0, &out));
    assert_int_equal(out.state, MOOR_GATE_SEALED);
    assert_ok(moor_gate_verb(&member, "drain", NULL, 1, &out));
    assert_int_equal(out.state, MOOR_GATE_DRAINED);
    assert_ok(moor_gate_verb(&member, "install", "9", 0, &out));
    assert_int_equal(out.epoch, 2);
    assert_string_equal(out.label, "9");
    assert_ok(moor_gate_verb(&member, "reopen", NULL, 1, NULL));
    assert_ok(moor_gate_verb(&member, "acknowledge", NULL, 0, &out));
    assert_ok(moor_gate_verb(&member, "status", NULL, 0, &out));
    assert_int_equal(out.state, MOOR_GATE_OPEN);
    assert_int_equal(moor_gate_verb(&member, "open", NULL, 0, &out), MOOR_E_INVALID);
    assert_non_null(strstr(moor_last_error(), "\"open\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENFORCED(S4_3_drain_lists_what_is_left_and_stays_sealed),
        ENFORCED(S4_3_a_long_list_is_cut_between_ids),
        ENFORCED(S4_8_a_kept_gate_is_drained_at_once_for_everybody),
        ENFORCED(S4_8_keeping_ends_a_drain),
        ENFORCED(S4_3_drain_ends_when_the_last_one_settles),
        ENFORCED(S4_4_the_error_says_what_happened_and_the_ways_out),
        ENFORCED(S4_4_poison_is_told_before_an_update_that_is_open),
        ENFORCED(S4_4_unknown_outcome_poisons_until_acknowledged),
        ENFORCED(S4_4_the_cause_is_told_not_what_followed),
        ENFORCED(S4_4_poison_wakes_a_drain),
        ENFORCED(S4_5_install_only_when_drained_or_kept),
        ENFORCED(S4_6_a_kept_request_lives_through_both_versions),
        ENFORCED(texts_are_cut_between_characters),
        ENFORCED(S4_5_the_epoch_only_moves_forward_and_labels_repeat),
        ENFORCED(S4_9_reopen_waits_for_the_update_session),
        ENFORCED(S4_10_no_ops_say_so),
        ENFORCED(bad_arguments_are_named),
        ENFORCED(results_are_cut_to_the_callers_size),
        ENFORCED(the_verbs_of_a_consumer),
        OBSERVED(S4_8_observe_never_waits_and_reports),
        GATE_OFF(gate_off_does_nothing_but_count_epochs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
