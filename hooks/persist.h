/* SPDX-License-Identifier: Apache-2.0 */
/*
 * persist.h — the ABI's snapshot functions: a store with the weight epochs and labels that its rows refer to.
 *
 * Called by hosts through the ABI, by plugin/saver.c for a consumer that asks over the socket, and by plugin/server.c for the
 * configuration's record.restore. Owns nothing, no lock; any thread. allocator/snapshot.h says what a snapshot is.
 */
#ifndef MOOR_PERSIST_H
#define MOOR_PERSIST_H

#include "record.h"

/* moor_api members; contracts in moor.h. */
moor_status moor_store_save(moor_store *store, const char *dir, double timeout);
moor_status moor_store_restore(moor_store *store, const char *dir);

/* *cancel (may be NULL): 1 = give up. *bytes: size of the file. */
moor_status moor_store_save_until(moor_store *store, const char *dir, uint64_t deadline_ns, const _Atomic int *cancel,
                                  uint64_t *bytes);

#endif
