/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "error.h"
#include "heap.h"
#include "policy.h"
#include "records.h"
#include "seal.h"
#include "sessions.h"

#define PURGE_EVERY_NS 10000000000ull

static moor_status check_config(const moor_records_config *config)
{
    if (!config->layers || !config->top_k || !config->num_experts || !config->max_step_tokens || !config->layer_ids)
        return moor_fail(MOOR_E_INVALID,
                         "store of %u layers, %u ids a token, %u experts, %u tokens a step: none may be zero",
                         config->layers, config->top_k, config->num_experts, config->max_step_tokens);
    if (config->num_experts > 65536)
        return moor_fail(MOOR_E_INVALID, "%u experts: more than the 65536 that an id of two bytes can tell apart",
                         config->num_experts);
    if (config->top_k > config->num_experts || config->layers > 65536 || config->top_k > 65536)
        return moor_fail(MOOR_E_INVALID, "%u of %u experts a token in %u layers", config->top_k, config->num_experts,
                         config->layers);
    if ((config->kv_blocks == 0) != (config->kv_block_size == 0) || config->kv_blocks > INT32_MAX)
        return moor_fail(MOOR_E_INVALID, "%u KV blocks of %u tokens", config->kv_blocks, config->kv_block_size);
    for (uint32_t i = 1; i < config->layers; i++) {
        if (config->layer_ids[i] <= config->layer_ids[i - 1])
            return moor_fail(MOOR_E_INVALID, "layer_ids[%u] is %d after %d: they must ascend", i, config->layer_ids[i],
                             config->layer_ids[i - 1]);
    }
    return MOOR_OK;
}

static moor_status open_parts(moor_records *records)
{
    const moor_records_config *config = &records->config;
    records->layer_ids = moor_heap_alloc(config->layers * sizeof(*records->layer_ids));
    if (!records->layer_ids)
        return moor_fail(MOOR_E_NOMEM, "no memory for %u layer numbers", config->layers);
    memcpy(records->layer_ids, config->layer_ids, config->layers * sizeof(*records->layer_ids));
    records->config.layer_ids = records->layer_ids;
    moor_status status = moor_arena_create(config->arena_bytes, &records->arena);
    records->blocks =
        (moor_blocks){.arena = records->arena, .row_bytes = records->row_bytes, .max_rows = records->max_rows};
    if (!status)
        status = moor_slots_open(&records->slots);
    if (!status)
        status = moor_kvindex_open(&records->kv, config->kv_blocks, config->kv_block_size);
    if (!status)
        status = moor_sessions_open(records);
    if (!status)
        status = moor_step_open(records);
    if (!status) {
        records->notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (records->notify_fd < 0)
            status = moor_fail_errno(MOOR_E_IO, errno, "eventfd of the store");
    }
    return status;
}

moor_status moor_records_create(const moor_records_config *config, moor_records **out)
{
    moor_status status = check_config(config);
    if (status)
        return status;
    moor_records *records = moor_heap_alloc(sizeof(*records));
    if (!records)
        return moor_fail(MOOR_E_NOMEM, "no memory for the record store");
    records->config = *config;
    records->id_bytes = config->num_experts <= 256 ? 1 : 2;
    records->row_bytes = config->layers * config->top_k * records->id_bytes;
    records->max_rows = records->row_bytes < MOOR_BLOCK_BYTES ? MOOR_BLOCK_BYTES / records->row_bytes : 1;
    records->notify_fd = -1;
    records->events_end = &records->events;
    pthread_mutex_init(&records->lock, NULL);
    status = open_parts(records);
    if (status) {
        moor_records_destroy(records);
        return status;
    }
    *out = records;
    return MOOR_OK;
}

void moor_records_destroy(moor_records *records)
{
    if (!records)
        return;
    records->config.sealed = NULL;
    moor_sessions_close(records);
    if (records->arena && records->slots.chunk) {
        (void)moor_records_step_abandon(records);
        moor_records_lock(records);
        moor_clients_close(&records->clients);
        for (uint32_t i = 0; i < records->slots.count; i++) {
            moor_record_slot *record = moor_slots_at(&records->slots, i);
            if (record->used) {
                moor_slot_kill(record);
                moor_record_reclaim(records, record);
            }
        }
        moor_kvindex_close(&records->kv, &records->blocks);
        moor_records_unlock(records);
    }
    moor_step_close(records);
    moor_slots_close(&records->slots);
    moor_arena_destroy(records->arena);
    if (records->notify_fd >= 0)
        close(records->notify_fd);
    pthread_mutex_destroy(&records->lock);
    moor_heap_free(records->layer_ids);
    moor_heap_free(records);
}

/* ---- geometry ---- */

uint32_t moor_records_row_bytes(const moor_records *records)
{
    return records->row_bytes;
}

uint32_t moor_records_dtype(const moor_records *records)
{
    return records->id_bytes == 1 ? MOOR_DTYPE_U8 : MOOR_DTYPE_U16;
}

uint64_t moor_records_arena_bytes(const moor_records *records)
{
    return records->arena->region.size;
}

moor_status moor_records_arena_fd(const moor_records *records, int *fd)
{
    return moor_region_readonly_fd(&records->arena->region, fd);
}

/* ---- ids, seals, owners ---- */

moor_status moor_records_alias(moor_records *records, const char *id, uint32_t id_len, const char *alias,
                               uint32_t alias_len, uint32_t index)
{
    if (!id || !id_len || !alias || !alias_len)
        return moor_fail(MOOR_E_INVALID, "alias: an empty id");
    moor_hash128 hash = moor_id_hash(id, id_len);
    moor_status status = MOOR_OK;
    moor_records_lock(records);
    moor_record_slot *before = moor_record_by_core_id(records, hash), *record = before;
    int fresh = !record || moor_slot_dead(record);
    if (fresh)
        record = moor_record_new(records, hash, id, id_len); /* told before its first step */
    if (record && fresh)
        moor_record_supersede(records, before);
    if (!record)
        status = MOOR_E_NOMEM;
    else
        status = moor_record_add_alias(records, record, moor_id_hash(alias, alias_len), index);
    records->notify = 1;
    moor_records_unlock(records);
    return status;
}

moor_status moor_records_seal(moor_records *records, moor_hash128 id, uint64_t rows_expected, uint32_t flags)
{
    if (rows_expected > UINT32_MAX)
        return moor_fail(MOOR_E_INVALID, "seal: %llu rows expected", (unsigned long long)rows_expected);
    moor_records_lock(records);
    moor_status status = moor_seal_apply(records, id, (moor_hash128){0, 0}, rows_expected, flags);
    moor_records_unlock(records);
    return status;
}

uint32_t moor_records_drain(moor_records *records)
{
    const moor_state_seal_ring *ring = records->config.seals;
    if (!ring || atomic_load_explicit(&ring->head, memory_order_relaxed) ==
                     atomic_load_explicit(&ring->tail, memory_order_relaxed))
        return 0;
    moor_records_lock(records);
    uint32_t taken = moor_seal_drain(records, moor_now_ns());
    moor_records_unlock(records);
    return taken;
}

moor_status moor_records_finished(moor_records *records, const char *id, uint32_t id_len)
{
    moor_hash128 hash = moor_id_hash(id, id_len);
    moor_records_lock(records);
    /* The core knows the exact number of rows and put it on the ring before this notice was sent. */
    moor_seal_drain(records, moor_now_ns());
    moor_record_slot *record = moor_record_by_core_id(records, hash);
    moor_status status = MOOR_OK;
    /* None: it never ran here, or it was sealed, read and freed before this notice. */
    if (record) {
        record->noticed = 1;
        if (!record->sealed)
            status = moor_seal_apply(records, hash, (moor_hash128){0, 0}, 0, MOOR_SEAL_COMMITTED);
    }
    moor_records_unlock(records);
    return status;
}

moor_status moor_records_claim(moor_records *records, moor_handle handle, uint32_t owner)
{
    moor_record_slot *record = NULL;
    if (owner > MOOR_OWNER_TRACE_STORE)
        return moor_fail(MOOR_E_INVALID, "claim of handle %#llx: no owner %u", (unsigned long long)handle, owner);
    moor_records_lock(records);
    moor_status status = moor_slots_get(&records->slots, handle, &record);
    if (!status && record->session && owner != MOOR_OWNER_TRACE_STORE)
        status = moor_fail(MOOR_E_STATE, "request %s belongs to session %s: release it there", record->id,
                           record->session->id);
    if (!status) {
        record->owner = owner;
        if (record->sealed && !record->session)
            moor_record_touch(records, record, moor_now_ns()); /* what the keep policy may free, it counts */
    }
    moor_records_unlock(records);
    return status;
}

moor_status moor_records_event(moor_records *records, moor_handle handle, uint32_t event)
{
    moor_record_slot *record = NULL;
    if (event < MOOR_EVENT_RESET || event > MOOR_EVENT_SESSION_RELEASED)
        return moor_fail(MOOR_E_INVALID, "handle %#llx: no event %u", (unsigned long long)handle, event);
    moor_records_lock(records);
    moor_status status = moor_slots_get(&records->slots, handle, &record);
    if (!status && record->session && event == MOOR_EVENT_SESSION_RELEASED)
        status = moor_fail(MOOR_E_STATE, "request %s belongs to session %s, which was not released", record->id,
                           record->session->id);
    if (!status)
        status = moor_record_apply(records, record, event);
    moor_records_unlock(records);
    return status;
}

/* ---- KV blocks ---- */

moor_status moor_records_kv_handed_out(moor_records *records, const int32_t *blocks, uint32_t n)
{
    moor_records_lock(records);
    moor_status status = moor_kvindex_end(&records->kv, &records->blocks, blocks, n);
    moor_records_unlock(records);
    return status;
}

moor_status moor_records_kv_reset(moor_records *records)
{
    moor_records_lock(records);
    moor_kvindex_reset(&records->kv, &records->blocks);
    moor_records_unlock(records);
    return MOOR_OK;
}

/* ---- waiting, keeping, telling ---- */

int moor_records_notify_fd(const moor_records *records)
{
    return records->notify_fd;
}

void moor_records_wait(moor_records *records, int delta)
{
    atomic_fetch_add(&records->waiters, delta);
}

void moor_records_notified(moor_records *records)
{
    uint64_t count;
    ssize_t ignored = read(records->notify_fd, &count, sizeof(count));
    (void)ignored; /* nothing there is as good */
}

/* 1 while the keep policy has a reason to free a record, `record` being the oldest that is left. */
static int may_expire(const moor_records *records, const moor_record_slot *record, uint64_t now_ns)
{
    const moor_records_config *config = &records->config;
    uint64_t keep_ns = config->keep_s > 0 ? (uint64_t)(config->keep_s * 1e9) : UINT64_MAX;
    if (config->keep_bytes && records->kept_bytes > config->keep_bytes)
        return 1;
    return now_ns >= record->touched_ns && now_ns - record->touched_ns >= keep_ns;
}

/* One walk, oldest first: what is passed by, being leased, is not looked at again for each record that goes. */
static uint32_t expire_some(moor_records *records, uint64_t now_ns)
{
    uint32_t freed = 0;
    moor_records_lock(records);
    for (moor_record_slot *record = records->oldest, *newer;
         record && freed < MOOR_FREED_AT_ONCE && may_expire(records, record, now_ns); record = newer) {
        newer = record->newer;
        if (moor_slot_leases(record))
            continue;
        moor_records_count(records, MOOR_C_EXPIRED, !record->opened);
        (void)moor_record_apply(records, record, MOOR_EVENT_EXPIRED);
        freed++;
    }
    moor_records_unlock(records);
    return freed;
}

uint32_t moor_records_expire(moor_records *records, uint64_t now_ns)
{
    uint32_t freed = 0, n;
    do {
        n = expire_some(records, now_ns);
        freed += n;
    } while (n == MOOR_FREED_AT_ONCE);
    moor_records_lock(records);
    int purge = now_ns - records->purged_ns >= PURGE_EVERY_NS;
    if (purge)
        records->purged_ns = now_ns;
    moor_records_unlock(records);
    if (purge)
        moor_arena_purge(records->arena);
    return freed;
}

void moor_records_stats_get(moor_records *records, moor_records_stats *out)
{
    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&records->sessions->lock);
    out->sessions = records->sessions->live;
    out->sessions_gone = records->sessions->gone;
    out->session_keys = records->sessions->values;
    pthread_mutex_unlock(&records->sessions->lock);
    moor_records_lock(records);
    out->records = records->live;
    out->sealed = records->sealed;
    uint32_t slots = records->slots.count;
    out->clients = records->clients.n_clients;
    out->clients_leases = records->clients.n_leases;
    out->blocks = records->blocks.live;
    out->live_bytes = atomic_load(&records->arena->live);
    out->arena_bytes = records->arena->region.size;
    out->kv_entries = records->kv.valid;
    out->seals_unknown = records->seals_unknown;
    out->seals_repeated = records->seals_repeated;
    out->seals_torn = records->seals_torn;
    out->arena_full = atomic_load(&records->arena->refused);
    moor_records_unlock(records);
    /* Without the lock: with 100,000 records this takes a millisecond, which no step must wait for. A free slot has no lease. */
    for (uint32_t i = 0; i < slots; i++)
        out->leases += moor_slot_leases(moor_slots_at(&records->slots, i));
    out->resident_bytes = moor_region_resident(&records->arena->region);
}
