/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 4.3, 4.4, 4.9, 4.11 with real processes: one gate for all of them, any of which is killed at any moment. */
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

#include "hooks/gate.h"
#include "hooks/ticket.h"
#include "hooks/weights.h"
#include "tests/unit/support/member.h"

enum { HAMMERS = 4 };

/* What the test's own processes share. */
static struct shared {
    _Atomic int stop, ready, inside, wrong_epoch, failed;
    _Atomic uint64_t admitted[HAMMERS];
    _Atomic int go;
} * shared;

static moor_process *process;

static int start_with(const char *config)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    process = support_start(config, MOOR_ROLE_CORE);
    return shared == MAP_FAILED ? -1 : 0;
}

static int start_enforce(void **state)
{
    (void)state;
    return start_with("\"gate\":{\"mode\":\"enforce\"}");
}

static int start_observe(void **state)
{
    (void)state;
    return start_with("\"gate\":{\"mode\":\"observe\"}");
}

static int stop(void **state)
{
    (void)state;
    munmap(shared, sizeof(*shared));
    return support_end(process) ? 0 : -1;
}

#define assert_ok(call) assert_int_equal((call), MOOR_OK)

/* A child that runs body(number) as a member of the instance, and dies with the test. */
static pid_t child_of(uint32_t roles, void (*body)(moor_process *self, int number), int number)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    moor_process *self = support_join(roles, (uint32_t)number, HAMMERS, 0);
    body(self, number);
    support_leave(self);
    _exit(atomic_load(&shared->failed) ? 1 : 0);
}

static void await(_Atomic int *what, int value)
{
    for (int i = 0; i < 30000 && atomic_load(what) != value; i++)
        support_sleep_ms(1);
    assert_int_equal(atomic_load(what), value);
}

static moor_gate_status status_now(void)
{
    moor_gate_status status = MOOR_GATE_STATUS_INIT;
    assert_ok(moor_gate_get_status(process, &status));
    return status;
}

/* ---- the race of enter and seal ---------------------------------------------------------------------------------- */

static void hammer(moor_process *self, int number)
{
    char id[32];
    atomic_fetch_add(&shared->ready, 1);
    for (uint64_t i = 0; !atomic_load(&shared->stop); i++) {
        moor_ticket ticket;
        int len = snprintf(id, sizeof(id), "hammer-%d-%llu", number, (unsigned long long)i);
        if (moor_gate_enter(self, id, (uint32_t)len, 1, 30, &ticket)) {
            atomic_fetch_add(&shared->failed, 1);
            return;
        }
        atomic_fetch_add(&shared->inside, 1);
        atomic_fetch_add(&shared->admitted[number], 1);
        if (i % 8 == 0)
            for (volatile int spin = 0; spin < 2000; spin++)
                ;
        if (ticket.epoch != moor_weights_epoch(self))
            atomic_fetch_add(&shared->wrong_epoch, 1);
        atomic_fetch_sub(&shared->inside, 1);
        if (i % 2)
            moor_gate_record_stored(self->state, moor_id_hash(id, (size_t)len), (moor_hash128){0, 0}, 1);
        if (moor_gate_leave(self, &ticket, MOOR_OUTCOME_FINISHED, NULL))
            atomic_fetch_add(&shared->failed, 1);
        if (i % 2 == 0)
            moor_gate_record_stored(self->state, moor_id_hash(id, (size_t)len), (moor_hash128){0, 0}, 1);
    }
}

static uint64_t total_admitted(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < HAMMERS; i++)
        sum += atomic_load(&shared->admitted[i]);
    return sum;
}

/* No admitted request is missed by a drain, none is admitted while drained, and all of them see the version of their admission. */
static void S4_11_enter_against_seal(void **state)
{
    (void)state;
    int rounds = getenv("MOOR_GATE_ROUNDS") ? atoi(getenv("MOOR_GATE_ROUNDS")) : 400;
    pid_t children[HAMMERS];
    for (int i = 0; i < HAMMERS; i++)
        children[i] = child_of(MOOR_ROLE_FRONTEND, hammer, i);
    await(&shared->ready, HAMMERS);
    uint64_t last = 0, epoch = 0;
    int progressed = 0;
    for (int round = 0; round < rounds; round++) {
        assert_ok(moor_gate_seal(process));
        assert_ok(moor_gate_drain(process, 20));
        uint64_t before = total_admitted();
        assert_int_equal(atomic_load(&shared->inside), 0);
        for (volatile int spin = 0; spin < 5000; spin++)
            ;
        assert_ok(moor_gate_install(process, NULL, 0, &epoch));
        assert_int_equal(epoch, round + 2);
        assert_int_equal(atomic_load(&shared->inside), 0);
        assert_int_equal(total_admitted(), before);
        progressed += before > last;
        last = before;
        assert_ok(moor_gate_reopen(process, 20));
        /* Until they are at it again; then a moment more, each time another. */
        for (int i = 0; i < 20000 && total_admitted() < before + 20; i++)
            usleep(20);
        for (volatile int spin = 0; spin < (round % 16) * 2000; spin++)
            ;
    }
    atomic_store(&shared->stop, 1);
    for (int i = 0; i < HAMMERS; i++)
        assert_int_equal(support_wait(children[i]), 0);
    assert_int_equal(atomic_load(&shared->failed), 0);
    assert_int_equal(atomic_load(&shared->wrong_epoch), 0);
    assert_true(progressed > rounds * 3 / 4); /* there was something to race with */
    assert_int_equal(status_now().in_flight + status_now().waiting, 0);
    print_message("%llu admissions, %d of %d rounds with any\n", (unsigned long long)last, progressed, rounds);
}

/* ---- waiting across processes ------------------------------------------------------------------------------------- */

static void wait_at_gate(moor_process *self, int number)
{
    moor_ticket ticket;
    char id[16];
    int len = snprintf(id, sizeof(id), "waiter-%d", number);
    if (moor_gate_enter(self, id, (uint32_t)len, 0, 30, &ticket) || ticket.epoch != 2)
        atomic_fetch_add(&shared->failed, 1);
    moor_gate_leave(self, &ticket, MOOR_OUTCOME_FINISHED, NULL);
}

static void seal_and_die(moor_process *self, int number)
{
    (void)number;
    moor_gate_seal(self);
    atomic_store(&shared->ready, 1);
    raise(SIGKILL);
}

/* Whoever sealed may be gone: the requests wait on, and anybody reopens. */
static void S4_1_waiters_outlive_the_sealer(void **state)
{
    (void)state;
    pid_t children[HAMMERS], sealer = child_of(MOOR_ROLE_FRONTEND, seal_and_die, 0);
    assert_int_equal(support_wait(sealer), 128 + SIGKILL);
    for (int i = 0; i < HAMMERS; i++)
        children[i] = child_of(MOOR_ROLE_FRONTEND, wait_at_gate, i);
    for (int i = 0; i < 30000 && status_now().waiting != HAMMERS; i++)
        support_sleep_ms(1);
    assert_int_equal(status_now().waiting, HAMMERS);
    assert_ok(moor_gate_drain(process, 1));
    assert_ok(moor_gate_install(process, "7", 0, NULL));
    assert_ok(moor_gate_reopen(process, 1));
    for (int i = 0; i < HAMMERS; i++)
        assert_int_equal(support_wait(children[i]), 0);
    assert_int_equal(status_now().waiting, 0);
}

static void wait_and_be_killed(moor_process *self, int number)
{
    moor_ticket ticket;
    (void)number;
    moor_gate_enter(self, "killed-waiter", 13, 0, 60, &ticket);
    atomic_fetch_add(&shared->failed, 1);
}

/* A request that was not admitted when its process died is nobody's loss. */
static void S4_4_a_killed_waiter_does_not_poison(void **state)
{
    (void)state;
    assert_ok(moor_gate_seal(process));
    pid_t child = child_of(MOOR_ROLE_FRONTEND, wait_and_be_killed, 0);
    for (int i = 0; i < 30000 && status_now().waiting != 1; i++)
        support_sleep_ms(1);
    kill(child, SIGKILL);
    assert_int_equal(support_wait(child), 128 + SIGKILL);
    assert_int_equal(status_now().waiting, 0);
    assert_ok(moor_gate_drain(process, 1));
    assert_int_equal(status_now().poisoned, 0);
    assert_ok(moor_gate_reopen(process, 1));
}

static void die_inside_enter(moor_process *self, int number)
{
    uint32_t index;
    uint64_t word;
    (void)number;
    moor_ticket_claim(self->state, self->slot, 1, moor_id_hash("half-admitted", 13), &index, &word);
    raise(SIGKILL);
}

/* Nor one whose process died between its claim and its admission. */
static void S4_4_a_death_inside_enter_does_not_poison(void **state)
{
    (void)state;
    pid_t child = child_of(MOOR_ROLE_FRONTEND, die_inside_enter, 0);
    assert_int_equal(support_wait(child), 128 + SIGKILL);
    assert_int_equal(status_now().in_flight, 1);
    assert_ok(moor_gate_seal(process));
    assert_ok(moor_gate_drain(process, 5));
    assert_int_equal(status_now().in_flight, 0);
    assert_int_equal(status_now().poisoned, 0);
    assert_ok(moor_gate_reopen(process, 1));
}

/* ---- the dead -------------------------------------------------------------------------------------------------------- */

static void hold_tickets(moor_process *self, int number)
{
    moor_ticket ticket;
    (void)number;
    if (moor_gate_enter(self, "lost-a", 6, 1, 0, &ticket) || moor_gate_enter(self, "lost-b", 6, 1, 0, &ticket))
        atomic_fetch_add(&shared->failed, 1);
    atomic_store(&shared->ready, 1);
    support_sleep_ms(60000);
}

static uint64_t ms_since(uint64_t start)
{
    return (moor_now_ns() - start) / 1000000;
}

/* SEMANTICS 4.4, 4.11: found within a second, by whoever drains. */
static void S4_4_kill_9_of_a_ticket_holder_poisons(void **state)
{
    (void)state;
    pid_t child = child_of(MOOR_ROLE_FRONTEND, hold_tickets, 0);
    await(&shared->ready, 1);
    assert_ok(moor_gate_seal(process));
    kill(child, SIGKILL);
    assert_int_equal(support_wait(child), 128 + SIGKILL);
    uint64_t start = moor_now_ns();
    assert_int_equal(moor_gate_drain(process, 20), MOOR_E_POISONED);
    assert_true(ms_since(start) < 1000);
    char pid[32];
    snprintf(pid, sizeof(pid), "process %d", (int)child);
    moor_gate_status now = status_now();
    assert_non_null(strstr(now.poison_reason, pid));
    assert_non_null(strstr(now.poison_reason, "lost-a"));
    assert_non_null(strstr(now.poison_reason, "lost-b"));
    assert_non_null(strstr(now.poison_reason, "2 requests"));
    assert_int_equal(moor_gate_install(process, NULL, 1, NULL), MOOR_E_POISONED);
    assert_int_equal(moor_gate_reopen(process, 0), MOOR_E_POISONED);
    assert_ok(moor_gate_acknowledge(process));
    assert_ok(moor_gate_drain(process, 1));
    assert_ok(moor_gate_install(process, "8", 0, NULL));
    assert_ok(moor_gate_reopen(process, 1));
}

static pid_t killer(pid_t victim, unsigned after_ms)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    support_sleep_ms(after_ms);
    kill(victim, SIGKILL);
    _exit(0);
}

static void S4_11_a_holder_killed_during_the_drain_is_found(void **state)
{
    (void)state;
    pid_t child = child_of(MOOR_ROLE_FRONTEND, hold_tickets, 0);
    await(&shared->ready, 1);
    assert_ok(moor_gate_seal(process));
    uint64_t start = moor_now_ns();
    pid_t other = killer(child, 200);
    assert_int_equal(moor_gate_drain(process, 20), MOOR_E_POISONED);
    assert_true(ms_since(start) >= 200 && ms_since(start) < 1700);
    assert_int_equal(support_wait(child), 128 + SIGKILL);
    assert_int_equal(support_wait(other), 0);
    assert_ok(moor_gate_acknowledge(process));
}

static void be_a_worker(moor_process *self, int number)
{
    (void)self, (void)number;
    atomic_fetch_add(&shared->ready, 1);
    support_sleep_ms(60000);
}

/* The backend ended, the record is not stored, and nobody is left to store it. */
static void S4_4_death_between_end_and_record_poisons(void **state)
{
    (void)state;
    moor_ticket ticket;
    pid_t worker = child_of(MOOR_ROLE_WORKER, be_a_worker, 0);
    await(&shared->ready, 1);
    assert_ok(moor_gate_enter(process, "unstored", 8, 1, 0, &ticket));
    assert_ok(moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL));
    assert_ok(moor_gate_seal(process));
    assert_int_equal(moor_gate_drain(process, 0.6), MOOR_E_TIMEOUT); /* the worker lives: it may still come */
    kill(worker, SIGKILL);
    assert_int_equal(support_wait(worker), 128 + SIGKILL);
    assert_int_equal(moor_gate_drain(process, 20), MOOR_E_POISONED);
    assert_non_null(strstr(status_now().poison_reason, "unstored"));
    assert_ok(moor_gate_acknowledge(process));
    assert_ok(moor_gate_drain(process, 0));
    assert_ok(moor_gate_reopen(process, 0));
}

static void begin_update(moor_process *self, int number)
{
    (void)number;
    moor_weights_begin(self, MOOR_WEIGHTS_UPDATE);
    moor_weights_touched(self, MOOR_WEIGHTS_UPDATE, "bucket");
    atomic_store(&shared->ready, 1);
    support_sleep_ms(60000);
}

static pid_t killed_in_update(void)
{
    pid_t child = child_of(MOOR_ROLE_WORKER, begin_update, 0);
    await(&shared->ready, 1);
    assert_int_equal(moor_weights_sessions(process->state, NULL, 0), 1);
    kill(child, SIGKILL);
    assert_int_equal(support_wait(child), 128 + SIGKILL);
    return child;
}

static void S4_9_death_inside_an_update_poisons(void **state)
{
    (void)state;
    assert_ok(moor_gate_seal(process));
    pid_t child = killed_in_update();
    uint64_t before = moor_weights_epoch(process);
    assert_int_equal(moor_gate_drain(process, 5), MOOR_E_POISONED);
    char pid[32];
    snprintf(pid, sizeof(pid), "process %d", (int)child);
    assert_non_null(strstr(status_now().poison_reason, pid));
    assert_true(moor_weights_unknown(process->state));
    assert_int_equal(moor_weights_epoch(process), before + 1);
    assert_int_equal(moor_weights_sessions(process->state, NULL, 0), 0);
    assert_int_equal(moor_gate_reopen(process, 0), MOOR_E_POISONED);
    assert_ok(moor_gate_acknowledge(process));
    assert_ok(moor_gate_reopen(process, 0));
}

static void S4_9_the_next_update_closes_a_dead_ones_session(void **state)
{
    (void)state;
    killed_in_update();
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    assert_true(moor_weights_unknown(process->state));
    assert_int_equal(moor_weights_sessions(process->state, NULL, 0), 1);
    assert_ok(moor_weights_end(process, 1, NULL)); /* a full update: known again */
    assert_false(moor_weights_unknown(process->state));
    assert_int_equal(status_now().poisoned, 0); /* observe */
}

/* Ranks of one update tell of it each by itself; the epoch moves once. */
static void one_rank_of_an_update(moor_process *self, int number)
{
    (void)number;
    moor_weights_begin(self, MOOR_WEIGHTS_UPDATE);
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go))
        ;
    for (int i = 0; i < 1000; i++)
        moor_weights_touched(self, MOOR_WEIGHTS_UPDATE, "bucket");
    atomic_fetch_add(&shared->inside, 1);
    while (atomic_load(&shared->go) != 2)
        support_sleep_ms(1);
    moor_weights_end(self, 1, NULL);
}

static void S4_7_all_ranks_of_an_update_move_the_epoch_once(void **state)
{
    (void)state;
    pid_t children[HAMMERS];
    moor_weights_mark_used(process->state);
    assert_ok(moor_weights_begin(process, MOOR_WEIGHTS_UPDATE));
    for (int i = 0; i < HAMMERS; i++)
        children[i] = child_of(MOOR_ROLE_WORKER, one_rank_of_an_update, i);
    await(&shared->ready, HAMMERS);
    atomic_store(&shared->go, 1);
    await(&shared->inside, HAMMERS);
    assert_int_equal(moor_weights_epoch(process), 2);
    atomic_store(&shared->go, 2);
    for (int i = 0; i < HAMMERS; i++)
        assert_int_equal(support_wait(children[i]), 0);
    assert_int_equal(moor_weights_sessions(process->state, NULL, 0), 1);
    assert_ok(moor_weights_end(process, 1, NULL));
    assert_int_equal(moor_weights_epoch(process), 2);
}

/* Killed at any moment inside enter and leave, over and over: the table is whole afterwards, and the gate can be drained. */
static void S4_11_killed_at_any_moment(void **state)
{
    (void)state;
    unsigned seed = 12345;
    for (int round = 0; round < 25; round++) {
        atomic_store(&shared->ready, 0);
        pid_t children[2];
        for (int i = 0; i < 2; i++)
            children[i] = child_of(MOOR_ROLE_FRONTEND, hammer, i);
        await(&shared->ready, 2);
        seed = seed * 1103515245 + 12345;
        for (volatile unsigned spin = 0; spin < seed % 200000; spin++)
            ;
        for (int i = 0; i < 2; i++)
            kill(children[i], SIGKILL);
        for (int i = 0; i < 2; i++)
            assert_int_equal(support_wait(children[i]), 128 + SIGKILL);
        assert_ok(moor_gate_seal(process));
        for (int tries = 0; tries < 8; tries++) {
            moor_status status = moor_gate_drain(process, 5);
            if (status == MOOR_OK)
                break;
            /* Killed between leave and record: in flight for good, the test is the store. */
            for (uint32_t at = moor_ticket_next(process->state, 0); at < MOOR_MAX_TICKETS;
                 at = moor_ticket_next(process->state, at + 1)) {
                moor_state_ticket *cell = &process->state->tickets[at];
                if (atomic_load(&cell->word) & MOOR_TICKET_ENDED)
                    moor_gate_record_stored(process->state, (moor_hash128){cell->hash_lo, cell->hash_hi},
                                            (moor_hash128){0, 0}, 1);
            }
            if (status == MOOR_E_POISONED)
                assert_ok(moor_gate_acknowledge(process));
        }
        assert_int_equal(status_now().state, MOOR_GATE_DRAINED);
        assert_int_equal(moor_ticket_count(process->state), 0);
        assert_ok(moor_gate_reopen(process, 1));
    }
}

int main(void)
{
#define ENFORCED(f) cmocka_unit_test_setup_teardown(f, start_enforce, stop)
    const struct CMUnitTest tests[] = {
        ENFORCED(S4_11_enter_against_seal),
        ENFORCED(S4_1_waiters_outlive_the_sealer),
        ENFORCED(S4_4_a_killed_waiter_does_not_poison),
        ENFORCED(S4_4_a_death_inside_enter_does_not_poison),
        ENFORCED(S4_4_kill_9_of_a_ticket_holder_poisons),
        ENFORCED(S4_11_a_holder_killed_during_the_drain_is_found),
        ENFORCED(S4_4_death_between_end_and_record_poisons),
        ENFORCED(S4_9_death_inside_an_update_poisons),
        cmocka_unit_test_setup_teardown(S4_9_the_next_update_closes_a_dead_ones_session, start_observe, stop),
        ENFORCED(S4_7_all_ranks_of_an_update_move_the_epoch_once),
        ENFORCED(S4_11_killed_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
