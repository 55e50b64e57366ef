/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h — the recording functions of the ABI: what a host (the engine adapter, or a C host) calls at its join points.
 *
 * Called by plugin/api.c's table. struct moor_store is what the ABI calls a store: the recorder in front of the record store
 * (allocator/store.h), and the server (plugin/server.c) behind it. Created by the plugin's store_open through
 * moor_recorder_create, freed by moor_recorder_destroy; immutable in between except for what the recorder thread counts.
 * Translates data-parallel layouts, stamps the weight epoch of each step, marks it used, tells the gate what was sealed.
 */
#ifndef MOOR_RECORD_H
#define MOOR_RECORD_H

#include <moor/moor.h>

#include "../allocator/store.h"
#include "process.h"

struct moor_store {
    moor_process *process;
    moor_records *records;
    uint32_t store_index, dp_size, dp_rank, tp_size, tp_rank, stages;
    pid_t pid;
    void *server; /* plugin/server.c's part */
};

moor_status moor_recorder_create(moor_process *process, const moor_store_args *args, moor_store **out);
void moor_recorder_destroy(moor_store *store);

/* The ABI's functions; moor.h says what they do. */
moor_status moor_step_begin(moor_store *store, const moor_step_request *requests, uint32_t n);
moor_status moor_capture(moor_store *store, uint32_t layer_column, const moor_ids *ids, const moor_dp_layout *dp);
moor_status moor_step_commit(moor_store *store, const uint32_t *accepted, uint32_t n);
moor_status moor_step_abandon(moor_store *store);
moor_status moor_kv_handed_out(moor_store *store, const int32_t *blocks, uint32_t n);
moor_status moor_kv_reset(moor_store *store);
moor_status moor_request_finished(moor_store *store, const char *id, uint32_t id_len);
moor_status moor_request_alias(moor_store *store, const char *id, uint32_t id_len, const char *alias,
                               uint32_t alias_len, uint32_t index);
moor_status moor_request_fill(moor_store *store, const char *id, uint32_t id_len, uint64_t start,
                              const moor_ids *rows_as_ids, uint64_t rows);
moor_status moor_truncate(moor_store *store, const char *id, uint32_t id_len, uint64_t rows, uint64_t min_rows);
moor_status moor_seal(moor_process *process, uint32_t store_index, const char *id, uint32_t id_len,
                      uint64_t rows_expected, uint32_t flags);
moor_status moor_recording_off(moor_process *process, const char *why);
int moor_recording_on(const moor_process *process);
moor_status moor_lease(moor_store *store, moor_handle handle);
moor_status moor_unlease(moor_store *store, moor_handle handle);
moor_status moor_claim(moor_store *store, moor_handle handle, uint32_t owner);
moor_status moor_event(moor_store *store, moor_handle handle, uint32_t event);
moor_status moor_find(moor_store *store, const char *id, uint32_t id_len, moor_handle *out);

#endif
