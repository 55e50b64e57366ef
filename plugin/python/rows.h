/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h: reading recorded rows out of segments: which ones are missing, and copies in another dtype or layout.
 *
 * Called by record*.c for every kind of record (leased from a store, unpickled, concatenated), which all are segments.
 * Plain C: no Python object, no GIL needed, no allocation, no lock; everything is const but the destination.
 */
#ifndef MOOR_PYTHON_ROWS_H
#define MOOR_PYTHON_ROWS_H

#include <moor/moor.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A dtype by its MOOR_DTYPE_*: what Python calls it, its PEP 3118 format and its largest value. */
typedef struct moor_dtype {
    uint32_t code, size;
    uint64_t max;
    const char *name, *format;
} moor_dtype;

const moor_dtype *moor_dtype_of(uint32_t code); /* NULL: no such code */
const moor_dtype *moor_dtype_named(const char *name);
/* From a PEP 3118 format and item size ("=l" of 8 bytes is int64, "l" depends on the platform); NULL: none of ours. */
const moor_dtype *moor_dtype_format(const char *format, size_t size);

typedef struct moor_rows {
    uint64_t rows, missing_rows;
    uint32_t layers, model_layers, top_k, num_experts, n_segments;
    const moor_dtype *dtype;
    const int32_t *layer_ids;     /* [layers] */
    const moor_segment *segments; /* [n_segments] in row order, together exactly rows 0…rows-1 */
} moor_rows;

/* The next missing range that ends behind `from`: true and [*start, *stop), or false. */
bool moor_rows_missing(const moor_rows *rows, uint64_t from, uint64_t *start, uint64_t *stop);
/* True when a row in [start, stop) is missing. */
bool moor_rows_incomplete(const moor_rows *rows, uint64_t start, uint64_t stop);
/* Where rows [start, stop) lie in one piece in the stored layout, or NULL (also for an empty range). */
const void *moor_rows_address(const moor_rows *rows, uint64_t start, uint64_t stop);
/* Bytes of one row. */
size_t moor_rows_bytes(const moor_rows *rows, bool model_layout, const moor_dtype *dtype);
/* Copies rows [start, stop) to dst: [stop-start][layers or model_layers][top_k] of dtype. Missing rows and the columns of
 * dense layers are 0: callers have told the two apart before (moor_rows_incomplete, moor_rows_mask). The caller has checked
 * that start ≤ stop ≤ rows and that dtype holds num_experts - 1. */
void moor_rows_copy(const moor_rows *rows, uint64_t start, uint64_t stop, bool model_layout, const moor_dtype *dtype,
                    void *dst);
/* mask[i] = 1 when row start + i is present. */
void moor_rows_mask(const moor_rows *rows, uint64_t start, uint64_t stop, uint8_t *mask);

#endif
