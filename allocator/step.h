/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.h — one step of the engine on its way into the records: begin, capture per layer, commit.
 *
 * Called by the recorder thread through store.h. Owns the step's plan, which is nobody else's: begin makes it under the lock (spans that
 * say where each token's row goes), capture only reads it and writes row memory, commit takes it into the records under the lock.
 * All that can fail for want of memory happens in begin; commit cannot.
 */
#ifndef MOOR_STEP_H
#define MOOR_STEP_H

#include "slots.h"
#include "stage.h"

/* A request of the step. Its tokens are [token, token + count); rows of the first `skip` were accepted before. */
typedef struct moor_step_entry {
    moor_record_slot *record; /* NULL: nothing is recorded for it */
    uint64_t start;
    uint32_t token, count, spec, skip;
    uint32_t piece, n_pieces; /* of step->pieces: where rows start + skip… go, as far as there was room */
    uint32_t kv, n_kv;        /* of step->kv: ids of the KV blocks from number kv_first on */
    uint64_t kv_first;
    uint64_t gap_from, gap_to; /* rows before `start` that the KV index did not know at begin; equal: none */
    uint32_t lost;             /* last rows for which there was no room */
} moor_step_entry;

/* Rows first…first+n-1 of a block are this step's. */
typedef struct moor_step_piece {
    moor_block *block;
    uint32_t first, n;
} moor_step_piece;

typedef struct moor_step {
    int open;
    uint64_t epoch, number; /* number: of the step, from 1 */
    uint32_t tokens, n, cap;
    moor_step_entry *entries;
    moor_step_piece *pieces;
    moor_span *spans; /* what capture writes in place: neighbours in source and target are one */
    uint32_t n_pieces, n_spans, cap_pieces;
    moor_stage stage; /* the rows that it does not */
    uint64_t shed;    /* number of the last step that found the arena full and asked the KV index for rows */
    int32_t *kv;
    uint32_t n_kv, cap_kv;
    uint8_t *captured; /* [layers] 0 not yet, 1 stored, 2 refused */
    uint32_t n_captured;
    /* Counted while no lock is held, told at commit. */
    uint64_t errors;
    /* The records of the last step in batch order: most batches repeat, and need no look-up then. */
    moor_record_slot **last;
    uint32_t n_last;
} moor_step;

struct moor_records;
moor_status moor_step_open(struct moor_records *records);
void moor_step_close(struct moor_records *records);

#endif
