/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 5, ranks as threads of one process. Several processes, the dead and holds: tests/integration/barrier_processes.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>

#include "hooks/barrier.h"
#include "hooks/futex.h"
#include "hooks/holds.h"
#include "hooks/shared_text.h"
#include "support/member.h"
#include "support/stepper.h"

static moor_process *process;

static int start_with(const char *config)
{
    process = support_start(config, MOOR_ROLE_FRONTEND);
    return 0;
}

static int start_enforce(void **state)
{
    (void)state;
    return start_with("\"barrier\":{\"mode\":\"enforce\"}");
}

static int start_spin(void **state)
{
    (void)state;
    return start_with("\"barrier\":{\"mode\":\"enforce\",\"spin_us\":200}");
}

static int start_external(void **state)
{
    (void)state;
    return start_with("\"barrier\":{\"mode\":\"enforce\",\"external\":2}");
}

static int start_observe(void **state)
{
    (void)state;
    return start_with("\"barrier\":{\"mode\":\"observe\"}");
}

static int start_off(void **state)
{
    (void)state;
    return start_with("\"barrier\":{\"mode\":\"off\"}");
}

static int stop(void **state)
{
    (void)state;
    return support_end(process) ? 0 : -1;
}

#define assert_ok(call) assert_int_equal((call), MOOR_OK)

/* One arrival in a thread of its own. */
typedef struct arrival {
    pthread_t thread;
    uint32_t rank, world, replica;
    const char *name; /* not NULL: a consumer's barrier */
    double timeout;
    moor_status status;
    moor_barrier_result result;
    char error[600];
    _Atomic int done;
} arrival;

static void *arrive(void *arg)
{
    arrival *a = arg;
    a->result = (moor_barrier_result)MOOR_BARRIER_RESULT_INIT;
    if (a->name) {
        moor_member consumer = {process->state, MOOR_NO_SLOT, MOOR_MODE_ENFORCE, NULL, NULL};
        a->status = moor_barrier_client(&consumer, a->name, a->world, a->rank, a->timeout, &a->result);
    } else {
        a->status = moor_resume_arrive(process, a->rank, a->world, a->replica, "cpu:0", a->timeout, &a->result);
    }
    snprintf(a->error, sizeof(a->error), "%s", a->status ? moor_last_error() : "");
    atomic_store(&a->done, 1);
    return NULL;
}

static void start(arrival *a, uint32_t rank, uint32_t world, uint32_t replica, double timeout)
{
    *a = (arrival){.rank = rank, .world = world, .replica = replica, .timeout = timeout};
    assert_int_equal(pthread_create(&a->thread, NULL, arrive, a), 0);
}

static void start_named(arrival *a, const char *name, uint32_t rank, uint32_t size, double timeout)
{
    *a = (arrival){.rank = rank, .world = size, .name = name, .timeout = timeout};
    assert_int_equal(pthread_create(&a->thread, NULL, arrive, a), 0);
}

static void join(arrival *a)
{
    assert_int_equal(pthread_join(a->thread, NULL), 0);
}

static void await_arrived(moor_state_barrier *cell, uint32_t rank)
{
    for (int i = 0; i < 10000; i++) {
        uint64_t arrived = atomic_load(&cell->arrived[rank]);
        if (arrived && arrived >> 32 == atomic_load(&cell->word) >> 32)
            return;
        support_sleep_ms(1);
    }
    fail_msg("rank %u did not arrive", rank);
}

static uint64_t ms_since(uint64_t then)
{
    return (moor_now_ns() - then) / 1000000;
}

static void S5_1_world_of_one_without_holds_is_a_no_op(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 3; i++) {
        moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
        assert_ok(moor_resume_arrive(process, 0, 1, 0, "GPU-1234", 0, &result));
        assert_int_equal(result.outcome, 0);
        assert_int_equal(result.generation, i);
        assert_string_equal(result.text, "");
    }
    assert_int_equal(process->state->counters[MOOR_C_BARRIER_PASSED], 3);
    assert_ok(moor_resume_arrive(process, 0, 1, 0, "GPU-1234", 0, NULL));
}

static void nobody_passes_before_the_last(void)
{
    arrival a[4];
    for (uint32_t rank = 0; rank < 3; rank++)
        start(&a[rank], rank, 4, 0, 30);
    for (uint32_t rank = 0; rank < 3; rank++)
        await_arrived(&process->state->resume[0], rank);
    support_sleep_ms(60);
    for (int i = 0; i < 3; i++)
        assert_int_equal(atomic_load(&a[i].done), 0);
    start(&a[3], 3, 4, 0, 30);
    for (int i = 0; i < 4; i++) {
        join(&a[i]);
        assert_ok(a[i].status);
        assert_int_equal(a[i].result.generation, a[0].result.generation);
    }
    assert_true(a[0].result.waited_ns >= 60000000);
}

static void S5_2_nobody_passes_before_the_last(void **state)
{
    (void)state;
    nobody_passes_before_the_last();
    nobody_passes_before_the_last();
    assert_int_equal(process->state->resume[0].passed, 2);
}

/* Rounds in a row by threads that do not wait for each other in any other way. */
enum { ROUNDS = 300, RANKS = 3 };
static _Atomic int at_round[RANKS], torn;

static void *many_rounds(void *arg)
{
    uint32_t rank = (uint32_t)(uintptr_t)arg;
    for (int round = 0; round < ROUNDS; round++) {
        moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
        atomic_store(&at_round[rank], round);
        if (moor_resume_arrive(process, rank, RANKS, 5, "cpu:0", 60, &result) || result.generation != (uint64_t)round)
            atomic_fetch_add(&torn, 1);
        for (int other = 0; other < RANKS; other++) /* everybody is at this round, or beyond it but not by two */
            if (atomic_load(&at_round[other]) < round || atomic_load(&at_round[other]) > round + 1)
                atomic_fetch_add(&torn, 1);
    }
    return NULL;
}

static void S5_2_the_barrier_is_reusable(void **state)
{
    (void)state;
    pthread_t threads[RANKS];
    atomic_store(&torn, 0);
    for (uintptr_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(pthread_create(&threads[rank], NULL, many_rounds, (void *)rank), 0);
    for (int rank = 0; rank < RANKS; rank++)
        pthread_join(threads[rank], NULL);
    assert_int_equal(atomic_load(&torn), 0);
    assert_int_equal(process->state->resume[5].passed, ROUNDS);
}

/* Another rank's waiter may look, and decide, between any two instructions of the last arrival: that was in the round. Rank 0 is
 * in; rank 1 arrives one instruction at a time, and the moment its cell says that it is there the round is passed. */
static int pass_when_there(void *user)
{
    moor_state_barrier *cell = user;
    uint64_t word = atomic_load(&cell->word), there = atomic_load(&cell->arrived[1]);
    if (!there || there >> 32 != word >> 32)
        return 0;
    atomic_store(&cell->word, ((word >> 32) + 1) << 32 | (uint32_t)word << 2);
    return 1;
}

static void arrive_here(void *user)
{
    (void)arrive(user);
}

static void S5_2_an_arrival_that_is_seen_at_once_is_in_its_round(void **state)
{
    (void)state;
    arrival other, last = {.rank = 1, .world = 2, .replica = 6, .timeout = 0.3};
    if (!stepper_works())
        skip();
    start(&other, 0, 2, 6, 30);
    await_arrived(&process->state->resume[6], 0);
    stepper_run(arrive_here, &last, pass_when_there, &process->state->resume[6]);
    assert_ok(last.status);
    assert_int_equal(last.result.generation, 0);
    join(&other);
    assert_ok(other.status);
}

/* What an earlier round's look left behind does not keep the last one from looking itself. */
static void S5_4_a_complete_round_is_not_left_to_the_next_look(void **state)
{
    (void)state;
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 100; i++) {
        moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
        atomic_store(&process->state->resume[0].duty_ns, moor_now_ns() + 950000);
        assert_ok(moor_resume_arrive(process, 0, 1, 0, "cpu:0", 5, &result));
        if (result.waited_ns < shortest)
            shortest = result.waited_ns;
    }
    assert_true(shortest < 500000);
}

/* Between the decision and its reason the decider may lose the CPU. */
static void S5_3_the_reason_is_waited_for(void **state)
{
    (void)state;
    static const char text[] = "missing: rank 1";
    moor_state_barrier *cell = &process->state->resume[0];
    arrival waits;
    start(&waits, 0, 2, 0, 30);
    await_arrived(cell, 0);
    atomic_store(&cell->word, (uint64_t)1 << 32 | 1); /* round 0 timed out */
    moor_futex_raise(&cell->futex);
    support_sleep_ms(60);
    assert_int_equal(atomic_load(&waits.done), 0);
    MOOR_TEXT_PUT(cell->text, text, strlen(text));
    atomic_store(&cell->told, 1);
    join(&waits);
    assert_int_equal(waits.status, MOOR_E_TIMEOUT);
    assert_string_equal(waits.result.text, text);
}

static void S5_2_a_second_waker_never_joins_the_first_ones_round(void **state)
{
    (void)state;
    arrival first, second, other;
    start(&first, 0, 2, 0, 30);
    await_arrived(&process->state->resume[0], 0);
    start(&second, 0, 2, 0, 30); /* rank 0 again: no stand-in for rank 1 */
    support_sleep_ms(60);
    assert_int_equal(atomic_load(&first.done) + atomic_load(&second.done), 0);
    start(&other, 1, 2, 0, 30);
    join(&other);
    join(&first);
    assert_ok(first.status);
    assert_ok(other.status);
    assert_int_equal(first.result.generation, 0);
    support_sleep_ms(30);
    assert_int_equal(atomic_load(&second.done), 0);
    start(&other, 1, 2, 0, 30);
    join(&other);
    join(&second);
    assert_ok(second.status);
    assert_int_equal(second.result.generation, 1);
}

static void S5_2_replicas_do_not_wait_for_each_other(void **state)
{
    (void)state;
    arrival waits, a, b;
    start(&waits, 0, 2, 1, 30);
    await_arrived(&process->state->resume[1], 0);
    start(&a, 0, 2, 2, 30);
    start(&b, 1, 2, 2, 30);
    join(&a);
    join(&b);
    assert_ok(a.status);
    assert_ok(b.status);
    assert_int_equal(atomic_load(&waits.done), 0);
    start(&a, 1, 2, 1, 30);
    join(&a);
    join(&waits);
    assert_ok(waits.status);
}

/* The earliest deadline decides, once and for all of them. */
static void S5_3_a_deadline_gives_everyone_a_timeout_that_names_the_missing(void **state)
{
    (void)state;
    arrival patient, hasty;
    uint64_t begun = moor_now_ns();
    start(&patient, 2, 4, 0, 60);
    await_arrived(&process->state->resume[0], 2);
    start(&hasty, 0, 4, 0, 0.15);
    join(&hasty);
    join(&patient);
    assert_true(ms_since(begun) >= 150 && ms_since(begun) < 5000);
    arrival *both[] = {&patient, &hasty};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(both[i]->status, MOOR_E_TIMEOUT);
        assert_int_equal(both[i]->result.outcome, 1);
        assert_int_equal(both[i]->result.generation, 0);
        assert_int_equal(both[i]->result.missing_ranks, 2);
        assert_string_equal(both[i]->result.text, "missing: rank 1, rank 3");
        assert_non_null(strstr(both[i]->error, "missing: rank 1, rank 3"));
        assert_non_null(strstr(both[i]->error, "replica 0"));
    }
    assert_int_equal(process->state->resume[0].timeouts, 1);
    assert_int_equal(process->state->counters[MOOR_C_BARRIER_TIMEOUTS], 2);
    nobody_passes_before_the_last(); /* and the next round is whole */
}

static void S5_3_timeout_zero_does_not_wait(void **state)
{
    (void)state;
    moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
    uint64_t begun = moor_now_ns();
    assert_int_equal(moor_resume_arrive(process, 0, 2, 0, "cpu:0", 0, &result), MOOR_E_TIMEOUT);
    assert_true(ms_since(begun) < 100);
    assert_string_equal(result.text, "missing: rank 1");
}

/* A late rank does not find the round that timed out, and waits for nobody's sake but the next round's. */
static void S5_2_a_late_rank_belongs_to_the_next_round(void **state)
{
    (void)state;
    arrival late, again;
    assert_int_equal(moor_resume_arrive(process, 0, 2, 0, "cpu:0", 0.02, NULL), MOOR_E_TIMEOUT);
    start(&late, 1, 2, 0, 30);
    await_arrived(&process->state->resume[0], 1);
    support_sleep_ms(20);
    assert_int_equal(atomic_load(&late.done), 0);
    start(&again, 0, 2, 0, 30);
    join(&late);
    join(&again);
    assert_ok(late.status);
    assert_ok(again.status);
    assert_int_equal(late.result.generation, 1);
}

static void S5_3_observe_goes_on_and_counts(void **state)
{
    (void)state;
    moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
    uint64_t begun = moor_now_ns();
    assert_ok(moor_resume_arrive(process, 0, 2, 0, "cpu:0", 30, &result));
    assert_string_equal(result.text, "missing: rank 1");
    assert_int_equal(result.missing_ranks, 1);
    assert_int_equal(process->state->counters[MOOR_C_BARRIER_WOULD_WAIT], 1);
    assert_ok(moor_resume_arrive(process, 1, 2, 0, "cpu:0", 30, &result)); /* completes the round */
    assert_string_equal(result.text, "");
    assert_int_equal(process->state->counters[MOOR_C_BARRIER_WOULD_WAIT], 1);
    assert_int_equal(process->state->resume[0].passed, 1);
    assert_ok(moor_resume_arrive(process, 0, 2, 0, "cpu:0", 30, &result));
    assert_ok(moor_resume_arrive(process, 0, 2, 0, "cpu:0", 30, &result)); /* the other one never came */
    assert_int_equal(result.generation, 2);
    assert_int_equal(process->state->resume[0].timeouts, 1);
    assert_true(ms_since(begun) < 2000);
}

static void barrier_off_does_nothing(void **state)
{
    (void)state;
    moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
    assert_ok(moor_resume_arrive(process, 0, 2, 0, "cpu:0", 30, &result));
    assert_int_equal(atomic_load(&process->state->resume[0].arrived[0]), 0);
}

/* barrier.external: 2 */
static void S5_1_external_arrivals_are_waited_for(void **state)
{
    (void)state;
    arrival rank, trainer[2];
    start_named(&trainer[0], "resume", 0, 0, 30); /* may come first */
    for (int i = 0; i < 10000 && !atomic_load(&process->state->resume[0].external[0]); i++)
        support_sleep_ms(1);
    start(&rank, 0, 1, 0, 30);
    await_arrived(&process->state->resume[0], 0);
    support_sleep_ms(40);
    assert_int_equal(atomic_load(&rank.done) + atomic_load(&trainer[0].done), 0);
    start_named(&trainer[1], "resume:0", 1, 0, 30);
    join(&rank);
    assert_ok(rank.status);
    for (int i = 0; i < 2; i++) {
        join(&trainer[i]);
        assert_ok(trainer[i].status);
    }
    moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
    assert_int_equal(moor_resume_arrive(process, 0, 1, 0, "cpu:0", 0.02, &result), MOOR_E_TIMEOUT);
    assert_string_equal(result.text, "missing: external arrival 0, external arrival 1");
}

static void a_trainer_alone_times_out(void **state)
{
    (void)state;
    arrival trainer;
    start_named(&trainer, "resume:3", 0, 0, 0.05);
    join(&trainer);
    assert_int_equal(trainer.status, MOOR_E_TIMEOUT);
    assert_string_equal(trainer.result.text, "no rank has arrived");
}

static void named_barriers_meet_by_name(void **state)
{
    (void)state;
    arrival a, b, c;
    start_named(&a, "epoch-end", 0, 2, 30);
    start_named(&c, "another", 1, 2, 0.2);
    support_sleep_ms(30);
    assert_int_equal(atomic_load(&a.done), 0);
    start_named(&b, "epoch-end", 1, 2, 30);
    join(&a);
    join(&b);
    join(&c);
    assert_ok(a.status);
    assert_ok(b.status);
    assert_int_equal(c.status, MOOR_E_TIMEOUT);
    assert_string_equal(c.result.text, "missing: rank 0");
    start_named(&a, "a bad arrival takes no name", 2, 2, 0);
    join(&a);
    assert_int_equal(a.status, MOOR_E_INVALID);
    for (int i = 2; i < MOOR_MAX_BARRIERS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "barrier-%d", i);
        start_named(&a, name, 0, 1, 0);
        join(&a);
        assert_ok(a.status);
    }
    start_named(&a, "one-too-many", 0, 1, 0);
    join(&a);
    assert_int_equal(a.status, MOOR_E_FULL);
    start_named(&a, "another", 0, 1, 0);
    join(&a);
    assert_ok(a.status);
}

static void bad_arrivals_are_named(void **state)
{
    (void)state;
    arrival a;
    char long_name[100];
    assert_int_equal(moor_resume_arrive(process, 2, 2, 0, "cpu:0", 0, NULL), MOOR_E_INVALID);
    assert_int_equal(moor_resume_arrive(process, 0, 0, 0, "cpu:0", 0, NULL), MOOR_E_INVALID);
    assert_int_equal(moor_resume_arrive(process, 0, MOOR_MAX_RANKS + 1, 0, "cpu:0", 0, NULL), MOOR_E_INVALID);
    assert_int_equal(moor_resume_arrive(process, 0, 1, MOOR_MAX_REPLICAS, "cpu:0", 0, NULL), MOOR_E_INVALID);
    assert_int_equal(moor_resume_arrive(process, 0, 1, 0, "", 0, NULL), MOOR_E_INVALID);
    assert_int_equal(moor_resume_arrive(NULL, 0, 1, 0, "cpu:0", 0, NULL), MOOR_E_INVALID);
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = 0;
    start_named(&a, long_name, 0, 1, 0);
    join(&a);
    assert_int_equal(a.status, MOOR_E_INVALID);
    /* Two sizes in one round: the second comer hears of both. */
    start(&a, 0, 2, 0, 0.3);
    await_arrived(&process->state->resume[0], 0);
    assert_int_equal(moor_resume_arrive(process, 1, 3, 0, "cpu:0", 0, NULL), MOOR_E_INVALID);
    assert_non_null(strstr(moor_last_error(), "expects 3 ranks"));
    assert_non_null(strstr(moor_last_error(), "has 2"));
    join(&a);
    assert_int_equal(a.status, MOOR_E_TIMEOUT);
}

int main(void)
{
#define WITH(start_it, f) cmocka_unit_test_setup_teardown(f, start_it, stop)
    const struct CMUnitTest tests[] = {
        WITH(start_enforce, S5_1_world_of_one_without_holds_is_a_no_op),
        WITH(start_enforce, S5_2_nobody_passes_before_the_last),
        WITH(start_enforce, S5_2_the_barrier_is_reusable),
        WITH(start_spin, S5_2_the_barrier_is_reusable),
        WITH(start_enforce, S5_2_an_arrival_that_is_seen_at_once_is_in_its_round),
        WITH(start_enforce, S5_4_a_complete_round_is_not_left_to_the_next_look),
        WITH(start_enforce, S5_3_the_reason_is_waited_for),
        WITH(start_enforce, S5_2_a_second_waker_never_joins_the_first_ones_round),
        WITH(start_enforce, S5_2_replicas_do_not_wait_for_each_other),
        WITH(start_enforce, S5_3_a_deadline_gives_everyone_a_timeout_that_names_the_missing),
        WITH(start_enforce, S5_3_timeout_zero_does_not_wait),
        WITH(start_enforce, S5_2_a_late_rank_belongs_to_the_next_round),
        WITH(start_enforce, named_barriers_meet_by_name),
        WITH(start_enforce, bad_arrivals_are_named),
        WITH(start_external, S5_1_external_arrivals_are_waited_for),
        WITH(start_external, a_trainer_alone_times_out),
        WITH(start_observe, S5_3_observe_goes_on_and_counts),
        WITH(start_off, barrier_off_does_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
