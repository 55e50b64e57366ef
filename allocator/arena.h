/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h — row memory: a private jemalloc arena whose extents come from the region, and nothing else from it.
 *
 * Called by block.c, with and without the store's lock (jemalloc has its own). Owns the region and the jemalloc arena. jemalloc's own metadata
 * lies in ordinary memory, so a fork or a consumer sees rows only. No thread cache; no purging on the
 * allocation path (decay is off) except before it calls itself full: idle pages go back when moor_arena_purge is called.
 */
#ifndef MOOR_ARENA_H
#define MOOR_ARENA_H

#include <stdatomic.h>

#include "region.h"

typedef struct moor_arena {
    moor_region region;
    unsigned index;           /* jemalloc's */
    _Atomic uint64_t live;    /* usable bytes handed out */
    _Atomic uint64_t refused; /* allocations that found it full */
    _Atomic uint32_t dirty;   /* something was freed since the last purge */
} moor_arena;

moor_status moor_arena_create(uint64_t bytes, moor_arena **out);
void moor_arena_destroy(moor_arena *arena);
/* 64-byte aligned, not zeroed, 16 KiB at least. NULL: full. */
void *moor_arena_alloc(moor_arena *arena, size_t size);
size_t moor_arena_usable(const moor_arena *arena, const void *memory);
/* In place: to at least `least` bytes, to `most` if there is room. Returns the usable size, or 0 when it cannot (unchanged). */
size_t moor_arena_grow(moor_arena *arena, void *memory, size_t least, size_t most);
/* In place, as far as size classes allow. Returns the usable size. */
size_t moor_arena_shrink(moor_arena *arena, void *memory, size_t size);
void moor_arena_free(moor_arena *arena, void *memory);
void moor_arena_purge(moor_arena *arena);
uint64_t moor_arena_offset(const moor_arena *arena, const void *memory);

#endif
