/* SPDX-License-Identifier: Apache-2.0 */
#include "barrier.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "../allocator/interrupt.h"
#include "futex.h"
#include "holds.h"
#include "shared_text.h"

enum outcome { PASSED = 0, TIMED_OUT = 1, BROKEN = 2 };

/* How often a waiter looks for dead ranks; SEMANTICS 5.3: "at once" if local. */
#define LIVENESS_NS 100000000u
/* How often holds are looked for once everybody has arrived. */
#define HOLDS_NS 1000000u
/* How long a failed round's reason is waited for: its decider may have lost the CPU, or its life, before it could write it. */
#define TEXT_WAIT_NS 500000000u

#define GENERATION(word) ((uint32_t)((word) >> 32))
#define WITH_GENERATION(generation, low) ((uint64_t)(generation) << 32 | (low))

static uint64_t min_ns(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What holds the open round up, as one process sees it. */
typedef struct obstacle {
    uint32_t missing; /* ranks and external arrivals */
    moor_holders holders;
    char text[512];
} obstacle;

/* ---- the round --------------------------------------------------------------------------------------------------- */

static uint32_t my_number(const moor_barrier_call *call)
{
    return call->member->slot < MOOR_MAX_PROCESSES ? call->member->slot + 1 : MOOR_BARRIER_STRANGER;
}

static _Atomic uint64_t *my_cell(const moor_barrier_call *call)
{
    return call->size ? &call->cell->arrived[call->rank] : &call->cell->external[call->rank];
}

/* A cell of a round: 0 is "never", also in generation 0. */
static int is_in(uint64_t arrival, uint32_t generation)
{
    return arrival && GENERATION(arrival) == generation;
}

/* The round's size once a rank has set it; 0 before. */
static uint32_t round_size(moor_state_barrier *cell, uint32_t generation, uint32_t *external)
{
    uint64_t size = atomic_load(&cell->size);
    *external = 0;
    if (!(uint32_t)size || GENERATION(size) != generation)
        return 0;
    *external = (uint32_t)size >> 16;
    return (uint32_t)size & 0xFFFF;
}

static int complete(moor_state_barrier *cell, uint32_t generation)
{
    uint32_t external, size = round_size(cell, generation, &external);
    for (uint32_t rank = 0; rank < size; rank++)
        if (!is_in(atomic_load(&cell->arrived[rank]), generation))
            return 0;
    for (uint32_t n = 0; n < external; n++)
        if (!is_in(atomic_load(&cell->external[n]), generation))
            return 0;
    return size != 0;
}

/* Sets size and external of the round, or compares. A round has one size. */
static moor_status agree_on_size(const moor_barrier_call *call, uint32_t generation)
{
    uint64_t want = WITH_GENERATION(generation, call->external << 16 | call->size),
             size = atomic_load(&call->cell->size);
    while (!(uint32_t)size || GENERATION(size) != generation)
        if (atomic_compare_exchange_weak(&call->cell->size, &size, want))
            return MOOR_OK;
    if (size == want)
        return MOOR_OK;
    return moor_fail(MOOR_E_INVALID, "%s: rank %u expects %u ranks and %u external arrivals, the round has %u and %u",
                     call->what, call->rank, call->size, call->external, (uint32_t)size & 0xFFFF, (uint32_t)size >> 16);
}

/* The one decision. Whoever wins tells why and wakes everybody. */
static void decide(const moor_barrier_call *call, uint32_t generation, enum outcome outcome, const obstacle *why)
{
    moor_state_barrier *cell = call->cell;
    uint64_t word = atomic_load(&cell->word);
    do {
        if (GENERATION(word) != generation)
            return;
    } while (!atomic_compare_exchange_weak(&cell->word, &word,
                                           WITH_GENERATION(generation + 1, (uint32_t)word << 2 | outcome)));
    if (outcome != PASSED) {
        atomic_store(&cell->told, 0);
        atomic_store(&cell->missing, why->missing);
        atomic_store(&cell->holders, why->holders.count);
        MOOR_TEXT_PUT(cell->text, why->text, strlen(why->text));
        atomic_store(&cell->told, (uint64_t)generation + 1);
    }
    atomic_fetch_add(outcome == PASSED ? &cell->passed : outcome == TIMED_OUT ? &cell->timeouts : &cell->broken, 1);
    moor_futex_raise(&cell->futex);
}

/* Outcome of a round that is decided. The word remembers 16; one that was decided longer ago counts as broken. */
static enum outcome outcome_of(uint64_t word, uint32_t generation)
{
    uint32_t back = GENERATION(word) - generation - 1;
    return back < 16 ? (enum outcome)((uint32_t)word >> 2 * back & 3) : BROKEN;
}

/* ---- what is in the way ------------------------------------------------------------------------------------------- */

static void add_text(obstacle *o, const char *format, ...) MOOR_PRINTF(2, 3);

static void add_text(obstacle *o, const char *format, ...)
{
    size_t used = strlen(o->text);
    va_list args;
    va_start(args, format);
    if (used + 1 < sizeof(o->text))
        vsnprintf(o->text + used, sizeof(o->text) - used, format, args);
    va_end(args);
}

/* A joined process of this rank: 1 and its pid when all that joined as it are dead, else 0. */
static int rank_died(const moor_barrier_call *call, uint32_t rank, uint32_t size, uint32_t *pid)
{
    int dead = 0;
    if (call->replica == MOOR_NO_REPLICA)
        return 0;
    for (uint32_t slot = 0; slot < MOOR_MAX_PROCESSES; slot++) {
        moor_state_process *process = &call->member->state->processes[slot];
        if (atomic_load(&process->used) != 2 ||
            !(__atomic_load_n(&process->roles, __ATOMIC_RELAXED) & MOOR_ROLE_WORKER) ||
            __atomic_load_n(&process->rank, __ATOMIC_RELAXED) != rank ||
            __atomic_load_n(&process->world_size, __ATOMIC_RELAXED) != size ||
            __atomic_load_n(&process->dp_rank, __ATOMIC_RELAXED) != call->replica)
            continue;
        if (moor_member_alive(call->member, slot))
            return 0;
        dead = 1;
        *pid = process->pid;
    }
    return dead;
}

/* Looks whether somebody died who is needed: who waited, or, of the missing, who had joined. 1 with a text. */
static int find_dead(const moor_barrier_call *call, uint32_t generation, obstacle *o)
{
    moor_state_barrier *cell = call->cell;
    uint32_t external, size = round_size(cell, generation, &external), pid = 0;
    for (uint32_t i = 0; i < size + external; i++) {
        uint64_t arrival = atomic_load(i < size ? &cell->arrived[i] : &cell->external[i - size]);
        uint32_t slot = (uint32_t)arrival - 1;
        const char *when = NULL;
        if (is_in(arrival, generation)) {
            if (slot < MOOR_MAX_PROCESSES && !moor_member_alive(call->member, slot)) {
                pid = call->member->state->processes[slot].pid;
                when = "while it waited";
            }
        } else if (i < size && rank_died(call, i, size, &pid)) {
            when = "before it arrived";
        }
        if (!when)
            continue;
        o->missing++;
        add_text(o, "%s%s %u (pid %u) died %s", o->text[0] ? ", " : "", i < size ? "rank" : "external",
                 i < size ? i : i - size, pid, when);
    }
    return o->missing != 0;
}

static void name_missing(const moor_barrier_call *call, uint32_t generation, obstacle *o)
{
    moor_state_barrier *cell = call->cell;
    uint32_t external, size = round_size(cell, generation, &external);
    if (!size) {
        o->missing++;
        add_text(o, "no rank has arrived");
    }
    for (uint32_t i = 0; i < size + external; i++) {
        if (is_in(atomic_load(i < size ? &cell->arrived[i] : &cell->external[i - size]), generation))
            continue;
        o->missing++;
        add_text(o, "%s%s %u", o->text[0] ? ", " : "missing: ", i < size ? "rank" : "external arrival",
                 i < size ? i : i - size);
    }
}

/* The process that arrived as this rank; NULL when it has no slot. */
static moor_state_process *process_of_rank(const moor_barrier_call *call, uint32_t rank)
{
    uint32_t slot = (uint32_t)atomic_load(&call->cell->arrived[rank]) - 1;
    return slot < MOOR_MAX_PROCESSES ? &call->member->state->processes[slot] : NULL;
}

/*
 * Holds on the devices of the ranks. A rank's own hold does not count for it; where several processes share a device, one's
 * hold counts for the others. Called when everybody has arrived, or for a text.
 */
static moor_status find_holds(const moor_barrier_call *call, uint32_t generation, obstacle *o)
{
    uint32_t external, size = round_size(call->cell, generation, &external);
    char done[8][MOOR_LABEL_BYTES]; /* devices looked at; beyond eight one may be looked at twice, which is harmless */
    uint32_t n_done = 0;
    for (uint32_t rank = 0; rank < size && call->bases; rank++) {
        char device[MOOR_LABEL_BYTES] = "", other[MOOR_LABEL_BYTES];
        moor_state_process *process = process_of_rank(call, rank), *sharer;
        uint32_t seen = 0, alone = 1;
        if (process && is_in(atomic_load(&call->cell->arrived[rank]), generation))
            MOOR_TEXT_GET(process->device, device, sizeof(device));
        for (uint32_t i = 0; i < n_done && !seen; i++)
            seen = !strcmp(done[i], device);
        if (!device[0] || seen)
            continue;
        for (uint32_t i = rank + 1; i < size && alone; i++) {
            if (!(sharer = process_of_rank(call, i)) || sharer == process)
                continue;
            MOOR_TEXT_GET(sharer->device, other, sizeof(other));
            alone = strcmp(other, device) != 0;
        }
        if (n_done < 8)
            memcpy(done[n_done++], device, sizeof(device));
        moor_status status = moor_holds_read(call->bases, device, alone ? process->pid : 0, &o->holders);
        if (status)
            return status;
    }
    return MOOR_OK;
}

static void name_holders(obstacle *o)
{
    char who[400];
    if (!o->holders.count)
        return;
    moor_holders_text(&o->holders, who, sizeof(who));
    add_text(o, "%sheld by %s", o->text[0] ? "; " : "", who);
}

/* ---- waiting ------------------------------------------------------------------------------------------------------ */

/*
 * One look at the round. Decides it when it can be decided; else *next is when to look again at the latest. Every waiter that
 * wakes comes here, but the costly questions are asked by one of them at a time: who moves duty_ns forward.
 */
static moor_status look(const moor_barrier_call *call, uint32_t generation, uint64_t deadline, int first,
                        uint64_t *next)
{
    moor_state_barrier *cell = call->cell;
    uint64_t now = moor_now_ns(), duty = atomic_load(&cell->duty_ns);
    int full = complete(cell, generation), late = now >= deadline;
    uint64_t period = full ? HOLDS_NS : LIVENESS_NS;
    obstacle o = {0};
    *next = now + period;
    /* duty_ns further ahead than the period is a rest of an earlier phase. */
    int ours =
        (now >= duty || duty > now + period) && atomic_compare_exchange_strong(&cell->duty_ns, &duty, now + period);
    if (!ours && !late && !(first && full)) /* who may have been the last to come does not leave it to the next look */
        return MOOR_OK;
    if (full) {
        moor_status status = find_holds(call, generation, &o);
        if (status)
            return status;
        if (!o.holders.count) {
            decide(call, generation, PASSED, &o);
            return MOOR_OK;
        }
    }
    if (find_dead(call, generation, &o)) {
        decide(call, generation, BROKEN, &o);
    } else if (late) {
        name_missing(call, generation, &o);
        if (!full && find_holds(call, generation, &o) != MOOR_OK)
            add_text(&o, "; %s", moor_last_error());
        name_holders(&o);
        decide(call, generation, TIMED_OUT, &o);
    }
    return MOOR_OK;
}

static uint64_t spin_until(const moor_barrier_call *call, uint64_t now)
{
    cpu_set_t cpus;
    if (!call->spin_us || sched_getaffinity(0, sizeof(cpus), &cpus) != 0 || (uint32_t)CPU_COUNT(&cpus) < call->size)
        return now; /* a spinner would keep the rank that it waits for from running */
    return now + call->spin_us * 1000ull;
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Nobody may pass a rank that is not there any more, and nobody shall wait for it: the round ends for all, unless it was decided. */
static void break_off(const moor_barrier_call *call, uint32_t generation)
{
    obstacle o = {.missing = 1};
    add_text(&o, "%s %u was interrupted while it waited", call->size ? "rank" : "external", call->rank);
    decide(call, generation, BROKEN, &o);
}

/* Until the round is decided. Fails when holds cannot be read, or when the caller is interrupted who is not in the round; then it stays open
 * for the others. */
static moor_status wait_for(const moor_barrier_call *call, uint32_t generation, uint64_t deadline, int is_in_it)
{
    moor_state_barrier *cell = call->cell;
    uint64_t spin = spin_until(call, moor_now_ns()), next;
    moor_status status;
    for (int first = 1;; first = 0) {
        uint32_t seen = atomic_load(&cell->futex);
        if (GENERATION(atomic_load(&cell->word)) != generation)
            return MOOR_OK;
        if ((status = look(call, generation, deadline, first, &next)))
            return status;
        if (moor_interrupted()) {
            if (!is_in_it)
                return moor_fail(MOOR_E_INTERRUPTED, "%s: interrupted while another one waited as rank %u", call->what,
                                 call->rank);
            break_off(call, generation);
        }
        while (GENERATION(atomic_load(&cell->word)) == generation && atomic_load(&cell->futex) == seen &&
               moor_now_ns() < spin)
            pause_cpu();
        if (GENERATION(atomic_load(&cell->word)) == generation)
            moor_futex_wait(&cell->futex, seen, moor_interrupt_slice(min_ns(next, deadline)));
    }
}

/* Enters the open round. A rank that is in it already (a second waker) waits until it is decided and enters the next one. */
static moor_status arrive(const moor_barrier_call *call, uint64_t deadline, uint32_t *out)
{
    moor_state_barrier *cell = call->cell;
    for (;;) {
        uint32_t generation = GENERATION(atomic_load(&cell->word));
        uint64_t mine = atomic_load(my_cell(call));
        moor_status status = MOOR_OK;
        if (is_in(mine, generation)) {
            if (call->observe) { /* nobody waits in it; the others never came */
                obstacle o = {0};
                name_missing(call, generation, &o);
                decide(call, generation, TIMED_OUT, &o);
            } else if ((status = wait_for(call, generation, deadline, 0))) {
                return status;
            }
            continue;
        }
        if (call->size && (status = agree_on_size(call, generation)))
            return status;
        if (call->device && call->member->slot < MOOR_MAX_PROCESSES)
            MOOR_TEXT_PUT(call->member->state->processes[call->member->slot].device, call->device,
                          strlen(call->device));
        if (!atomic_compare_exchange_strong(my_cell(call), &mine, WITH_GENERATION(generation, my_number(call))))
            continue; /* two at once as the same rank */
        /* Decided meanwhile. Passed: another one's look found this arrival, which no round passes without. Else it came too late
         * for it, and is for the next. */
        uint64_t word = atomic_load(&cell->word);
        if (GENERATION(word) != generation && outcome_of(word, generation) != PASSED)
            continue;
        moor_futex_raise(&cell->futex);
        *out = generation;
        return MOOR_OK;
    }
}

/* ---- results ------------------------------------------------------------------------------------------------------ */

static void give(moor_barrier_result *to, const moor_barrier_result *full)
{
    size_t head = offsetof(moor_barrier_result, generation);
    if (!to)
        return;
    size_t size = to->size < sizeof(*full) ? to->size : sizeof(*full);
    if (size > head)
        memcpy((char *)to + head, (const char *)full + head, size - head);
}

/* Why the round failed, as its decider told; it may be about to, or have died before it could. */
static void read_why(moor_state_barrier *cell, uint32_t generation, moor_barrier_result *out)
{
    uint64_t deadline = moor_now_ns() + TEXT_WAIT_NS;
    for (;;) {
        uint64_t told = atomic_load(&cell->told);
        if (told == (uint64_t)generation + 1) {
            out->missing_ranks = atomic_load(&cell->missing);
            out->holders = atomic_load(&cell->holders);
            MOOR_TEXT_GET(cell->text, out->text, sizeof(out->text));
            if (atomic_load(&cell->told) == told)
                return;
        }
        if (told > (uint64_t)generation + 1 || moor_now_ns() >= deadline)
            break;
        moor_nap(100000, deadline);
    }
    out->missing_ranks = out->holders = 0;
    snprintf(out->text, sizeof(out->text), "round %u ended; its reason was not kept", generation);
}

static void note_wait(moor_state_barrier *cell, uint64_t waited)
{
    uint64_t longest = atomic_load(&cell->max_wait_ns);
    atomic_store(&cell->last_wait_ns, waited);
    while (longest < waited && !atomic_compare_exchange_weak(&cell->max_wait_ns, &longest, waited))
        ;
}

/* Observe: whoever completes the round ends it; what enforce would wait for is named and counted, nothing waits. */
static void observe(const moor_barrier_call *call, uint32_t generation, moor_barrier_result *result)
{
    obstacle o = {0};
    int full = complete(call->cell, generation);
    if (find_holds(call, generation, &o) != MOOR_OK)
        add_text(&o, "%s", moor_last_error());
    if (!full)
        name_missing(call, generation, &o);
    name_holders(&o);
    if (full)
        decide(call, generation, PASSED, &o);
    result->missing_ranks = o.missing;
    result->holders = o.holders.count;
    memcpy(result->text, o.text, sizeof(result->text));
    if (o.text[0]) {
        atomic_fetch_add(&call->member->state->counters[MOOR_C_BARRIER_WOULD_WAIT], 1);
        moor_log(MOOR_LOG_INFO, "%s (observe): rank %u would have waited: %s", call->what, call->rank, o.text);
    }
}

static moor_status check_call(const moor_barrier_call *call)
{
    if (call->size > MOOR_MAX_RANKS || call->external > MOOR_MAX_EXTERNAL ||
        call->rank >= (call->size ? call->size : MOOR_MAX_EXTERNAL))
        return moor_fail(MOOR_E_INVALID, "%s: rank %u of %u (at most %d ranks, %d external arrivals; %u expected)",
                         call->what, call->rank, call->size, MOOR_MAX_RANKS, MOOR_MAX_EXTERNAL, call->external);
    if (call->device && strlen(call->device) >= MOOR_LABEL_BYTES)
        return moor_fail(MOOR_E_INVALID, "%s: the device's name has %zu bytes, %d is the limit", call->what,
                         strlen(call->device), MOOR_LABEL_BYTES - 1);
    return MOOR_OK;
}

moor_status moor_barrier_meet(const moor_barrier_call *call, double timeout, moor_barrier_result *result)
{
    uint64_t start = moor_now_ns(), deadline = moor_deadline(timeout);
    moor_barrier_result full = MOOR_BARRIER_RESULT_INIT;
    uint32_t generation;
    moor_status status = check_call(call);
    if (status || (status = arrive(call, deadline, &generation)))
        return status;
    full.generation = generation;
    if (call->observe) {
        observe(call, generation, &full);
        give(result, &full);
        return MOOR_OK;
    }
    if ((status = wait_for(call, generation, deadline, 1)))
        return status;
    full.waited_ns = moor_now_ns() - start;
    full.outcome = outcome_of(atomic_load(&call->cell->word), generation);
    if (full.outcome != PASSED)
        read_why(call->cell, generation, &full);
    note_wait(call->cell, full.waited_ns);
    give(result, &full);
    if (moor_interrupted())
        return moor_fail(MOOR_E_INTERRUPTED, "%s: interrupted after %.3f s; %s", call->what,
                         (double)full.waited_ns / 1e9,
                         full.outcome == PASSED ? "all had arrived, and the others have passed"
                                                : "its round is broken for all that were in it");
    if (full.outcome == PASSED)
        return MOOR_OK;
    return moor_fail(full.outcome == TIMED_OUT ? MOOR_E_TIMEOUT : MOOR_E_BROKEN, "%s, rank %u, after %.3f s: %s",
                     call->what, call->rank, (double)full.waited_ns / 1e9, full.text);
}

/* ---- who calls ---------------------------------------------------------------------------------------------------- */

moor_status moor_resume_arrive(moor_process *process, uint32_t rank, uint32_t world, uint32_t replica,
                               const char *device, double timeout, moor_barrier_result *result)
{
    moor_status status = moor_process_check(process, "resume_arrive");
    moor_barrier_result full = MOOR_BARRIER_RESULT_INIT;
    char what[48], name[MOOR_LABEL_BYTES];
    if (status)
        return status;
    if (!world || replica >= MOOR_MAX_REPLICAS)
        return moor_fail(MOOR_E_INVALID, "resume_arrive: rank %u of %u, replica %u of at most %d", rank, world, replica,
                         MOOR_MAX_REPLICAS);
    if ((status = moor_hold_device_name(device, name)))
        return status;
    if (process->config.barrier_mode == MOOR_MODE_OFF) {
        give(result, &full);
        return MOOR_OK;
    }
    snprintf(what, sizeof(what), "resume barrier of replica %u", replica);
    moor_member member = moor_member_of(process);
    moor_barrier_call call = {.member = &member,
                              .cell = &process->state->resume[replica],
                              .what = what,
                              .rank = rank,
                              .size = world,
                              .external = process->config.barrier_external,
                              .replica = replica,
                              .spin_us = process->config.barrier_spin_us,
                              .observe = process->config.barrier_mode == MOOR_MODE_OBSERVE,
                              .bases = &process->hold_bases,
                              .device = name};
    uint64_t start = moor_now_ns();
    status = moor_barrier_meet(&call, timeout, result);
    moor_count_add(process, MOOR_C_BARRIER_WAIT_NS, moor_now_ns() - start);
    if (status == MOOR_OK || status == MOOR_E_TIMEOUT || status == MOOR_E_BROKEN)
        moor_count_add(process,
                       !status                    ? MOOR_C_BARRIER_PASSED
                       : status == MOOR_E_TIMEOUT ? MOOR_C_BARRIER_TIMEOUTS
                                                  : MOOR_C_BARRIER_BROKEN,
                       1);
    return status;
}

static moor_status find_named(moor_state *state, const char *name, moor_state_barrier **out)
{
    for (uint32_t i = 0; i < MOOR_MAX_BARRIERS; i++) {
        moor_state_barrier *cell = &state->named[i];
        uint32_t named = 0;
        if (atomic_compare_exchange_strong(&cell->named, &named, 1)) {
            snprintf(cell->name, sizeof(cell->name), "%s", name);
            atomic_store(&cell->named, 2);
            *out = cell;
            return MOOR_OK;
        }
        /* Being named at this moment: perhaps with our name. Whoever does it may be dead, so not for long. */
        uint64_t patience = moor_deadline(0.01);
        while (atomic_load(&cell->named) == 1 && moor_now_ns() < patience)
            moor_nap(50000, patience);
        if (atomic_load(&cell->named) == 2 && !strcmp(cell->name, name)) {
            *out = cell;
            return MOOR_OK;
        }
    }
    return moor_fail(MOOR_E_FULL,
                     "barrier %s: an instance has %d names, and all are taken; a name serves for meeting after meeting",
                     name, MOOR_MAX_BARRIERS);
}

/* "resume" or "resume:<replica>"; -1 when it is some other name. */
static int resume_name(const char *name)
{
    if (strncmp(name, "resume", 6))
        return -1;
    if (!name[6])
        return 0;
    char *end;
    long replica = name[6] == ':' ? strtol(name + 7, &end, 10) : -1;
    return replica >= 0 && replica < MOOR_MAX_REPLICAS && end != name + 7 && !*end ? (int)replica : -1;
}

moor_status moor_barrier_client(const moor_member *member, const char *name, uint32_t size, uint32_t rank,
                                double timeout, moor_barrier_result *result)
{
    char what[MOOR_LABEL_BYTES + 16];
    moor_barrier_call call = {.member = member, .what = what, .rank = rank, .replica = MOOR_NO_REPLICA};
    if (!name || !*name || strlen(name) >= MOOR_LABEL_BYTES)
        return moor_fail(MOOR_E_INVALID, "barrier: a name has 1 to %d bytes", MOOR_LABEL_BYTES - 1);
    snprintf(what, sizeof(what), "barrier %s", name);
    int replica = resume_name(name);
    if (replica >= 0) {
        call.cell = &member->state->resume[replica];
    } else {
        if (!size)
            return moor_fail(MOOR_E_INVALID, "barrier %s: a size of 0", name);
        call.size = size;
        moor_status status = check_call(&call); /* a name that is taken stays taken */
        if (status || (status = find_named(member->state, name, &call.cell)))
            return status;
    }
    return moor_barrier_meet(&call, timeout, result);
}

/* ---- the dead ----------------------------------------------------------------------------------------------------- */

static void break_round_of(const moor_member *member, moor_state_barrier *cell, uint32_t slot)
{
    moor_barrier_call call = {.member = member, .cell = cell, .replica = MOOR_NO_REPLICA};
    uint32_t generation = GENERATION(atomic_load(&cell->word)), external,
             size = round_size(cell, generation, &external);
    for (uint32_t i = 0; i < size + external; i++) {
        uint64_t arrival = atomic_load(i < size ? &cell->arrived[i] : &cell->external[i - size]);
        if (!is_in(arrival, generation) || (uint32_t)arrival != slot + 1)
            continue;
        obstacle o = {.missing = 1};
        add_text(&o, "%s %u (pid %u) died while it waited", i < size ? "rank" : "external", i < size ? i : i - size,
                 member->state->processes[slot].pid);
        decide(&call, generation, BROKEN, &o);
        return;
    }
}

void moor_barrier_slot_ended(const moor_member *member, uint32_t slot)
{
    for (uint32_t i = 0; i < MOOR_MAX_REPLICAS; i++)
        break_round_of(member, &member->state->resume[i], slot);
    for (uint32_t i = 0; i < MOOR_MAX_BARRIERS; i++)
        break_round_of(member, &member->state->named[i], slot);
}
