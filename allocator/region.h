/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region.h — the shared memory under the arena: one sealed memfd, mapped once, handed out from its low end.
 *
 * Called by arena.c's extent hooks and, for the descriptor that consumers get, by the store. Owns the memfd and the mapping.
 * Address space is only ever taken, never given back (jemalloc keeps and reuses what it took); pages are given back by
 * punching holes. `lock` protects the bump pointer; the rest is constant.
 */
#ifndef MOOR_REGION_H
#define MOOR_REGION_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include <moor/moor.h>

typedef struct moor_region {
    int fd;
    uint8_t *base;
    size_t size, page;
    pthread_mutex_t lock;
    size_t used;   /* bytes taken from the low end */
    int committed; /* vm.overcommit_memory is 2: all pages were taken at the start, and none is given back */
} moor_region;

/* bytes are rounded up to pages. The mapping is shared, writable and not inherited by fork; the file cannot be resized or
 * sealed further and has mode 0400. */
moor_status moor_region_open(moor_region *region, uint64_t bytes);
void moor_region_close(moor_region *region);
/* Takes size bytes (pages) at `at`, or anywhere when NULL, aligned. NULL: there is no room. */
void *moor_region_take(moor_region *region, void *at, size_t size, size_t alignment);
/* Gives the pages of a range back to the kernel; they read as zero afterwards. 0 = done. */
int moor_region_punch(moor_region *region, void *address, size_t length);
/* A read-only descriptor of the same file, close-on-exec. */
moor_status moor_region_readonly_fd(const moor_region *region, int *fd);
/* Bytes that the file has now. */
uint64_t moor_region_resident(const moor_region *region);
/* Tests: another file than /proc/sys/vm/overcommit_memory. */
void moor_region_set_policy_file(const char *path);

#endif
