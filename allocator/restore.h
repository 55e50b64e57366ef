/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore.h — what restoring a snapshot plans before it changes the store. The entry point, moor_records_restore, is in snapshot.h.
 *
 * Private to restore.c and to who adds a section. Everything of the file is read and checked first, rows go into fresh blocks that nobody
 * else knows, records into slots that are still dead; only then, with nothing left that could fail, does the store have them.
 */
#ifndef MOOR_RESTORE_H
#define MOOR_RESTORE_H

#include "records.h"
#include "snapfile.h"
#include "snapshot.h"

typedef struct moor_planned_block {
    moor_block *block; /* one reference is the plan's */
    uint32_t rows, n_runs;
    uint64_t checksum;
    const uint8_t *runs; /* [n_runs] u32, u64 */
} moor_planned_block;

typedef struct moor_planned_record {
    moor_record_slot *slot;
    uint32_t n_aliases;
    const uint8_t *aliases; /* [n_aliases] u64, u64, u32 */
} moor_planned_record;

typedef struct moor_restore_plan {
    moor_records *records;
    moor_snapsource source;
    uint8_t *memory[MOOR_SNAP_KINDS];
    moor_snapreader reader[MOOR_SNAP_KINDS];
    uint64_t created, epoch, rows;
    uint32_t n_slots, n_records, n_blocks;
    uint32_t *generations;        /* [n_slots] */
    moor_planned_block *blocks;   /* [n_blocks] */
    moor_planned_record *planned; /* [n_records], in the file's order */
    uint32_t made;                /* of planned: those whose slot has something */
} moor_restore_plan;

#endif
