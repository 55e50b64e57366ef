/* SPDX-License-Identifier: Apache-2.0 */
#include "step.h"

#include <string.h>

#include "error.h"
#include "heap.h"
#include "records.h"

enum { CAPTURED = 1, REFUSED = 2, FIRST_ROWS = 64, LATE_STEPS = 8 };

moor_status moor_step_open(moor_records *records)
{
    records->step.captured = moor_heap_alloc(records->config.layers);
    return records->step.captured ? MOOR_OK : moor_fail(MOOR_E_NOMEM, "no memory for the layers of a step");
}

void moor_step_close(moor_records *records)
{
    moor_step *step = &records->step;
    moor_heap_free(step->entries);
    moor_heap_free(step->spans);
    moor_heap_free(step->span_block);
    moor_heap_free(step->span_first);
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
    return record->sealed && !record->noticed && record->rows.end && request->start >= record->rows.end && record->last_step &&
           number - record->last_step <= LATE_STEPS;
}

static moor_record_slot *record_for(moor_records *records, const moor_step_request *request, uint32_t at)
{
    moor_step *step = &records->step;
    if (at < step->n_last) {
        moor_record_slot *last = step->last[at];
        if (last && last->used && !last->sealed && last->id_len == request->id_len && !memcmp(last->id, request->id, request->id_len))
            return last;
    }
    moor_hash128 hash = moor_id_hash(request->id, request->id_len);
    moor_record_slot *record = moor_record_by_core_id(records, hash);
    if (record && (!record->sealed || is_late(record, request, step->number)))
        return record;
    return moor_record_new(records, hash, request->id, request->id_len);
}

/* ---- begin: what is known already ---- */

/* Speculative rows of earlier steps: this step's start says how many of them were accepted. */
static void decide(moor_records *records, moor_record_slot *record, uint64_t start)
{
    uint64_t end = record->rows.end;
    if (end == record->accepted)
        return;
    uint64_t keep = start < record->accepted ? record->accepted : start < end ? start : end;
    if (keep < end) {
        moor_piece *last = &record->rows.piece[record->rows.n - 1];
        uint64_t cut = end - keep;
        /* Nobody saw these rows: their room in the tail can be used again. */
        if (last->block && last->block == record->tail && last->first + last->rows == record->tail_used)
            record->tail_used -= (uint32_t)(cut < last->rows ? cut : last->rows);
        moor_record_cut(records, record, keep);
        moor_records_count(records, MOOR_C_ROWS_REJECTED, cut);
    }
    moor_records_count(records, MOOR_C_ROWS, keep - record->accepted);
    record->accepted = keep;
}

/* One KV block's rows from `position` on, at most to `to`. Returns how many rows were appended, present or missing. */
static uint64_t supply_block(moor_records *records, moor_record_slot *record, const moor_step_request *request, uint64_t position, uint64_t to)
{
    uint32_t size = records->kv.block_size;
    uint64_t number = position / size, in_block = position % size;
    uint64_t n = (number + 1) * size - position;
    if (n > to - position)
        n = to - position;
    const moor_kv_entry *entry = number < request->n_kv_blocks ? moor_kvindex_get(&records->kv, request->kv_blocks[number]) : NULL;
    uint32_t part, first;
    uint32_t have = entry ? moor_kv_entry_at(entry, (uint32_t)in_block, &part, &first) : 0;
    if (!have) {
        moor_rows_append_missing(&record->rows, n, MOOR_REASON_PREFIX_UNKNOWN);
        return n;
    }
    if (have < n)
        n = have;
    moor_rows_append(&record->rows, entry->block[part], first, n);
    moor_records_count(records, MOOR_C_ROWS_PREFIX, n);
    return n;
}

/* The step starts beyond the rows that are known: rows between them come from the KV index, or are missing. */
static void supply(moor_records *records, moor_step_entry *entry, const moor_step_request *request)
{
    moor_record_slot *record = entry->record;
    uint64_t to = request->start, at = record->rows.end;
    if (at < record->gap_until) {
        uint64_t lost = (to < record->gap_until ? to : record->gap_until) - at;
        moor_rows_append_missing(&record->rows, lost, record->gap_reasons);
        at += lost;
    }
    int known = records->kv.entry && request->kv_blocks && !(request->flags & MOOR_STEP_PREFIX_UNPROVEN);
    uint64_t before = record->rows.missing;
    entry->gap_from = at;
    while (known && at < to && moor_rows_reserve(&record->rows, 4) == MOOR_OK)
        at += supply_block(records, record, request, at, to);
    if (at < to)
        moor_rows_append_missing(&record->rows, to - at, MOOR_REASON_PREFIX_UNKNOWN);
    /* Another request of this very step may compute the prefix (siblings that are scheduled together): commit looks again. */
    entry->gap_to = known && record->rows.missing > before ? to : entry->gap_from;
    record->accepted = record->kv_done = record->rows.end;
}

/* ---- begin: where rows go ---- */

static uint32_t bounded(uint64_t rows, uint32_t most)
{
    return rows > most ? most : (uint32_t)rows;
}

/* A tail with room. left: rows this step still wants; ahead: rows that may come after them (0: unknown). */
static moor_status make_tail(moor_records *records, moor_record_slot *record, uint32_t left, uint64_t ahead)
{
    uint32_t most = records->max_rows;
    moor_block *tail = record->tail;
    /* Doubling what there is keeps the segments few; what the request may still reach bounds it. */
    uint64_t extra = record->rows.end > left ? record->rows.end : left;
    extra = extra < FIRST_ROWS ? FIRST_ROWS : extra;
    if (ahead && extra > ahead)
        extra = ahead;
    if (tail && tail->rows < most) {
        uint64_t least = (uint64_t)tail->rows + left;
        if (!moor_block_grow(&records->blocks, tail, bounded(least, most), bounded(least + extra, most)))
            return MOOR_OK;
    }
    moor_status why = MOOR_OK;
    moor_block *block = moor_block_new(&records->blocks, bounded(left, most), bounded(left + extra, most), &why);
    if (!block)
        return why;
    if (tail)
        moor_block_unref(&records->blocks, tail);
    record->tail = block;
    record->tail_used = 0;
    return MOOR_OK;
}

static moor_status add_span(moor_step *step, moor_block *block, uint32_t first, uint32_t token, uint32_t n, uint32_t row_bytes)
{
    if (step->n_spans == step->cap_spans) {
        uint32_t cap = step->cap_spans ? step->cap_spans * 2 : 64;
        moor_span *spans = moor_heap_realloc(step->spans, cap * sizeof(*spans));
        step->spans = spans ? spans : step->spans;
        moor_block **blocks = spans ? moor_heap_realloc(step->span_block, cap * sizeof(*blocks)) : NULL;
        step->span_block = blocks ? blocks : step->span_block;
        uint32_t *firsts = blocks ? moor_heap_realloc(step->span_first, cap * sizeof(*firsts)) : NULL;
        step->span_first = firsts ? firsts : step->span_first;
        if (!firsts)
            return moor_fail(MOOR_E_NOMEM, "no memory for %u spans of a step", cap);
        step->cap_spans = cap;
    }
    moor_block_ref(block); /* until commit: the record may go on to another tail in this step */
    step->spans[step->n_spans] = (moor_span){block->data + (size_t)first * row_bytes, token, n};
    step->span_block[step->n_spans] = block;
    step->span_first[step->n_spans++] = first;
    return MOOR_OK;
}

/* Plans the rows of an entry; what finds no room is `lost`. */
static void plan_rows(moor_records *records, moor_step_entry *entry, const moor_step_request *request)
{
    moor_step *step = &records->step;
    moor_record_slot *record = entry->record;
    uint32_t left = entry->count - entry->skip, token = entry->token + entry->skip;
    uint32_t used = record->tail_used;
    uint64_t reach = entry->start + entry->count;
    uint64_t ahead = request->rows_hint > reach ? request->rows_hint - reach : 0;
    entry->span = step->n_spans;
    while (left) {
        if (!record->tail || used == record->tail->rows) {
            moor_block *before = record->tail;
            if (make_tail(records, record, left, ahead))
                break;
            used = record->tail == before ? used : 0;
        }
        uint32_t n = record->tail->rows - used < left ? record->tail->rows - used : left;
        if (moor_block_reserve_run(record->tail) || moor_rows_reserve(&record->rows, step->n_spans - entry->span + 4) ||
            add_span(step, record->tail, used, token, n, records->row_bytes))
            break;
        used += n;
        token += n;
        left -= n;
    }
    entry->n_spans = step->n_spans - entry->span;
    entry->lost = left;
    if (left)
        moor_records_count(records, MOOR_C_ARENA_FULL, 1);
}

/* Copies the ids of the KV blocks that commit will want. */
static void keep_kv(moor_records *records, moor_step_entry *entry, const moor_step_request *request)
{
    moor_step *step = &records->step;
    entry->n_kv = 0;
    if (!records->kv.entry || !request->kv_blocks)
        return;
    uint64_t from = entry->record->kv_done < entry->start ? entry->record->kv_done : entry->start;
    if (entry->gap_to > entry->gap_from)
        from = entry->gap_from;
    uint64_t first = from / records->kv.block_size;
    uint64_t last = (entry->start + entry->count + records->kv.block_size - 1) / records->kv.block_size;
    if (last > request->n_kv_blocks)
        last = request->n_kv_blocks;
    if (first >= last)
        return;
    uint32_t n = (uint32_t)(last - first);
    if (step->cap_kv - step->n_kv < n) {
        uint32_t cap = step->n_kv + n > 2 * step->cap_kv ? step->n_kv + n : 2 * step->cap_kv;
        int32_t *kv = moor_heap_realloc(step->kv, cap * sizeof(*kv));
        if (!kv)
            return; /* these rows will not be found by a prefix hit, which is no error of theirs */
        step->kv = kv;
        step->cap_kv = cap;
    }
    memcpy(step->kv + step->n_kv, request->kv_blocks + first, n * sizeof(*step->kv));
    entry->kv = step->n_kv;
    entry->n_kv = n;
    entry->kv_first = first;
    step->n_kv += n;
}

static void fail_rows(moor_record_slot *record, uint64_t until, uint32_t reason)
{
    if (until > record->gap_until)
        record->gap_until = until;
    record->gap_reasons |= reason;
}

static void begin_entry(moor_records *records, moor_step_entry *entry, const moor_step_request *request, moor_record_slot *record)
{
    entry->record = record;
    entry->start = request->start;
    entry->spec = request->spec;
    record->last_step = records->step.number;
    decide(records, record, request->start);
    /* One piece each for rows lost before, an unknown prefix, rows without room, and what the seal finds short. */
    if (moor_rows_reserve(&record->rows, 4)) {
        fail_rows(record, request->start + request->count - request->spec, MOOR_REASON_ARENA_FULL);
        moor_records_count(records, MOOR_C_ARENA_FULL, 1);
        entry->record = NULL;
        return;
    }
    if (request->start > record->rows.end)
        supply(records, entry, request);
    uint64_t known = record->accepted - request->start; /* of the step's tokens: accepted before */
    if (record->accepted < request->start)
        known = 0;
    entry->skip = known < request->count ? (uint32_t)known : request->count;
    plan_rows(records, entry, request);
    keep_kv(records, entry, request);
    record->in_step = 1;
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
            return moor_fail(MOOR_E_INVALID, "step_begin: request %.*s: %u tokens from %llu, %u of them speculative", (int)request->id_len,
                             request->id, request->count, (unsigned long long)request->start, request->spec);
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

static void abandon(moor_records *records);

moor_status moor_records_step_begin(moor_records *records, const moor_step_request *requests, uint32_t n, uint64_t epoch)
{
    moor_step *step = &records->step;
    moor_records_lock(records);
    if (step->open)
        abandon(records);
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
    step->n = step->tokens = step->n_spans = step->n_kv = step->n_captured = 0;
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
        if (!record)
            continue; /* no memory: its rows up to now are missing when its record comes to be */
        if (record->sealed || moor_slot_dead(record))
            moor_records_count(records, MOOR_C_ROWS_DROPPED, requests[i].count); /* it ran on after its end */
        else
            begin_entry(records, entry, &requests[i], record);
    }
    step->open = 1;
    if (status)
        abandon(records);
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
    for (uint32_t e = 0; e < step->n; e++) {
        const moor_step_entry *entry = &step->entries[e];
        for (uint32_t s = 0; s < entry->n_spans; s++) {
            const moor_span *span = &step->spans[entry->span + s];
            for (uint64_t i = 0; i < (uint64_t)span->n * job->k; i++) {
                uint32_t token = span->token + (uint32_t)(i / job->k);
                const uint8_t *at = job->source + (ptrdiff_t)token * job->token_bytes + (ptrdiff_t)(i % job->k) * job->k_bytes;
                int64_t id = moor_id_load(at, ids->dtype);
                if (id < 0 || id >= (int64_t)records->config.num_experts)
                    return moor_fail(MOOR_E_RANGE, "request %s: token %llu, layer %d: id %lld, the model has %u experts",
                                     entry->record->id, (unsigned long long)(entry->start + token - entry->token),
                                     records->layer_ids[column], (long long)id, records->config.num_experts);
            }
        }
    }
    return moor_fail(MOOR_E_RANGE, "layer column %u: an id of %u experts is out of range and was gone when looked for: the source changed "
                     "during the call", column, records->config.num_experts);
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
        return moor_fail(MOOR_E_STATE, "layer column %u (layer %d) captured twice in one step", column, records->layer_ids[column]);
    if (!ids || (!ids->data && ids->tokens))
        return moor_fail(MOOR_E_INVALID, "capture of layer column %u: no data", column);
    if (ids->tokens > records->config.max_step_tokens)
        return moor_fail(MOOR_E_RANGE, "capture of layer column %u: %u tokens, the store was made for %u", column, ids->tokens,
                         records->config.max_step_tokens);
    if (ids->tokens != step->tokens)
        return moor_fail(MOOR_E_INVALID, "capture of layer column %u: %u tokens, the step has %u", column, ids->tokens, step->tokens);
    if (ids->top_k != records->config.top_k)
        return moor_fail(MOOR_E_INVALID, "capture of layer column %u: %u ids a token, the store was made for %u", column, ids->top_k,
                         records->config.top_k);
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
        return refuse(records, column, moor_fail(MOOR_E_INVALID, "capture of layer column %u: dtype %u is none of MOOR_DTYPE_*", column, ids->dtype));
    if (narrow(&job) >= records->config.num_experts)
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

/* ---- commit ---- */

typedef struct step_sums {
    uint64_t rows, dropped, rejected;
} step_sums;

/* Tells the KV index which rows lie in the KV blocks that the step wrote. */
static void tell_kv(moor_records *records, const moor_step_entry *entry, uint64_t known_before)
{
    moor_record_slot *record = entry->record;
    const moor_step *step = &records->step;
    uint32_t size = records->kv.block_size;
    uint64_t from = record->kv_done < entry->start ? record->kv_done : entry->start;
    for (uint32_t i = 0; i < entry->n_kv; i++) {
        uint64_t begin = (entry->kv_first + i) * size, end = begin + size;
        if (end > record->accepted)
            end = record->accepted;
        if (end <= begin || end <= from)
            continue;
        /* Rows that were computed again under other weights keep their first version, but the block holds the new one's KV. */
        uint64_t again = entry->start > begin ? entry->start : begin;
        uint32_t n = (uint32_t)(end - begin);
        for (uint64_t row = again; row < end && row < known_before; row++) {
            const moor_piece *piece = &record->rows.piece[moor_rows_at(&record->rows, row)];
            if (piece->block && moor_block_epoch(piece->block, piece->first + (uint32_t)(row - piece->start)) != step->epoch) {
                n = (uint32_t)(row - begin);
                break;
            }
        }
        moor_kvindex_put(&records->kv, &records->blocks, step->kv[entry->kv + i], &record->rows, begin, n);
    }
    record->kv_done = record->accepted;
}

static void take_rows(moor_records *records, const moor_step_entry *entry, uint64_t keep, int whole)
{
    moor_record_slot *record = entry->record;
    const moor_step *step = &records->step;
    if (!whole) {
        moor_rows_append_missing(&record->rows, keep, MOOR_REASON_LAYER_MISSING);
        return;
    }
    for (uint32_t s = entry->span; keep && s < entry->span + entry->n_spans; s++) {
        uint32_t n = keep < step->spans[s].n ? (uint32_t)keep : step->spans[s].n;
        moor_block *block = step->span_block[s];
        moor_block_stamp(block, step->span_first[s], step->epoch);
        moor_rows_append(&record->rows, block, step->span_first[s], n);
        if (block == record->tail)
            record->tail_used = step->span_first[s] + n;
        keep -= n;
    }
    moor_rows_append_missing(&record->rows, keep, MOOR_REASON_ARENA_FULL);
}

static void release_spans(moor_records *records, const moor_step_entry *entry)
{
    for (uint32_t s = entry->span; s < entry->span + entry->n_spans; s++)
        moor_block_unref(&records->blocks, records->step.span_block[s]);
}

/* Puts a run of rows where they were missing; without memory for it they stay missing. */
static void patch(moor_records *records, moor_record_slot *record, const moor_piece *run)
{
    if (!run->rows || moor_rows_reserve(&record->rows, 4))
        return;
    moor_rows_patch(&record->rows, run->start, run->block, run->first, run->rows);
    moor_records_count(records, MOOR_C_ROWS_PREFIX, run->rows);
}

static void commit_entry(moor_records *records, moor_step_entry *entry, const uint32_t *accepted, int whole, step_sums *sums)
{
    moor_record_slot *record = entry->record;
    uint64_t kept = accepted ? *accepted : entry->count;              /* of the step's tokens; the rest is rejected */
    uint64_t decided = accepted ? *accepted : entry->count - entry->spec; /* the rest of the kept ones waits */
    uint64_t known = record->accepted;
    record->dropped += entry->skip;
    sums->dropped += entry->skip;
    sums->rejected += entry->count - kept;
    if (kept > entry->skip)
        take_rows(records, entry, kept - entry->skip, whole);
    if (decided > entry->skip) {
        record->accepted += decided - entry->skip;
        sums->rows += decided - entry->skip;
    }
    if (entry->n_kv)
        tell_kv(records, entry, known);
    release_spans(records, entry);
}

/* Rows of a prefix that were unknown at begin, because a request of the same step computed them. */
static void look_again(moor_records *records, const moor_step_entry *entry)
{
    moor_record_slot *record = entry->record;
    uint32_t size = records->kv.block_size;
    moor_piece run = {0, 0, NULL, 0, 0};
    for (uint64_t at = entry->gap_from, n; at < entry->gap_to; at += n) {
        uint64_t number = at / size - entry->kv_first;
        const moor_piece *old = &record->rows.piece[moor_rows_at(&record->rows, at)];
        uint32_t part, first, have = 0;
        n = (at / size + 1) * size - at;
        n = n < entry->gap_to - at ? n : entry->gap_to - at;
        if (n > old->start + old->rows - at)
            n = old->start + old->rows - at;
        const moor_kv_entry *found = number < entry->n_kv ? moor_kvindex_get(&records->kv, records->step.kv[entry->kv + number]) : NULL;
        if (found && !old->block)
            have = moor_kv_entry_at(found, (uint32_t)(at % size), &part, &first);
        n = have && have < n ? have : n;
        if (have && run.rows && run.start + run.rows == at && run.block == found->block[part] && run.first + run.rows == first) {
            run.rows += n;
            continue;
        }
        patch(records, record, &run);
        run = have ? (moor_piece){at, n, found->block[part], first, 0} : (moor_piece){0, 0, NULL, 0, 0};
    }
    patch(records, record, &run);
}

static void end_entry(moor_records *records, moor_record_slot *record)
{
    record->in_step = 0;
    if (record->seal_pending)
        moor_record_seal(records, record, record->seal_rows, record->seal_flags);
    else
        moor_record_try_reclaim(records, record);
}

static moor_status check_accepted(const moor_step *step, const uint32_t *accepted, uint32_t n)
{
    if (!step->open)
        return moor_fail(MOOR_E_STATE, "step_commit: no step is open");
    if (accepted && n != step->n)
        return moor_fail(MOOR_E_INVALID, "step_commit: accepted counts of %u requests, the step has %u", n, step->n);
    for (uint32_t i = 0; accepted && i < n; i++) {
        if (accepted[i] > step->entries[i].count)
            return moor_fail(MOOR_E_INVALID, "step_commit: %u tokens accepted of request %s, which has %u in the step", accepted[i],
                             step->entries[i].record ? step->entries[i].record->id : "?", step->entries[i].count);
    }
    return MOOR_OK;
}

static void count_errors(moor_records *records)
{
    moor_records_count(records, MOOR_C_CAPTURE_ERRORS, records->step.errors);
    records->step.errors = 0;
}

moor_status moor_records_step_commit(moor_records *records, const uint32_t *accepted, uint32_t n)
{
    moor_step *step = &records->step;
    moor_status status = check_accepted(step, accepted, n);
    if (status)
        return status;
    step_sums sums = {0, 0, 0};
    int whole = step->n_captured == records->config.layers;
    moor_records_lock(records);
    for (uint32_t i = 0; i < step->n; i++) {
        if (step->entries[i].record)
            commit_entry(records, &step->entries[i], accepted ? &accepted[i] : NULL, whole, &sums);
    }
    for (uint32_t i = 0; i < step->n; i++) {
        if (step->entries[i].record && step->entries[i].gap_to > step->entries[i].gap_from)
            look_again(records, &step->entries[i]);
    }
    for (uint32_t i = 0; i < step->n; i++) {
        if (step->entries[i].record)
            end_entry(records, step->entries[i].record);
    }
    step->open = 0;
    count_errors(records);
    moor_records_count(records, MOOR_C_STEPS, 1);
    moor_records_count(records, MOOR_C_STEPS_NEVER_FIRED, step->tokens && !step->n_captured);
    moor_records_count(records, MOOR_C_ROWS, sums.rows);
    moor_records_count(records, MOOR_C_ROWS_DROPPED, sums.dropped);
    moor_records_count(records, MOOR_C_ROWS_REJECTED, sums.rejected);
    records->notify = 1;
    moor_records_unlock(records);
    return MOOR_OK;
}

/* The step's tokens were perhaps computed, but nothing of it is recorded: rows that no later step delivers are missing, STEP_FAILED. */
static void abandon(moor_records *records)
{
    moor_step *step = &records->step;
    for (uint32_t i = 0; i < step->n; i++) {
        moor_step_entry *entry = &step->entries[i];
        moor_record_slot *record = entry->record;
        if (!record)
            continue;
        fail_rows(record, entry->start + entry->count - entry->spec, MOOR_REASON_STEP_FAILED);
        release_spans(records, entry);
        end_entry(records, record);
    }
    step->open = 0;
    step->n = 0;
    count_errors(records);
    moor_records_count(records, MOOR_C_STEPS_FAILED, 1);
}

moor_status moor_records_step_abandon(moor_records *records)
{
    moor_records_lock(records);
    if (records->step.open)
        abandon(records);
    moor_records_unlock(records);
    return MOOR_OK;
}
