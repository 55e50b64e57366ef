/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 4.1, 4.2, 4.11, in one process: who enters, who waits, what settles. Sealing and installing: test_gate_control.c. Several
 * processes: tests/integration/gate_processes.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "hooks/ticket.h"
#include "hooks/weights.h"
#include "support/gate.h"

static int stored(const char *id, uint64_t rows)
{
    return moor_gate_record_stored(process->state, moor_id_hash(id, strlen(id)), (moor_hash128){0, 0}, rows);
}

static void S4_1_enter_gives_the_epoch_at_admission(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    moor_receipt receipt = MOOR_RECEIPT_INIT;
    assert_ok(enter("request-1", 0, 0, &ticket));
    assert_true(ticket.id != 0 && ticket.t_enter_ns != 0);
    assert_int_equal(ticket.epoch, 1);
    assert_int_equal(status_now().in_flight, 1);
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, &receipt));
    assert_int_equal(status_now().in_flight, 0);
    assert_string_equal(receipt.request_id, "request-1");
    assert_int_equal(receipt.epoch_start, 1);
    assert_int_equal(receipt.epoch_end, 1);
    assert_int_equal(receipt.outcome, MOOR_OUTCOME_FINISHED);
}

/* A second leave, and a copy of a ticket that left, end nothing: also when the cell is in use again. */
static void S4_1_a_ticket_leaves_once(void **state)
{
    (void)state;
    moor_ticket a = {0}, copy, b = {0};
    assert_ok(enter("same", 0, 0, &a));
    copy = a;
    assert_ok(moor_gate_leave(process, &a, MOOR_OUTCOME_FINISHED, NULL));
    assert_int_equal(moor_gate_leave(process, &a, MOOR_OUTCOME_FINISHED, NULL), MOOR_E_INVALID);
    assert_int_equal(moor_gate_leave(process, &copy, MOOR_OUTCOME_FINISHED, NULL), MOOR_E_STALE);
    assert_ok(enter("same", 0, 0, &b));
    assert_int_equal(b.id & 0xFFFF, copy.id & 0xFFFF); /* the same cell */
    assert_int_equal(moor_gate_leave(process, &copy, MOOR_OUTCOME_FINISHED, NULL), MOOR_E_STALE);
    assert_int_equal(moor_gate_leave(process, &copy, MOOR_OUTCOME_UNKNOWN, NULL), MOOR_E_STALE);
    assert_int_equal(status_now().poisoned, 0);
    assert_int_equal(status_now().in_flight, 1);
    assert_ok(moor_gate_leave(process, &b, MOOR_OUTCOME_FINISHED, NULL));
}

typedef struct waiter {
    pthread_t thread;
    char id[32];
    double timeout;
    moor_status status;
    char error[256];
    moor_ticket ticket;
    uint64_t ended_ns;
} waiter;

static void *wait_at_gate(void *arg)
{
    waiter *w = arg;
    w->status = enter(w->id, 0, w->timeout, &w->ticket);
    snprintf(w->error, sizeof(w->error), "%s", w->status ? moor_last_error() : "");
    w->ended_ns = moor_now_ns();
    return NULL;
}

static void start_waiter(waiter *w, const char *id, double timeout)
{
    memset(w, 0, sizeof(*w));
    snprintf(w->id, sizeof(w->id), "%s", id);
    w->timeout = timeout;
    assert_int_equal(pthread_create(&w->thread, NULL, wait_at_gate, w), 0);
}

static void await_waiting(uint64_t n)
{
    for (int i = 0; i < 5000 && status_now().waiting != n; i++)
        support_sleep_ms(1);
    assert_int_equal(status_now().waiting, n);
}

/* SEMANTICS 4.1, 4.5: 16 in flight, seal, bump, reopen → 16 finish, 0 aborted, each receipt's version is the one at admission; those
 * that came while sealed waited, and are admitted with the new version. */
static void S4_5_sixteen_in_flight_seal_bump_reopen(void **state)
{
    (void)state;
    moor_ticket tickets[16];
    waiter waiters[4];
    uint64_t epoch = 0;
    char id[32];
    for (int i = 0; i < 16; i++) {
        snprintf(id, sizeof(id), "in-flight-%d", i);
        assert_ok(enter(id, 1, 0, &tickets[i]));
    }
    assert_ok(moor_gate_seal(process));
    for (int i = 0; i < 4; i++) {
        snprintf(id, sizeof(id), "late-%d", i);
        start_waiter(&waiters[i], id, 30);
    }
    await_waiting(4);
    assert_int_equal(moor_gate_drain(process, 0), MOOR_E_TIMEOUT);
    for (int i = 0; i < 16; i++) {
        moor_receipt receipt = MOOR_RECEIPT_INIT;
        snprintf(id, sizeof(id), "in-flight-%d", i);
        stored(id, 100 + (uint64_t)i);
        assert_ok(moor_gate_leave(process, &tickets[i], MOOR_OUTCOME_FINISHED, &receipt));
        assert_int_equal(receipt.epoch_start, 1);
        assert_int_equal(receipt.epoch_end, 1);
        assert_int_equal(receipt.rows, 100 + i);
        assert_string_equal(receipt.request_id, id);
    }
    assert_ok(moor_gate_drain(process, 1));
    assert_ok(moor_gate_install(process, "step-7", 0, &epoch));
    assert_int_equal(epoch, 2);
    assert_int_equal(status_now().waiting, 4); /* nobody was admitted early */
    assert_ok(moor_gate_reopen(process, 1));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(waiters[i].thread, NULL), 0);
        assert_ok(waiters[i].status);
        assert_int_equal(waiters[i].ticket.epoch, 2);
        assert_ok(moor_gate_leave(process, &waiters[i].ticket, MOOR_OUTCOME_FINISHED, NULL));
    }
    moor_gate_status now = status_now();
    assert_int_equal(now.in_flight + now.waiting, 0);
    assert_string_equal(now.label, "step-7");
    assert_int_equal(now.seals, 1);
    assert_int_equal(now.installs, 1);
    assert_int_equal(now.reopens, 1);
}

static void S4_1_beyond_its_deadline_a_request_gets_an_error(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    assert_ok(moor_gate_seal(process));
    uint64_t start = moor_now_ns();
    assert_int_equal(enter("impatient", 0, 0.05, &ticket), MOOR_E_TIMEOUT);
    assert_true(moor_now_ns() - start >= 50000000);
    assert_non_null(strstr(moor_last_error(), "impatient"));
    assert_non_null(strstr(moor_last_error(), "sealed"));
    assert_int_equal(ticket.id, 0);
    assert_int_equal(enter("now", 0, 0, &ticket), MOOR_E_TIMEOUT);
    assert_int_equal(status_now().in_flight + status_now().waiting, 0);
    assert_ok(moor_gate_reopen(process, 0));
}

/* Reopen wakes who waits; the 250 ms slices of a waiter are only for a reopener that died. */
static void S4_1_reopen_admits_at_once(void **state)
{
    (void)state;
    uint64_t worst = UINT64_MAX;
    for (int i = 0; i < 5; i++) { /* the best of five: the machine may be busy */
        waiter w;
        assert_ok(moor_gate_seal(process));
        start_waiter(&w, "prompt", 30);
        await_waiting(1);
        support_sleep_ms(5);
        uint64_t start = moor_now_ns();
        assert_ok(moor_gate_reopen(process, 0));
        pthread_join(w.thread, NULL);
        assert_ok(w.status);
        assert_ok(moor_gate_leave(process, &w.ticket, MOOR_OUTCOME_FINISHED, NULL));
        if (w.ended_ns - start < worst)
            worst = w.ended_ns - start;
    }
    assert_true(worst < 50000000);
}

/*
 * The race of enter and seal, made certain: the page of the request's cell is read-only, so that the claim faults; the handler
 * seals the gate, then lets the claim go on. What enter saw before its claim must not count.
 */
static void *guarded_page;
static volatile int faults;

static void seal_in_between(int signal_number, siginfo_t *info, void *context)
{
    (void)signal_number, (void)info, (void)context;
    faults++;
    moor_gate_seal(process);
    mprotect(guarded_page, 4096, PROT_READ | PROT_WRITE);
}

static void S4_11_a_seal_between_look_and_claim_wins(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    char id[32];
    struct sigaction action = {.sa_sigaction = seal_in_between, .sa_flags = SA_SIGINFO}, old;
    moor_state_ticket *cell = NULL;
    for (int i = 0; !cell; i++) { /* one whose page holds nothing but tickets */
        snprintf(id, sizeof(id), "request-%d", i);
        uint32_t at = moor_id_hash(id, strlen(id)).lo % MOOR_MAX_TICKETS;
        if (at >= 64 && at < MOOR_MAX_TICKETS - 64)
            cell = &process->state->tickets[at];
    }
    guarded_page = (void *)((uintptr_t)cell & ~(uintptr_t)4095);
    faults = 0;
    assert_int_equal(sigaction(SIGSEGV, &action, &old), 0);
    assert_int_equal(mprotect(guarded_page, 4096, PROT_READ), 0);
    moor_status status = enter(id, 0, 0, &ticket);
    sigaction(SIGSEGV, &old, NULL);
    assert_int_equal(faults, 1);
    assert_int_equal(status, MOOR_E_TIMEOUT);
    assert_int_equal(status_now().in_flight, 0);
    assert_ok(moor_gate_drain(process, 0));
    assert_ok(moor_gate_reopen(process, 0));
}

/* The same race by force, in threads, so that a sanitizer of data races sees it; with everything else going on beside it. */
static _Atomic int hammer_stop, hammer_inside, hammer_wrong;

static void *hammer(void *arg)
{
    char id[32];
    for (unsigned i = 0; !atomic_load(&hammer_stop); i++) {
        moor_ticket ticket;
        moor_receipt receipt = MOOR_RECEIPT_INIT;
        snprintf(id, sizeof(id), "thread-%d-%u", (int)(intptr_t)arg, i % 100);
        if (enter(id, 1, 30, &ticket)) {
            atomic_fetch_add(&hammer_wrong, 1);
            continue;
        }
        atomic_fetch_add(&hammer_inside, 1);
        if (ticket.epoch != moor_weights_epoch(process))
            atomic_fetch_add(&hammer_wrong, 1);
        atomic_fetch_sub(&hammer_inside, 1);
        stored(id, 1);
        if (moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, &receipt) || strcmp(receipt.request_id, id) ||
            receipt.rows != 1)
            atomic_fetch_add(&hammer_wrong, 1);
    }
    return NULL;
}

static void *only_look(void *arg)
{
    char text[512];
    (void)arg;
    while (!atomic_load(&hammer_stop)) {
        moor_gate_status status = MOOR_GATE_STATUS_INIT;
        moor_gate_get_status(process, &status);
        moor_ticket_list(process->state, text, sizeof(text));
        support_sleep_ms(1);
    }
    return NULL;
}

static void S4_11_threads_against_seal(void **state)
{
    (void)state;
    pthread_t threads[4], looker;
    atomic_store(&hammer_stop, 0);
    atomic_store(&hammer_wrong, 0);
    for (intptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, (void *)i), 0);
    assert_int_equal(pthread_create(&looker, NULL, only_look, NULL), 0);
    for (uint64_t round = 0; round < 100; round++) {
        uint64_t epoch = 0, before = process->state->counters[MOOR_C_GATE_ENTERS];
        for (int i = 0; i < 2000 && process->state->counters[MOOR_C_GATE_ENTERS] < before + 10; i++)
            usleep(50);
        assert_ok(moor_gate_seal(process));
        assert_ok(moor_gate_drain(process, 20));
        assert_int_equal(atomic_load(&hammer_inside), 0);
        assert_ok(moor_gate_install(process, "x", 0, &epoch));
        assert_int_equal(epoch, round + 2);
        assert_int_equal(atomic_load(&hammer_inside), 0);
        assert_ok(moor_gate_reopen(process, 1));
    }
    atomic_store(&hammer_stop, 1);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    pthread_join(looker, NULL);
    assert_int_equal(atomic_load(&hammer_wrong), 0);
    assert_int_equal(status_now().in_flight, 0);
}

/* The other half: a claim that was made before the seal is seen by the drain, though nothing else of the request is there yet. */
static void S4_11_a_drain_waits_for_a_claim(void **state)
{
    (void)state;
    uint32_t index;
    uint64_t word;
    moor_hash128 hash = moor_id_hash("claimed", 7);
    assert_true(moor_ticket_claim(process->state, process->slot, 0, hash, &index, &word));
    assert_ok(moor_gate_seal(process));
    assert_int_equal(moor_gate_drain(process, 0.02), MOOR_E_TIMEOUT);
    moor_ticket_back_out(process->state, index, word);
    assert_ok(moor_gate_drain(process, 0));
    assert_ok(moor_gate_reopen(process, 0));
}

/* SEMANTICS 4.2: settled = ended and stored; either alone is not. */
static void S4_2_settled_needs_the_end_and_the_record(void **state)
{
    (void)state;
    moor_ticket ended = {0}, kept = {0};
    assert_ok(enter("ended-first", 1, 0, &ended));
    assert_ok(enter("stored-first", 1, 0, &kept));
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_gate_leave(process, &ended, MOOR_OUTCOME_FINISHED, NULL));
    stored("stored-first", 3);
    assert_int_equal(status_now().in_flight, 2);
    assert_int_equal(moor_gate_drain(process, 0.01), MOOR_E_TIMEOUT);
    assert_non_null(strstr(moor_last_error(), "ended-first (1 records not stored)"));
    assert_non_null(strstr(moor_last_error(), "stored-first (running)"));
    stored("ended-first", 3);
    assert_int_equal(status_now().in_flight, 1);
    assert_ok(moor_gate_leave(process, &kept, MOOR_OUTCOME_FINISHED, NULL));
    assert_int_equal(status_now().in_flight, 0);
    assert_ok(moor_gate_drain(process, 0));
}

static void S4_2_every_record_of_a_request_counts(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    moor_receipt receipt = MOOR_RECEIPT_INIT;
    assert_ok(enter("three-samples", 3, 0, &ticket));
    stored("three-samples", 10);
    stored("three-samples", 20);
    assert_int_equal(stored("three-samples", 30), 1);
    assert_int_equal(stored("three-samples", 40), 0); /* one too many is nobody's */
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, &receipt));
    assert_int_equal(receipt.rows, 60);
    assert_int_equal(status_now().in_flight, 0);
    assert_ok(enter("three-samples", 3, 0, &ticket));
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_ABORTED, NULL));
    stored("three-samples", 1);
    stored("three-samples", 1);
    assert_int_equal(status_now().in_flight, 1);
    stored("three-samples", 1);
    assert_int_equal(status_now().in_flight, 0);
}

/* The core's id differs from the front end's; the store knows both. */
static void S4_2_a_record_is_found_by_its_alias(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    assert_ok(enter("cmpl-1-0", 1, 0, &ticket));
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL));
    moor_gate_record_stored(process->state, moor_id_hash("other", 5), moor_id_hash("another", 7), 1);
    assert_int_equal(status_now().in_flight, 1);
    moor_gate_record_stored(process->state, moor_id_hash("cmpl-1-0-abcdef01", 17), moor_id_hash("cmpl-1-0", 8), 1);
    assert_int_equal(status_now().in_flight, 0);
}

/* A request that the engine refused before its core had it: no record will come. */
static void S4_2_a_failed_request_waits_for_no_record(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    assert_ok(enter("too-long", 1, 0, &ticket));
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FAILED, NULL));
    assert_int_equal(status_now().in_flight, 0);
}

/* Three samples of which the core got two, as their client went: whatever comes first, two records settle it. */
static void S4_2_records_that_will_not_come_are_not_waited_for(void **state)
{
    (void)state;
    moor_ticket ticket = {0}, copy;
    assert_ok(enter("cancelled", 3, 0, &ticket));
    stored("cancelled", 5);
    assert_ok(moor_gate_fewer(process, &ticket, 1));
    copy = ticket;
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_ABORTED, NULL));
    assert_int_equal(status_now().in_flight, 1);
    assert_int_equal(stored("cancelled", 5), 1);
    assert_int_equal(status_now().in_flight, 0);
    assert_int_equal(moor_gate_fewer(process, &ticket, 1), MOOR_E_INVALID);
    assert_int_equal(moor_gate_fewer(process, &copy, 1), MOOR_E_STALE);
    assert_ok(enter("cancelled", 2, 0, &ticket));
    assert_int_equal(moor_gate_fewer(process, &copy, 1), MOOR_E_STALE); /* the same cell */
    assert_ok(moor_gate_fewer(process, &ticket, 100));
    assert_int_equal(status_now().in_flight, 1); /* its backend runs */
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_ABORTED, NULL));
    assert_int_equal(status_now().in_flight, 0);
}

/* ---- more requests than ticket cells --------------------------------------------------------------------------------- */

static moor_ticket fill[MOOR_TICKET_WINDOW];

/* Every cell that "same-id" may have is taken. */
static void fill_the_window(void)
{
    for (int i = 0; i < MOOR_TICKET_WINDOW; i++)
        assert_ok(enter("same-id", 0, 0, &fill[i]));
}

static void empty_the_window(int from)
{
    for (int i = from; i < MOOR_TICKET_WINDOW; i++)
        assert_ok(moor_gate_leave(process, &fill[i], MOOR_OUTCOME_FINISHED, NULL));
    assert_int_equal(status_now().in_flight, 0);
}

static void S4_1_without_a_free_cell_the_deadline_ends_it(void **state)
{
    (void)state;
    moor_ticket one_more = {0};
    fill_the_window();
    assert_int_equal(enter("same-id", 0, 0.05, &one_more), MOOR_E_FULL);
    assert_non_null(strstr(moor_last_error(), "same-id"));
    assert_non_null(strstr(moor_last_error(), "64 requests"));
    assert_int_equal(process->state->counters[MOOR_C_GATE_FULL], 1);
    assert_int_equal(moor_gate_enter_again(process, "same-id", 7, 0, &one_more), MOOR_E_FULL);
    assert_int_equal(process->state->counters[MOOR_C_GATE_FULL], 1); /* it is the same request */
    assert_int_equal(one_more.id, 0);
    assert_ok(enter("another-id", 0, 0, &one_more));
    assert_ok(moor_gate_leave(process, &one_more, MOOR_OUTCOME_FINISHED, NULL));
    empty_the_window(0);
}

/* Nobody else would wake it: the gate is open all the time. */
static void S4_1_a_request_waits_for_a_free_cell(void **state)
{
    (void)state;
    waiter w;
    fill_the_window();
    start_waiter(&w, "same-id", 30);
    await_waiting(1);
    assert_ok(moor_gate_leave(process, &fill[0], MOOR_OUTCOME_FINISHED, NULL));
    pthread_join(w.thread, NULL);
    assert_ok(w.status);
    assert_int_equal(status_now().waiting, 0);
    assert_ok(moor_gate_leave(process, &w.ticket, MOOR_OUTCOME_FINISHED, NULL));
    empty_the_window(1);
}

/* A closed gate is closed also for whom no cell is free: it does not get the answer by which an observed request passes. */
static void S4_1_no_free_cell_is_no_way_past_a_sealed_gate(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    fill_the_window();
    assert_ok(moor_gate_seal(process));
    assert_int_equal(enter("same-id", 0, 0, &ticket), MOOR_E_TIMEOUT);
    assert_int_equal(process->state->counters[MOOR_C_GATE_FULL], 0);
    empty_the_window(0);
}

/* observe delays nothing: it is refused at once, and passes uncounted. */
static void S4_8_observed_requests_do_not_wait_for_a_cell(void **state)
{
    (void)state;
    waiter w;
    int waited = 0;
    fill_the_window();
    start_waiter(&w, "same-id", 5);
    while (!waited && pthread_tryjoin_np(w.thread, NULL))
        waited = status_now().waiting != 0;
    assert_false(waited);
    assert_int_equal(w.status, MOOR_E_FULL);
    assert_int_equal(process->state->counters[MOOR_C_GATE_FULL], 1);
    empty_the_window(0);
}

/* Once for the server, however many requests. */
static void a_full_table_is_said_once(void **state)
{
    (void)state;
    moor_ticket one_more = {0};
    fill_the_window();
    for (int i = 0; i < 3; i++)
        assert_int_equal(enter("same-id", 0, 0, &one_more), MOOR_E_FULL);
    const char *first = strstr(support_log(), "no ticket cell");
    assert_non_null(first);
    assert_non_null(strstr(first, "64 requests in flight"));
    assert_null(strstr(first + 1, "no ticket cell"));
    empty_the_window(0);
}

static void a_forked_child_is_told(void **state)
{
    (void)state;
    moor_ticket ticket = {0};
    assert_ok(enter("a", 0, 0, &ticket)); /* the pid is cached now */
    pid_t child = fork();
    if (!child) {
        int ok = enter("b", 0, 0, &(moor_ticket){0}) == MOOR_E_FORKED && moor_gate_seal(process) == MOOR_E_FORKED &&
                 moor_gate_leave(process, &ticket, 0, NULL) == MOOR_E_FORKED;
        _exit(ok ? 0 : 1);
    }
    assert_int_equal(support_wait(child), 0);
    assert_int_equal(status_now().in_flight, 1);
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENFORCED(S4_1_enter_gives_the_epoch_at_admission),
        ENFORCED(S4_1_a_ticket_leaves_once),
        ENFORCED(S4_5_sixteen_in_flight_seal_bump_reopen),
        ENFORCED(S4_1_beyond_its_deadline_a_request_gets_an_error),
        ENFORCED(S4_1_reopen_admits_at_once),
        ENFORCED(S4_11_a_seal_between_look_and_claim_wins),
        ENFORCED(S4_11_a_drain_waits_for_a_claim),
        ENFORCED(S4_11_threads_against_seal),
        ENFORCED(S4_2_settled_needs_the_end_and_the_record),
        ENFORCED(S4_2_every_record_of_a_request_counts),
        ENFORCED(S4_2_a_record_is_found_by_its_alias),
        ENFORCED(S4_2_a_failed_request_waits_for_no_record),
        ENFORCED(S4_2_records_that_will_not_come_are_not_waited_for),
        ENFORCED(S4_1_without_a_free_cell_the_deadline_ends_it),
        ENFORCED(S4_1_a_request_waits_for_a_free_cell),
        ENFORCED(S4_1_no_free_cell_is_no_way_past_a_sealed_gate),
        OBSERVED(S4_8_observed_requests_do_not_wait_for_a_cell),
        ENFORCED(a_full_table_is_said_once),
        ENFORCED(a_forked_child_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
