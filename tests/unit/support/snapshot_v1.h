/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot_v1.h — a snapshot of format 1, written by hand from the description of the format and by nothing of Moor's. */
#ifndef MOOR_TEST_SNAPSHOT_V1_H
#define MOOR_TEST_SNAPSHOT_V1_H

#include <stddef.h>
#include <stdint.h>

enum { V1_LAYERS = 6, V1_TOP_K = 4, V1_EXPERTS = 128, V1_ROW = V1_LAYERS * V1_TOP_K, V1_ROWS = 8, V1_EPOCH = 5 };

/* The id at place i of a row. */
static inline uint8_t snapshot_v1_id(uint32_t row, uint32_t i)
{
    return (uint8_t)((row * 31 + i * 7) % V1_EXPERTS);
}

/* Two records, "old-a" (8 rows, alias "http" with index 1) and "old-b" (the first 3 of the same rows, then 2 missing ones), in slots 0 and
 * 2; slot 1 is free and at generation 4. Returns the number of bytes. */
size_t snapshot_v1(uint8_t *out, size_t room);

#endif
