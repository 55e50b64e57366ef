/* SPDX-License-Identifier: Apache-2.0 */
/*
 * narrow.h — expert ids of one layer, from whatever integer the engine uses, into the rows of a step.
 *
 * Called by step.c (capture, no lock) and fill.c. Owns nothing. One pass that stores and keeps the largest id seen: whether all were in range is known
 * at its end, so the caller must not let rows be seen before that (rows of a step are invisible until its commit).
 */
#ifndef MOOR_NARROW_H
#define MOOR_NARROW_H

#include <stddef.h>
#include <stdint.h>

#include <moor/moor.h>

/* n tokens from source token `token` on go to rows that lie one after the other from `rows`. */
typedef struct moor_span {
    uint8_t *rows;
    uint32_t token, n;
} moor_span;

typedef struct moor_narrow {
    const moor_span *spans;
    uint32_t n_spans, k;
    size_t row_bytes, column;       /* bytes from row to row, and from a row's begin to the layer's ids */
    const uint8_t *source;          /* token 0 */
    ptrdiff_t token_bytes, k_bytes; /* from token to token, from id to id */
} moor_narrow;

/* The largest id, read as unsigned 64 bit (a negative one is huge); 0 when there was none. */
typedef uint64_t (*moor_narrow_fn)(const moor_narrow *job);

enum { MOOR_ISA_SCALAR = 0, MOOR_ISA_AVX2 = 1, MOOR_ISA_AVX512 = 2 };

int moor_isa_best(void); /* of this CPU */
int moor_isa(void);      /* what is used */
/* Tests: what moor_isa says from now on (at most moor_isa_best); -1: the best. */
void moor_isa_force(int isa);

/* The kernel for source dtype → 1 or 2 byte rows; contiguous: k_bytes is the size of an id. NULL: no such dtype. */
moor_narrow_fn moor_narrow_pick(uint32_t dtype, uint32_t row_id_bytes, int contiguous);
uint32_t moor_narrow_dtype_bytes(uint32_t dtype); /* 0: no such dtype */
/* One id, sign-extended. */
int64_t moor_id_load(const uint8_t *source, uint32_t dtype);

#endif
