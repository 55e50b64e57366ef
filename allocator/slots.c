/* SPDX-License-Identifier: Apache-2.0 */
#include "slots.h"

#include <string.h>

#include "error.h"
#include "heap.h"

#define WORD(generation) ((uint64_t)(generation) << 32)
#define GENERATION(word) ((uint32_t)((word) >> 32))

moor_status moor_slots_open(moor_slots *slots)
{
    memset(slots, 0, sizeof(*slots));
    slots->chunk = moor_heap_alloc(MOOR_SLOTS_CHUNKS * sizeof(*slots->chunk));
    return slots->chunk ? MOOR_OK : moor_fail(MOOR_E_NOMEM, "no memory for the table of records");
}

void moor_slots_close(moor_slots *slots)
{
    for (uint32_t i = 0; slots->chunk && i < slots->count; i += MOOR_SLOTS_CHUNK)
        moor_heap_free(atomic_load(&slots->chunk[i / MOOR_SLOTS_CHUNK]));
    moor_heap_free(slots->chunk);
    memset(slots, 0, sizeof(*slots));
}

static int add_chunk(moor_slots *slots)
{
    uint32_t number = slots->count / MOOR_SLOTS_CHUNK;
    if (number == MOOR_SLOTS_CHUNKS) {
        moor_fail(MOOR_E_FULL, "%u records: the table is full", slots->count);
        return -1;
    }
    moor_record_slot *chunk = moor_heap_alloc(MOOR_SLOTS_CHUNK * sizeof(*chunk));
    if (!chunk) {
        moor_fail(MOOR_E_NOMEM, "no memory for more than %u records", slots->count);
        return -1;
    }
    for (uint32_t i = MOOR_SLOTS_CHUNK; i--;) {
        chunk[i].index = slots->count + i;
        atomic_init(&chunk[i].word, WORD(1) | MOOR_SLOT_DEAD);
        chunk[i].next_free = slots->free;
        slots->free = &chunk[i];
    }
    slots->count += MOOR_SLOTS_CHUNK;
    /* Seen by lease on other threads: the slots' words first, then the chunk. */
    atomic_store_explicit(&slots->chunk[number], chunk, memory_order_release);
    return 0;
}

moor_record_slot *moor_slots_take(moor_slots *slots)
{
    if (!slots->free && add_chunk(slots))
        return NULL;
    moor_record_slot *slot = slots->free;
    slots->free = slot->next_free;
    slot->next_free = NULL;
    slot->used = 1;
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    atomic_store_explicit(&slot->word, word & ~MOOR_SLOT_DEAD, memory_order_release);
    return slot;
}

void moor_slots_give(moor_slots *slots, moor_record_slot *slot)
{
    uint32_t generation = GENERATION(atomic_load_explicit(&slot->word, memory_order_relaxed)) + 1;
    slot->used = 0;
    slot->next_free = slots->free;
    slots->free = slot;
    atomic_store_explicit(&slot->word, WORD(generation ? generation : 1) | MOOR_SLOT_DEAD, memory_order_release);
}

moor_status moor_slots_reserve(moor_slots *slots, uint32_t n)
{
    while (slots->count < n) {
        if (add_chunk(slots))
            return slots->count == MOOR_SLOTS_CHUNK * MOOR_SLOTS_CHUNKS ? MOOR_E_FULL : MOOR_E_NOMEM;
    }
    return MOOR_OK;
}

void moor_slots_revive(moor_slots *slots, const uint32_t *generation, uint32_t n)
{
    slots->free = NULL;
    for (uint32_t i = slots->count; i--;) {
        moor_record_slot *slot = moor_slots_at(slots, i);
        uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
        if (i < n)
            word = WORD(generation[i]) | MOOR_SLOT_DEAD;
        if (slot->used) {
            word &= ~MOOR_SLOT_DEAD;
        } else {
            slot->next_free = slots->free;
            slots->free = slot;
        }
        atomic_store_explicit(&slot->word, word, memory_order_release);
    }
}

moor_record_slot *moor_slots_at(const moor_slots *slots, uint32_t index)
{
    uint32_t number = index / MOOR_SLOTS_CHUNK;
    if (number >= MOOR_SLOTS_CHUNKS)
        return NULL;
    moor_record_slot *chunk = atomic_load_explicit(&slots->chunk[number], memory_order_acquire);
    return chunk ? &chunk[index % MOOR_SLOTS_CHUNK] : NULL;
}

moor_handle moor_slot_handle(const moor_record_slot *slot)
{
    return WORD(GENERATION(atomic_load_explicit(&slot->word, memory_order_relaxed))) | slot->index;
}

static moor_status stale(moor_handle handle)
{
    return moor_fail(MOOR_E_STALE, "handle %#llx: its record was freed", (unsigned long long)handle);
}

static moor_status no_handle(moor_handle handle)
{
    return moor_fail(MOOR_E_INVALID, "%#llx was never a handle", (unsigned long long)handle);
}

moor_status moor_slots_get(const moor_slots *slots, moor_handle handle, moor_record_slot **out)
{
    moor_record_slot *slot = moor_slots_at(slots, (uint32_t)handle);
    if (!slot || !GENERATION(handle))
        return no_handle(handle);
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
    if (GENERATION(word) != GENERATION(handle) || (word & MOOR_SLOT_DEAD))
        return stale(handle);
    *out = slot;
    return MOOR_OK;
}

int moor_slot_kill(moor_record_slot *slot)
{
    return !(atomic_fetch_or_explicit(&slot->word, MOOR_SLOT_DEAD, memory_order_acq_rel) & MOOR_SLOT_DEAD);
}

moor_status moor_slots_lease(const moor_slots *slots, moor_handle handle)
{
    moor_record_slot *slot = moor_slots_at(slots, (uint32_t)handle);
    if (!slot || !GENERATION(handle))
        return no_handle(handle);
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    do {
        if (GENERATION(word) != GENERATION(handle) || (word & MOOR_SLOT_DEAD))
            return stale(handle);
        if ((word & MOOR_SLOT_LEASES) == MOOR_SLOT_LEASES)
            return moor_fail(MOOR_E_FULL, "handle %#llx has %llu leases", (unsigned long long)handle, MOOR_SLOT_LEASES);
    } while (!atomic_compare_exchange_weak_explicit(&slot->word, &word, word + 1, memory_order_acquire,
                                                    memory_order_relaxed));
    return MOOR_OK;
}

moor_status moor_slots_unlease(const moor_slots *slots, moor_handle handle, int *last)
{
    moor_record_slot *slot = moor_slots_at(slots, (uint32_t)handle);
    if (!slot || !GENERATION(handle))
        return no_handle(handle);
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    do {
        if (GENERATION(word) != GENERATION(handle))
            return stale(handle);
        if (!(word & MOOR_SLOT_LEASES))
            return moor_fail(MOOR_E_STATE, "handle %#llx has no lease that could end", (unsigned long long)handle);
    } while (!atomic_compare_exchange_weak_explicit(&slot->word, &word, word - 1, memory_order_release,
                                                    memory_order_relaxed));
    *last = (word & MOOR_SLOT_DEAD) && (word & MOOR_SLOT_LEASES) == 1;
    return MOOR_OK;
}
