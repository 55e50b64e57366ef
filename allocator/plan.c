/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <string.h>

#include "error.h"
#include "heap.h"

enum { FIRST_ROWS = 64 };

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
        moor_rows_cut(&record->rows, &records->blocks, keep);
        moor_records_count(records, MOOR_C_ROWS_REJECTED, cut);
    }
    moor_records_count(records, MOOR_C_ROWS, keep - record->accepted);
    record->accepted = keep;
}

/* One KV block's rows from `position` on, at most to `to`. Returns how many rows were appended, present or missing. */
static uint64_t supply_block(moor_records *records, moor_record_slot *record, const moor_step_request *request,
                             uint64_t position, uint64_t to)
{
    uint32_t size = records->kv.block_size;
    uint64_t number = position / size, in_block = position % size;
    uint64_t n = (number + 1) * size - position;
    if (n > to - position)
        n = to - position;
    const moor_kv_entry *entry =
        number < request->n_kv_blocks ? moor_kvindex_get(&records->kv, request->kv_blocks[number]) : NULL;
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
    /* Besides the piece: an unknown rest, rows without room, and what the seal needs. */
    while (known && at < to && moor_rows_reserve(&record->rows, 5) == MOOR_OK)
        at += supply_block(records, record, request, at, to);
    if (at < to)
        moor_rows_append_missing(&record->rows, to - at, MOOR_REASON_PREFIX_UNKNOWN);
    /* Another request of this very step may compute the prefix (siblings that are scheduled together): commit looks again. */
    entry->gap_to = known && record->rows.missing > before ? to : entry->gap_from;
    record->accepted = record->kv_done = record->rows.end;
}

static uint32_t bounded(uint64_t rows, uint32_t most)
{
    return rows > most ? most : (uint32_t)rows;
}

/* Rows that only the KV index still holds give way to those of running requests. Once a step at most. */
static int shed_index(moor_records *records)
{
    if (records->step.shed == records->step.number)
        return 0;
    records->step.shed = records->step.number;
    if (!moor_kvindex_shed(&records->kv, &records->blocks))
        return 0;
    moor_block *dead = records->blocks.dead;
    records->blocks.dead = NULL;
    moor_blocks_free(records->arena, dead);
    return 1;
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
    if (!block && why == MOOR_E_FULL && shed_index(records))
        block = moor_block_new(&records->blocks, bounded(left, most), bounded(left + extra, most), &why);
    if (!block)
        return why;
    if (tail)
        moor_block_unref(&records->blocks, tail);
    record->tail = block;
    record->tail_used = 0;
    return MOOR_OK;
}

static moor_status reserve_piece(moor_step *step)
{
    if (step->n_pieces < step->cap_pieces)
        return MOOR_OK;
    uint32_t cap = step->cap_pieces ? step->cap_pieces * 2 : 64;
    moor_step_piece *pieces = moor_heap_realloc(step->pieces, cap * sizeof(*pieces));
    step->pieces = pieces ? pieces : step->pieces;
    moor_span *spans = pieces ? moor_heap_realloc(step->spans, cap * sizeof(*spans)) : NULL;
    step->spans = spans ? spans : step->spans;
    if (!spans)
        return moor_fail(MOOR_E_NOMEM, "no memory for %u pieces of a step", cap);
    step->cap_pieces = cap;
    return MOOR_OK;
}

static moor_status add_piece(moor_step *step, moor_block *block, uint32_t first, uint32_t token, uint32_t n,
                             uint32_t row_bytes)
{
    moor_status status = reserve_piece(step);
    if (status)
        return status;
    uint8_t *rows = block->data + (size_t)first * row_bytes;
    moor_block_ref(block); /* until commit: the record may go on to another tail in this step */
    step->pieces[step->n_pieces++] = (moor_step_piece){block, first, n};
    if (moor_stage_add(&step->stage, token, n, rows, row_bytes))
        return MOOR_OK;
    moor_span *last = step->n_spans ? &step->spans[step->n_spans - 1] : NULL;
    if (last && last->token + last->n == token && last->rows + (size_t)last->n * row_bytes == rows)
        last->n += n;
    else
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): allocated when the object was opened */
        step->spans[step->n_spans++] = (moor_span){rows, token, n};
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
    entry->piece = step->n_pieces;
    while (left) {
        if (!record->tail || used == record->tail->rows) {
            moor_block *before = record->tail;
            if (make_tail(records, record, left, ahead))
                break;
            used = record->tail == before ? used : 0;
        }
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a record with rows has a tail */
        uint32_t n = record->tail->rows - used < left ? record->tail->rows - used : left;
        if (moor_block_reserve_run(record->tail) ||
            moor_rows_reserve(&record->rows, step->n_pieces - entry->piece + 4) ||
            add_piece(step, record->tail, used, token, n, records->row_bytes))
            break;
        used += n;
        token += n;
        left -= n;
    }
    entry->n_pieces = step->n_pieces - entry->piece;
    entry->lost = left;
    if (left)
        moor_records_count(records, MOOR_C_ARENA_FULL, 1);
}

void moor_plan_forget_kv(moor_records *records, const moor_step_request *request)
{
    uint64_t at = request->start, end = request->start + request->count;
    while (records->kv.entry && request->kv_blocks && at < end && at / records->kv.block_size < request->n_kv_blocks) {
        moor_kvindex_put(&records->kv, &records->blocks, request->kv_blocks[at / records->kv.block_size],
                         (uint32_t)(at % records->kv.block_size), NULL, 0, 0);
        at = (at / records->kv.block_size + 1) * records->kv.block_size;
    }
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
        if (!kv) { /* these rows will not be found by a prefix hit, which is no error of theirs */
            moor_plan_forget_kv(records, request);
            return;
        }
        step->kv = kv;
        step->cap_kv = cap;
    }
    memcpy(step->kv + step->n_kv, request->kv_blocks + first, n * sizeof(*step->kv));
    entry->kv = step->n_kv;
    entry->n_kv = n;
    entry->kv_first = first;
    step->n_kv += n;
}

void moor_plan_fail_rows(moor_record_slot *record, uint64_t until, uint32_t reason)
{
    if (record->gap_until <= record->rows.end) /* what was lost before is decided: its reasons are not this one's */
        record->gap_reasons = 0;
    if (until > record->gap_until)
        record->gap_until = until;
    record->gap_reasons |= reason;
}

void moor_plan_request(moor_records *records, moor_step_entry *entry, const moor_step_request *request,
                       moor_record_slot *record)
{
    entry->record = record;
    entry->start = request->start;
    entry->spec = request->spec;
    record->last_step = records->step.number;
    decide(records, record, request->start);
    /* One piece each for rows lost before, an unknown prefix and rows without room, two for what the seal finds short. */
    if (moor_rows_reserve(&record->rows, 5)) {
        moor_plan_fail_rows(record, request->start + request->count - request->spec, MOOR_REASON_ARENA_FULL);
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
