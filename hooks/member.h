/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member.h — who calls a hook: the shared state, the caller's slot in it, and how to tell whether another slot's process lives.
 * A joined process makes one of itself (moor_member_of); a consumer that only mapped the state fills one by hand, with
 * slot MOOR_NO_SLOT. Everything below the ABI functions of gate, weights and barrier takes a member, so that both sides run
 * the same code. Owns nothing, locks nothing.
 */
#ifndef MOOR_MEMBER_H
#define MOOR_MEMBER_H

#include <sys/types.h>

#include "process.h"

enum { MOOR_NO_SLOT = 0xFFFFFFFF };

typedef struct moor_member {
    moor_state *state;
    uint32_t slot;
    int gate_mode;                           /* MOOR_MODE_*; a consumer, who acts on purpose: MOOR_MODE_ENFORCE */
    int (*alive)(void *user, uint32_t slot); /* NULL: nobody can be judged, everybody counts as alive */
    void *user;
} moor_member;

moor_member moor_member_of(moor_process *process);

/* 1 unless the slot's process is known to be gone. A system call, never on a hot path. */
static inline int moor_member_alive(const moor_member *member, uint32_t slot)
{
    if (slot == member->slot || slot >= MOOR_MAX_PROCESSES || !member->alive)
        return 1;
    return member->alive(member->user, slot) != 0;
}

/* The process of `slot` is gone, or leaves: its requests in flight get the outcome UNKNOWN (the gate is poisoned), its update
 * session ends badly, the round that it waited in is broken. Called by process_join when it takes over a slot that was still
 * marked used, before the slot is published again; drains and barriers find the dead by themselves. */
void moor_slot_ended(const moor_member *member, uint32_t slot);

/* 1 while the slot's process has requests in flight or is inside an update session: process_leave then leaves its cell marked used,
 * as that of a process that is gone, and the next drain finds out. */
int moor_slot_busy(moor_state *state, uint32_t slot);

/* getpid() without a system call (cached; a forked child forgets it), for the hot paths: compare with process->pid. */
pid_t moor_pid(void);

#endif
