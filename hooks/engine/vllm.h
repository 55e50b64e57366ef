/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vllm.h — what the parts of the vLLM adapter share: the table in vllm.c names callbacks of
 *   vllm_ids.c     the names of a request, in all three
 *   vllm_owner.c   which of several engines in a process Moor serves
 *   vllm_front.c   AsyncLLM, output processor, HTTP field, /metrics: gate, delivery
 *   vllm_core.c    engine core and scheduler: seal, block hand-outs, prefix-cache reset, RPC seen
 *   vllm_worker.c  model runner: bind, step, capture
 *   vllm_update.c  worker: weight updates, sleep and wake_up, cleanup window
 * All run with the GIL held. Objects are read by attribute, with alternatives; nothing depends on a version number.
 */
#ifndef MOOR_HOOKS_ENGINE_VLLM_H
#define MOOR_HOOKS_ENGINE_VLLM_H

#include "runtime.h"

extern const moor_engine moor_engine_vllm;

/* Where a process stands in its replica, whose pipeline stages have a store each: first_store is that of stage 0. */
typedef struct moor_vllm_place {
    uint32_t rank, world, replica, stage, stages, first_store;
    int records; /* the first rank of its stage does: all of a tensor-parallel group route alike */
} moor_vllm_place;
moor_vllm_place moor_vllm_read_place(PyObject *vllm_config);

/* The "moor" object of this VllmConfig: a new reference, or NULL without an error. */
PyObject *moor_vllm_section(PyObject *vllm_config);
/* Join in `roles` with the configuration of this VllmConfig; as moor_runtime_join. */
int moor_vllm_join(uint32_t roles, PyObject *vllm_config);
/* The join point of this name in vllm.c's table (never NULL for a name that is there). */
static inline const moor_jp *moor_vllm_jp(const char *name)
{
    return moor_jp_named(&moor_engine_vllm, name);
}

/* vllm_ids.c */
int moor_vllm_http_id_after(moor_jp_call *call);
int moor_vllm_label_reads_before(moor_jp_call *call);
void moor_vllm_label_reads_finish(moor_jp_call *call);
int moor_vllm_beam_search_before(moor_jp_call *call);
void moor_vllm_beam_search_finish(moor_jp_call *call);
/* 1 while beam search makes a request: nobody will see its field. */
int moor_vllm_is_beam_step(void);
/* Before the request goes to the core: it takes along what else `state`, its RequestState, and an HTTP client call it. 0, or -1 with an
 * error. */
int moor_vllm_send_ids(PyObject *request, PyObject *state);
/* What came along with a core's or a runner's request: NULL, or a new reference for moor_vllm_each_id. */
PyObject *moor_vllm_sent_ids(PyObject *request);
typedef void (*moor_vllm_id_seen)(void *user, const char *id, uint32_t len, uint32_t index);
void moor_vllm_each_id(PyObject *ids, moor_vllm_id_seen seen, void *user);

/* vllm_owner.c */
#define MOOR_VLLM_OFF "moor_off" /* True on what belongs to an engine that Moor does not serve */
int moor_vllm_owner_before(moor_jp_call *call);
int moor_vllm_owner_after(moor_jp_call *call);
int moor_vllm_owner_gone(moor_jp_call *call);
int moor_vllm_add_request_before(moor_jp_call *call);
/* 1 when the vllm_config of this front end, client, scheduler or core says so. */
int moor_vllm_is_off(PyObject *part);

/* vllm_front.c */
int moor_vllm_front_init(moor_jp_call *call);
/* The engine of this configuration is the one that Moor serves: whether its server asks for routes, what its routes are. */
void moor_vllm_front_serves(PyObject *vllm_config);
int moor_vllm_aux_output_before(moor_jp_call *call);
int moor_vllm_generate_before(moor_jp_call *call);
int moor_vllm_generate_item(moor_jp_call *call);
int moor_vllm_send_after(moor_jp_call *call);
int moor_vllm_request_state_after(moor_jp_call *call);
int moor_vllm_session_input_before(moor_jp_call *call);
int moor_vllm_session_turn_before(moor_jp_call *call);
int moor_vllm_completion_output_after(moor_jp_call *call);
int moor_vllm_base64_before(moor_jp_call *call);
int moor_vllm_metrics_after(moor_jp_call *call);
int moor_vllm_pause_before(moor_jp_call *call);
int moor_vllm_pause_after(moor_jp_call *call);
int moor_vllm_pause_error(moor_jp_call *call);
int moor_vllm_resume_after(moor_jp_call *call);
int moor_vllm_sleep_before(moor_jp_call *call);
int moor_vllm_sleep_after(moor_jp_call *call);
int moor_vllm_wake_after(moor_jp_call *call);
int moor_vllm_start_update_before(moor_jp_call *call);
int moor_vllm_finish_update_after(moor_jp_call *call);
int moor_vllm_update_error(moor_jp_call *call);

/* vllm_core.c */
int moor_vllm_core_init(moor_jp_call *call);
int moor_vllm_scheduler_init_after(moor_jp_call *call);
int moor_vllm_free_request_before(moor_jp_call *call);
int moor_vllm_new_blocks_after(moor_jp_call *call);
int moor_vllm_schedule_after(moor_jp_call *call);
int moor_vllm_reset_prefix_after(moor_jp_call *call);
int moor_vllm_rpc_before(moor_jp_call *call);
int moor_vllm_rpc_after(moor_jp_call *call);
#define MOOR_VLLM_ACKNOWLEDGE "moor_gate_acknowledge" /* what a trainer calls over /collective_rpc */
int moor_vllm_executor_rpc_after(moor_jp_call *call);
int moor_vllm_set_version_after(moor_jp_call *call);
int moor_vllm_ray_env_after(moor_jp_call *call);
/* Attributes that the core adds to a SchedulerOutput: they travel in order with it, which is what makes them exact. */
#define MOOR_VLLM_HANDED_OUT "moor_handed_out" /* bytes: int32 block ids */
#define MOOR_VLLM_KV_RESET "moor_kv_reset"     /* True */
/* First element of the tuple that a worker answers when Moor refuses a call; the second one says why. */
#define MOOR_VLLM_REFUSED "moor refused"

/* vllm_worker.c */
int moor_vllm_load_model_after(moor_jp_call *call);
int moor_vllm_kv_cache_after(moor_jp_call *call);
int moor_vllm_execute_before(moor_jp_call *call);
int moor_vllm_execute_after(moor_jp_call *call);
int moor_vllm_execute_error(moor_jp_call *call);
int moor_vllm_sample_after(moor_jp_call *call);
int moor_vllm_bypass_before(moor_jp_call *call);

/* vllm_update.c */
int moor_vllm_worker_start_update_before(moor_jp_call *call);
int moor_vllm_worker_update_before(moor_jp_call *call);
int moor_vllm_worker_update_error(moor_jp_call *call);
int moor_vllm_worker_finish_update_after(moor_jp_call *call);
int moor_vllm_reload_before(moor_jp_call *call);
int moor_vllm_reload_after(moor_jp_call *call);
int moor_vllm_load_weights_after(moor_jp_call *call);
int moor_vllm_lora_after(moor_jp_call *call);
int moor_vllm_wake_up_before(moor_jp_call *call);

#endif
