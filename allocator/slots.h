/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.h — the table of records: slots that never move, handles with a generation, leases without a lock.
 *
 * Called by the store's parts under its lock; moor_slots_lease/unlease by any thread without it. Owns the chunks of slots. What a
 * slot's record owns (rows, id, nodes) belongs to the store.
 *
 * `word` of a slot = generation:32 | dead:1 | leases:31. A free slot is dead. A lease is taken only while the generation is
 * the handle's and the slot is not dead: so a freed record is STALE at once, and its memory stays until the last lease ended.
 */
#ifndef MOOR_SLOTS_H
#define MOOR_SLOTS_H

#include "ids.h"
#include "rows.h"

struct moor_pending_event;

typedef struct moor_record_slot {
    _Atomic uint64_t word;
    uint32_t index; /* of the slot; constant */

    /* Under the store's lock from here on. */
    uint8_t used, sealed, in_step;
    uint8_t seal_pending; /* a seal arrived while a step holds the record: its commit finalises */
    uint8_t noticed;      /* the worker's own notice came: the id's next step is a new record */
    uint8_t detached, opened, expirable;
    uint8_t parked_in_session; /* a key of its session held it and was overwritten: it stays until the session goes */
    uint32_t owner, id_len;
    uint64_t accepted; /* rows decided; rows.end - accepted are speculative */
    moor_block *tail;  /* the block that new rows go to */
    uint32_t tail_used;
    uint32_t gap_reasons; /* why rows below gap_until that no step delivered are missing */
    uint64_t gap_until;
    char *id;
    moor_rows rows;
    uint64_t kv_done; /* rows below were told to the KV index */

    uint64_t dropped, seal_rows, touched_ns, created;
    uint64_t last_step; /* number of the last step it was in, 0: none */
    uint32_t seal_flags, n_parked, cap_parked;
    uint64_t kept_bytes;
    moor_block **parked; /* references of rows that were cut while leased */
    moor_hash128 hash;
    moor_id_node *nodes;
    struct moor_pending_event *event;       /* made with the record, so that a seal needs no memory */
    struct moor_record_slot *older, *newer; /* among the sealed, by touched_ns */
    struct moor_session *session;           /* whose record it is, or NULL; owner is trace_store then */
    struct moor_record_slot *session_next, *session_previous;
    struct moor_trace_value *places; /* the values of that session that hold it; under the sessions' lock */
    struct moor_record_slot *next_free;
} moor_record_slot;

enum { MOOR_SLOTS_CHUNK = 256, MOOR_SLOTS_CHUNKS = 16384 };

typedef struct moor_slots {
    _Atomic(moor_record_slot *) *chunk; /* [MOOR_SLOTS_CHUNKS] */
    uint32_t count;                     /* slots ever made */
    moor_record_slot *free;
} moor_slots;

#define MOOR_SLOT_DEAD 0x80000000ull
#define MOOR_SLOT_LEASES 0x7FFFFFFFull

moor_status moor_slots_open(moor_slots *slots);
void moor_slots_close(moor_slots *slots);
/* A slot with a generation of its own, alive, without leases. NULL: no memory, or MOOR_SLOTS_CHUNK * MOOR_SLOTS_CHUNKS records. */
moor_record_slot *moor_slots_take(moor_slots *slots);
/* The slot must be dead and without leases. */
void moor_slots_give(moor_slots *slots, moor_record_slot *slot);
moor_record_slot *moor_slots_at(const moor_slots *slots, uint32_t index); /* NULL: never made */
/* Restoring: at least n slots exist, and stay dead until revive. It gives slot i < n generation[i]; those whose `used` was set become
 * alive, without leases, the others are free. No slot may have been alive before. */
moor_status moor_slots_reserve(moor_slots *slots, uint32_t n);
void moor_slots_revive(moor_slots *slots, const uint32_t *generation, uint32_t n);
moor_handle moor_slot_handle(const moor_record_slot *slot);
static inline int moor_slot_dead(const moor_record_slot *slot)
{
    return (atomic_load_explicit(&slot->word, memory_order_acquire) & MOOR_SLOT_DEAD) != 0;
}
static inline uint32_t moor_slot_leases(const moor_record_slot *slot)
{
    return (uint32_t)(atomic_load_explicit(&slot->word, memory_order_acquire) & MOOR_SLOT_LEASES);
}
/* The live record of a handle: MOOR_E_STALE for a freed one, MOOR_E_INVALID for a number that never was a handle. */
moor_status moor_slots_get(const moor_slots *slots, moor_handle handle, moor_record_slot **out);
/* Marks it dead; 1: this call did, 0: it was. */
int moor_slot_kill(moor_record_slot *slot);

moor_status moor_slots_lease(const moor_slots *slots, moor_handle handle);
/* *last: 1 when a dead record lost its last lease; the caller then reclaims it under the lock. MOOR_E_STATE: no lease to end. */
moor_status moor_slots_unlease(const moor_slots *slots, moor_handle handle, int *last);

#endif
