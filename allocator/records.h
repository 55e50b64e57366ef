/* SPDX-License-Identifier: Apache-2.0 */
/*
 * records.h — inside the record store: its state, and the life of a record from creation to reclaim.
 *
 * Private to allocator/: the parts of the store share it. Everything here is called with the store's lock
 * held (moor_records_lock) unless it says otherwise. moor_records_unlock also does what must not happen under the lock: gives dead
 * row memory back, delivers sealed events, wakes who waits.
 */
#ifndef MOOR_RECORDS_H
#define MOOR_RECORDS_H

#include <pthread.h>

#include "clients.h"
#include "gone.h"
#include "kvindex.h"
#include "slots.h"
#include "step.h"
#include "store.h"

/* A sealed event on its way; made with the record, grown with each alias. */
typedef struct moor_pending_event {
    struct moor_pending_event *next;
    moor_sealed_event event;
    uint32_t cap;
    moor_hash128 ids[]; /* [cap] */
} moor_pending_event;

/* Records that one call frees before it lets the lock go once: a step waits for no more than these. */
enum { MOOR_FREED_AT_ONCE = 64 };

struct moor_records {
    pthread_mutex_t lock;
    moor_records_config config;
    int32_t *layer_ids;
    uint32_t row_bytes, id_bytes; /* id_bytes: of one expert id, 1 or 2 */
    uint32_t max_rows;            /* of one block */
    moor_arena *arena;
    moor_blocks blocks;
    moor_slots slots;
    moor_ids_table ids;
    moor_gone gone;
    moor_kvindex kv;
    moor_clients clients;
    struct moor_sessions *sessions;    /* a lock of its own, which comes before this one: sessions.h */
    moor_step step;                    /* the recorder thread's; see step.h */
    moor_record_slot *oldest, *newest; /* sealed and not dead, by touched_ns */
    moor_pending_event *events, **events_end;
    uint64_t live, sealed, kept_bytes, created;
    uint64_t seals_unknown, seals_repeated, seals_torn;
    uint64_t stuck_at, stuck_since_ns; /* ring position whose producer has not published */
    uint64_t purged_ns;
    char complaint[256];   /* to be logged once the lock is free */
    int notify_fd, notify; /* notify: something happened that a waiter wants to hear of */
    _Atomic int waiters;
};

void moor_records_lock(moor_records *records);
void moor_records_unlock(moor_records *records);

void moor_records_count(moor_records *records, enum moor_counter counter,
                        uint64_t delta); /* with or without the lock */

/* Everything of an earlier record in the slot is gone; what it owns is not touched. */
void moor_record_blank(moor_record_slot *record);
/* A new record under the core id. NULL: no memory, error set. */
moor_record_slot *moor_record_new(moor_records *records, moor_hash128 hash, const char *id, uint32_t id_len);
/* Takes back a record that moor_record_new just made and that nobody has heard of. */
void moor_record_unmake(moor_records *records, moor_record_slot *record);
/* The id means another record from now on: one that was freed while its request ran gets no seal any more, and is over. NULL is allowed. */
void moor_record_supersede(moor_records *records, moor_record_slot *record);
/* Newest record whose core id has this hash, dead ones included; NULL: none. */
moor_record_slot *moor_record_by_core_id(const moor_records *records, moor_hash128 hash);
moor_status moor_record_add_alias(moor_records *records, moor_record_slot *record, moor_hash128 alias, uint32_t index);
/* Cuts rows. Row memory that a reader may look at is parked until the record goes: for what the record has now, can_cut makes room;
 * it is called before a lease on an unsealed record is given, and before a cut of a sealed one. */
moor_status moor_record_can_cut(moor_record_slot *record);
void moor_record_cut(moor_records *records, moor_record_slot *record, uint64_t end);
/* Finalises, once. The record must not be in a step. */
void moor_record_seal(moor_records *records, moor_record_slot *record, uint64_t rows_expected, uint32_t flags);
/* Does what the policy decides. MOOR_E_STALE when it is dead. */
moor_status moor_record_apply(moor_records *records, moor_record_slot *record, uint32_t event);
/* Gives the record up when it is dead, sealed, in no step and without leases. */
void moor_record_try_reclaim(moor_records *records, moor_record_slot *record);
/* Regardless of everything; for destroy. */
void moor_record_reclaim(moor_records *records, moor_record_slot *record);
/* Among the sealed that the keep policy looks at and counts: behind all others, unless its owner decides when it goes; not at all. */
void moor_record_touch(moor_records *records, moor_record_slot *record, uint64_t now_ns);
void moor_record_keep(moor_records *records, moor_record_slot *record);

#endif
