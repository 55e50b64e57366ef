/* SPDX-License-Identifier: Apache-2.0 */
/* table.h — uthash on the store's heap. Its default for a failed allocation is to end the process; here the element stays out of
 * the table, and its hh.tbl is NULL afterwards. Used by ids.c, clients.c and sessions.c, each under its own lock. */
#ifndef MOOR_ALLOCATOR_TABLE_H
#define MOOR_ALLOCATOR_TABLE_H

#include "heap.h"

#define HASH_NONFATAL_OOM 1
#define uthash_malloc(size) moor_heap_alloc(size)
#define uthash_free(memory, size) moor_heap_free(memory)
#include <uthash.h>

#define MOOR_TABLE_HAS(element) ((element)->hh.tbl != NULL)

#endif
