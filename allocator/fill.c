/* SPDX-License-Identifier: Apache-2.0 */
#include "fill.h"

#include <string.h>

#include "error.h"
#include "heap.h"
#include "seal.h"
#include "trace.h"

/* Rows on their way in: new blocks, one reference each, rows in order. */
typedef struct intake {
    moor_block *block[64];
    uint32_t n;
    uint64_t rows;
} intake;

static void drop(moor_records *records, intake *in)
{
    for (uint32_t i = 0; i < in->n; i++)
        moor_block_unref(&records->blocks, in->block[i]);
    in->n = 0;
}

/* Allocates blocks for n rows. Each holds max_rows, the last one what is left. */
static moor_status make_room(moor_records *records, uint64_t n, intake *in)
{
    memset(in, 0, sizeof(*in));
    in->rows = n;
    while (n) {
        moor_status why = MOOR_OK;
        uint32_t rows = n < records->max_rows ? (uint32_t)n : records->max_rows;
        moor_block *block = in->n < 64 ? moor_block_new(&records->blocks, rows, rows, &why) : NULL;
        if (!block) {
            drop(records, in);
            return why ? why : moor_fail(MOOR_E_RANGE, "%llu rows in one fill", (unsigned long long)in->rows);
        }
        block->foreign = 1;
        in->block[in->n++] = block;
        n -= rows;
    }
    return MOOR_OK;
}

/* Narrows rows skip… of the source into the blocks. */
static moor_status narrow_in(moor_records *records, const intake *in, const moor_ids *ids, uint64_t skip,
                             uint64_t start, const char *id, uint32_t id_len)
{
    uint32_t layers = records->config.layers, k = records->config.top_k;
    ptrdiff_t size = moor_narrow_dtype_bytes(ids->dtype);
    /* One line of k ids after the other, row by row. */
    moor_narrow job = {
        .n_spans = 1, .k = k, .row_bytes = (size_t)k * records->id_bytes, .token_bytes = k * size, .k_bytes = size};
    moor_narrow_fn narrow = moor_narrow_pick(ids->dtype, records->id_bytes, 1);
    if (!narrow)
        return moor_fail(MOOR_E_INVALID, "request %.*s: fill with dtype %u, none of MOOR_DTYPE_*", (int)id_len, id,
                         ids->dtype);
    uint64_t done = 0;
    for (uint32_t b = 0; b < in->n; b++) {
        uint64_t rows = in->rows - done < records->max_rows ? in->rows - done : records->max_rows;
        moor_span span = {in->block[b]->data, 0, (uint32_t)(rows * layers)};
        job.spans = &span;
        job.source = (const uint8_t *)ids->data + (size_t)(skip + done) * layers * k * (size_t)size;
        if (narrow(&job) >= records->config.num_experts) {
            for (uint64_t i = 0; i < rows * layers * k; i++) {
                int64_t value = moor_id_load(job.source + i * (size_t)size, ids->dtype);
                if (value < 0 || value >= (int64_t)records->config.num_experts)
                    return moor_fail(MOOR_E_RANGE,
                                     "request %.*s: token %llu, layer %d: id %lld, the model has %u experts",
                                     (int)id_len, id, (unsigned long long)(start + skip + done + i / (layers * k)),
                                     records->layer_ids[i / k % layers], (long long)value, records->config.num_experts);
            }
        }
        done += rows;
    }
    return MOOR_OK;
}

/* Counts the missing rows of [from, to). */
static uint64_t missing_in(const moor_rows *rows, uint64_t from, uint64_t to)
{
    uint64_t missing = 0;
    for (uint64_t at = from; at < to;) {
        const moor_piece *piece = &rows->piece[moor_rows_at(rows, at)];
        uint64_t end = piece->start + piece->rows < to ? piece->start + piece->rows : to;
        missing += piece->block ? 0 : end - at;
        at = end;
    }
    return missing;
}

/* Row i of the intake. */
static moor_block *intake_at(const moor_records *records, const intake *in, uint64_t i, uint32_t *first, uint64_t *left)
{
    *first = (uint32_t)(i % records->max_rows);
    *left = records->max_rows - *first;
    return in->block[i / records->max_rows];
}

/* Puts the rows where the record has none: [start, …) of which the intake holds those from start + skip on. */
static moor_status take_in(moor_records *records, moor_record_slot *record, const intake *in, uint64_t from,
                           uint64_t end)
{
    moor_rows *rows = &record->rows;
    uint64_t at = from;
    while (at < end) {
        uint32_t first;
        uint64_t left;
        moor_block *block = intake_at(records, in, at - from, &first, &left);
        moor_status status = moor_rows_reserve(rows, 4);
        if (status)
            return status; /* what came in so far is right, and stays */
        if (at >= rows->end) {
            uint64_t n = left < end - at ? left : end - at;
            moor_rows_append(rows, block, first, n);
            at += n;
            continue;
        }
        const moor_piece *piece = &rows->piece[moor_rows_at(rows, at)];
        uint64_t n = piece->start + piece->rows - at;
        n = n < left ? n : left;
        n = n < end - at ? n : end - at;
        if (!piece->block)
            moor_rows_patch(rows, at, block, first, n);
        at += n;
    }
    return MOOR_OK;
}

static moor_status check_fill(const moor_records *records, const char *id, uint32_t id_len, uint64_t start,
                              const moor_ids *ids, uint64_t rows)
{
    if (!id || !id_len || !ids || (!ids->data && rows))
        return moor_fail(MOOR_E_INVALID, "fill: no id or no data");
    uint64_t lines = rows * records->config.layers;
    int by_layer = ids->top_k == records->config.top_k && ids->tokens == lines;
    int by_row = ids->top_k == records->config.top_k * records->config.layers && ids->tokens == rows;
    if (rows > UINT32_MAX || start > UINT32_MAX || (!by_layer && !by_row))
        return moor_fail(MOOR_E_INVALID, "request %.*s: fill of %llu rows of %u layers and %u ids with %u times %u ids",
                         (int)id_len, id, (unsigned long long)rows, records->config.layers, records->config.top_k,
                         ids->tokens, ids->top_k);
    if (ids->stride_k || ids->stride_token)
        return moor_fail(MOOR_E_UNSUPPORTED, "request %.*s: fill takes contiguous rows only", (int)id_len, id);
    return MOOR_OK;
}

static moor_status fill_record(moor_records *records, moor_record_slot *record, uint64_t start, const moor_ids *ids,
                               uint64_t rows, uint64_t epoch)
{
    uint64_t history = record->accepted, end = start + rows;
    if (start > history + 1)
        return moor_fail(MOOR_E_RANGE, "request %s: rows from %llu on, the history has %llu", record->id,
                         (unsigned long long)start, (unsigned long long)history);
    uint64_t holes = missing_in(&record->rows, start < history ? start : history, end < history ? end : history);
    if (end <= history && !holes) {
        if (end + 1 < history)
            return moor_fail(MOOR_E_RANGE,
                             "request %s: %llu rows, the history has %llu: short by more than the last sampled token",
                             record->id, (unsigned long long)end, (unsigned long long)history);
        record->dropped += rows;
        return MOOR_OK;
    }
    /* First accepted wins: rows before the first hole need no room. */
    uint64_t skip = holes || history < start ? 0 : history - start;
    intake in;
    moor_status status = make_room(records, rows - skip, &in);
    if (!status)
        status = narrow_in(records, &in, ids, skip, start, record->id, record->id_len);
    if (!status)
        status = moor_rows_reserve(&record->rows, 4);
    if (!status) {
        for (uint32_t i = 0; i < in.n; i++)
            moor_block_stamp(in.block[i], 0, epoch);
        moor_rows_cut(&record->rows, &records->blocks, record->accepted); /* speculative ones: nobody saw them */
        if (start > record->rows.end)
            moor_rows_append_missing(&record->rows, 1, MOOR_REASON_PREFIX_UNKNOWN);
        status = take_in(records, record, &in, start + skip, end);
        record->accepted = record->rows.end;
        record->kv_done =
            record->accepted; /* whatever the KV cache has of these rows, it is not known to be the same */
        record->dropped += history > start ? (end < history ? end : history) - start - holes : 0;
        moor_records_count(records, MOOR_C_ROWS, record->rows.end - history);
        if (record->expirable)
            moor_record_touch(records, record, moor_now_ns());
    }
    drop(records, &in);
    return status;
}

moor_status moor_records_fill(moor_records *records, const char *id, uint32_t id_len, uint64_t start,
                              const moor_ids *ids, uint64_t rows, uint64_t epoch)
{
    moor_status status = check_fill(records, id, id_len, start, ids, rows);
    if (status)
        return status;
    moor_hash128 hash = moor_id_hash(id, id_len);
    moor_records_lock(records);
    moor_record_slot *before = moor_record_by_core_id(records, hash), *record = before;
    int fresh = !record || moor_slot_dead(record);
    if (fresh)
        record = moor_record_new(records, hash, id, id_len);
    if (!record)
        status = MOOR_E_NOMEM;
    else if (record->in_step)
        status = moor_fail(MOOR_E_STATE, "request %s: fill while a step records it", record->id);
    else
        status = fill_record(records, record, start, ids, rows, epoch);
    if (status && record && fresh && !record->rows.end)
        moor_record_unmake(records, record);
    else if (record && fresh)
        moor_record_supersede(records, before);
    records->notify = 1;
    moor_records_unlock(records);
    return status;
}

static moor_status truncate_record(moor_records *records, moor_record_slot *record, uint64_t rows, uint64_t min_rows)
{
    if (record->in_step)
        return moor_fail(MOOR_E_STATE, "request %s: truncate while a step records it", record->id);
    if (rows < min_rows || rows > record->accepted)
        return moor_fail(MOOR_E_RANGE, "request %s: truncate to %llu rows, allowed are %llu to %llu", record->id,
                         (unsigned long long)rows, (unsigned long long)min_rows, (unsigned long long)record->accepted);
    moor_status status = moor_trace_may_cut(record, rows);
    if (!status)
        status = moor_record_can_cut(record);
    if (status)
        return status;
    moor_trace_cut(record, rows, record->rows.end);
    moor_record_cut(records, record, rows);
    if (record->gap_until > rows)
        record->gap_until = rows;
    if (record->expirable)
        moor_record_touch(records, record, moor_now_ns());
    return MOOR_OK;
}

moor_status moor_records_truncate(moor_records *records, const char *id, uint32_t id_len, uint64_t rows,
                                  uint64_t min_rows)
{
    moor_handle handle;
    moor_record_slot *record = NULL;
    moor_status status = moor_records_find(records, id, id_len, &handle);
    if (status)
        return status;
    pthread_mutex_lock(&records->sessions->lock); /* tokens of a session are cut together with its rows */
    moor_records_lock(records);
    status = moor_slots_get(&records->slots, handle, &record);
    if (!status)
        status = truncate_record(records, record, rows, min_rows);
    moor_records_unlock(records);
    pthread_mutex_unlock(&records->sessions->lock);
    return status;
}
