/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights.h — the weight epoch: which weights produced a row (SEMANTICS 4.5, 4.7, 4.9). Called by the adapters wherever weights
 * can change, by the recorder at every step (moor_weights_mark_used), by the gate (install). Owns state->weights, and of
 * state->gate the epoch and its labels. No lock: words moved by compare-and-swap.
 *
 * The epoch moves when something was recorded or admitted under it since it moved last, or once per update session. So one update
 * that tells of itself in many calls on many ranks moves it once, and rows from before, amid and after never share an epoch.
 * A session lasts while any process is inside. One whose process died is closed as failed by the next begin, drain or reopen.
 */
#ifndef MOOR_WEIGHTS_H
#define MOOR_WEIGHTS_H

#include "member.h"

/* moor_api members; contracts in moor.h. */
moor_status moor_weights_begin(moor_process *process, uint32_t kind);
moor_status moor_weights_touched(moor_process *process, uint32_t kind, const char *what);
moor_status moor_weights_end(moor_process *process, int ok, const char *why);
moor_status moor_weights_label(moor_process *process, const char *label);
uint64_t moor_weights_epoch(moor_process *process); /* 0 without a process */

void moor_weights_raise_used(moor_state *state, uint64_t epoch);

/* The epoch of what is recorded or admitted now, marked as used. Two loads and a compare, but for the first time after a move. */
static inline uint64_t moor_weights_mark_used(moor_state *state)
{
    uint64_t epoch = atomic_load_explicit(&state->gate.epoch, memory_order_acquire);
    if (atomic_load_explicit(&state->weights.used_epoch, memory_order_relaxed) < epoch)
        moor_weights_raise_used(state, epoch);
    return epoch;
}

/* The gate's install: labels the epoch that this update's session moved to, or moves it. Returns the epoch now. */
uint64_t moor_weights_install(moor_state *state, const char *label);
void moor_weights_set_label(moor_state *state, uint64_t epoch, const char *label);
/* The epoch's label, "" when it has none or is too old. */
void moor_weights_label_of(moor_state *state, uint64_t epoch, char *out, size_t size);

/* A snapshot's rows are here again: the epoch moves beyond `epoch`, the one of their weights, so that what is recorded from now on is not
 *  taken for theirs. label: of the weights that are loaded now, "" for none. */
void moor_weights_restore(moor_state *state, uint64_t epoch, const char *label);
/* The label of one of the snapshot's epochs, unless a newer one has its place. */
void moor_weights_restore_label(moor_state *state, uint64_t epoch, const char *label);

/* Processes inside the update session; their pids in text (may be NULL). */
uint32_t moor_weights_sessions(moor_state *state, char *text, size_t size);
/* 1 while an update that ended badly has not been made good. */
int moor_weights_unknown(moor_state *state);
void moor_weights_close_dead(const moor_member *member);
void moor_weights_slot_ended(const moor_member *member, uint32_t slot);

#endif
