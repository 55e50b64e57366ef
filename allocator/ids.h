/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ids.h — which records an id means: a multimap from the hash of an id (core id or alias) to record slots.
 *
 * Called by the store's parts under its lock. Owns its nodes. Ids are compared by their 128-bit XXH3 only, which is also how they
 * travel on the seal ring; the records keep the text of their core id for messages.
 */
#ifndef MOOR_IDS_H
#define MOOR_IDS_H

#include <moor/moor.h>

#include "idhash.h"

typedef struct moor_id_group moor_id_group;

/* "slot is meant by this id". In two lists: that of its group (newest first) and that of its record. */
typedef struct moor_id_node {
    moor_id_group *group;
    struct moor_id_node *newer, *older, *next_of_record;
    uint32_t slot, index; /* index: the alias' place, 0 for a core id */
    int core;
} moor_id_node;

typedef struct moor_ids_table {
    moor_id_group *groups; /* uthash */
} moor_ids_table;

/* Adds slot under hash and links the node into *of_record. */
moor_status moor_ids_add(moor_ids_table *ids, moor_hash128 hash, uint32_t slot, uint32_t index, int core,
                         moor_id_node **of_record);
/* Removes all nodes of a record. */
void moor_ids_remove(moor_ids_table *ids, moor_id_node **of_record);
/* Newest node of the hash; follow ->older. NULL: unknown. */
moor_id_node *moor_ids_find(const moor_ids_table *ids, moor_hash128 hash);
moor_hash128 moor_id_node_hash(const moor_id_node *node);

#endif
