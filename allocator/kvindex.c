/* SPDX-License-Identifier: Apache-2.0 */
#include "kvindex.h"

#include <string.h>

#include "error.h"
#include "heap.h"

moor_status moor_kvindex_open(moor_kvindex *index, uint32_t blocks, uint32_t block_size)
{
    memset(index, 0, sizeof(*index));
    if (!blocks || !block_size)
        return MOOR_OK;
    index->entry = moor_heap_alloc((size_t)blocks * sizeof(*index->entry));
    if (!index->entry)
        return moor_fail(MOOR_E_NOMEM, "no memory for a KV index of %u blocks", blocks);
    index->blocks = blocks;
    index->block_size = block_size;
    return MOOR_OK;
}

static void end(moor_kvindex *index, moor_blocks *blocks, moor_kv_entry *entry)
{
    if (!entry->block[0])
        return;
    for (int part = 0; part < MOOR_KV_PARTS; part++) {
        if (!entry->block[part])
            continue;
        entry->block[part]->index_refs--;
        moor_block_unref(blocks, entry->block[part]);
    }
    memset(entry, 0, sizeof(*entry));
    index->valid--;
}

void moor_kvindex_reset(moor_kvindex *index, moor_blocks *blocks)
{
    for (uint32_t i = 0; index->valid && i < index->blocks; i++)
        end(index, blocks, &index->entry[i]);
}

int moor_kvindex_shed(moor_kvindex *index, moor_blocks *blocks)
{
    int ended = 0;
    for (uint32_t i = 0; i < index->blocks; i++) {
        const moor_kv_entry *entry = &index->entry[i];
        int only_here = entry->block[0] != NULL;
        for (int part = 0; part < MOOR_KV_PARTS && entry->block[part]; part++)
            only_here &= entry->block[part]->refs == entry->block[part]->index_refs;
        if (only_here)
            end(index, blocks, &index->entry[i]);
        ended |= only_here;
    }
    return ended;
}

void moor_kvindex_close(moor_kvindex *index, moor_blocks *blocks)
{
    moor_kvindex_reset(index, blocks);
    moor_heap_free(index->entry);
    memset(index, 0, sizeof(*index));
}

moor_status moor_kvindex_end(moor_kvindex *index, moor_blocks *blocks, const int32_t *ids, uint32_t n)
{
    moor_status status = MOOR_OK;
    for (uint32_t i = 0; i < n && index->entry; i++) {
        if ((uint32_t)ids[i] < index->blocks)
            end(index, blocks, &index->entry[ids[i]]);
        else
            status =
                moor_fail(MOOR_E_RANGE, "KV block %d handed out, but the index has %u blocks", ids[i], index->blocks);
    }
    return status;
}

const moor_kv_entry *moor_kvindex_get(const moor_kvindex *index, int32_t id)
{
    return index->entry && (uint32_t)id < index->blocks ? &index->entry[id] : NULL;
}

uint32_t moor_kv_entry_at(const moor_kv_entry *entry, uint32_t i, uint32_t *part, uint32_t *first)
{
    for (uint32_t p = 0; p < MOOR_KV_PARTS; p++) {
        if (i < entry->rows[p]) {
            *part = p;
            *first = entry->first[p] + i;
            return entry->rows[p] - i;
        }
        i -= entry->rows[p];
    }
    return 0;
}

/* The first `slots` slots of an entry; returns its parts. 0: it does not reach that far. */
static int keep(const moor_kv_entry *entry, uint32_t slots, moor_kv_entry *out)
{
    int parts = 0;
    for (; slots && parts < MOOR_KV_PARTS && entry->rows[parts]; parts++) {
        out->block[parts] = entry->block[parts];
        out->first[parts] = entry->first[parts];
        out->rows[parts] = entry->rows[parts] < slots ? entry->rows[parts] : slots;
        slots -= out->rows[parts];
    }
    return slots ? 0 : parts;
}

/* A decode step's row follows the one before it, in the KV block and in the block of rows: the entry grows, nothing else changes. */
static int goes_on(moor_kv_entry *entry, uint32_t slot, const moor_rows *rows, uint64_t position, uint32_t n)
{
    const moor_piece *piece = &rows->piece[rows->n - 1];
    if (position < piece->start || position + n > piece->start + piece->rows || !piece->block)
        return 0;
    uint32_t part = 0;
    for (; part + 1 < MOOR_KV_PARTS && entry->block[part + 1]; part++)
        slot -= entry->rows[part];
    if (entry->block[part] != piece->block || entry->rows[part] != slot ||
        entry->first[part] + slot != piece->first + (position - piece->start))
        return 0;
    entry->rows[part] += n;
    return 1;
}

void moor_kvindex_put(moor_kvindex *index, moor_blocks *blocks, int32_t id, uint32_t slot, const moor_rows *rows,
                      uint64_t position, uint32_t n)
{
    if (!index->entry || (uint32_t)id >= index->blocks)
        return;
    moor_kv_entry *entry = &index->entry[id];
    if (n && goes_on(entry, slot, rows, position, n))
        return;
    moor_kv_entry fresh;
    memset(&fresh, 0, sizeof(fresh));
    int parts = keep(entry, slot, &fresh);
    if (slot && !parts)
        return;
    for (uint32_t at = n ? moor_rows_at(rows, position) : 0; n && at < rows->n; at++) {
        const moor_piece *piece = &rows->piece[at];
        if (!piece->block)
            break;
        uint64_t left = piece->start + piece->rows - position;
        uint32_t take = left < n ? (uint32_t)left : n;
        uint32_t first = piece->first + (uint32_t)(position - piece->start);
        int same =
            parts && fresh.block[parts - 1] == piece->block && fresh.first[parts - 1] + fresh.rows[parts - 1] == first;
        if (!same && parts == MOOR_KV_PARTS)
            break;
        parts += !same;
        fresh.block[parts - 1] = piece->block;
        fresh.first[parts - 1] = same ? fresh.first[parts - 1] : first;
        fresh.rows[parts - 1] += take;
        position += take;
        n -= take;
    }
    for (int part = 0; part < parts; part++) {
        fresh.block[part]->index_refs++;
        moor_block_ref(fresh.block[part]);
    }
    end(index, blocks, entry);
    if (parts) {
        *entry = fresh;
        index->valid++;
    }
}
