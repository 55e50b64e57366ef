/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal.h — how the end of a request travels: the seal ring in the shared state, and what the store does with it.
 *
 * moor_seal_push (store.h) is called by engine cores, any process, lock-free; the drain by the process that owns the store, under its lock. A
 * producer may die at any instruction. It claims a position (tail), writes the entry, then publishes it by moving entry.seq from
 * what the lap before left there to position + 1, with a compare-and-swap. The drainer waits MOOR_SEAL_STUCK_NS for a claimed entry,
 * then publishes it itself as void: the late producer's swap fails, and it pushes again. An entry that two producers of
 * different laps wrote at once (the first one slept through a whole lap) fails its check word.
 */
#ifndef MOOR_SEAL_H
#define MOOR_SEAL_H

#include "store.h"

#define MOOR_SEAL_STUCK_NS 500000000ull

struct moor_records;
/* Under the lock. Returns how many seals were taken. */
uint32_t moor_seal_drain(struct moor_records *records, uint64_t now_ns);
/* Under the lock; see moor_records_seal. */
moor_status moor_seal_apply(struct moor_records *records, moor_hash128 id, moor_hash128 alias, uint64_t rows_expected,
                            uint32_t flags);

/* The two halves of a push, apart so that a test can die between them. */
moor_status moor_seal_claim(moor_state_seal_ring *ring, uint64_t *position);
moor_status moor_seal_publish(moor_state_seal_ring *ring, uint64_t position, moor_hash128 id, moor_hash128 alias,
                              uint64_t rows_expected, uint32_t flags);

#endif
