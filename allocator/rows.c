/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <string.h>

#include "error.h"
#include "heap.h"

void moor_rows_init(moor_rows *rows)
{
    rows->piece = rows->inline_pieces;
    rows->cap = MOOR_ROWS_INLINE;
    rows->n = 0;
    rows->end = rows->missing = 0;
}

moor_status moor_rows_reserve(moor_rows *rows, uint32_t more)
{
    if (rows->cap - rows->n >= more)
        return MOOR_OK;
    uint32_t cap = rows->cap * 2 > rows->n + more ? rows->cap * 2 : rows->n + more;
    moor_piece *piece = moor_heap_alloc(cap * sizeof(*piece));
    if (!piece)
        return moor_fail(MOOR_E_NOMEM, "no memory for %u segments of a record", cap);
    memcpy(piece, rows->piece, rows->n * sizeof(*piece));
    if (rows->piece != rows->inline_pieces)
        moor_heap_free(rows->piece);
    rows->piece = piece;
    rows->cap = cap;
    return MOOR_OK;
}

void moor_rows_append(moor_rows *rows, moor_block *block, uint32_t first, uint64_t n)
{
    if (!n)
        return;
    moor_piece *last = rows->n ? &rows->piece[rows->n - 1] : NULL;
    if (last && last->block == block && last->first + last->rows == first) {
        last->rows += n;
    } else {
        moor_block_ref(block);
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is room */
        rows->piece[rows->n++] = (moor_piece){rows->end, n, block, first, 0};
    }
    rows->end += n;
}

void moor_rows_append_missing(moor_rows *rows, uint64_t n, uint32_t reasons)
{
    if (!n)
        return;
    moor_piece *last = rows->n ? &rows->piece[rows->n - 1] : NULL;
    if (last && !last->block && last->reasons == reasons)
        last->rows += n;
    else
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is room */
        rows->piece[rows->n++] = (moor_piece){rows->end, n, NULL, 0, reasons};
    rows->end += n;
    rows->missing += n;
}

void moor_rows_cut(moor_rows *rows, moor_blocks *blocks, uint64_t end)
{
    while (rows->end > end) {
        moor_piece *last = &rows->piece[rows->n - 1];
        uint64_t over = rows->end - end;
        uint64_t gone = over < last->rows ? over : last->rows;
        last->rows -= gone;
        rows->end -= gone;
        if (!last->block)
            rows->missing -= gone;
        if (!last->rows) {
            if (last->block)
                moor_block_unref(blocks, last->block);
            rows->n--;
        }
    }
}

uint32_t moor_rows_at(const moor_rows *rows, uint64_t row)
{
    uint32_t low = 0, high = rows->n;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (rows->piece[middle].start <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Replaces rows [start, start + n) of the piece that holds them by `with`, splitting it as needed. */
static void replace(moor_rows *rows, uint64_t start, uint64_t n, moor_piece with)
{
    uint32_t at = moor_rows_at(rows, start);
    moor_piece old = rows->piece[at];
    uint64_t before = start - old.start, after = old.rows - before - n;
    moor_piece parts[3];
    uint32_t count = 0;
    if (before)
        parts[count++] = (moor_piece){old.start, before, old.block, old.first, old.reasons};
    parts[count++] = with;
    if (after)
        parts[count++] =
            (moor_piece){start + n, after, old.block, old.block ? old.first + (uint32_t)(before + n) : 0, old.reasons};
    memmove(&rows->piece[at + count], &rows->piece[at + 1], (rows->n - at - 1) * sizeof(*rows->piece));
    memcpy(&rows->piece[at], parts, count * sizeof(*parts));
    rows->n += count - 1;
}

void moor_rows_patch(moor_rows *rows, uint64_t start, moor_block *block, uint32_t first, uint64_t n)
{
    moor_block_ref(block);
    replace(rows, start, n, (moor_piece){start, n, block, first, 0});
    rows->missing -= n;
}

void moor_rows_void(moor_rows *rows, moor_blocks *blocks, uint64_t start, uint64_t n, uint32_t reasons)
{
    moor_piece *old = &rows->piece[moor_rows_at(rows, start)];
    moor_block *block = old->block;
    /* Each part that is left needs its own reference; the piece's own one goes. */
    block->refs += (start > old->start) + (start + n < old->start + old->rows);
    replace(rows, start, n, (moor_piece){start, n, NULL, 0, reasons});
    rows->missing += n;
    moor_block_unref(blocks, block);
}

uint32_t moor_rows_reasons(const moor_rows *rows)
{
    uint32_t reasons = 0;
    for (uint32_t i = 0; i < rows->n && rows->missing; i++)
        reasons |= rows->piece[i].block ? 0 : rows->piece[i].reasons;
    return reasons;
}

void moor_rows_clear(moor_rows *rows, moor_blocks *blocks)
{
    moor_rows_cut(rows, blocks, 0);
    if (rows->piece != rows->inline_pieces)
        moor_heap_free(rows->piece);
    moor_rows_init(rows);
}
