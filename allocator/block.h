/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h — a run of rows in the arena, reference-counted, with the weight epoch of each row.
 *
 * Called by rows.c, kvindex.c and step.c under the store's lock; only the row memory itself is written without it, by the
 * one record whose tail the block is. Rows are immutable once accepted, so any number of records and index entries refer to them.
 * A block whose last reference went is put on a list; moor_blocks_free gives the memory back after the lock was let go.
 */
#ifndef MOOR_BLOCK_H
#define MOOR_BLOCK_H

#include "arena.h"

/* Rows from `first` on (of the block) were produced under `epoch`. */
typedef struct moor_run {
    uint32_t first;
    uint64_t epoch;
} moor_run;

enum { MOOR_BLOCK_BYTES = 2 << 20, MOOR_BLOCK_INLINE_RUNS = 2 };

typedef struct moor_block {
    uint8_t *data;
    uint32_t refs, index_refs; /* index_refs: those of refs that the KV index holds */
    uint32_t rows;             /* capacity */
    uint32_t n_runs, cap_runs;
    uint32_t foreign; /* its rows came from outside: what this worker computes for the same tokens may differ */
    moor_run *runs;
    moor_run inline_runs[MOOR_BLOCK_INLINE_RUNS];
    struct moor_block *next_dead;
} moor_block;

/* Where blocks come from and where dead ones wait. */
typedef struct moor_blocks {
    moor_arena *arena;
    uint32_t row_bytes, max_rows; /* max_rows: of one block */
    moor_block *dead;
    uint64_t live; /* blocks */
} moor_blocks;

/* A block for at least `least` rows (≤ max_rows), for about `most` if there is room; one reference. NULL: MOOR_E_FULL or
 * MOOR_E_NOMEM in *why. */
moor_block *moor_block_new(moor_blocks *blocks, uint32_t least, uint32_t most, moor_status *why);
/* In place to at least `least` rows; 0 = done, else unchanged. */
int moor_block_grow(moor_blocks *blocks, moor_block *block, uint32_t least, uint32_t most);
void moor_block_shrink(moor_blocks *blocks, moor_block *block, uint32_t rows);
static inline void moor_block_ref(moor_block *block)
{
    block->refs++;
}
void moor_block_unref(moor_blocks *blocks, moor_block *block);
/* Makes sure that the next moor_block_stamp cannot fail. */
moor_status moor_block_reserve_run(moor_block *block);
/* Rows first… were written under epoch; what was stamped from `first` on before is void. */
void moor_block_stamp(moor_block *block, uint32_t first, uint64_t epoch);
uint64_t moor_block_epoch(const moor_block *block, uint32_t row);
/* Frees a list taken from blocks->dead. Without the store's lock. */
void moor_blocks_free(moor_arena *arena, moor_block *dead);

#endif
