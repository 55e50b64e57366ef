/* SPDX-License-Identifier: Apache-2.0 */
#include "step.h"

#include <string.h>

#include "commit.h"
#include "error.h"
#include "heap.h"
#include "plan.h"

enum { CAPTURED = 1, REFUSED = 2, LATE_STEPS = 8 };

moor_status moor_step_open(moor_records *records)
{
    moor_step *step = &records->step;
    step->captured = moor_heap_alloc(records->config.layers);
    if (!step->captured)
        return moor_fail(MOOR_E_NOMEM, "no memory for the layers of a step");
    return moor_stage_open(&step->stage, records->config.layers, records->config.top_k * records->id_bytes);
}

void moor_step_close(moor_records *records)
{
    moor_step *step = &records->step;
    moor_heap_free(step->entries);
    moor_heap_free(step->spans);
    moor_heap_free(step->pieces);
    moor_stage_close(&step->stage);
    moor_heap_free(step->kv);
    moor_heap_free(step->captured);
    moor_heap_free(step->last);
    memset(step, 0, sizeof(*step));
}

/* ---- begin: which record ---- */

/* A record that is sealed, but whose id still appears in steps that were under way: such a step goes on where the record ended. What begins
 * elsewhere is a new request under an old id. */
static int is_late(const moor_record_slot *record, const moor_step_request *request, uint64_t number)
{
    return record->sealed && !record->noticed && record->rows.end && request->start >= record->rows.end &&
           record->last_step && number - record->last_step <= LATE_STEPS;
}

static moor_record_slot *record_for(moor_records *records, const moor_step_request *request, uint32_t at)
{
    moor_step *step = &records->step;
    if (at < step->n_last) {
        moor_record_slot *last = step->last[at];
        if (last && last->used && !last->sealed && last->id_len == request->id_len &&
            !memcmp(last->id, request->id, request->id_len))
            return last;
    }
    moor_hash128 hash = moor_id_hash(request->id, request->id_len);
    moor_record_slot *record = moor_record_by_core_id(records, hash);
    if (record && (!record->sealed || is_late(record, request, step->number)))
        return record;
    return moor_record_new(records, hash, request->id, request->id_len);
}

static moor_status check_requests(const moor_records *records, const moor_step_request *requests, uint32_t n)
{
    uint64_t tokens = 0;
    if (n && !requests)
        return moor_fail(MOOR_E_INVALID, "step_begin: %u requests at no address", n);
    for (uint32_t i = 0; i < n; i++) {
        const moor_step_request *request = &requests[i];
        if (!request->id || !request->id_len)
            return moor_fail(MOOR_E_INVALID, "step_begin: request %u of %u has no id", i, n);
        if (request->spec > request->count || request->start > UINT32_MAX)
            return moor_fail(MOOR_E_INVALID, "step_begin: request %.*s: %u tokens from %llu, %u of them speculative",
                             (int)request->id_len, request->id, request->count, (unsigned long long)request->start,
                             request->spec);
        tokens += request->count;
    }
    if (tokens > records->config.max_step_tokens)
        return moor_fail(MOOR_E_RANGE, "step_begin: %llu tokens, the store was made for %u", (unsigned long long)tokens,
                         records->config.max_step_tokens);
    return MOOR_OK;
}

static moor_status reserve_step(moor_step *step, uint32_t n)
{
    if (n <= step->cap)
        return MOOR_OK;
    uint32_t cap = n > 2 * step->cap ? n : 2 * step->cap;
    moor_step_entry *entries = moor_heap_realloc(step->entries, cap * sizeof(*entries));
    step->entries = entries ? entries : step->entries;
    moor_record_slot **last = entries ? moor_heap_realloc(step->last, cap * sizeof(*last)) : NULL;
    if (!last)
        return moor_fail(MOOR_E_NOMEM, "no memory for a step of %u requests", n);
    step->last = last;
    step->cap = cap;
    return MOOR_OK;
}

moor_status moor_records_step_begin(moor_records *records, const moor_step_request *requests, uint32_t n,
                                    uint64_t epoch)
{
    moor_step *step = &records->step;
    moor_records_lock(records);
    if (step->open)
        moor_step_give_up(records);
    moor_status status = check_requests(records, requests, n);
    if (!status)
        status = reserve_step(step, n);
    if (status) {
        moor_records_count(records, MOOR_C_STEPS_FAILED, 1);
        moor_records_unlock(records);
        return status;
    }
    step->epoch = epoch;
    step->number++;
    step->n = step->tokens = step->n_pieces = step->n_spans = step->n_kv = step->n_captured = 0;
    moor_stage_begin(&step->stage);
    memset(step->captured, 0, records->config.layers);
    for (uint32_t i = 0; i < n; i++) {
        moor_step_entry *entry = &step->entries[i];
        memset(entry, 0, sizeof(*entry));
        entry->token = step->tokens;
        entry->count = requests[i].count;
        step->tokens += requests[i].count;
        step->n = i + 1;
        moor_record_slot *record = record_for(records, &requests[i], i);
        step->last[i] = record;
        if (record && record->in_step) {
            step->last[i] = NULL;
            step->n_last = i;
            status = moor_fail(MOOR_E_INVALID, "step_begin: request %s is twice in one step", record->id);
            break;
        }
        /* No record, for want of memory: its rows up to now are missing when it comes to be. */
        if (record && (record->sealed || moor_slot_dead(record)))
            moor_records_count(records, MOOR_C_ROWS_DROPPED, requests[i].count); /* it ran on after its end */
        else if (record)
            moor_plan_request(records, entry, &requests[i], record);
        if (!entry->record)
            moor_plan_forget_kv(records, &requests[i]);
    }
    step->open = 1;
    if (status)
        moor_step_give_up(records);
    else
        step->n_last = n;
    moor_records_unlock(records);
    return status;
}

uint32_t moor_records_step_tokens(const moor_records *records)
{
    return records->step.open ? records->step.tokens : 0;
}

/* ---- capture ---- */

/* Names the first id that is out of range. */
static moor_status bad_id(const moor_records *records, uint32_t column, const moor_ids *ids, const moor_narrow *job)
{
    const moor_step *step = &records->step;
    for (uint32_t s = 0; s < step->n_spans + step->stage.n_spans; s++) {
        const moor_span *span = s < step->n_spans ? &step->spans[s] : &step->stage.spans[s - step->n_spans];
        for (uint64_t i = 0; i < (uint64_t)span->n * job->k; i++) {
            uint32_t token = span->token + (uint32_t)(i / job->k);
            const uint8_t *at =
                job->source + (ptrdiff_t)token * job->token_bytes + (ptrdiff_t)(i % job->k) * job->k_bytes;
            int64_t id = moor_id_load(at, ids->dtype);
            if (id >= 0 && id < (int64_t)records->config.num_experts)
                continue;
            const moor_step_entry *entry = step->entries;
            while (token >= entry->token + entry->count)
                entry++;
            return moor_fail(MOOR_E_RANGE, "request %s: token %llu, layer %d: id %lld, the model has %u experts",
                             entry->record->id, (unsigned long long)(entry->start + token - entry->token),
                             records->layer_ids[column], (long long)id, records->config.num_experts);
        }
    }
    return moor_fail(
        MOOR_E_RANGE,
        "layer column %u: an id of %u experts is out of range and was gone when looked for: the source changed "
        "during the call",
        column, records->config.num_experts);
}

static moor_status refuse(moor_records *records, uint32_t column, moor_status status)
{
    moor_step *step = &records->step;
    step->errors++;
    if (step->open && column < records->config.layers) {
        step->n_captured -= step->captured[column] == CAPTURED;
        step->captured[column] = REFUSED;
    }
    return status;
}

static moor_status check_capture(const moor_records *records, uint32_t column, const moor_ids *ids)
{
    const moor_step *step = &records->step;
    if (!step->open)
        return moor_fail(MOOR_E_STATE, "capture of layer column %u: no step is open", column);
    if (column >= records->config.layers)
        return moor_fail(MOOR_E_RANGE, "capture of layer column %u: there are %u", column, records->config.layers);
    if (step->captured[column])
        return moor_fail(MOOR_E_STATE, "layer column %u (layer %d) captured twice in one step", column,
                         records->layer_ids[column]);
    if (!ids || (!ids->data && ids->tokens))
        return moor_fail(MOOR_E_INVALID, "capture of layer column %u: no data", column);
    if (ids->tokens > records->config.max_step_tokens)
        return moor_fail(MOOR_E_RANGE, "capture of layer column %u: %u tokens, the store was made for %u", column,
                         ids->tokens, records->config.max_step_tokens);
    if (ids->tokens != step->tokens)
        return moor_fail(MOOR_E_INVALID, "capture of layer column %u: %u tokens, the step has %u", column, ids->tokens,
                         step->tokens);
    if (ids->top_k != records->config.top_k)
        return moor_fail(MOOR_E_INVALID, "capture of layer column %u: %u ids a token, the store was made for %u",
                         column, ids->top_k, records->config.top_k);
    return MOOR_OK;
}

moor_status moor_records_capture(moor_records *records, uint32_t column, const moor_ids *ids)
{
    moor_step *step = &records->step;
    moor_status status = check_capture(records, column, ids);
    if (status) {
        /* A second capture says nothing against the first one; anything else leaves the layer without rows. */
        if (!step->open || column >= records->config.layers || !step->captured[column])
            return refuse(records, column, status);
        step->errors++;
        return status;
    }
    ptrdiff_t size = moor_narrow_dtype_bytes(ids->dtype);
    int compact = !ids->stride_token && !ids->stride_k;
    moor_narrow job = {.spans = step->spans,
                       .n_spans = step->n_spans,
                       .k = records->config.top_k,
                       .row_bytes = records->row_bytes,
                       .column = (size_t)column * records->config.top_k * records->id_bytes,
                       .source = ids->data,
                       .token_bytes = (compact ? (ptrdiff_t)ids->top_k : (ptrdiff_t)ids->stride_token) * size,
                       .k_bytes = (compact ? 1 : (ptrdiff_t)ids->stride_k) * size};
    moor_narrow_fn narrow = moor_narrow_pick(ids->dtype, records->id_bytes, job.k_bytes == size);
    if (!narrow)
        return refuse(records, column,
                      moor_fail(MOOR_E_INVALID, "capture of layer column %u: dtype %u is none of MOOR_DTYPE_*", column,
                                ids->dtype));
    uint64_t most = narrow(&job), most_staged = moor_stage_narrow(&step->stage, column, narrow, job);
    if (most >= records->config.num_experts || most_staged >= records->config.num_experts)
        return refuse(records, column, bad_id(records, column, ids, &job));
    step->captured[column] = CAPTURED;
    step->n_captured++;
    return MOOR_OK;
}

moor_status moor_records_capture_failed(moor_records *records, uint32_t column, moor_status status)
{
    return refuse(records, column, status);
}

uint32_t moor_records_dtype_bytes(uint32_t dtype)
{
    return moor_narrow_dtype_bytes(dtype);
}
