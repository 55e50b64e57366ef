/* SPDX-License-Identifier: Apache-2.0 */
/*
 * textpool.h — text that stays where it is, in pieces that are given back when nobody refers to them any more.
 *
 * Called by trie.c for the text of a session's keys. A conversation's turns arrive one behind the other and so lie one behind the
 * other; a slice may be cut in two and joined again without a copy, because only references are counted, per piece. Owns the pieces.
 * No lock: it belongs to its trie. A piece is at most MOOR_TEXT_PIECE bytes, or as long as the one text that needed it.
 */
#ifndef MOOR_TEXTPOOL_H
#define MOOR_TEXTPOOL_H

#include <stddef.h>
#include <stdint.h>

enum { MOOR_TEXT_FIRST = 1024, MOOR_TEXT_PIECE = 65536 };

typedef struct moor_text_piece {
    struct moor_text_piece *next, *previous;
    size_t used, size;
    uint64_t refs;
    uint8_t bytes[];
} moor_text_piece;

typedef struct moor_textpool { /* all zero: empty */
    moor_text_piece *pieces;   /* the first one is where text goes */
    uint64_t bytes;            /* what the pieces take */
} moor_textpool;

/* Makes room for n bytes; 0: no memory. Nothing else changes. */
int moor_textpool_reserve(moor_textpool *pool, size_t n);
/* Copies n bytes to where there was room made for them. One reference. */
const uint8_t *moor_textpool_put(moor_textpool *pool, const void *text, size_t n, moor_text_piece **piece);
static inline void moor_text_ref(moor_text_piece *piece)
{
    piece->refs++;
}
/* The reference to text…text+n-1 ends. Nobody else refers to these n bytes; n = 0: somebody does. */
void moor_text_unref(moor_textpool *pool, moor_text_piece *piece, const uint8_t *text, size_t n);
/* Everything at once, whatever refers to it. */
void moor_textpool_clear(moor_textpool *pool);

#endif
