/* SPDX-License-Identifier: Apache-2.0 */
#include "heap.h"

#include <stdatomic.h>
#include <stdlib.h>

static _Atomic int64_t fault_left; /* > 0: allocations until one fails */
static _Atomic int fault_fired, fault_stays;

static void arm(uint64_t nth, int stays)
{
    atomic_store(&fault_fired, 0);
    atomic_store(&fault_stays, stays);
    atomic_store(&fault_left, (int64_t)nth);
}

void moor_fault_arm(uint64_t nth)
{
    arm(nth, 0);
}

void moor_fault_arm_from(uint64_t nth)
{
    arm(nth, 1);
}

int moor_fault_fired(void)
{
    return atomic_load(&fault_fired);
}

int moor_fault_hit(void)
{
    if (atomic_load_explicit(&fault_left, memory_order_relaxed) <= 0)
        return 0;
    if (atomic_fetch_sub(&fault_left, 1) != 1)
        return 0;
    if (atomic_load(&fault_stays))
        atomic_store(&fault_left, 1);
    atomic_store(&fault_fired, 1);
    return 1;
}

void *moor_heap_alloc(size_t size)
{
    return moor_fault_hit() ? NULL : calloc(1, size);
}

void *moor_heap_raw(size_t size)
{
    return moor_fault_hit() ? NULL : malloc(size);
}

void *moor_heap_realloc(void *old, size_t size)
{
    return moor_fault_hit() ? NULL : realloc(old, size);
}

void moor_heap_free(void *memory)
{
    free(memory);
}
