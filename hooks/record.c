/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <string.h>

#include "../allocator/heap.h"
#include "gate.h"
#include "member.h"
#include "shared_text.h"
#include "weights.h"

/* ---- the object ---- */

/* The gate waits for stored records by the id that it admitted, which may be the core's or any alias. It counts records, so of several
 * pipeline stages one tells it: the last, which has a step's rows when the others have them. */
static void tell_gate(void *user, const moor_sealed_event *event)
{
    moor_store *store = user;
    moor_hash128 none = {0, 0};
    if (store->store_index % store->stages != store->stages - 1)
        return;
    for (uint32_t i = 0; i < event->n_ids; i++)
        if (moor_gate_record_stored(store->process->state, event->ids[i], none, event->rows))
            return;
}

static uint32_t stages_of(const moor_store_args *args)
{
    int told = args->size >= offsetof(moor_store_args, reserved0);
    return told && args->stages ? args->stages : 1;
}

static moor_status check_args(const moor_store_args *args)
{
    if (!args || args->size < offsetof(moor_store_args, arena_bytes))
        return moor_fail(MOOR_E_INVALID, "store_open: no arguments, or of an older size than version 1");
    if (args->store_index >= MOOR_MAX_STORES)
        return moor_fail(MOOR_E_INVALID, "store_open: store %u, an instance has %d", args->store_index,
                         MOOR_MAX_STORES);
    if (args->dp_rank >= args->dp_size || args->tp_rank >= args->tp_size)
        return moor_fail(MOOR_E_INVALID, "store_open: data parallel rank %u of %u, tensor parallel rank %u of %u",
                         args->dp_rank, args->dp_size, args->tp_rank, args->tp_size);
    if (stages_of(args) > MOOR_MAX_STORES)
        return moor_fail(MOOR_E_INVALID, "store_open: %u pipeline stages, an instance has %d stores", stages_of(args),
                         MOOR_MAX_STORES);
    return MOOR_OK;
}

/* Stores that the instance will have: one for each stage of each replica; a host that tells of one replica may number its own. */
static uint32_t stores_of(const moor_store_args *args)
{
    uint64_t told = (uint64_t)args->dp_size * stages_of(args);
    return told > args->store_index ? (uint32_t)(told < UINT32_MAX ? told : UINT32_MAX) : args->store_index + 1;
}

moor_status moor_recorder_create(moor_process *process, const moor_store_args *args, moor_store **out)
{
    moor_status status = moor_process_check(process, "store_open");
    if (!status)
        status = check_args(args);
    if (status)
        return status;
    moor_store *store = moor_heap_alloc(sizeof(*store));
    if (!store)
        return moor_fail(MOOR_E_NOMEM, "store_open: no memory for store %u", args->store_index);
    *store = (moor_store){.process = process,
                          .store_index = args->store_index,
                          .dp_size = args->dp_size,
                          .dp_rank = args->dp_rank,
                          .tp_size = args->tp_size,
                          .tp_rank = args->tp_rank,
                          .stages = stages_of(args),
                          .pid = process->pid};
    const moor_config_values *values = &process->config;
    uint64_t arena_bytes = args->size >= offsetof(moor_store_args, stages) ? args->arena_bytes : 0;
    moor_records_config config = {.arena_bytes = arena_bytes ? arena_bytes : values->arena_bytes,
                                  .layers = args->layers,
                                  .top_k = args->top_k,
                                  .num_experts = args->num_experts,
                                  .model_layers = args->model_layers,
                                  .layer_ids = args->layer_ids,
                                  .max_step_tokens = args->max_step_tokens,
                                  .max_requests = args->max_requests,
                                  .kv_blocks = values->kv_index ? args->kv_blocks : 0,
                                  .kv_block_size = values->kv_index ? args->kv_block_size : 0,
                                  .validate_at_seal = values->validate_at_seal != 0,
                                  .store_index = args->store_index,
                                  .stores = stores_of(args),
                                  .keep_s = values->keep_s,
                                  .keep_bytes = values->keep_bytes,
                                  .seals = &process->state->seals[args->store_index],
                                  .counters = process->state->counters,
                                  .sealed = tell_gate,
                                  .user = store};
    status = moor_records_create(&config, &store->records);
    if (status) {
        moor_heap_free(store);
        return status;
    }
    atomic_store(&process->state->seals[args->store_index].ready, 1);
    atomic_store(&process->state->recording_off, 0);
    *out = store;
    return MOOR_OK;
}

void moor_recorder_destroy(moor_store *store)
{
    if (!store)
        return;
    moor_records_destroy(store->records);
    moor_heap_free(store);
}

/* A store of the parent is nothing to a forked child: its arena is not even mapped there. */
static inline moor_status check(const moor_store *store, const char *what)
{
    if (!store)
        return moor_fail(MOOR_E_INVALID, "%s: no store", what);
    if (store->pid != moor_pid())
        return moor_fail(MOOR_E_FORKED, "%s: the store belongs to process %d, this is its forked child %d", what,
                         (int)store->pid, (int)moor_pid());
    return MOOR_OK;
}

/* ---- steps ---- */

moor_status moor_step_begin(moor_store *store, const moor_step_request *requests, uint32_t n)
{
    moor_status status = check(store, "step_begin");
    if (status)
        return status;
    return moor_records_step_begin(store->records, requests, n, moor_weights_mark_used(store->process->state));
}

static uint64_t sum(const uint32_t *counts, uint32_t from, uint32_t to)
{
    uint64_t total = 0;
    for (uint32_t i = from; i < to; i++)
        total += counts[i];
    return total;
}

/* Where this rank's tokens begin among those of the capture (SEMANTICS 1.12). Which of the layouts it is follows from the number of
 * tokens. One number can be two of them, [1, 1] of two ranks in two shards each say: what came with shard sizes is
 * sharded, what came without is not. */
static moor_status local_tokens(const moor_store *store, uint32_t column, uint32_t seen, const moor_dp_layout *dp,
                                uint64_t *first)
{
    uint32_t local = dp->tokens_per_dp[store->dp_rank];
    uint64_t all = sum(dp->tokens_per_dp, 0, store->dp_size), gathered = 0, own = 0;
    uint32_t per_rank = dp->shard_sizes && dp->n_shards % store->dp_size == 0 ? dp->n_shards / store->dp_size : 0,
             begin = 0;
    uint64_t at = 0;
    if (per_rank) {
        begin = store->dp_rank * per_rank;
        gathered = sum(dp->shard_sizes, 0, dp->n_shards);
        own = sum(dp->shard_sizes, begin, begin + per_rank);
    }
    if (per_rank && seen == gathered) /* all shards of all ranks, each rank's padding behind its tokens */
        at = sum(dp->shard_sizes, 0, begin);
    else if (per_rank && seen == own) /* our own shards, padding at the end */
        at = 0;
    else if (seen == all) /* every rank's tokens, one rank after the other */
        at = sum(dp->tokens_per_dp, 0, store->dp_rank);
    else if (seen != local) /* not ours only either */
        return moor_fail(MOOR_E_INVALID,
                         "capture of layer column %u: %u tokens, expected this rank's %u, all ranks' %llu, or, of "
                         "%u shards a rank, %llu or %llu",
                         column, seen, local, (unsigned long long)all, per_rank, (unsigned long long)own,
                         (unsigned long long)gathered);
    if (at + local > seen)
        return moor_fail(MOOR_E_INVALID,
                         "capture of layer column %u: %u tokens do not reach this rank's %u from %llu on", column, seen,
                         local, (unsigned long long)at);
    *first = at;
    return MOOR_OK;
}

moor_status moor_capture(moor_store *store, uint32_t layer_column, const moor_ids *ids, const moor_dp_layout *dp)
{
    moor_status status = check(store, "capture");
    if (status)
        return status;
    if (!dp || !dp->tokens_per_dp || !ids || !ids->data)
        return moor_records_capture(store->records, layer_column, ids);
    moor_ids local = *ids;
    uint64_t first = 0;
    status = local_tokens(store, layer_column, ids->tokens, dp, &first);
    if (status)
        return moor_records_capture_failed(store->records, layer_column, status);
    ptrdiff_t stride = ids->stride_token || ids->stride_k ? (ptrdiff_t)ids->stride_token : (ptrdiff_t)ids->top_k;
    local.data =
        (const uint8_t *)ids->data + (ptrdiff_t)first * stride * (ptrdiff_t)moor_records_dtype_bytes(ids->dtype);
    local.tokens = dp->tokens_per_dp[store->dp_rank];
    return moor_records_capture(store->records, layer_column, &local);
}

moor_status moor_step_commit(moor_store *store, const uint32_t *accepted, uint32_t n)
{
    moor_status status = check(store, "step_commit");
    return status ? status : moor_records_step_commit(store->records, accepted, n);
}

moor_status moor_step_abandon(moor_store *store)
{
    moor_status status = check(store, "step_abandon");
    return status ? status : moor_records_step_abandon(store->records);
}

moor_status moor_kv_handed_out(moor_store *store, const int32_t *blocks, uint32_t n)
{
    moor_status status = check(store, "kv_handed_out");
    if (!status && n && !blocks)
        status = moor_fail(MOOR_E_INVALID, "kv_handed_out: %u blocks at no address", n);
    return status ? status : moor_records_kv_handed_out(store->records, blocks, n);
}

moor_status moor_kv_reset(moor_store *store)
{
    moor_status status = check(store, "kv_reset");
    return status ? status : moor_records_kv_reset(store->records);
}

/* ---- requests ---- */

static moor_status check_id(const moor_store *store, const char *what, const char *id, uint32_t id_len)
{
    moor_status status = check(store, what);
    if (!status && (!id || !id_len))
        status = moor_fail(MOOR_E_INVALID, "%s: an empty id", what);
    return status;
}

moor_status moor_request_finished(moor_store *store, const char *id, uint32_t id_len)
{
    moor_status status = check_id(store, "request_finished", id, id_len);
    return status ? status : moor_records_finished(store->records, id, id_len);
}

moor_status moor_request_alias(moor_store *store, const char *id, uint32_t id_len, const char *alias,
                               uint32_t alias_len, uint32_t index)
{
    moor_status status = check_id(store, "request_alias", id, id_len);
    return status ? status : moor_records_alias(store->records, id, id_len, alias, alias_len, index);
}

moor_status moor_request_fill(moor_store *store, const char *id, uint32_t id_len, uint64_t start,
                              const moor_ids *rows_as_ids, uint64_t rows)
{
    moor_status status = check_id(store, "request_fill", id, id_len);
    if (status)
        return status;
    return moor_records_fill(store->records, id, id_len, start, rows_as_ids, rows,
                             moor_weights_mark_used(store->process->state));
}

moor_status moor_truncate(moor_store *store, const char *id, uint32_t id_len, uint64_t rows, uint64_t min_rows)
{
    moor_status status = check_id(store, "truncate", id, id_len);
    return status ? status : moor_records_truncate(store->records, id, id_len, rows, min_rows);
}

moor_status moor_seal(moor_process *process, uint32_t store_index, const char *id, uint32_t id_len,
                      uint64_t rows_expected, uint32_t flags)
{
    if (!process || !id || !id_len)
        return moor_fail(MOOR_E_INVALID, "seal: no process or an empty id");
    if (process->pid != moor_pid())
        return moor_fail(MOOR_E_FORKED, "seal: joined by process %d, called in its forked child %d", (int)process->pid,
                         (int)moor_pid());
    if (store_index >= MOOR_MAX_STORES)
        return moor_fail(MOOR_E_INVALID, "seal of request %.*s: store %u, an instance has %d", (int)id_len, id,
                         store_index, MOOR_MAX_STORES);
    if (!moor_process_records(process))
        return MOOR_OK; /* nobody drains the ring */
    moor_state_seal_ring *ring = &process->state->seals[store_index];
    if (!atomic_load(&ring->ready))
        return MOOR_OK; /* no store has been there: nothing was recorded, and on a full tmpfs a write would be a SIGBUS */
    moor_hash128 none = {0, 0};
    moor_status status = moor_seal_push(ring, moor_id_hash(id, id_len), none, rows_expected, flags);
    if (status == MOOR_E_FULL || status == MOOR_E_TIMEOUT)
        moor_count_add(process, MOOR_C_SEALS_LOST, 1);
    return status;
}

/* ---- whether there are records at all ---- */

moor_status moor_recording_off(moor_process *process, const char *why)
{
    moor_status status = moor_process_check(process, "recording_off");
    if (!status && !why)
        status = moor_fail(MOOR_E_INVALID, "recording_off: no reason");
    if (status)
        return status;
    MOOR_TEXT_PUT(process->state->recording_off_why, why, strlen(why));
    atomic_store(&process->state->recording_off, 1);
    return MOOR_OK;
}

int moor_recording_on(const moor_process *process)
{
    return process && process->pid == moor_pid() && moor_process_records(process);
}

/* ---- ownership ---- */

moor_status moor_lease(moor_store *store, moor_handle handle)
{
    moor_status status = check(store, "lease");
    return status ? status : moor_records_lease(store->records, handle);
}

moor_status moor_unlease(moor_store *store, moor_handle handle)
{
    moor_status status = check(store, "unlease");
    return status ? status : moor_records_unlease(store->records, handle);
}

moor_status moor_claim(moor_store *store, moor_handle handle, uint32_t owner)
{
    moor_status status = check(store, "claim");
    return status ? status : moor_records_claim(store->records, handle, owner);
}

moor_status moor_event(moor_store *store, moor_handle handle, uint32_t event)
{
    moor_status status = check(store, "event");
    return status ? status : moor_records_event(store->records, handle, event);
}

moor_status moor_find(moor_store *store, const char *id, uint32_t id_len, moor_handle *out)
{
    moor_status status = check_id(store, "find", id, id_len);
    return status ? status : moor_records_find(store->records, id, id_len, out);
}
