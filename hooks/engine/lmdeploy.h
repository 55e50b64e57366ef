/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lmdeploy.h — what the parts of the LMDeploy adapter share: the table in lmdeploy.c names callbacks of
 *   lmdeploy_front.c   AsyncEngine, engine proxy: gate, sleep and wakeup, weight updates as the HTTP process sees them
 *   lmdeploy_ids.c     what a request is called, here, there and by its client
 *   lmdeploy_input.c   images, videos, audio that the model would not see
 *   lmdeploy_engine.c  Engine and its loop: store, steps, seal
 *   lmdeploy_owner.c   several engines in one process
 *   lmdeploy_reply.c   what leaves the engine's process: a response's routes, the environment of Ray's workers
 *   lmdeploy_agent.c   model agent (in the engine's process, or in a Ray worker): weight updates, wakeup, cleanup window
 * LMDeploy's scheduler sees each step's ids with the sequences they belong to; that process records, whatever executor
 * computes. All run with the GIL held. Objects are read by attribute; nothing depends on a version number.
 */
#ifndef MOOR_HOOKS_ENGINE_LMDEPLOY_H
#define MOOR_HOOKS_ENGINE_LMDEPLOY_H

#include "runtime.h"

extern const moor_engine moor_engine_lmdeploy;

/* What a request's field holds until its record is read: the record's id behind this. */
#define MOOR_LMDEPLOY_MARKER "moor-record:"

/* Join in `roles` with $MOOR_CONFIG: LMDeploy has no place of its own for it. As moor_runtime_join. */
int moor_lmdeploy_join(uint32_t roles, uint32_t rank, uint32_t world, uint32_t dp_rank);
/* The join point of this name in lmdeploy.c's table (never NULL for a name that is there). */
static inline const moor_jp *moor_lmdeploy_jp(const char *name)
{
    return moor_jp_named(&moor_engine_lmdeploy, name);
}

/* lmdeploy_front.c */
int moor_lmdeploy_front_init(moor_jp_call *call);
int moor_lmdeploy_generate_before(moor_jp_call *call);
int moor_lmdeploy_generate_item(moor_jp_call *call);
int moor_lmdeploy_infer_before(moor_jp_call *call);
int moor_lmdeploy_send_after(moor_jp_call *call);
int moor_lmdeploy_sleep_before(moor_jp_call *call);
int moor_lmdeploy_wakeup_after(moor_jp_call *call);
int moor_lmdeploy_update_params_before(moor_jp_call *call);
int moor_lmdeploy_update_params_after(moor_jp_call *call);
int moor_lmdeploy_rejected(moor_jp_call *call);
int moor_lmdeploy_update_weights_before(moor_jp_call *call);
int moor_lmdeploy_update_weights_after(moor_jp_call *call);
int moor_lmdeploy_update_error(moor_jp_call *call);
int moor_lmdeploy_metrics_after(moor_jp_call *call);

/* lmdeploy_ids.c */
PyObject *moor_lmdeploy_name(PyObject *session); /* of its record, and for the gate; new reference, NULL for NULL */
int moor_lmdeploy_random_after(moor_jp_call *call);
int moor_lmdeploy_completions_before(moor_jp_call *call);
void moor_lmdeploy_send_ids(PyObject *request);                             /* front end: into its gen_config */
int moor_lmdeploy_keep_ids(PyObject *gen_config, PyObject *sampling_param); /* engine; 0, or -1 with an error */
void moor_lmdeploy_add_ids(PyObject *sequence, const char *id, uint32_t len);

/* lmdeploy_owner.c */
/* This engine is the one that is recorded from now on, or *why says why it cannot be. 0, or -1 with an error. */
int moor_lmdeploy_own(PyObject *engine, const char **why);
int moor_lmdeploy_engine_close_before(moor_jp_call *call);

/* lmdeploy_input.c */
int moor_lmdeploy_prompt_before(moor_jp_call *call);
int moor_lmdeploy_prompt_after(moor_jp_call *call);

/* lmdeploy_engine.c */
int moor_lmdeploy_engine_init_before(moor_jp_call *call);
int moor_lmdeploy_engine_init_after(moor_jp_call *call);
void moor_lmdeploy_drop_step(void); /* that is open */
int moor_lmdeploy_sampling_param_after(moor_jp_call *call);
int moor_lmdeploy_need_routes_after(moor_jp_call *call);
int moor_lmdeploy_allocate_after(moor_jp_call *call);
int moor_lmdeploy_outputs_before(moor_jp_call *call);
int moor_lmdeploy_outputs_after(moor_jp_call *call);
int moor_lmdeploy_stop_session_before(moor_jp_call *call);
int moor_lmdeploy_end_session_before(moor_jp_call *call);
int moor_lmdeploy_engine_sleep_after(moor_jp_call *call);
/* The text model's Hugging Face configuration inside a ModelConfig (new reference), and whether its layer has experts. */
PyObject *moor_lmdeploy_hf_config(PyObject *model_config);
int moor_lmdeploy_is_moe(PyObject *hf_config, long layer);

/* lmdeploy_reply.c */
int moor_lmdeploy_extra_outputs_before(moor_jp_call *call);
int moor_lmdeploy_stream_item(moor_jp_call *call);
int moor_lmdeploy_hide_stop_row(moor_jp_call *call); /* of an answer, in the front end */
int moor_lmdeploy_ray_env_after(moor_jp_call *call);

/* lmdeploy_agent.c */
int moor_lmdeploy_agent_init(moor_jp_call *call);
int moor_lmdeploy_dense_mlp_before(moor_jp_call *call);
int moor_lmdeploy_agent_update_params_before(moor_jp_call *call);
int moor_lmdeploy_agent_update_params_after(moor_jp_call *call);
int moor_lmdeploy_agent_update_weights_before(moor_jp_call *call);
int moor_lmdeploy_agent_update_weights_after(moor_jp_call *call);
int moor_lmdeploy_agent_update_error(moor_jp_call *call);
int moor_lmdeploy_agent_wakeup_before(moor_jp_call *call);

#endif
