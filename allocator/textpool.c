/* SPDX-License-Identifier: Apache-2.0 */
#include "textpool.h"

#include <stdlib.h>
#include <string.h>

#include "heap.h"

static void drop(moor_textpool *pool, moor_text_piece *piece)
{
    if (piece->next)
        piece->next->previous = piece->previous;
    *(piece->previous ? &piece->previous->next : &pool->pieces) = piece->next;
    pool->bytes -= sizeof(*piece) + piece->size;
    moor_heap_free(piece);
}

int moor_textpool_reserve(moor_textpool *pool, size_t n)
{
    moor_text_piece *first = pool->pieces;
    if (first && n <= first->size - first->used)
        return 1;
    size_t size = first ? first->size * 2 : MOOR_TEXT_FIRST;
    size = size > MOOR_TEXT_PIECE ? MOOR_TEXT_PIECE : size;
    size = size < n ? n : size;
    if (n > SIZE_MAX - sizeof(*first) || moor_fault_hit())
        return 0;
    moor_text_piece *piece = malloc(sizeof(*piece) + size); /* not cleared: it is written before it is read */
    if (!piece)
        return 0;
    *piece = (moor_text_piece){.next = first, .size = size};
    if (first) {
        first->previous = piece;
    }
    pool->pieces = piece;
    pool->bytes += sizeof(*piece) + size;
    if (first && !first->refs)
        drop(pool, first); /* it was kept to be filled */
    return 1;
}

const uint8_t *moor_textpool_put(moor_textpool *pool, const void *text, size_t n, moor_text_piece **piece)
{
    moor_text_piece *first = pool->pieces;
    uint8_t *at = first->bytes + first->used;
    memcpy(at, text, n);
    first->used += n;
    first->refs++;
    *piece = first;
    return at;
}

void moor_text_unref(moor_textpool *pool, moor_text_piece *piece, const uint8_t *text, size_t n)
{
    if (n && text + n == piece->bytes + piece->used)
        piece->used -= n; /* a turn that is tried again takes no more room each time */
    if (--piece->refs)
        return;
    if (piece == pool->pieces && piece->size <= MOOR_TEXT_PIECE)
        piece->used = 0;
    else
        drop(pool, piece);
}

void moor_textpool_clear(moor_textpool *pool)
{
    while (pool->pieces) {
        moor_text_piece *next = pool->pieces->next;
        moor_heap_free(pool->pieces);
        pool->pieces = next;
    }
    pool->bytes = 0;
}
