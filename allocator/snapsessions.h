/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapsessions.h — section `sessions` of a snapshot: tries, what their keys stand for, and the ids of sessions that are gone.
 *
 * Called by snapshot.c and restore.c with the sessions' lock and the store's. Owns nothing. What is restored outlives every client: its
 * starter is of a process that is gone.
 *
 *   u32 n; n × (u64 lo, u64 hi of the id's hash, u32 1 = lives, 0 = released; of one that lives: u32 bytes of the id, u32 records, u32
 *   keys; id; records × (u64 handle, u32 parked), in the session's order; keys × key)
 *   key: u32 shared, u32 more, `more` bytes (it begins with `shared` bytes of the key before); u32 1 = it has a value, 0 = it only has
 *   keys below it; value: u64 start, u64 length, u64 handle or 0, u32 tokens, i32 × tokens
 * Keys come as the trace tree has them, parents first, siblings in the order they came; inserted in this order they hang as they hung.
 */
#ifndef MOOR_SNAPSESSIONS_H
#define MOOR_SNAPSESSIONS_H

#include "restore.h"

void moor_snapsessions_put(moor_snapbytes *out, const moor_records *records);
/* Into a store without sessions; the plan's records are in their slots. On failure the caller forgets what there is by then. */
moor_status moor_snapsessions_read(moor_restore_plan *plan);

#endif
