/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvindex.h — which rows belong to the tokens that a KV-cache block holds (SEMANTICS 1.15).
 *
 * Called by step.c under the store's lock. One entry per KV block of the engine: rows of the block's first n token slots, as
 * up to two pieces of row blocks, each with a reference. An entry is written only for rows that this worker recorded, and ends when
 * the core hands the block out again: so a valid entry is the present occupant's, never an earlier one's.
 */
#ifndef MOOR_KVINDEX_H
#define MOOR_KVINDEX_H

#include "rows.h"

enum { MOOR_KV_PARTS = 2 };

typedef struct moor_kv_entry {
    moor_block *block[MOOR_KV_PARTS];
    uint32_t first[MOOR_KV_PARTS];
    uint32_t rows[MOOR_KV_PARTS];
} moor_kv_entry;

typedef struct moor_kvindex {
    moor_kv_entry *entry; /* NULL: there is no index */
    uint32_t blocks, block_size;
    uint64_t valid;
} moor_kvindex;

moor_status moor_kvindex_open(moor_kvindex *index, uint32_t blocks, uint32_t block_size);
void moor_kvindex_close(moor_kvindex *index, moor_blocks *blocks);
/* Ids outside the index are an error that names id and size; the others end all the same. */
moor_status moor_kvindex_end(moor_kvindex *index, moor_blocks *blocks, const int32_t *ids, uint32_t n);
void moor_kvindex_reset(moor_kvindex *index, moor_blocks *blocks);
/* The arena is full: ends the entries of rows that nothing but the index holds. 1 when there were any. */
int moor_kvindex_shed(moor_kvindex *index, moor_blocks *blocks);
/* The entry of a block, or NULL when the id is outside. */
const moor_kv_entry *moor_kvindex_get(const moor_kvindex *index, int32_t id);
/* Row i of the entry: the part's number and how many rows from i on it has; 0 when the entry does not reach i. */
uint32_t moor_kv_entry_at(const moor_kv_entry *entry, uint32_t i, uint32_t *part, uint32_t *first);
/* Makes the entry of `id` say: from slot `slot` on, the block holds rows position…position+n-1 of `rows`, as far as these are present from
 * `position` on without a gap. What it knows of the slots before stays; when these are unknown, so is what comes after them. n 0: the
 * slots from `slot` on hold something unknown. */
void moor_kvindex_put(moor_kvindex *index, moor_blocks *blocks, int32_t id, uint32_t slot, const moor_rows *rows,
                      uint64_t position, uint32_t n);

#endif
