/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sessiontable.h — session ids by their hash: which live, and which were released (SEMANTICS 3.4).
 *
 * Called by sessions.c under its lock. Owns its slots, not the sessions. Released ids are kept for the store's life, so a slot is all there is of one:
 * 24 bytes, of which at least 3 in 10 are in use. One look-up touches one or two lines of memory.
 */
#ifndef MOOR_SESSIONTABLE_H
#define MOOR_SESSIONTABLE_H

#include "idhash.h"

typedef struct moor_session_slot {
    moor_hash128 hash;            /* none: the slot is free */
    struct moor_session *session; /* NULL: released */
} moor_session_slot;

typedef struct moor_session_table { /* all zero: empty */
    moor_session_slot *slots;
    uint64_t room, used; /* room: a power of two */
} moor_session_table;

/* NULL: never seen. Valid until the next add or remove. */
moor_session_slot *moor_session_table_find(const moor_session_table *table, moor_hash128 hash);
/* A slot for a hash that is not there. NULL: no memory, nothing changed. */
moor_session_slot *moor_session_table_add(moor_session_table *table, moor_hash128 hash);
void moor_session_table_remove(moor_session_table *table, moor_session_slot *slot);
void moor_session_table_close(moor_session_table *table);

#endif
