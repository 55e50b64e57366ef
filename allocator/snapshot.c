/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "error.h"
#include "heap.h"
#include "records.h"
#include "seal.h"
#include "sessions.h"
#include "snapfile.h"
#include "snapsessions.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows of two-byte ids are written as they lie in memory");

/* One piece of a record: rows of a block that are needed, and where in section records its block's number goes. */
typedef struct use {
    moor_block *block;
    uint32_t first, rows;
    size_t at;
} use;

/* A block of the file: the rows of a block that any record needs. */
typedef struct saved_block {
    const moor_block *block;
    uint32_t first, rows;
} saved_block;

typedef struct collected {
    moor_snapbytes store, records, blocks, labels, sessions;
    use *uses;
    size_t n_uses, cap_uses;
    saved_block *saved;
    uint32_t n_saved, n_records;
    uint64_t *epochs;
    size_t n_epochs;
} collected;

void moor_snapshot_name(uint32_t store_index, char name[32])
{
    snprintf(name, 32, "store-%u.moor", store_index);
}

static moor_status no_memory(void)
{
    return moor_fail(MOOR_E_NOMEM, "no memory to write down a snapshot");
}

/* ---- is it quiet? ---- */

typedef struct open_names {
    char text[512];
    size_t used;
    uint32_t n;
} open_names;

static void name_it(open_names *names, const char *id)
{
    size_t room = sizeof(names->text) - names->used;
    if (names->n++ < 8 && room > 1) {
        int n = snprintf(names->text + names->used, room, "%s%.100s", names->used ? ", " : "", id);
        names->used += n > 0 ? ((size_t)n < room ? (size_t)n : room - 1) : 0;
    }
}

/* Under the lock. */
static moor_status check_quiet(const moor_records *records)
{
    open_names open = {.n = 0};
    const moor_step *step = &records->step;
    for (uint32_t i = 0; step->open && i < step->n; i++)
        name_it(&open, step->entries[i].record ? step->entries[i].record->id : "?");
    if (step->open)
        return moor_fail(MOOR_E_STATE, "snapshot: a step of %u requests is open: %s%s", open.n, open.text,
                         open.n > 8 ? ", …" : "");
    for (uint32_t i = 0; i < records->slots.count; i++) {
        const moor_record_slot *record = moor_slots_at(&records->slots, i);
        if (record->used && !record->sealed)
            name_it(&open, record->id);
    }
    if (open.n)
        return moor_fail(MOOR_E_STATE, "snapshot: %u requests are not sealed: %s%s", open.n, open.text,
                         open.n > 8 ? ", …" : "");
    return MOOR_OK;
}

/* ---- under the lock: what there is ---- */

/* A dead record that still has readers is not saved; its slot's next generation is what it will be once it is gone. */
static uint32_t generation_of(const moor_record_slot *slot)
{
    uint32_t generation = (uint32_t)(moor_slot_handle(slot) >> 32);
    if (slot->used && moor_slot_dead(slot))
        generation++;
    return generation ? generation : 1;
}

static moor_status add_use(collected *all, const moor_piece *piece)
{
    if (all->n_uses == all->cap_uses) {
        size_t cap = all->cap_uses ? 2 * all->cap_uses : 256;
        use *grown = moor_heap_realloc(all->uses, cap * sizeof(*grown));
        if (!grown)
            return no_memory();
        all->uses = grown;
        all->cap_uses = cap;
    }
    moor_block_ref(piece->block);
    all->uses[all->n_uses++] = (use){piece->block, piece->first, (uint32_t)piece->rows, all->records.used};
    return MOOR_OK;
}

static moor_status collect_record(collected *all, const moor_record_slot *record)
{
    moor_snapbytes *out = &all->records;
    uint32_t aliases = 0;
    for (const moor_id_node *node = record->nodes; node; node = node->next_of_record)
        aliases += !node->core;
    moor_snapbytes_u64(out, moor_slot_handle(record));
    moor_snapbytes_u32(out, record->owner);
    moor_snapbytes_u32(out, (record->detached ? MOOR_SNAP_DETACHED : 0u) | (record->opened ? MOOR_SNAP_OPENED : 0u));
    moor_snapbytes_u32(out, record->seal_flags);
    moor_snapbytes_u64(out, record->dropped);
    moor_snapbytes_u64(out, record->created);
    moor_snapbytes_u32(out, record->id_len);
    moor_snapbytes_u32(out, aliases);
    moor_snapbytes_u32(out, record->rows.n);
    moor_snapbytes_put(out, record->id, record->id_len);
    for (const moor_id_node *node = record->nodes; node; node = node->next_of_record) {
        if (node->core)
            continue;
        moor_hash128 hash = moor_id_node_hash(node);
        moor_snapbytes_u64(out, hash.lo);
        moor_snapbytes_u64(out, hash.hi);
        moor_snapbytes_u32(out, node->index);
    }
    for (uint32_t i = 0; i < record->rows.n; i++) {
        const moor_piece *piece = &record->rows.piece[i];
        moor_snapbytes_u64(out, piece->rows);
        moor_status status = piece->block ? add_use(all, piece) : MOOR_OK;
        if (status)
            return status;
        moor_snapbytes_u32(out, MOOR_SNAP_NO_BLOCK); /* set once blocks have numbers */
        moor_snapbytes_u32(out, piece->block ? 0 : piece->reasons);
    }
    all->n_records++;
    return out->failed ? no_memory() : MOOR_OK;
}

static moor_status collect(moor_records *records, const moor_save *save, collected *all)
{
    moor_snapbytes generations = {0};
    moor_seal_drain(records, moor_now_ns());
    moor_status status = check_quiet(records);
    for (const moor_record_slot *record = records->oldest; record && !status; record = record->newer)
        status = collect_record(all, record);
    /* The others: what the keep policy does not look at. */
    for (uint32_t i = 0; i < records->slots.count && !status; i++) {
        const moor_record_slot *record = moor_slots_at(&records->slots, i);
        if (record->used && !moor_slot_dead(record) && !record->expirable)
            status = collect_record(all, record);
    }
    for (uint32_t i = 0; i < records->slots.count && !status; i++)
        moor_snapbytes_u32(&generations, generation_of(moor_slots_at(&records->slots, i)));
    moor_snapbytes_u64(&all->store, records->created);
    moor_snapbytes_u64(&all->store, save->epoch);
    moor_snapbytes_u32(&all->store, records->slots.count);
    moor_snapbytes_u32(&all->store, all->n_records);
    moor_snapbytes_u32(&all->store, 0); /* blocks: set once they are counted */
    moor_snapbytes_u32(&all->store, records->config.stores);
    moor_snapbytes_put(&all->store, generations.data, generations.used);
    if (!status)
        moor_snapsessions_put(&all->sessions, records);
    if (!status && (generations.failed || all->store.failed || all->sessions.failed))
        status = no_memory();
    moor_snapbytes_free(&generations);
    return status;
}

/* ---- without the lock: blocks get numbers ---- */

static int by_block(const void *a, const void *b)
{
    const use *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->block, q = (uintptr_t)y->block;
    return p != q ? (p < q ? -1 : 1) : (x->first > y->first) - (x->first < y->first);
}

/* Of each block the rows that are used: what was cut off it, or is another's, is not written. */
static moor_status number_blocks(collected *all)
{
    all->saved = moor_heap_alloc((all->n_uses + 1) * sizeof(*all->saved));
    if (!all->saved)
        return no_memory();
    if (all->n_uses)
        qsort(all->uses, all->n_uses, sizeof(*all->uses), by_block);
    for (size_t i = 0; i < all->n_uses; i++) {
        const use *one = &all->uses[i];
        saved_block *last = all->n_saved ? &all->saved[all->n_saved - 1] : NULL;
        if (!last || last->block != one->block) {
            last = &all->saved[all->n_saved++];
            *last = (saved_block){one->block, one->first, one->rows};
        }
        uint32_t end = one->first + one->rows;
        if (end > last->first + last->rows)
            last->rows = end - last->first;
        uint8_t *piece = all->records.data + one->at;
        moor_le32_store(piece, all->n_saved - 1);
        moor_le32_store(piece + 4, one->first - last->first);
    }
    moor_le32_store(all->store.data + 24, all->n_saved);
    return MOOR_OK;
}

static const uint8_t *rows_of(const moor_records *records, const saved_block *saved)
{
    return saved->block->data + (size_t)saved->first * records->row_bytes;
}

static size_t bytes_of(const moor_records *records, const saved_block *saved)
{
    return (size_t)saved->rows * records->row_bytes;
}

static uint32_t put_runs(moor_snapbytes *out, const saved_block *saved, uint64_t *epochs)
{
    const moor_block *block = saved->block;
    uint32_t n = 0, end = saved->first + saved->rows;
    for (uint32_t r = 0; r < block->n_runs && block->runs[r].first < end; r++) {
        uint32_t until = r + 1 < block->n_runs ? block->runs[r + 1].first : UINT32_MAX;
        if (until <= saved->first)
            continue;
        moor_snapbytes_u32(out, block->runs[r].first > saved->first ? block->runs[r].first - saved->first : 0);
        moor_snapbytes_u64(out, block->runs[r].epoch);
        epochs[n++] = block->runs[r].epoch;
    }
    return n;
}

static moor_status describe_blocks(const moor_records *records, collected *all)
{
    size_t runs = 1;
    for (uint32_t i = 0; i < all->n_saved; i++)
        runs += all->saved[i].block->n_runs;
    all->epochs = moor_heap_alloc(runs * sizeof(*all->epochs));
    if (!all->epochs)
        return no_memory();
    for (uint32_t i = 0; i < all->n_saved; i++) {
        const saved_block *saved = &all->saved[i];
        size_t at = all->blocks.used;
        moor_snapbytes_u32(&all->blocks, saved->rows);
        moor_snapbytes_u32(&all->blocks, 0);
        moor_snapbytes_u64(&all->blocks, XXH3_64bits(rows_of(records, saved), bytes_of(records, saved)));
        uint32_t n = put_runs(&all->blocks, saved, all->epochs + all->n_epochs);
        if (all->blocks.failed)
            return no_memory();
        moor_le32_store(all->blocks.data + at + 4, n);
        all->n_epochs += n;
    }
    return MOOR_OK;
}

static int by_epoch(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static moor_status put_labels(const moor_save *save, collected *all)
{
    uint32_t n = 0;
    moor_snapbytes_u32(&all->labels, 0);
    qsort(all->epochs, all->n_epochs, sizeof(*all->epochs), by_epoch);
    for (size_t i = 0; i < all->n_epochs && save->label_of; i++) {
        char text[MOOR_SNAP_LABEL_BYTES] = "";
        if (i && all->epochs[i] == all->epochs[i - 1])
            continue;
        save->label_of(save->user, all->epochs[i], text);
        uint32_t bytes = (uint32_t)strnlen(text, sizeof(text) - 1);
        if (!bytes)
            continue;
        moor_snapbytes_u64(&all->labels, all->epochs[i]);
        moor_snapbytes_u32(&all->labels, bytes);
        moor_snapbytes_put(&all->labels, text, bytes);
        n++;
    }
    if (all->labels.failed)
        return no_memory();
    moor_le32_store(all->labels.data, n);
    return MOOR_OK;
}

/* ---- to the file ---- */

static moor_status put_section(moor_snapfile *file, uint32_t kind, const moor_snapbytes *bytes)
{
    moor_status status = moor_snapfile_put(file, bytes->data, bytes->used);
    moor_snapfile_section(file, kind, XXH3_64bits(bytes->data, bytes->used));
    return status;
}

static moor_status put_model(moor_snapfile *file, const moor_records *records)
{
    const moor_records_config *config = &records->config;
    moor_snapbytes model = {0};
    const uint32_t shape[] = {config->layers,       config->top_k,     config->num_experts,
                              config->model_layers, records->id_bytes, records->row_bytes};
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++)
        moor_snapbytes_u32(&model, shape[i]);
    for (uint32_t i = 0; i < config->layers; i++)
        moor_snapbytes_u32(&model, (uint32_t)config->layer_ids[i]);
    moor_status status = model.failed ? no_memory() : put_section(file, MOOR_SNAP_MODEL, &model);
    moor_snapbytes_free(&model);
    return status;
}

static moor_status write_file(const moor_records *records, const moor_save *save, const collected *all, uint64_t *bytes)
{
    char name[32];
    moor_snapfile file;
    moor_snapshot_name(records->config.store_index, name);
    moor_status status = moor_snapfile_create(&file, save->dir, name, save->deadline_ns, save->cancel);
    if (status)
        return status;
    status = put_model(&file, records);
    if (!status)
        status = put_section(&file, MOOR_SNAP_STORE, &all->store);
    if (!status)
        status = put_section(&file, MOOR_SNAP_LABELS, &all->labels);
    if (!status)
        status = put_section(&file, MOOR_SNAP_BLOCKS, &all->blocks);
    if (!status)
        status = put_section(&file, MOOR_SNAP_RECORDS, &all->records);
    for (uint32_t i = 0; i < all->n_saved && !status; i++)
        status = moor_snapfile_put(&file, rows_of(records, &all->saved[i]), bytes_of(records, &all->saved[i]));
    moor_snapfile_section(&file, MOOR_SNAP_ROWS, 0);
    if (!status)
        status = put_section(&file, MOOR_SNAP_SESSIONS, &all->sessions);
    if (!status)
        status = moor_snapfile_commit(&file);
    if (!status && bytes)
        *bytes = file.at;
    moor_snapfile_close(&file);
    return status;
}

moor_status moor_records_save(moor_records *records, const moor_save *save, uint64_t *bytes)
{
    collected all = {.n_uses = 0};
    pthread_mutex_lock(&records->sessions->lock);
    moor_records_lock(records);
    moor_status status = collect(records, save, &all);
    pthread_mutex_unlock(&records->sessions->lock);
    moor_records_unlock(records); /* last: it may log */
    if (!status)
        status = number_blocks(&all);
    if (!status)
        status = describe_blocks(records, &all);
    if (!status)
        status = put_labels(save, &all);
    if (!status)
        status = write_file(records, save, &all, bytes);
    moor_records_lock(records);
    for (size_t i = 0; i < all.n_uses; i++)
        moor_block_unref(&records->blocks, all.uses[i].block);
    moor_records_unlock(records);
    moor_snapbytes_free(&all.store);
    moor_snapbytes_free(&all.records);
    moor_snapbytes_free(&all.blocks);
    moor_snapbytes_free(&all.labels);
    moor_snapbytes_free(&all.sessions);
    moor_heap_free(all.uses);
    moor_heap_free(all.saved);
    moor_heap_free(all.epochs);
    return status;
}
