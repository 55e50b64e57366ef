/* SPDX-License-Identifier: Apache-2.0 */
/*
 * barrier.h — every rank of a replica has arrived and nobody else holds memory on the ranks' devices, before the KV cache is allocated
 * again (SEMANTICS 5). Called by the worker adapters (moor_resume_arrive) and by consumers (moor_barrier_client). Owns
 * state->resume and state->named. No lock and no leader: a round is decided by one compare-and-swap of the cell's word, by whoever
 * finds the conditions met, a deadline passed or a rank dead; every waiter looks after those things in turn, so it does not
 * matter which of them dies.
 *
 * A rank leaves only when its round is decided; one that comes again before that (a second waker) waits for the decision and
 * then arrives in the next round. Modes: enforce as above; observe never waits: a rank arrives and goes on, what enforce would have
 * waited for is counted (moor_barrier_would_wait_total) and named in result.text; off: nothing at all.
 */
#ifndef MOOR_BARRIER_H
#define MOOR_BARRIER_H

#include "member.h"

/* moor_api member; contract in moor.h. */
moor_status moor_resume_arrive(moor_process *process, uint32_t rank, uint32_t world, uint32_t replica,
                               const char *device, double timeout, moor_barrier_result *result);

/* barrier_arrive for a member: "resume" and "resume:<replica>" are external arrivals (barrier.external) of the resume barrier,
 * rank 0…N-1; any other name is a meeting of `size` consumers, rank 0…size-1. */
moor_status moor_barrier_client(const moor_member *member, const char *name, uint32_t size, uint32_t rank,
                                double timeout, moor_barrier_result *result);

enum { MOOR_NO_REPLICA = 0xFFFFFFFF };

/* One arrival, spelled out. */
typedef struct moor_barrier_call {
    const moor_member *member;
    moor_state_barrier *cell;
    const char *what;    /* names it in texts: "resume barrier of replica 0" */
    uint32_t rank, size; /* size 0: an external arrival, `rank` is its number */
    uint32_t external;   /* external arrivals expected besides the ranks */
    uint32_t replica;    /* whose missing ranks are looked up in the process table; MOOR_NO_REPLICA: not at all */
    uint32_t spin_us;
    int observe;
    const moor_dirs *bases; /* where holds are looked for; NULL: nowhere */
    const char *device;
} moor_barrier_call;
moor_status moor_barrier_meet(const moor_barrier_call *call, double timeout, moor_barrier_result *result);

void moor_barrier_slot_ended(const moor_member *member, uint32_t slot);

#endif
