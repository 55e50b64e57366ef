/* SPDX-License-Identifier: Apache-2.0 */
#include "member.h"

#include <pthread.h>

#include "barrier.h"
#include "ticket.h"
#include "weights.h"

static _Atomic pid_t cached_pid;
static _Atomic int fork_watched;
static pthread_once_t watch_fork = PTHREAD_ONCE_INIT;

static void child_after_fork(void)
{
    atomic_store_explicit(&cached_pid, 0, memory_order_relaxed);
}

static void register_fork(void)
{
    atomic_store(&fork_watched, pthread_atfork(NULL, NULL, child_after_fork) == 0);
}

pid_t moor_pid(void)
{
    pid_t pid = atomic_load_explicit(&cached_pid, memory_order_relaxed);
    if (pid)
        return pid;
    pthread_once(&watch_fork, register_fork);
    pid = getpid();
    if (atomic_load(&fork_watched)) /* else a fork would go unseen: ask every time */
        atomic_store_explicit(&cached_pid, pid, memory_order_relaxed);
    return pid;
}

static int alive_by_lock(void *user, uint32_t slot)
{
    return moor_process_alive(user, slot);
}

moor_member moor_member_of(moor_process *process)
{
    moor_member member = {process->state, process->slot, process->config.gate_mode, alive_by_lock, process};
    return member;
}

void moor_slot_ended(const moor_member *member, uint32_t slot)
{
    if (slot >= MOOR_MAX_PROCESSES)
        return;
    moor_ticket_slot_ended(member, slot);
    moor_weights_slot_ended(member, slot);
    moor_barrier_slot_ended(member, slot);
}

int moor_slot_busy(moor_state *state, uint32_t slot)
{
    return slot < MOOR_MAX_PROCESSES &&
           (moor_ticket_slot_busy(state, slot) || atomic_load(&state->weights.depth[slot]));
}
