/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#include <string.h>

#include "error.h"
#include "heap.h"

static uint32_t rows_in(const moor_blocks *blocks, size_t bytes)
{
    size_t rows = bytes / blocks->row_bytes;
    return rows > blocks->max_rows ? blocks->max_rows : (uint32_t)rows;
}

moor_block *moor_block_new(moor_blocks *blocks, uint32_t least, uint32_t most, moor_status *why)
{
    moor_block *block = moor_heap_alloc(sizeof(*block));
    if (!block) {
        *why = moor_fail(MOOR_E_NOMEM, "no memory for a block's description");
        return NULL;
    }
    uint32_t rows = most > least ? most : least;
    block->data = moor_arena_alloc(blocks->arena, (size_t)rows * blocks->row_bytes);
    if (!block->data && rows > least)
        block->data = moor_arena_alloc(blocks->arena, (size_t)least * blocks->row_bytes);
    if (!block->data) {
        moor_heap_free(block);
        *why = moor_fail(MOOR_E_FULL, "arena of %zu bytes is full: no room for %u rows of %u bytes",
                         blocks->arena->region.size, least, blocks->row_bytes);
        return NULL;
    }
    block->rows = rows_in(blocks, moor_arena_usable(blocks->arena, block->data));
    block->refs = 1;
    block->runs = block->inline_runs;
    block->cap_runs = MOOR_BLOCK_INLINE_RUNS;
    blocks->live++;
    return block;
}

int moor_block_grow(moor_blocks *blocks, moor_block *block, uint32_t least, uint32_t most)
{
    size_t bytes = blocks->row_bytes;
    size_t usable = moor_arena_grow(blocks->arena, block->data, least * bytes, most * bytes);
    if (!usable)
        return -1;
    block->rows = rows_in(blocks, usable);
    return 0;
}

void moor_block_shrink(moor_blocks *blocks, moor_block *block, uint32_t rows)
{
    if (rows >= block->rows)
        return;
    block->rows = rows_in(blocks, moor_arena_shrink(blocks->arena, block->data, (size_t)rows * blocks->row_bytes));
}

void moor_block_unref(moor_blocks *blocks, moor_block *block)
{
    if (--block->refs)
        return;
    block->next_dead = blocks->dead;
    blocks->dead = block;
    blocks->live--;
}

moor_status moor_block_reserve_run(moor_block *block)
{
    if (block->n_runs < block->cap_runs)
        return MOOR_OK;
    uint32_t cap = block->cap_runs * 2;
    moor_run *runs = moor_heap_alloc(cap * sizeof(*runs));
    if (!runs)
        return moor_fail(MOOR_E_NOMEM, "no memory for %u weight versions of a block", cap);
    memcpy(runs, block->runs, block->n_runs * sizeof(*runs));
    if (block->runs != block->inline_runs)
        moor_heap_free(block->runs);
    block->runs = runs;
    block->cap_runs = cap;
    return MOOR_OK;
}

void moor_block_stamp(moor_block *block, uint32_t first, uint64_t epoch)
{
    while (block->n_runs && block->runs[block->n_runs - 1].first >= first)
        block->n_runs--;
    if (block->n_runs && block->runs[block->n_runs - 1].epoch == epoch)
        return;
    block->runs[block->n_runs++] = (moor_run){first, epoch};
}

uint64_t moor_block_epoch(const moor_block *block, uint32_t row)
{
    for (uint32_t i = block->n_runs; i--;) {
        if (block->runs[i].first <= row)
            return block->runs[i].epoch;
    }
    return 0;
}

void moor_blocks_free(moor_arena *arena, moor_block *dead)
{
    while (dead) {
        moor_block *next = dead->next_dead;
        moor_arena_free(arena, dead->data);
        if (dead->runs != dead->inline_runs)
            moor_heap_free(dead->runs);
        moor_heap_free(dead);
        dead = next;
    }
}
