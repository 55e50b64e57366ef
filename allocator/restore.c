/* SPDX-License-Identifier: Apache-2.0 */
#include "restore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "error.h"
#include "heap.h"
#include "sessions.h"
#include "snapsessions.h"

enum { RUN_BYTES = 12, ALIAS_BYTES = 20, PIECE_BYTES = 16, LEAST_RECORD = 44, LEAST_BLOCK = 16 };

static moor_status no_memory(const moor_restore_plan *plan, const char *what, uint64_t n)
{
    return moor_fail(MOOR_E_NOMEM, "snapshot %s: no memory for %llu %s", plan->source.path, (unsigned long long)n,
                     what);
}

/* Sessions have a lock of their own, which comes first. */
static void lock(moor_records *records)
{
    pthread_mutex_lock(&records->sessions->lock);
    moor_records_lock(records);
}

static void unlock(moor_records *records)
{
    pthread_mutex_unlock(&records->sessions->lock);
    moor_records_unlock(records); /* last: it may log */
}

/* Under both. */
static moor_status check_new(const moor_records *records)
{
    if (records->created || records->live || records->step.open || records->sessions->table.used)
        return moor_fail(
            MOOR_E_STATE,
            "a snapshot is restored into a new store only: this one has had %llu records, %llu live now, and "
            "%llu sessions",
            (unsigned long long)records->created, (unsigned long long)records->live,
            (unsigned long long)(records->sessions->live + records->sessions->gone));
    return MOOR_OK;
}

/* ---- sections ---- */

static moor_status check_model(moor_restore_plan *plan)
{
    const moor_records_config *config = &plan->records->config;
    moor_snapreader *reader = &plan->reader[MOOR_SNAP_MODEL];
    uint32_t shape[6];
    for (int i = 0; i < 6; i++)
        shape[i] = moor_snapreader_u32(reader, "the model");
    if (reader->status)
        return reader->status;
    uint32_t layers = shape[0];
    const uint8_t *ids = moor_snapreader_take(reader, (uint64_t)layers * 4, "the layers' numbers");
    if (!ids || moor_snapreader_end(reader))
        return reader->status;
    if (layers != config->layers || shape[1] != config->top_k || shape[2] != config->num_experts ||
        shape[3] != config->model_layers)
        return moor_fail(MOOR_E_INVALID,
                         "snapshot %s is of a model with %u of %u layers, %u of %u experts a token; this store's has "
                         "%u of %u layers, %u of %u experts",
                         plan->source.path, layers, shape[3], shape[1], shape[2], config->layers, config->model_layers,
                         config->top_k, config->num_experts);
    if (shape[4] != plan->records->id_bytes || shape[5] != plan->records->row_bytes)
        return moor_snapreader_wrong(reader, (size_t)layers * 4 + 8,
                                     "ids of %u bytes and rows of %u, expected %u and %u", shape[4], shape[5],
                                     plan->records->id_bytes, plan->records->row_bytes);
    for (uint32_t i = 0; i < layers; i++) {
        int32_t number = (int32_t)moor_le32_load(ids + 4 * (size_t)i);
        if (number != config->layer_ids[i])
            return moor_fail(MOOR_E_INVALID,
                             "snapshot %s is of another model: its column %u is layer %d, this store's is layer %d",
                             plan->source.path, i, number, config->layer_ids[i]);
    }
    return MOOR_OK;
}

static moor_status read_store(moor_restore_plan *plan)
{
    moor_snapreader *reader = &plan->reader[MOOR_SNAP_STORE];
    plan->created = moor_snapreader_u64(reader, "the number of records ever made");
    plan->epoch = moor_snapreader_u64(reader, "the weight epoch");
    plan->n_slots = moor_snapreader_u32(reader, "the number of slots");
    plan->n_records = moor_snapreader_u32(reader, "the number of records");
    plan->n_blocks = moor_snapreader_u32(reader, "the number of blocks");
    uint32_t stores = moor_snapreader_u32(reader, "the number of stores");
    const uint8_t *at = moor_snapreader_take(reader, (uint64_t)plan->n_slots * 4, "the slots' generations");
    if (!at || moor_snapreader_end(reader))
        return reader->status;
    if (plan->records->config.stores && stores > plan->records->config.stores)
        return moor_fail(
            MOOR_E_INVALID,
            "snapshot %s is one of %u, of so many stores (data-parallel replicas and pipeline stages); this "
            "instance has %u, and would leave the records of the others out",
            plan->source.path, stores, plan->records->config.stores);
    if (plan->n_slots > MOOR_SLOTS_CHUNK * MOOR_SLOTS_CHUNKS || plan->n_records > plan->n_slots)
        return moor_snapreader_wrong(reader, reader->at - 16, "%u records in %u slots, a store has up to %d",
                                     plan->n_records, plan->n_slots, MOOR_SLOTS_CHUNK * MOOR_SLOTS_CHUNKS);
    if (plan->n_records > plan->reader[MOOR_SNAP_RECORDS].length / LEAST_RECORD ||
        plan->n_blocks > plan->reader[MOOR_SNAP_BLOCKS].length / LEAST_BLOCK)
        return moor_snapreader_wrong(reader, reader->at - 20,
                                     "%u records in a section of %zu bytes and %u blocks in one of %zu",
                                     plan->n_records, plan->reader[MOOR_SNAP_RECORDS].length, plan->n_blocks,
                                     plan->reader[MOOR_SNAP_BLOCKS].length);
    plan->generations = moor_heap_alloc(((size_t)plan->n_slots + 1) * sizeof(*plan->generations));
    if (!plan->generations)
        return no_memory(plan, "generations of slots", plan->n_slots);
    for (uint32_t i = 0; i < plan->n_slots; i++) {
        plan->generations[i] = moor_le32_load(at + 4 * (size_t)i);
        if (!plan->generations[i])
            return moor_snapreader_wrong(reader, 4 * (size_t)(plan->n_slots - i), "slot %u has generation 0", i);
    }
    return MOOR_OK;
}

static moor_status check_runs(moor_restore_plan *plan, moor_snapreader *reader, const moor_planned_block *block)
{
    for (uint32_t r = 0; r < block->n_runs; r++) {
        const uint8_t *run = block->runs + (size_t)r * RUN_BYTES;
        uint32_t first = moor_le32_load(run);
        if (first >= block->rows || (r && first <= moor_le32_load(run - RUN_BYTES)))
            return moor_snapreader_wrong(reader, (size_t)(block->n_runs - r) * RUN_BYTES,
                                         "weight version %u begins at row %u of %u", r, first, block->rows);
        if (moor_le64_load(run + 4) > plan->epoch)
            plan->epoch = moor_le64_load(run + 4);
    }
    return MOOR_OK;
}

static moor_status read_blocks(moor_restore_plan *plan)
{
    moor_snapreader *reader = &plan->reader[MOOR_SNAP_BLOCKS];
    const moor_records *records = plan->records;
    uint64_t bytes = 0, have = plan->source.section[MOOR_SNAP_ROWS].length;
    plan->blocks = moor_heap_alloc(((size_t)plan->n_blocks + 1) * sizeof(*plan->blocks));
    if (!plan->blocks)
        return no_memory(plan, "blocks", plan->n_blocks);
    for (uint32_t i = 0; i < plan->n_blocks; i++) {
        moor_planned_block *block = &plan->blocks[i];
        block->rows = moor_snapreader_u32(reader, "a block's rows");
        block->n_runs = moor_snapreader_u32(reader, "a block's weight versions");
        block->checksum = moor_snapreader_u64(reader, "a block's checksum");
        if (!reader->status && (!block->rows || block->rows > records->max_rows))
            moor_snapreader_wrong(reader, LEAST_BLOCK, "block %u has %u rows, allowed are 1 to %u", i, block->rows,
                                  records->max_rows);
        block->runs = moor_snapreader_take(reader, (uint64_t)block->n_runs * RUN_BYTES, "a block's weight versions");
        if (reader->status || check_runs(plan, reader, block))
            return reader->status;
        bytes += (uint64_t)block->rows * records->row_bytes;
        if (bytes > have)
            break;
    }
    if (bytes != have)
        return moor_snapreader_wrong(reader, 0, "the blocks have %llu bytes of rows, section rows has %llu",
                                     (unsigned long long)bytes, (unsigned long long)have);
    if (bytes > records->arena->region.size)
        return moor_fail(MOOR_E_FULL, "snapshot %s: %llu bytes of rows, the arena has %zu", plan->source.path,
                         (unsigned long long)bytes, records->arena->region.size);
    return moor_snapreader_end(reader);
}

/* Walks the labels; told only when `restore` is given. */
static moor_status read_labels(const moor_restore_plan *plan, const moor_restore *restore)
{
    moor_snapreader reader = plan->reader[MOOR_SNAP_LABELS];
    if (!plan->source.section[MOOR_SNAP_LABELS].offset)
        return MOOR_OK;
    uint32_t n = moor_snapreader_u32(&reader, "the number of labels");
    uint64_t last = 0;
    for (uint32_t i = 0; i < n && !reader.status; i++) {
        char text[MOOR_SNAP_LABEL_BYTES] = "";
        uint64_t epoch = moor_snapreader_u64(&reader, "a label's epoch");
        uint32_t bytes = moor_snapreader_u32(&reader, "a label's length");
        if (!reader.status && (bytes >= sizeof(text) || (i && epoch <= last)))
            return moor_snapreader_wrong(&reader, 12, "label %u of %u bytes, of epoch %llu after %llu", i, bytes,
                                         (unsigned long long)epoch, (unsigned long long)last);
        const uint8_t *at = moor_snapreader_take(&reader, bytes, "a label");
        if (at)
            memcpy(text, at, bytes);
        if (at && restore && restore->label)
            restore->label(restore->user, epoch, text);
        last = epoch;
    }
    return moor_snapreader_end(&reader);
}

static moor_status read_plan(moor_restore_plan *plan, const char *dir)
{
    char name[32];
    moor_snapshot_name(plan->records->config.store_index, name);
    moor_status status = moor_snapsource_open(&plan->source, dir, name);
    for (uint32_t kind = MOOR_SNAP_MODEL; kind < MOOR_SNAP_KINDS && !status; kind++) {
        if (kind != MOOR_SNAP_ROWS)
            status = moor_snapsource_read(&plan->source, kind, &plan->memory[kind], &plan->reader[kind]);
        if (!status && kind == MOOR_SNAP_MODEL)
            status = check_model(plan); /* before anything is believed that depends on the shape of a row */
    }
    if (!status)
        status = read_store(plan);
    if (!status)
        status = read_blocks(plan);
    if (!status)
        status = read_labels(plan, NULL);
    return status;
}

/* ---- rows ---- */

static moor_status set_runs(const moor_planned_block *planned)
{
    for (uint32_t r = 0; r < planned->n_runs; r++) {
        const uint8_t *run = planned->runs + (size_t)r * RUN_BYTES;
        moor_status status = moor_block_reserve_run(planned->block);
        if (status)
            return status;
        moor_block_stamp(planned->block, moor_le32_load(run), moor_le64_load(run + 4));
    }
    return MOOR_OK;
}

/* Blocks that only the plan knows. */
static moor_status take_blocks(moor_restore_plan *plan)
{
    moor_records *records = plan->records;
    moor_status status;
    lock(records);
    status = check_new(records);
    for (uint32_t i = 0; i < plan->n_blocks && !status; i++) {
        moor_planned_block *planned = &plan->blocks[i];
        planned->block = moor_block_new(&records->blocks, planned->rows, planned->rows, &status);
        if (planned->block)
            status = set_runs(planned);
    }
    unlock(records);
    return status;
}

/* Straight into the arena; no lock: nobody else has these blocks. */
static moor_status read_rows(const moor_restore_plan *plan)
{
    uint64_t at = plan->source.section[MOOR_SNAP_ROWS].offset;
    for (uint32_t i = 0; i < plan->n_blocks; i++) {
        const moor_planned_block *planned = &plan->blocks[i];
        size_t bytes = (size_t)planned->rows * plan->records->row_bytes;
        moor_status status = moor_snapsource_bytes(&plan->source, at, planned->block->data, bytes);
        if (status)
            return status;
        uint64_t checksum = XXH3_64bits(planned->block->data, bytes);
        if (checksum != planned->checksum)
            return moor_fail(MOOR_E_CORRUPT,
                             "snapshot %s: section rows, offset %llu: the checksum of block %u (%zu bytes) is %#llx, "
                             "expected %#llx",
                             plan->source.path, (unsigned long long)at, i, bytes, (unsigned long long)checksum,
                             (unsigned long long)planned->checksum);
        at += bytes;
    }
    return MOOR_OK;
}

/* ---- records; under the lock ---- */

static moor_status take_slot(moor_restore_plan *plan, moor_snapreader *reader, uint64_t handle, moor_record_slot **out)
{
    uint32_t index = (uint32_t)handle;
    if (index >= plan->n_slots || (uint32_t)(handle >> 32) != plan->generations[index])
        return moor_snapreader_wrong(reader, 8, "handle %#llx: of %u slots, and this one's generation is %#x",
                                     (unsigned long long)handle, plan->n_slots,
                                     index < plan->n_slots ? plan->generations[index] : 0);
    moor_record_slot *slot = moor_slots_at(&plan->records->slots, index);
    if (slot->used)
        return moor_snapreader_wrong(reader, 8, "handle %#llx is there twice", (unsigned long long)handle);
    moor_record_blank(slot);
    slot->used = 1;
    slot->sealed = slot->noticed =
        1; /* the worker that would take notice is gone: its id's next step is a new record */
    plan->planned[plan->made++].slot = slot;
    *out = slot;
    return MOOR_OK;
}

static moor_status read_pieces(moor_restore_plan *plan, moor_snapreader *reader, moor_record_slot *slot, uint32_t n)
{
    const uint8_t *piece = moor_snapreader_take(reader, (uint64_t)n * PIECE_BYTES, "a record's pieces");
    moor_status status = piece ? moor_rows_reserve(&slot->rows, n) : reader->status;
    for (uint32_t i = 0; i < n && !status; i++, piece += PIECE_BYTES) {
        uint64_t rows = moor_le64_load(piece);
        uint32_t number = moor_le32_load(piece + 8), first = moor_le32_load(piece + 12);
        size_t back = (size_t)(n - i) * PIECE_BYTES;
        if (!rows || rows > INT64_MAX - slot->rows.end)
            return moor_snapreader_wrong(reader, back, "piece %u of record %.100s has %llu rows, %llu are before it", i,
                                         slot->id, (unsigned long long)rows, (unsigned long long)slot->rows.end);
        if (number == MOOR_SNAP_NO_BLOCK) {
            moor_rows_append_missing(&slot->rows, rows, first);
            continue;
        }
        uint32_t have = number < plan->n_blocks ? plan->blocks[number].rows : 0;
        if (first > have || rows > have - first)
            return moor_snapreader_wrong(reader, back,
                                         "piece %u of record %.100s: rows %u to %llu of block %u, which has %u", i,
                                         slot->id, first, (unsigned long long)first + rows, number, have);
        moor_rows_append(&slot->rows, plan->blocks[number].block, first, rows);
    }
    slot->accepted = slot->kv_done = slot->rows.end;
    plan->rows += slot->rows.end;
    return status;
}

static moor_status read_record(moor_restore_plan *plan)
{
    moor_snapreader *reader = &plan->reader[MOOR_SNAP_RECORDS];
    moor_record_slot *slot = NULL;
    uint64_t handle = moor_snapreader_u64(reader, "a handle");
    moor_status status = reader->status ? reader->status : take_slot(plan, reader, handle, &slot);
    if (status)
        return status;
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a slot of the plan's own */
    slot->owner = plan->source.format >= 2 ? moor_snapreader_u32(reader, "an owner") : MOOR_OWNER_NONE;
    if (slot->owner > MOOR_OWNER_TRACE_STORE)
        return moor_snapreader_wrong(reader, 4, "owner %u, known are 0 to %d", slot->owner, MOOR_OWNER_TRACE_STORE);
    uint32_t flags = moor_snapreader_u32(reader, "flags");
    if (flags & ~(uint32_t)MOOR_SNAP_KNOWN_FLAGS)
        return moor_snapreader_wrong(reader, 4, "flags %#x, known are %#x", flags, MOOR_SNAP_KNOWN_FLAGS);
    slot->detached = (flags & MOOR_SNAP_DETACHED) != 0;
    slot->opened = (flags & MOOR_SNAP_OPENED) != 0;
    slot->seal_flags = moor_snapreader_u32(reader, "seal flags");
    slot->dropped = moor_snapreader_u64(reader, "a number of dropped rows");
    slot->created = moor_snapreader_u64(reader, "a record's number");
    if (slot->created > plan->created)
        return moor_snapreader_wrong(reader, 8, "record number %llu, %llu were ever made",
                                     (unsigned long long)slot->created, (unsigned long long)plan->created);
    moor_planned_record *planned = &plan->planned[plan->made - 1];
    slot->id_len = moor_snapreader_u32(reader, "the length of an id");
    planned->n_aliases = moor_snapreader_u32(reader, "a number of aliases");
    uint32_t n_pieces = moor_snapreader_u32(reader, "a number of pieces");
    const uint8_t *id = moor_snapreader_take(reader, slot->id_len, "an id");
    if (!id)
        return reader->status;
    if (!slot->id_len)
        return moor_snapreader_wrong(reader, 12, "an id of no bytes");
    slot->id = moor_heap_alloc((size_t)slot->id_len + 1);
    if (!slot->id)
        return no_memory(plan, "bytes of an id", slot->id_len);
    memcpy(slot->id, id, slot->id_len);
    slot->hash = moor_id_hash(slot->id, slot->id_len);
    planned->aliases = moor_snapreader_take(reader, (uint64_t)planned->n_aliases * ALIAS_BYTES, "a record's aliases");
    return planned->aliases ? read_pieces(plan, reader, slot, n_pieces) : reader->status;
}

static int by_creation(const void *a, const void *b)
{
    const moor_planned_record *x = a, *y = b;
    return (x->slot->created > y->slot->created) - (x->slot->created < y->slot->created);
}

/* An id means its newest record first, so ids come in the order in which the records were made. */
static moor_status add_ids(const moor_restore_plan *plan)
{
    moor_planned_record *order = moor_heap_alloc(((size_t)plan->made + 1) * sizeof(*order));
    if (!order)
        return no_memory(plan, "ids", plan->made);
    memcpy(order, plan->planned, plan->made * sizeof(*order));
    qsort(order, plan->made, sizeof(*order), by_creation);
    moor_status status = MOOR_OK;
    for (uint32_t i = 0; i < plan->made && !status; i++) {
        moor_record_slot *slot = order[i].slot;
        status = moor_ids_add(&plan->records->ids, slot->hash, slot->index, 0, 1, &slot->nodes);
        for (uint32_t a = order[i].n_aliases; a-- && !status;) {
            const uint8_t *alias = order[i].aliases + (size_t)a * ALIAS_BYTES;
            moor_hash128 hash = {moor_le64_load(alias), moor_le64_load(alias + 8)};
            status = moor_ids_add(&plan->records->ids, hash, slot->index, moor_le32_load(alias + 16), 0, &slot->nodes);
        }
    }
    moor_heap_free(order);
    return status;
}

static void unmake(const moor_restore_plan *plan)
{
    moor_records *records = plan->records;
    moor_sessions_forget(records->sessions);
    for (uint32_t i = 0; i < plan->made; i++) {
        moor_record_slot *slot = plan->planned[i].slot;
        moor_ids_remove(&records->ids, &slot->nodes);
        moor_rows_clear(&slot->rows, &records->blocks);
        moor_heap_free(slot->id);
        slot->id = NULL;
        slot->used = 0;
    }
}

/* Nothing here can fail. */
static void put_in_place(moor_restore_plan *plan)
{
    moor_records *records = plan->records;
    uint64_t now_ns = moor_now_ns();
    moor_slots_revive(&records->slots, plan->generations, plan->n_slots);
    for (uint32_t i = 0; i < plan->made; i++)
        moor_record_touch(records, plan->planned[i].slot, now_ns);
    records->live = records->sealed = plan->made;
    records->created = plan->created;
    records->notify = 1;
}

static moor_status install(moor_restore_plan *plan)
{
    moor_records *records = plan->records;
    plan->planned = moor_heap_alloc(((size_t)plan->n_records + 1) * sizeof(*plan->planned));
    if (!plan->planned)
        return no_memory(plan, "records", plan->n_records);
    lock(records);
    moor_status status = check_new(records);
    if (status) {
        unlock(records);
        return status;
    }
    status = moor_slots_reserve(&records->slots, plan->n_slots);
    for (uint32_t i = 0; i < plan->n_records && !status; i++)
        status = read_record(plan);
    if (!status)
        status = moor_snapreader_end(&plan->reader[MOOR_SNAP_RECORDS]);
    if (!status)
        status = add_ids(plan);
    if (!status)
        status = moor_snapsessions_read(plan);
    if (status)
        unmake(plan);
    else
        put_in_place(plan);
    unlock(records);
    return status;
}

static void drop_plan(moor_restore_plan *plan)
{
    moor_records *records = plan->records;
    moor_records_lock(records);
    for (uint32_t i = 0; plan->blocks && i < plan->n_blocks; i++) {
        if (plan->blocks[i].block)
            moor_block_unref(&records->blocks, plan->blocks[i].block);
    }
    moor_records_unlock(records);
    for (uint32_t kind = 0; kind < MOOR_SNAP_KINDS; kind++)
        moor_heap_free(plan->memory[kind]);
    moor_heap_free(plan->generations);
    moor_heap_free(plan->blocks);
    moor_heap_free(plan->planned);
    moor_snapsource_close(&plan->source);
    moor_heap_free(plan);
}

moor_status moor_records_restore(moor_records *records, const moor_restore *restore, moor_restored *restored)
{
    lock(records);
    moor_status status = check_new(records);
    unlock(records);
    moor_restore_plan *plan = status ? NULL : moor_heap_alloc(sizeof(*plan));
    if (!plan)
        return status ? status : moor_fail(MOOR_E_NOMEM, "no memory to restore a snapshot");
    plan->records = records;
    plan->source.fd = -1;
    status = read_plan(plan, restore->dir);
    if (!status)
        status = take_blocks(plan);
    if (!status)
        status = read_rows(plan);
    if (!status)
        status = install(plan);
    if (!status) {
        (void)read_labels(plan, restore); /* read before: it does not fail now */
        if (restored)
            *restored = (moor_restored){plan->made, plan->rows, plan->epoch};
    }
    drop_plan(plan);
    return status;
}
