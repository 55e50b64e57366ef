/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit.h — a step's end: its rows become the records', or are given up.
 *
 * moor_records_step_commit and _abandon are in store.h. Called by the recorder thread; under the store's lock, which commit holds once for all
 * requests. Needs no memory. Rows become visible, and known to the KV-slot index, here and not before.
 */
#ifndef MOOR_COMMIT_H
#define MOOR_COMMIT_H

#include "records.h"

/* Gives the open step up. Under the lock. */
void moor_step_give_up(moor_records *records);

#endif
