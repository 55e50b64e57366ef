/* SPDX-License-Identifier: Apache-2.0 */
#include "seal.h"

#include "error.h"
#include "heap.h"
#include "records.h"

static uint32_t check_word(const moor_state_seal *entry, uint64_t position)
{
    uint64_t mix = position * 0x9E3779B97F4A7C15ull;
    const uint64_t part[] = {entry->id.lo,    entry->id.hi,         entry->alias.lo,
                             entry->alias.hi, entry->rows_expected, entry->flags};
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
        mix = (mix ^ part[i]) * 0xD6E8FEB86659FD93ull + (mix >> 29);
    return (uint32_t)(mix >> 32) ^ (uint32_t)mix;
}

moor_status moor_seal_claim(moor_state_seal_ring *ring, uint64_t *position)
{
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    do {
        if (tail - atomic_load_explicit(&ring->head, memory_order_acquire) >= MOOR_SEAL_RING) {
            atomic_fetch_add_explicit(&ring->lost, 1, memory_order_relaxed);
            return moor_fail(MOOR_E_FULL, "the seal ring is full: %d seals wait for their store", MOOR_SEAL_RING);
        }
    } while (!atomic_compare_exchange_weak_explicit(&ring->tail, &tail, tail + 1, memory_order_relaxed,
                                                    memory_order_relaxed));
    *position = tail;
    return MOOR_OK;
}

moor_status moor_seal_publish(moor_state_seal_ring *ring, uint64_t position, moor_hash128 id, moor_hash128 alias,
                              uint64_t rows_expected, uint32_t flags)
{
    moor_state_seal *entry = &ring->entry[position % MOOR_SEAL_RING];
    entry->id = id;
    entry->alias = alias;
    entry->rows_expected = rows_expected;
    entry->flags = flags;
    entry->reserved = check_word(entry, position);
    uint64_t before = position < MOOR_SEAL_RING ? 0 : position - MOOR_SEAL_RING + 1;
    if (atomic_compare_exchange_strong_explicit(&entry->seq, &before, position + 1, memory_order_release,
                                                memory_order_relaxed))
        return MOOR_OK;
    return moor_fail(MOOR_E_TIMEOUT, "seal at ring position %llu came too late: the store had given it up",
                     (unsigned long long)position);
}

moor_status moor_seal_push(moor_state_seal_ring *ring, moor_hash128 id, moor_hash128 alias, uint64_t rows_expected,
                           uint32_t flags)
{
    uint64_t position;
    if (rows_expected > UINT32_MAX)
        return moor_fail(MOOR_E_INVALID, "seal: %llu rows expected", (unsigned long long)rows_expected);
    moor_status status = MOOR_E_TIMEOUT;
    for (int tries = 0; status == MOOR_E_TIMEOUT && tries < 3; tries++) {
        status = moor_seal_claim(ring, &position);
        if (!status)
            status = moor_seal_publish(ring, position, id, alias, rows_expected, flags);
    }
    if (status == MOOR_E_TIMEOUT)
        atomic_fetch_add_explicit(&ring->lost, 1, memory_order_relaxed);
    return status;
}

/* A request that never ran here is over all the same: who waits for its record must hear of it. */
static void tell_unknown(moor_records *records, moor_hash128 id, moor_hash128 alias, uint32_t flags)
{
    moor_pending_event *pending =
        records->config.sealed ? moor_heap_alloc(sizeof(*pending) + 2 * sizeof(moor_hash128)) : NULL;
    if (!pending)
        return;
    pending->ids[0] = id;
    pending->ids[1] = alias;
    pending->event = (moor_sealed_event){.ids = pending->ids, .n_ids = moor_hash_none(alias) ? 1 : 2, .flags = flags};
    *records->events_end = pending;
    records->events_end = &pending->next;
}

/* The unsealed record of a core id. A record that an alias made early is the newest one as well. */
static moor_record_slot *unsealed(const moor_records *records, moor_hash128 id, int *known)
{
    *known = 0;
    for (moor_id_node *node = moor_ids_find(&records->ids, id); node; node = node->older) {
        moor_record_slot *record = node->core ? moor_slots_at(&records->slots, node->slot) : NULL;
        if (!record)
            continue;
        *known = 1;
        if (!record->sealed)
            return record;
    }
    return NULL;
}

moor_status moor_seal_apply(moor_records *records, moor_hash128 id, moor_hash128 alias, uint64_t rows_expected,
                            uint32_t flags)
{
    int known;
    moor_record_slot *record = unsealed(records, id, &known);
    if (!record || record->seal_pending) {
        records->seals_repeated += known;
        records->seals_unknown += !known;
        if (!known)
            tell_unknown(records, id, alias, flags);
        return known ? MOOR_OK : moor_fail(MOOR_E_NOT_FOUND, "seal of a request that was never recorded here");
    }
    /* Found by its core id with or without the alias, which is only one more way to find it. */
    if (!moor_hash_none(alias))
        (void)moor_record_add_alias(records, record, alias, 0);
    if (record->in_step) {
        record->seal_pending = 1;
        record->seal_rows = rows_expected;
        record->seal_flags = flags;
    } else {
        moor_record_seal(records, record, rows_expected, flags);
    }
    return MOOR_OK;
}

/* 1: the entry at `position` is published (perhaps as void, then *void_entry). 0: its producer is still at it. */
static int wait_entry(moor_records *records, moor_state_seal *entry, uint64_t position, uint64_t now_ns,
                      int *void_entry)
{
    uint64_t seq = atomic_load_explicit(&entry->seq, memory_order_acquire);
    if (seq == position + 1)
        return 1;
    if (records->stuck_at != position + 1) {
        records->stuck_at = position + 1;
        records->stuck_since_ns = now_ns;
        return 0;
    }
    if (now_ns - records->stuck_since_ns < MOOR_SEAL_STUCK_NS)
        return 0;
    *void_entry = atomic_compare_exchange_strong(&entry->seq, &seq, position + 1);
    return 1;
}

uint32_t moor_seal_drain(moor_records *records, uint64_t now_ns)
{
    moor_state_seal_ring *ring = records->config.seals;
    uint32_t taken = 0;
    if (!ring)
        return 0;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    while (head != atomic_load_explicit(&ring->tail, memory_order_acquire)) {
        moor_state_seal *entry = &ring->entry[head % MOOR_SEAL_RING];
        int void_entry = 0;
        if (!wait_entry(records, entry, head, now_ns, &void_entry))
            break;
        if (void_entry) { /* its producer may still be writing it: not even looked at */
            records->seals_torn++;
            atomic_store_explicit(&ring->head, ++head, memory_order_release);
            continue;
        }
        moor_hash128 id = entry->id, alias = entry->alias;
        uint64_t rows = entry->rows_expected;
        uint32_t flags = entry->flags;
        if (entry->reserved != check_word(entry, head) || rows > UINT32_MAX) {
            records->seals_torn++;
        } else {
            (void)moor_seal_apply(records, id, alias, rows, flags);
            taken++;
        }
        atomic_store_explicit(&ring->head, ++head, memory_order_release);
    }
    return taken;
}
