/* SPDX-License-Identifier: Apache-2.0 */
#include "records.h"

#include <string.h>
#include <unistd.h>

#include "error.h"
#include "heap.h"
#include "policy.h"
#include "validate.h"

void moor_records_lock(moor_records *records)
{
    pthread_mutex_lock(&records->lock);
}

void moor_records_unlock(moor_records *records)
{
    moor_block *dead = records->blocks.dead;
    moor_pending_event *events = records->events;
    int notify = records->notify;
    char complaint[sizeof(records->complaint)];
    memcpy(complaint, records->complaint, records->complaint[0] ? sizeof(complaint) : 1);
    records->complaint[0] = 0;
    records->blocks.dead = NULL;
    records->events = NULL;
    records->events_end = &records->events;
    records->notify = 0;
    pthread_mutex_unlock(&records->lock);
    if (complaint[0])
        moor_log(MOOR_LOG_ERROR, "%s", complaint);
    if (dead)
        moor_blocks_free(records->arena, dead);
    while (events) {
        moor_pending_event *next = events->next;
        if (records->config.sealed)
            records->config.sealed(records->config.user, &events->event);
        moor_heap_free(events);
        events = next;
    }
    if (notify && atomic_load(&records->waiters) > 0) {
        uint64_t one = 1;
        ssize_t ignored = write(records->notify_fd, &one, sizeof(one));
        (void)ignored; /* full counter: the waiter is awake already */
    }
}

void moor_records_count(moor_records *records, enum moor_counter counter, uint64_t delta)
{
    if (records->config.counters && delta)
        atomic_fetch_add_explicit(&records->config.counters[counter], delta, memory_order_relaxed);
}

static moor_status event_room(moor_record_slot *record, uint32_t ids)
{
    moor_pending_event *event = record->event;
    if (event && event->cap >= ids)
        return MOOR_OK;
    uint32_t cap = event ? event->cap * 2 : 4;
    moor_pending_event *grown = moor_heap_realloc(event, sizeof(*event) + cap * sizeof(moor_hash128));
    if (!grown)
        return moor_fail(MOOR_E_NOMEM, "no memory for a record's %u ids", ids);
    if (!event)
        memset(grown, 0, sizeof(*grown));
    grown->cap = cap;
    record->event = grown;
    return MOOR_OK;
}

static moor_status add_id(moor_records *records, moor_record_slot *record, moor_hash128 hash, uint32_t index, int core)
{
    uint32_t n = record->event ? record->event->event.n_ids : 0;
    moor_status status = event_room(record, n + 1);
    if (!status)
        status = moor_ids_add(&records->ids, hash, record->index, index, core, &record->nodes);
    if (status)
        return status;
    record->event->ids[n] = hash;
    record->event->event.n_ids = n + 1;
    return MOOR_OK;
}

static void forget(moor_records *records, moor_record_slot *record)
{
    moor_ids_remove(&records->ids, &record->nodes);
    moor_heap_free(record->event);
    moor_heap_free(record->id);
    moor_heap_free(record->parked);
    record->event = NULL;
    record->id = NULL;
    record->parked = NULL;
}

void moor_record_blank(moor_record_slot *record)
{
    record->sealed = record->in_step = record->seal_pending = record->noticed = 0;
    record->detached = record->opened = record->expirable = 0;
    record->owner = MOOR_OWNER_ROLLOUT;
    record->accepted = record->gap_until = record->kv_done = record->dropped = record->seal_rows = record->last_step =
        0;
    record->gap_reasons = record->tail_used = record->seal_flags = record->n_parked = record->cap_parked = 0;
    record->kept_bytes = 0;
    record->parked_in_session = 0;
    record->session = NULL;
    record->session_next = record->session_previous = NULL;
    record->places = NULL;
    record->tail = NULL;
    moor_rows_init(&record->rows);
}

moor_record_slot *moor_record_new(moor_records *records, moor_hash128 hash, const char *id, uint32_t id_len)
{
    moor_record_slot *record = moor_slots_take(&records->slots);
    if (!record)
        return NULL;
    moor_record_blank(record);
    record->hash = hash;
    record->id_len = id_len;
    record->id = moor_heap_alloc((size_t)id_len + 1);
    if (!record->id || add_id(records, record, hash, 0, 1)) {
        if (!record->id)
            moor_fail(MOOR_E_NOMEM, "no memory for request %.*s", (int)id_len, id);
        forget(records, record);
        moor_slot_kill(record);
        moor_slots_give(&records->slots, record);
        return NULL;
    }
    memcpy(record->id, id, id_len);
    record->created = ++records->created;
    records->live++;
    records->notify = 1;
    moor_records_count(records, MOOR_C_REQUESTS, 1);
    return record;
}

void moor_record_unmake(moor_records *records, moor_record_slot *record)
{
    records->created--;
    if (records->config.counters)
        atomic_fetch_sub_explicit(&records->config.counters[MOOR_C_REQUESTS], 1, memory_order_relaxed);
    moor_slot_kill(record);
    moor_record_reclaim(records, record);
}

moor_record_slot *moor_record_by_core_id(const moor_records *records, moor_hash128 hash)
{
    for (moor_id_node *node = moor_ids_find(&records->ids, hash); node; node = node->older) {
        if (node->core)
            return moor_slots_at(&records->slots, node->slot);
    }
    return NULL;
}

moor_status moor_record_add_alias(moor_records *records, moor_record_slot *record, moor_hash128 alias, uint32_t index)
{
    for (moor_id_node *node = record->nodes; node; node = node->next_of_record) {
        moor_hash128 known = moor_id_node_hash(node);
        if (moor_hash_equal(known, alias)) {
            if (!node->core)
                node->index = index;
            return MOOR_OK;
        }
    }
    if (!record->event) { /* sealed: its event is gone, the id is for look-up only */
        return moor_ids_add(&records->ids, alias, record->index, index, 0, &record->nodes);
    }
    return add_id(records, record, alias, index, 0);
}

moor_status moor_record_can_cut(moor_record_slot *record)
{
    uint32_t need = record->n_parked + record->rows.n;
    if (need <= record->cap_parked)
        return MOOR_OK;
    moor_block **parked = moor_heap_realloc(record->parked, need * sizeof(*parked));
    if (!parked)
        return moor_fail(MOOR_E_NOMEM, "request %s: no memory to keep %u segments for readers of rows that are cut",
                         record->id, need);
    record->parked = parked;
    record->cap_parked = need;
    return MOOR_OK;
}

void moor_record_cut(moor_records *records, moor_record_slot *record, uint64_t end)
{
    if (moor_slot_leases(record))
        (void)moor_record_can_cut(record);
    /* Without memory, oldest first: what an earlier reader saw is among the first pieces, and for these there is room. */
    for (uint32_t i = 0; i < record->rows.n && moor_slot_leases(record); i++) {
        const moor_piece *piece = &record->rows.piece[i];
        if (piece->block && piece->start + piece->rows > end && record->n_parked < record->cap_parked) {
            moor_block_ref(piece->block);
            record->parked[record->n_parked++] = piece->block;
        }
    }
    moor_rows_cut(&record->rows, &records->blocks, end);
    if (record->accepted > end)
        record->accepted = end;
    if (record->kv_done > end)
        record->kv_done = end;
}

/* ---- among the sealed ---- */

void moor_record_keep(moor_records *records, moor_record_slot *record)
{
    if (!record->expirable)
        return;
    *(record->older ? &record->older->newer : &records->oldest) = record->newer;
    *(record->newer ? &record->newer->older : &records->newest) = record->older;
    record->older = record->newer = NULL;
    record->expirable = 0;
    records->kept_bytes -= record->kept_bytes;
}

void moor_record_touch(moor_records *records, moor_record_slot *record, uint64_t now_ns)
{
    moor_record_keep(records, record);
    if (moor_policy_decide(record->owner, MOOR_EVENT_EXPIRED) != MOOR_ACTION_FREE)
        return;
    record->kept_bytes = (record->rows.end - record->rows.missing) * records->row_bytes;
    record->touched_ns = now_ns;
    record->older = records->newest;
    *(records->newest ? &records->newest->newer : &records->oldest) = record;
    records->newest = record;
    record->expirable = 1;
    records->kept_bytes += record->kept_bytes;
}

/* ---- the end of recording ---- */

/* Rows as the seal wants them: cut what is too much, mark what is short. Cannot fail: two pieces are kept in reserve. */
static void settle_rows(moor_records *records, moor_record_slot *record, uint64_t rows_expected, uint32_t flags)
{
    uint64_t target = rows_expected;
    if (flags & MOOR_SEAL_COMMITTED)
        target = record->gap_until > record->accepted ? record->gap_until : record->accepted;
    if (record->rows.end > target)
        moor_record_cut(records, record, target);
    uint32_t shortage = flags & MOOR_SEAL_COMMITTED ? 0 : MOOR_REASON_SHORT;
    uint64_t lost = record->gap_until < target ? record->gap_until : target;
    if (record->rows.end < lost)
        moor_rows_append_missing(&record->rows, lost - record->rows.end, record->gap_reasons | shortage);
    if (record->rows.end < target)
        moor_rows_append_missing(&record->rows, target - record->rows.end, shortage);
    record->accepted = target;
}

static void queue_event(moor_records *records, moor_record_slot *record, uint32_t flags)
{
    moor_pending_event *pending = record->event;
    moor_sealed_event *event = &pending->event;
    const moor_rows *rows = &record->rows;
    record->event = NULL;
    event->ids = pending->ids;
    event->flags = flags;
    event->rows = rows->end;
    event->missing_rows = rows->missing;
    for (uint32_t i = 0; i < rows->n; i++) {
        const moor_piece *piece = &rows->piece[i];
        if (!piece->block)
            continue;
        uint64_t first = moor_block_epoch(piece->block, piece->first);
        if (!event->epoch_first)
            event->epoch_first = first;
        event->epoch_last = moor_block_epoch(piece->block, piece->first + (uint32_t)piece->rows - 1);
    }
    *records->events_end = pending;
    records->events_end = &pending->next;
}

void moor_record_seal(moor_records *records, moor_record_slot *record, uint64_t rows_expected, uint32_t flags)
{
    settle_rows(records, record, rows_expected, flags);
    if (record->tail) {
        if (record->tail_used)
            moor_block_shrink(&records->blocks, record->tail, record->tail_used);
        moor_block_unref(&records->blocks, record->tail);
        record->tail = NULL;
    }
    record->sealed = 1;
    record->seal_pending = 0;
    record->seal_flags = flags;
    if (records->config.validate_at_seal)
        moor_record_validate(records, record);
    records->sealed++;
    moor_records_count(records, MOOR_C_SEALED, 1);
    moor_records_count(records, MOOR_C_INCOMPLETE, record->rows.missing != 0);
    moor_records_count(records, MOOR_C_ROWS_MISSING, record->rows.missing);
    queue_event(records, record, flags);
    records->notify = 1;
    if (!moor_slot_dead(record))
        moor_record_touch(records, record, moor_now_ns());
    moor_record_try_reclaim(records, record);
}

void moor_record_supersede(moor_records *records, moor_record_slot *record)
{
    if (!record || record->sealed || record->seal_pending)
        return;
    if (!record->in_step) {
        moor_record_seal(records, record, 0, MOOR_SEAL_COMMITTED);
        return;
    }
    record->seal_pending = 1;
    record->seal_rows = 0;
    record->seal_flags = MOOR_SEAL_COMMITTED;
}

/* ---- the end ---- */

moor_status moor_record_apply(moor_records *records, moor_record_slot *record, uint32_t event)
{
    switch (moor_policy_decide(record->owner, event)) {
    case MOOR_ACTION_FREE:
        if (!moor_slot_kill(record))
            return moor_fail(MOOR_E_STALE, "request %s: its record was freed before; nothing done", record->id);
        for (const moor_id_node *node = record->nodes; node; node = node->next_of_record)
            moor_gone_add(&records->gone, moor_id_node_hash(node), event == MOOR_EVENT_EXPIRED, moor_now_ns());
        moor_record_keep(records, record);
        moor_records_count(records, MOOR_C_FREED, 1);
        moor_record_try_reclaim(records, record);
        return MOOR_OK;
    case MOOR_ACTION_DETACH:
        record->detached = 1;
        return MOOR_OK;
    case MOOR_ACTION_INVALID:
        return moor_fail(MOOR_E_INVALID, "request %s: no event %u for owner %s", record->id, event,
                         moor_owner_name(record->owner));
    default:
        return MOOR_OK;
    }
}

void moor_record_try_reclaim(moor_records *records, moor_record_slot *record)
{
    if (record->used && record->sealed && !record->in_step && moor_slot_dead(record) && !moor_slot_leases(record))
        moor_record_reclaim(records, record);
}

void moor_record_reclaim(moor_records *records, moor_record_slot *record)
{
    moor_record_keep(records, record);
    moor_rows_clear(&record->rows, &records->blocks);
    if (record->tail)
        moor_block_unref(&records->blocks, record->tail);
    record->tail = NULL;
    for (uint32_t i = 0; i < record->n_parked; i++)
        moor_block_unref(&records->blocks, record->parked[i]);
    records->live--;
    records->sealed -= record->sealed;
    forget(records, record);
    moor_slots_give(&records->slots, record);
}
