/* SPDX-License-Identifier: Apache-2.0 */
#include "commit.h"

#include <string.h>

#include "error.h"
#include "plan.h"

typedef struct step_sums {
    uint64_t rows, dropped, rejected;
} step_sums;

/* Tells the KV index which rows lie in the slots that the step wrote. What lay in a block before them is the index's own knowledge: the
 * record's rows there may have been computed elsewhere (a cached prefix of newer weights, rows delivered from outside). */
static void tell_kv(moor_records *records, const moor_step_entry *entry, uint64_t known_before)
{
    moor_record_slot *record = entry->record;
    const moor_step *step = &records->step;
    uint32_t size = records->kv.block_size;
    uint64_t from = record->kv_done < entry->start ? record->kv_done : entry->start;
    uint64_t reach = entry->start + entry->count < record->accepted ? entry->start + entry->count : record->accepted;
    for (uint32_t i = 0; i < entry->n_kv; i++) {
        uint64_t begin = (entry->kv_first + i) * size, end = begin + size < reach ? begin + size : reach;
        uint64_t first = from > begin ? from : begin;
        if (end <= first)
            continue;
        /* Rows that were computed again under other weights, or were delivered from outside before, keep their first version; but the block
         * holds the KV of the new one. */
        uint64_t again = entry->start > first ? entry->start : first;
        uint32_t n = (uint32_t)(end - first);
        for (uint64_t row = again; row < end && row < known_before; row++) {
            const moor_piece *piece = &record->rows.piece[moor_rows_at(&record->rows, row)];
            if (piece->block &&
                (piece->block->foreign ||
                 moor_block_epoch(piece->block, piece->first + (uint32_t)(row - piece->start)) != step->epoch)) {
                n = (uint32_t)(row - first);
                break;
            }
        }
        moor_kvindex_put(&records->kv, &records->blocks, step->kv[entry->kv + i], (uint32_t)(first - begin),
                         &record->rows, first, n);
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
    for (uint32_t p = entry->piece; keep && p < entry->piece + entry->n_pieces; p++) {
        const moor_step_piece *piece = &step->pieces[p];
        uint32_t n = keep < piece->n ? (uint32_t)keep : piece->n;
        moor_block_stamp(piece->block, piece->first, step->epoch);
        moor_rows_append(&record->rows, piece->block, piece->first, n);
        if (piece->block == record->tail)
            record->tail_used = piece->first + n;
        keep -= n;
    }
    moor_rows_append_missing(&record->rows, keep, MOOR_REASON_ARENA_FULL);
}

static void release_pieces(moor_records *records, const moor_step_entry *entry)
{
    for (uint32_t p = entry->piece; p < entry->piece + entry->n_pieces; p++)
        moor_block_unref(&records->blocks, records->step.pieces[p].block);
}

/* Puts a run of rows where they were missing; without memory for it they stay missing. */
static void patch(moor_records *records, moor_record_slot *record, const moor_piece *run)
{
    if (!run->rows || moor_rows_reserve(&record->rows, 4))
        return;
    moor_rows_patch(&record->rows, run->start, run->block, run->first, run->rows);
    moor_records_count(records, MOOR_C_ROWS_PREFIX, run->rows);
}

static void commit_entry(moor_records *records, moor_step_entry *entry, const uint32_t *accepted, int whole,
                         step_sums *sums)
{
    moor_record_slot *record = entry->record;
    uint64_t kept = accepted ? *accepted : entry->count; /* of the step's tokens; the rest is rejected */
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
    release_pieces(records, entry);
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
        const moor_kv_entry *found =
            number < entry->n_kv ? moor_kvindex_get(&records->kv, records->step.kv[entry->kv + number]) : NULL;
        if (found && !old->block)
            have = moor_kv_entry_at(found, (uint32_t)(at % size), &part, &first);
        n = have && have < n ? have : n;
        if (have && run.rows && run.start + run.rows == at && run.block == found->block[part] &&
            run.first + run.rows == first) {
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
            return moor_fail(MOOR_E_INVALID, "step_commit: %u tokens accepted of request %s, which has %u in the step",
                             accepted[i], step->entries[i].record ? step->entries[i].record->id : "?",
                             step->entries[i].count);
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
    if (whole)
        moor_stage_write(&step->stage);
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

/* The step may have written its KV slots: what they hold is unknown. */
static void forget_kv(moor_records *records, const moor_step_entry *entry)
{
    uint32_t size = records->kv.block_size;
    for (uint32_t i = 0; i < entry->n_kv; i++) {
        uint64_t begin = (entry->kv_first + i) * size;
        if (begin + size > entry->start && begin < entry->start + entry->count)
            moor_kvindex_put(&records->kv, &records->blocks, records->step.kv[entry->kv + i],
                             entry->start > begin ? (uint32_t)(entry->start - begin) : 0, NULL, 0, 0);
    }
}

/* The step's tokens were perhaps computed, but nothing of it is recorded: rows that no later step delivers are missing, STEP_FAILED. */
void moor_step_give_up(moor_records *records)
{
    moor_step *step = &records->step;
    for (uint32_t i = 0; i < step->n; i++) {
        moor_step_entry *entry = &step->entries[i];
        moor_record_slot *record = entry->record;
        if (!record)
            continue;
        moor_plan_fail_rows(record, entry->start + entry->count - entry->spec, MOOR_REASON_STEP_FAILED);
        forget_kv(records, entry);
        release_pieces(records, entry);
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
        moor_step_give_up(records);
    moor_records_unlock(records);
    return MOOR_OK;
}
