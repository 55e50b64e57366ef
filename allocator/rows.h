/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h — the rows of one record as segments of shared blocks, gaps included.
 *
 * Called by the store's parts under its lock. Owns one reference per segment. Segments are in row order without holes: a range
 * whose ids are not known is a segment without a block, with the reasons. What can fail is separate from what
 * changes: moor_rows_reserve first, then appends that cannot fail.
 */
#ifndef MOOR_ROWS_H
#define MOOR_ROWS_H

#include "block.h"

typedef struct moor_piece {
    uint64_t start, rows;
    moor_block *block; /* NULL: missing */
    uint32_t first;    /* row of the block */
    uint32_t reasons;  /* MOOR_REASON_* of a missing piece */
} moor_piece;

enum { MOOR_ROWS_INLINE = 6 };

typedef struct moor_rows {
    moor_piece *piece;
    uint32_t n, cap;
    uint64_t end, missing;
    moor_piece inline_pieces[MOOR_ROWS_INLINE];
} moor_rows;

void moor_rows_init(moor_rows *rows);
/* Room for `more` further pieces. */
moor_status moor_rows_reserve(moor_rows *rows, uint32_t more);
/* Appends rows first…first+n-1 of block; extends the last piece when it continues there, else takes a reference. */
void moor_rows_append(moor_rows *rows, moor_block *block, uint32_t first, uint64_t n);
void moor_rows_append_missing(moor_rows *rows, uint64_t n, uint32_t reasons);
/* Cuts to `end` rows. */
void moor_rows_cut(moor_rows *rows, moor_blocks *blocks, uint64_t end);
/* Index of the piece that holds row `row` < end. */
uint32_t moor_rows_at(const moor_rows *rows, uint64_t row);
/* Puts rows of a block in the place of missing ones: [start, start + n) lies within missing pieces' rows of one piece.
 * Needs a reserve of 2. Takes a reference. */
void moor_rows_patch(moor_rows *rows, uint64_t start, moor_block *block, uint32_t first, uint64_t n);
/* Turns present rows [start, start + n), within one piece, into missing ones. Needs a reserve of 2. */
void moor_rows_void(moor_rows *rows, moor_blocks *blocks, uint64_t start, uint64_t n, uint32_t reasons);
uint32_t moor_rows_reasons(const moor_rows *rows);
/* Row memory of a present row. */
static inline uint8_t *moor_piece_data(const moor_piece *piece, uint64_t row, uint32_t row_bytes)
{
    return piece->block->data + (size_t)(piece->first + (row - piece->start)) * row_bytes;
}
void moor_rows_clear(moor_rows *rows, moor_blocks *blocks);

#endif
