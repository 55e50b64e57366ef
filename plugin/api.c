/* SPDX-License-Identifier: Apache-2.0 */
#include "api.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "../allocator/interrupt.h"
#include "../client/client.h"
#include "../client/ref.h"
#include "../client/resolve.h"
#include "../client/save.h"
#include "../client/session.h"
#include "../hooks/barrier.h"
#include "../hooks/cleanup.h"
#include "../hooks/gate.h"
#include "../hooks/holds.h"
#include "../hooks/persist.h"
#include "../hooks/record.h"
#include "../hooks/watch.h"
#include "../hooks/weights.h"
#include "config.h"
#include "process.h"
#include "server.h"
#include "status.h"
#include "visit.h"

const char *moor_version_string(void)
{
    return MOOR_VERSION_STRING;
}

const char *moor_library_path(void)
{
    Dl_info info;
    if (!dladdr((const void *)(uintptr_t)&moor_get_api, &info) || !info.dli_fname)
        return "";
    return info.dli_fname;
}

static void text_free(char *text)
{
    free(text);
}

static const moor_api table = {
    .size = sizeof(moor_api),
    .version = MOOR_API_VERSION,
    .version_string = moor_version_string,
    .status_name = moor_status_name,
    .last_error = moor_last_error,
    .library_path = moor_library_path,

    .config_parse = moor_config_parse,
    .config_values = moor_config_get_values,
    .config_free = moor_config_free,

    .process_join = moor_process_join,
    .process_leave = moor_process_leave,
    .process_config = moor_process_config,
    .process_instance = moor_process_instance,
    .process_dir = moor_process_dir,
    .log = moor_process_log,

    .store_open = moor_store_open,
    .store_close = moor_store_close,

    .step_begin = moor_step_begin,
    .capture = moor_capture,
    .step_commit = moor_step_commit,
    .step_abandon = moor_step_abandon,
    .kv_handed_out = moor_kv_handed_out,
    .kv_reset = moor_kv_reset,
    .request_finished = moor_request_finished,
    .request_alias = moor_request_alias,
    .request_fill = moor_request_fill,
    .truncate = moor_truncate,
    .seal = moor_seal,

    .lease = moor_lease,
    .unlease = moor_unlease,
    .claim = moor_claim,
    .event = moor_event,
    .find = moor_find,

    .attach = moor_attach,
    .detach = moor_detach,
    .client_instance = moor_client_instance,
    .open = moor_open,
    .open_all = moor_open_all,
    .records_free = moor_records_free,
    .resolve = moor_resolve,
    .record_info = moor_record_get_info,
    .record_copy = moor_record_copy,
    .record_ref = moor_record_ref,
    .record_event = moor_record_event,
    .record_claim = moor_record_claim,
    .record_release = moor_record_release,
    .client_truncate = moor_client_truncate,

    .gate_enter = moor_gate_enter,
    .gate_leave = moor_gate_leave,
    .gate_seal = moor_gate_seal,
    .gate_drain = moor_gate_drain,
    .gate_install = moor_gate_install,
    .gate_reopen = moor_gate_reopen,
    .gate_poison = moor_gate_poison,
    .gate_acknowledge = moor_gate_acknowledge,
    .gate_status = moor_gate_get_status,
    .client_gate = moor_client_gate,

    .weights_begin = moor_weights_begin,
    .weights_touched = moor_weights_touched,
    .weights_end = moor_weights_end,
    .weights_label = moor_weights_label,
    .weights_epoch = moor_weights_epoch,

    .resume_arrive = moor_resume_arrive,
    .barrier_arrive = moor_barrier_arrive,
    .hold_take = moor_hold_take,
    .hold_release = moor_hold_release,

    .cleanup_window = moor_cleanup_window,
    .cleanup_count = moor_cleanup_count,

    .count = moor_count,
    .status_text = moor_status_text,
    .client_stats = moor_client_stats,
    .text_free = text_free,

    .session_start = moor_client_session_start,
    .session_insert = moor_client_session_insert,
    .session_search = moor_client_session_search,
    .session_keys = moor_client_session_keys,
    .session_export = moor_client_session_export,
    .session_rollback = moor_client_session_rollback,
    .session_release_key = moor_client_session_release_key,
    .session_release = moor_client_session_release,
    .session_free = moor_client_session_free,
    .client_truncate_within = moor_client_truncate_within,
    .store_save = moor_store_save,
    .store_restore = moor_store_restore,
    .client_save = moor_client_save,
    .recording_off = moor_recording_off,
    .recording_on = moor_recording_on,
    .gate_fewer = moor_gate_fewer,
    .gate_watch = moor_gate_watch,
    .gate_unwatch = moor_gate_unwatch,
    .gate_waiting = moor_gate_waiting,
    .gate_enter_again = moor_gate_enter_again,
    .gate_drain_late = moor_gate_drain_late,
    .hold_seen_by = moor_hold_seen_by,
    .wait_check = moor_wait_check,
    .gate_close = moor_gate_close,
    .gate_note = moor_gate_note,
    .attach_own = moor_attach_own,
    .ref_part = moor_ref_part,
};

__attribute__((visibility("default"))) const moor_api *moor_get_api(uint32_t want, uint32_t *have)
{
    if (have)
        *have = MOOR_API_VERSION;
    return want == MOOR_API_VERSION ? &table : NULL;
}
