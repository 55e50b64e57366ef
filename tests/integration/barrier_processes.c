/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 5 with real processes: ranks that die, trainers that hold, and the test of the point (5.5). */
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

#include "hooks/barrier.h"
#include "hooks/holds.h"
#include "tests/unit/support/member.h"

enum { PARTIES = 8, BYTES = 1000, ROUNDS = 4 };

static struct shared {
    _Atomic int ready, go, failed, arrived;
    _Atomic int64_t held;
    _Atomic int64_t held_at_resume[ROUNDS];
    _Atomic int status[PARTIES];
    _Atomic uint64_t ended_ns[PARTIES];
    char text[PARTIES][512];
} * shared;

static moor_process *process;
static uint32_t world = 2;

static int start_with(const char *config)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    process = support_start(config, MOOR_ROLE_CORE);
    world = 2;
    return shared == MAP_FAILED ? -1 : 0;
}

static int start_enforce(void **state)
{
    (void)state;
    return start_with("\"barrier\":{\"mode\":\"enforce\"}");
}

static int start_off(void **state)
{
    (void)state;
    return start_with("\"barrier\":{\"mode\":\"off\"}");
}

static int start_observe(void **state)
{
    (void)state;
    return start_with("\"barrier\":{\"mode\":\"observe\"}");
}

static int stop(void **state)
{
    (void)state;
    munmap(shared, sizeof(*shared));
    return support_end(process) ? 0 : -1;
}

#define assert_ok(call) assert_int_equal((call), MOOR_OK)

/* A rank's process: body(self, rank) as worker `rank` of `world`. */
static pid_t rank_of(void (*body)(moor_process *self, uint32_t rank), uint32_t rank)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    moor_process *self = support_join(MOOR_ROLE_WORKER, rank, world, 0);
    body(self, rank);
    support_leave(self);
    _exit(atomic_load(&shared->failed) ? 1 : 0);
}

static void await(_Atomic int *what, int value)
{
    for (int i = 0; i < 30000 && atomic_load(what) != value; i++)
        support_sleep_ms(1);
    assert_int_equal(atomic_load(what), value);
}

static void await_arrived(uint32_t rank)
{
    moor_state_barrier *cell = &process->state->resume[0];
    for (int i = 0; i < 20000; i++) {
        uint64_t arrived = atomic_load(&cell->arrived[rank]);
        if (arrived && arrived >> 32 == atomic_load(&cell->word) >> 32)
            return;
        support_sleep_ms(1);
    }
    fail_msg("rank %u did not arrive", rank);
}

static void arrive_once(moor_process *self, uint32_t rank)
{
    moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
    atomic_fetch_add(&shared->ready, 1);
    int status = moor_resume_arrive(self, rank, world, 0, "cpu:0", 30, &result);
    atomic_store(&shared->ended_ns[rank], moor_now_ns());
    memcpy(shared->text[rank], result.text, sizeof(result.text));
    atomic_store(&shared->status[rank], status);
}

static uint64_t ms_between(uint64_t from, uint64_t to)
{
    return to > from ? (to - from) / 1000000 : 0;
}

/* ---- 5.5 ------------------------------------------------------------------------------------------------------------- */

static void hold_then_arrive(moor_process *self, uint32_t rank)
{
    unsigned seed = 7u * rank + 1;
    for (int round = 0; round < ROUNDS; round++) {
        atomic_fetch_add(&shared->held, BYTES);
        /* All hold before any lets go. */
        atomic_fetch_add(&shared->ready, 1);
        while (atomic_load(&shared->ready) < PARTIES * (round + 1))
            support_sleep_ms(1);
        support_sleep_ms((unsigned)rand_r(&seed) % 51);
        atomic_fetch_sub(&shared->held, BYTES);
        if (moor_resume_arrive(self, rank, PARTIES, 0, "cpu:0", 30, NULL))
            atomic_fetch_add(&shared->failed, 1);
        if (rank == 0)
            atomic_store(&shared->held_at_resume[round], atomic_load(&shared->held));
        /* The next round's holds begin when the leader has looked. */
        atomic_fetch_add(&shared->arrived, 1);
        while (atomic_load(&shared->arrived) < PARTIES * (round + 1))
            support_sleep_ms(1);
    }
}

static int64_t run_5_5(void)
{
    pid_t children[PARTIES];
    int64_t worst = 0;
    world = PARTIES;
    for (uint32_t rank = 0; rank < PARTIES; rank++)
        children[rank] = rank_of(hold_then_arrive, rank);
    for (int i = 0; i < PARTIES; i++)
        assert_int_equal(support_wait(children[i]), 0);
    for (int round = 0; round < ROUNDS; round++)
        if (atomic_load(&shared->held_at_resume[round]) > worst)
            worst = atomic_load(&shared->held_at_resume[round]);
    assert_int_equal(atomic_load(&shared->failed), 0);
    return worst;
}

static void S5_5_nothing_is_held_when_the_leader_resumes(void **state)
{
    (void)state;
    assert_int_equal(run_5_5(), 0);
}

enum { TRIES = 10 }; /* of a control: on a busy machine the leader may look later than everybody has let go */

/* The control: the same without the barrier finds memory held. Else the test above would prove nothing. */
static void S5_5_with_the_barrier_off_something_is_held(void **state)
{
    (void)state;
    int64_t held = 0;
    for (int i = 0; i < TRIES && !held; i++) {
        memset(shared, 0, sizeof(*shared));
        held = run_5_5();
    }
    assert_true(held > 0);
}

static void resume_as_leader(moor_process *self, uint32_t rank)
{
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go)) /* from joining on it is as slow as the machine: not in the trainers' 50 ms */
        support_sleep_ms(1);
    if (moor_resume_arrive(self, rank, 1, 0, "GPU-7", 30, NULL))
        atomic_fetch_add(&shared->failed, 1);
    atomic_store(&shared->held_at_resume[0], atomic_load(&shared->held));
}

/* Trainers that are no ranks and know no instance: only the directory and the device. */
static pid_t trainer(const char *device, unsigned ms, int die)
{
    char dir[64];
    snprintf(dir, sizeof(dir), "%s", support_dir());
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    moor_hold *hold;
    atomic_fetch_add(&shared->held, BYTES);
    if (moor_hold_take(dir, device, "trainer", BYTES, &hold))
        _exit(1);
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go))
        support_sleep_ms(1);
    support_sleep_ms(ms);
    atomic_fetch_sub(&shared->held, BYTES);
    if (die)
        raise(SIGKILL);
    moor_hold_release(hold);
    _exit(0);
}

static int64_t run_trainers(void)
{
    pid_t children[PARTIES], leader;
    unsigned seed = 99;
    world = 1;
    for (int i = 0; i < PARTIES; i++) /* half of them end by death */
        children[i] = trainer("GPU-7", (unsigned)rand_r(&seed) % 51, i % 2);
    leader = rank_of(resume_as_leader, 0);
    await(&shared->ready, PARTIES + 1);
    atomic_store(&shared->go, 1);
    assert_int_equal(support_wait(leader), 0);
    for (int i = 0; i < PARTIES; i++)
        assert_int_equal(support_wait(children[i]), i % 2 ? 128 + SIGKILL : 0);
    return atomic_load(&shared->held_at_resume[0]);
}

static void S5_5_no_trainer_holds_when_the_leader_resumes(void **state)
{
    (void)state;
    assert_int_equal(run_trainers(), 0);
}

static void S5_5_with_the_barrier_off_a_trainer_holds(void **state)
{
    (void)state;
    int64_t held = 0;
    for (int i = 0; i < TRIES && !held; i++) {
        memset(shared, 0, sizeof(*shared));
        held = run_trainers();
    }
    assert_true(held > 0);
}

/* ---- holds ----------------------------------------------------------------------------------------------------------- */

static void S5_1_a_hold_keeps_all_ranks_until_it_ends(void **state)
{
    (void)state;
    pid_t holder = trainer("cpu:0", 150, 0), elsewhere = trainer("cpu:1", 60000, 0), ranks[2];
    await(&shared->ready, 2);
    for (uint32_t rank = 0; rank < 2; rank++)
        ranks[rank] = rank_of(arrive_once, rank);
    await_arrived(0);
    await_arrived(1);
    support_sleep_ms(50);
    assert_int_equal(atomic_load(&shared->ended_ns[0]) + atomic_load(&shared->ended_ns[1]), 0);
    uint64_t begun = moor_now_ns();
    atomic_store(&shared->go, 1);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(support_wait(ranks[rank]), 0);
        assert_ok(atomic_load(&shared->status[rank]));
        uint64_t ms = ms_between(begun, atomic_load(&shared->ended_ns[rank]));
        assert_true(ms >= 150 && ms < 30000); /* not for the other device's */
    }
    assert_int_equal(support_wait(holder), 0);
    kill(elsewhere, SIGKILL);
    support_wait(elsewhere);
}

static void S5_3_a_timeout_names_the_holder(void **state)
{
    (void)state;
    moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
    char expected[96];
    pid_t holder = trainer("cpu:0", 60000, 0);
    await(&shared->ready, 1);
    assert_int_equal(moor_resume_arrive(process, 0, 1, 0, "cpu:0", 0.1, &result), MOOR_E_TIMEOUT);
    snprintf(expected, sizeof(expected), "held by trainer (pid %d, %d bytes)", (int)holder, BYTES);
    assert_string_equal(result.text, expected);
    assert_non_null(strstr(moor_last_error(), expected));
    assert_int_equal(result.holders, 1);
    assert_int_equal(result.missing_ranks, 0);
    /* With ranks missing as well, both are named. */
    assert_int_equal(moor_resume_arrive(process, 0, 2, 0, "cpu:0", 0.05, &result), MOOR_E_TIMEOUT);
    assert_non_null(strstr(result.text, "missing: rank 1"));
    assert_non_null(strstr(result.text, expected));
    kill(holder, SIGKILL);
    support_wait(holder);
    assert_ok(moor_resume_arrive(process, 0, 1, 0, "cpu:0", 5, &result));
}

static void S5_1_our_own_hold_does_not_count(void **state)
{
    (void)state;
    moor_hold *hold;
    moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
    assert_ok(moor_hold_take(support_dir(), "cpu:0", "colocated", 7, &hold));
    assert_ok(moor_resume_arrive(process, 0, 1, 0, "cpu:0", 0.5, &result));
    moor_hold_release(hold);
}

static int one_device;

static void take_and_arrive(moor_process *self, uint32_t rank)
{
    moor_hold *hold;
    char device[16];
    snprintf(device, sizeof(device), "GPU-%u", one_device ? 0 : rank);
    if (moor_hold_take(self->base, device, "colocated", 7, &hold))
        atomic_fetch_add(&shared->failed, 1);
    atomic_store(&shared->status[rank], moor_resume_arrive(self, rank, 2, 0, device, one_device ? 0.5 : 5, NULL));
    moor_hold_release(hold);
}

/* Each rank on a device of its own, each with a hold of its own there: the one that decides knows that they are the ranks'. */
static void S5_1_a_ranks_hold_on_its_own_device_does_not_count(void **state)
{
    (void)state;
    pid_t ranks[2];
    for (uint32_t rank = 0; rank < 2; rank++)
        ranks[rank] = rank_of(take_and_arrive, rank);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(support_wait(ranks[rank]), 0);
        assert_ok(atomic_load(&shared->status[rank]));
    }
}

/* On a device that they share, each holds what the other one needs. */
static void S5_1_a_ranks_hold_counts_for_others_on_its_device(void **state)
{
    (void)state;
    pid_t ranks[2];
    one_device = 1;
    for (uint32_t rank = 0; rank < 2; rank++)
        ranks[rank] = rank_of(take_and_arrive, rank);
    one_device = 0;
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(support_wait(ranks[rank]), 0);
        assert_int_equal(atomic_load(&shared->status[rank]), MOOR_E_TIMEOUT);
    }
    assert_int_equal(process->state->resume[0].passed, 0);
}

static void S5_3_observe_names_the_holder_and_goes_on(void **state)
{
    (void)state;
    moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
    pid_t holder = trainer("cpu:0", 60000, 0);
    await(&shared->ready, 1);
    uint64_t begun = moor_now_ns();
    assert_ok(moor_resume_arrive(process, 0, 1, 0, "cpu:0", 30, &result));
    assert_true(ms_between(begun, moor_now_ns()) < 30000);
    assert_non_null(strstr(result.text, "held by trainer"));
    assert_int_equal(result.holders, 1);
    assert_int_equal(process->state->counters[MOOR_C_BARRIER_WOULD_WAIT], 1);
    kill(holder, SIGKILL);
    support_wait(holder);
}

/* ---- ranks that die --------------------------------------------------------------------------------------------------- */

static void S5_3_a_rank_killed_while_waiting_breaks_the_round(void **state)
{
    (void)state;
    pid_t ranks[3];
    char expected[64];
    world = 4; /* the fourth never comes */
    for (uint32_t rank = 0; rank < 3; rank++)
        ranks[rank] = rank_of(arrive_once, rank);
    for (uint32_t rank = 0; rank < 3; rank++)
        await_arrived(rank);
    support_sleep_ms(50);
    uint64_t begun = moor_now_ns();
    kill(ranks[1], SIGKILL);
    assert_int_equal(support_wait(ranks[1]), 128 + SIGKILL);
    snprintf(expected, sizeof(expected), "rank 1 (pid %d) died while it waited", (int)ranks[1]);
    for (int rank = 0; rank < 3; rank += 2) {
        assert_int_equal(support_wait(ranks[rank]), 0);
        assert_int_equal(atomic_load(&shared->status[rank]), MOOR_E_BROKEN);
        assert_string_equal(shared->text[rank], expected);
        assert_true(ms_between(begun, atomic_load(&shared->ended_ns[rank])) < 10000);
    }
    assert_int_equal(process->state->resume[0].broken, 1);
}

static void only_live(moor_process *self, uint32_t rank)
{
    (void)self, (void)rank;
    atomic_fetch_add(&shared->ready, 1);
    support_sleep_ms(60000);
}

static void S5_3_a_rank_killed_before_it_arrived_breaks_the_round(void **state)
{
    (void)state;
    char expected[64];
    pid_t waits = rank_of(arrive_once, 0), dies = rank_of(only_live, 1);
    await(&shared->ready, 2);
    await_arrived(0);
    support_sleep_ms(250); /* alive and late is no reason */
    assert_int_equal(atomic_load(&shared->ended_ns[0]), 0);
    uint64_t begun = moor_now_ns();
    kill(dies, SIGKILL);
    assert_int_equal(support_wait(dies), 128 + SIGKILL);
    assert_int_equal(support_wait(waits), 0);
    assert_int_equal(atomic_load(&shared->status[0]), MOOR_E_BROKEN);
    snprintf(expected, sizeof(expected), "rank 1 (pid %d) died before it arrived", (int)dies);
    assert_string_equal(shared->text[0], expected);
    assert_true(ms_between(begun, atomic_load(&shared->ended_ns[0])) < 10000);
}

/* A rank that died and came back is late, not dead. */
static void S5_3_a_restarted_rank_is_not_dead(void **state)
{
    (void)state;
    pid_t dies = rank_of(only_live, 1), waits, lives;
    await(&shared->ready, 1);
    kill(dies, SIGKILL);
    assert_int_equal(support_wait(dies), 128 + SIGKILL);
    lives = rank_of(only_live, 1);
    await(&shared->ready, 2);
    waits = rank_of(arrive_once, 0);
    await_arrived(0);
    support_sleep_ms(350);
    assert_int_equal(atomic_load(&shared->ended_ns[0]), 0);
    kill(waits, SIGKILL);
    kill(lives, SIGKILL);
    assert_int_equal(support_wait(waits), 128 + SIGKILL);
    assert_int_equal(support_wait(lives), 128 + SIGKILL);
}

/* Both wait for a trainer; one of them looks after the hold. Whichever is killed, the other one notices. */
static void S5_3_it_does_not_matter_who_dies(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 2; victim++) {
        pid_t ranks[2], holder;
        memset(shared, 0, sizeof(*shared));
        holder = trainer("cpu:0", 60000, 0);
        await(&shared->ready, 1);
        for (uint32_t rank = 0; rank < 2; rank++) {
            ranks[rank] = rank_of(arrive_once, rank);
            await_arrived(rank);
        }
        support_sleep_ms(30);
        uint64_t begun = moor_now_ns();
        kill(ranks[victim], SIGKILL);
        assert_int_equal(support_wait(ranks[victim]), 128 + SIGKILL);
        assert_int_equal(support_wait(ranks[!victim]), 0);
        assert_int_equal(atomic_load(&shared->status[!victim]), MOOR_E_BROKEN);
        assert_true(ms_between(begun, atomic_load(&shared->ended_ns[!victim])) < 10000);
        kill(holder, SIGKILL);
        support_wait(holder);
    }
}

/* The restarted rank and the survivors meet in a round of their own. */
static void S5_2_after_a_broken_round_the_next_one_is_whole(void **state)
{
    (void)state;
    pid_t a = rank_of(arrive_once, 0), b;
    await_arrived(0);
    kill(a, SIGKILL);
    assert_int_equal(support_wait(a), 128 + SIGKILL);
    a = rank_of(arrive_once, 0); /* finds the dead one's arrival in the open round, and breaks it */
    for (int i = 0; i < 20000 && !atomic_load(&process->state->resume[0].broken); i++)
        support_sleep_ms(1);
    b = rank_of(arrive_once, 1);
    assert_int_equal(support_wait(a), 0);
    assert_int_equal(support_wait(b), 0);
    assert_ok(atomic_load(&shared->status[0]));
    assert_ok(atomic_load(&shared->status[1]));
    assert_int_equal(process->state->resume[0].broken, 1);
    assert_int_equal(process->state->resume[0].passed, 1);
}

static void many_rounds(moor_process *self, uint32_t rank)
{
    for (uint64_t round = 0; round < 150; round++) {
        moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
        if (moor_resume_arrive(self, rank, PARTIES, 0, "cpu:0", 60, &result) || result.generation != round)
            atomic_fetch_add(&shared->failed, 1);
    }
}

static void S5_2_many_rounds_by_eight_processes(void **state)
{
    (void)state;
    pid_t ranks[PARTIES];
    world = PARTIES;
    for (uint32_t rank = 0; rank < PARTIES; rank++)
        ranks[rank] = rank_of(many_rounds, rank);
    for (int rank = 0; rank < PARTIES; rank++)
        assert_int_equal(support_wait(ranks[rank]), 0);
    assert_int_equal(process->state->resume[0].passed, 150);
}

int main(void)
{
#define WITH(start_it, f) cmocka_unit_test_setup_teardown(f, start_it, stop)
    const struct CMUnitTest tests[] = {
        WITH(start_enforce, S5_5_nothing_is_held_when_the_leader_resumes),
        WITH(start_off, S5_5_with_the_barrier_off_something_is_held),
        WITH(start_enforce, S5_5_no_trainer_holds_when_the_leader_resumes),
        WITH(start_off, S5_5_with_the_barrier_off_a_trainer_holds),
        WITH(start_enforce, S5_1_a_hold_keeps_all_ranks_until_it_ends),
        WITH(start_enforce, S5_3_a_timeout_names_the_holder),
        WITH(start_enforce, S5_1_our_own_hold_does_not_count),
        WITH(start_enforce, S5_1_a_ranks_hold_on_its_own_device_does_not_count),
        WITH(start_enforce, S5_1_a_ranks_hold_counts_for_others_on_its_device),
        WITH(start_observe, S5_3_observe_names_the_holder_and_goes_on),
        WITH(start_enforce, S5_3_a_rank_killed_while_waiting_breaks_the_round),
        WITH(start_enforce, S5_3_a_rank_killed_before_it_arrived_breaks_the_round),
        WITH(start_enforce, S5_3_a_restarted_rank_is_not_dead),
        WITH(start_enforce, S5_3_it_does_not_matter_who_dies),
        WITH(start_enforce, S5_2_after_a_broken_round_the_next_one_is_whole),
        WITH(start_enforce, S5_2_many_rounds_by_eight_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
