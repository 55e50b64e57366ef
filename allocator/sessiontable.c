/* SPDX-License-Identifier: Apache-2.0 */
#include "sessiontable.h"

#include "heap.h"

enum { FIRST_ROOM = 64 };

/* The hash's slot, or the free one where it would be. There is always a free one. */
static moor_session_slot *place(const moor_session_table *table, moor_hash128 hash)
{
    uint64_t at = hash.lo & (table->room - 1);
    while (!moor_hash_none(table->slots[at].hash) && !moor_hash_equal(table->slots[at].hash, hash))
        at = (at + 1) & (table->room - 1);
    return &table->slots[at];
}

moor_session_slot *moor_session_table_find(const moor_session_table *table, moor_hash128 hash)
{
    moor_session_slot *slot = table->room ? place(table, hash) : NULL;
    return slot && !moor_hash_none(slot->hash) ? slot : NULL;
}

static int grow(moor_session_table *table)
{
    moor_session_table grown = {.room = table->room ? table->room * 2 : FIRST_ROOM, .used = table->used};
    grown.slots = moor_heap_alloc(grown.room * sizeof(*grown.slots));
    if (!grown.slots)
        return 0;
    for (uint64_t i = 0; i < table->room; i++)
        if (!moor_hash_none(table->slots[i].hash))
            *place(&grown, table->slots[i].hash) = table->slots[i];
    moor_heap_free(table->slots);
    *table = grown;
    return 1;
}

moor_session_slot *moor_session_table_add(moor_session_table *table, moor_hash128 hash)
{
    if (table->used + 1 > table->room / 10 * 6 && !grow(table))
        return NULL;
    moor_session_slot *slot = place(table, hash);
    *slot = (moor_session_slot){.hash = hash};
    table->used++;
    return slot;
}

void moor_session_table_remove(moor_session_table *table, moor_session_slot *slot)
{
    uint64_t mask = table->room - 1, hole = (uint64_t)(slot - table->slots);
    /* Who came after and could not have the hole moves up to it. */
    for (uint64_t at = (hole + 1) & mask; !moor_hash_none(table->slots[at].hash); at = (at + 1) & mask) {
        uint64_t wanted = table->slots[at].hash.lo & mask;
        if (((at - wanted) & mask) >= ((at - hole) & mask)) {
            table->slots[hole] = table->slots[at];
            hole = at;
        }
    }
    table->slots[hole] = (moor_session_slot){.session = NULL};
    table->used--;
}

void moor_session_table_close(moor_session_table *table)
{
    moor_heap_free(table->slots);
    *table = (moor_session_table){.slots = NULL};
}
