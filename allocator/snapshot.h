/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.h — a quiesced store as one file, and back (SEMANTICS 2.6). Saving is here, restoring in restore.c.
 *
 * Called by hooks/record.c for the ABI, any thread. Owns nothing between calls. The locks of the store and its sessions are held while what there is is written
 * down in memory (references to blocks, not rows) and while it is put in place; never during a system call on a file. Rows of sealed
 * records do not change, so a store that goes on while its snapshot is being written does not change it.
 *
 * What is kept: records with handle, ids and aliases, owner, rows with their weight epochs and missing ranges; blocks that are
 * shared once; sessions with their tries, and which are gone; the generation of every slot, so that a handle that was stale stays stale;
 * labels of weight epochs.
 * What is not: leases and clients (they are of living processes), the KV-slot index (the KV cache is gone), counters, ages (what is
 * restored is as old as the restore).
 *
 * Each store of an instance has a file of its own in the directory, store-<n>.moor; snapfile.h describes its frame. Sections, numbers
 * little-endian:
 *   model    u32 layers, top_k, experts, model_layers, bytes of an id, bytes of a row; i32 × layers: numbers of the layers
 *   store    u64 records ever made, u64 weight epoch, u32 slots, u32 records, u32 blocks, u32 stores of the
 *            instance (0: not told); u32 × slots: generations
 *   labels   u32 n; n × (u64 epoch, u32 bytes, label)
 *   blocks   × blocks: u32 rows, u32 runs, u64 XXH3-64 of the rows; runs × (u32 first row, u64 weight epoch)
 *   records  × records, longest untouched first: u64 handle, u32 owner (not in format 1), u32 flags, u32 seal flags, u64 dropped
 *            rows, u64 number in the order of creation, u32 bytes of the id, u32 aliases, u32 pieces; id;
 *            aliases × (u64 lo, u64 hi, u32 index); pieces × (u64 rows, u32 block or 2^32-1, u32 first row or reasons)
 *   rows     the blocks' rows, one block behind the other
 *   sessions snapsessions.h (not in format 1)
 */
#ifndef MOOR_SNAPSHOT_H
#define MOOR_SNAPSHOT_H

#include <stdatomic.h>

#include "store.h"

enum { MOOR_SNAP_DETACHED = 1, MOOR_SNAP_OPENED = 2, MOOR_SNAP_KNOWN_FLAGS = 3 }; /* flags of a record */
#define MOOR_SNAP_NO_BLOCK UINT32_MAX

enum { MOOR_SNAP_LABEL_BYTES = 64 };

/* Name of a store's file in the directory. */
void moor_snapshot_name(uint32_t store_index, char name[32]);

typedef struct moor_save {
    const char *dir; /* absolute; its last component is made when it is absent */
    uint64_t deadline_ns;
    const _Atomic int *cancel; /* may be NULL; 1: give up */
    uint64_t epoch;            /* of the weights now */
    /* The label of a weight epoch, "" when it has none. May be NULL. */
    void (*label_of)(void *user, uint64_t epoch, char text[MOOR_SNAP_LABEL_BYTES]);
    void *user;
} moor_save;

/* MOOR_E_STATE when a step is open or a record is not sealed: the text names them. On any error the snapshot that was there is as it
 * was. *bytes (may be NULL): size of the file. */
moor_status moor_records_save(moor_records *records, const moor_save *save, uint64_t *bytes);

typedef struct moor_restore {
    const char *dir;
    /* Called once all is in place, in ascending order of epochs. May be NULL. */
    void (*label)(void *user, uint64_t epoch, const char *text);
    void *user;
} moor_restore;

typedef struct moor_restored {
    uint64_t records, rows, epoch; /* epoch: of the weights when it was saved */
} moor_restored;

/* Into a store that never had a record, all or nothing. MOOR_E_NOT_FOUND; MOOR_E_STATE: the store is not new; MOOR_E_INVALID: another
 * model, or of more stores than the instance has (both are named); MOOR_E_FULL: the arena is too small; MOOR_E_VERSION, MOOR_E_CORRUPT: the place is named. *restored may be NULL. */
moor_status moor_records_restore(moor_records *records, const moor_restore *restore, moor_restored *restored);

#endif
