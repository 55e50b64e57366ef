/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap.h — ordinary memory for metadata, with the one switch that lets a test fail the Nth allocation.
 *
 * Called by everything in allocator/ that keeps records of records, and by both ends of a store's socket (plugin/peer.c, client/); row memory comes from arena.h, which asks the same
 * switch. Owns nothing. Thread-safe.
 */
#ifndef MOOR_HEAP_H
#define MOOR_HEAP_H

#include <stddef.h>
#include <stdint.h>

void *moor_heap_alloc(size_t size);              /* zeroed */
void *moor_heap_raw(size_t size);                /* not zeroed */
void *moor_heap_realloc(void *old, size_t size); /* the grown part is not zeroed */
void moor_heap_free(void *memory);

/* Tests: the nth allocation from now fails (1 = the next one), once; 0 switches it off. _from: it and all that come after. */
void moor_fault_arm(uint64_t nth);
void moor_fault_arm_from(uint64_t nth);
/* 1 when the armed failure has happened since moor_fault_arm. */
int moor_fault_fired(void);
/* Counts one allocation; 1: it must fail. */
int moor_fault_hit(void);

#endif
