/* SPDX-License-Identifier: Apache-2.0 */
#include "ids.h"

#include "error.h"
#include "table.h"

struct moor_id_group {
    moor_hash128 hash;
    moor_id_node *newest;
    UT_hash_handle hh;
};

moor_id_node *moor_ids_find(const moor_ids_table *ids, moor_hash128 hash)
{
    moor_id_group *group = NULL;
    HASH_FIND_BYHASHVALUE(hh, ids->groups, &hash, sizeof(hash), (unsigned)hash.lo, group);
    return group ? group->newest : NULL;
}

moor_hash128 moor_id_node_hash(const moor_id_node *node)
{
    return node->group->hash;
}

static moor_id_group *group_for(moor_ids_table *ids, moor_hash128 hash)
{
    moor_id_group *group = NULL;
    HASH_FIND_BYHASHVALUE(hh, ids->groups, &hash, sizeof(hash), (unsigned)hash.lo, group);
    if (group)
        return group;
    group = moor_heap_alloc(sizeof(*group));
    if (!group)
        return NULL;
    group->hash = hash;
    HASH_ADD_BYHASHVALUE(hh, ids->groups, hash, sizeof(group->hash), (unsigned)hash.lo, group);
    if (!MOOR_TABLE_HAS(group)) {
        moor_heap_free(group);
        return NULL;
    }
    return group;
}

static void drop_group(moor_ids_table *ids, moor_id_group *group)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): uthash: what it takes for empty is not */
    HASH_DEL(ids->groups, group);
    moor_heap_free(group);
}

moor_status moor_ids_add(moor_ids_table *ids, moor_hash128 hash, uint32_t slot, uint32_t index, int core,
                         moor_id_node **of_record)
{
    moor_id_node *node = moor_heap_alloc(sizeof(*node));
    moor_id_group *group = node ? group_for(ids, hash) : NULL;
    if (!group) {
        moor_heap_free(node);
        return moor_fail(MOOR_E_NOMEM, "no memory for an id");
    }
    *node = (moor_id_node){.group = group,
                           .older = group->newest,
                           .next_of_record = *of_record,
                           .slot = slot,
                           .index = index,
                           .core = core};
    if (group->newest)
        group->newest->newer = node;
    group->newest = node;
    *of_record = node;
    return MOOR_OK;
}

void moor_ids_remove(moor_ids_table *ids, moor_id_node **of_record)
{
    moor_id_node *node = *of_record;
    while (node) {
        moor_id_node *next = node->next_of_record;
        if (node->newer)
            node->newer->older = node->older;
        else
            node->group->newest = node->older;
        if (node->older)
            node->older->newer = node->newer;
        if (!node->group->newest)
            drop_group(ids, node->group);
        moor_heap_free(node);
        node = next;
    }
    *of_record = NULL;
}
