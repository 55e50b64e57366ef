/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sglang.h — what the parts of the SGLang adapter share: the table in sglang.c names callbacks of
 *   sglang_front.c    TokenizerManager: gate, delivery, pause, update, release and resume
 *   sglang_input.c    no image, video or audio input is lost in silence
 *   sglang_step.c     scheduler: set-up, steps, capture, finish, KV slots
 *   sglang_update.c   scheduler: weight updates, barrier
 * A scheduler process is engine core and worker in one. All run with the GIL held; objects are read by attribute.
 */
#ifndef MOOR_HOOKS_ENGINE_SGLANG_H
#define MOOR_HOOKS_ENGINE_SGLANG_H

#include "runtime.h"

extern const moor_engine moor_engine_sglang;

/* The join point of this name in sglang.c's table (never NULL for a name that is there). */
static inline const moor_jp *moor_sglang_jp(const char *name)
{
    return moor_jp_named(&moor_engine_sglang, name);
}

/* Where a scheduler stands among its kind. */
typedef struct moor_sglang_place {
    uint32_t tp_rank, tp_size, pp_rank, pp_size, dp_rank, dp_size;
} moor_sglang_place;
moor_sglang_place moor_sglang_read_place(PyObject *scheduler);
int moor_sglang_join(uint32_t roles, const moor_sglang_place *place);

/* sglang_front.c */
int moor_sglang_launch_before(moor_jp_call *call);
int moor_sglang_detokenizer_init(moor_jp_call *call);
int moor_sglang_generate_before(moor_jp_call *call);
int moor_sglang_generate_item(moor_jp_call *call);
int moor_sglang_pause_before(moor_jp_call *call);
int moor_sglang_pause_after(moor_jp_call *call);
int moor_sglang_continue_after(moor_jp_call *call);
int moor_sglang_begin_update_before(moor_jp_call *call);
int moor_sglang_begin_update_after(moor_jp_call *call);
int moor_sglang_session_error(moor_jp_call *call);
int moor_sglang_end_update_after(moor_jp_call *call);
int moor_sglang_update_before(moor_jp_call *call);
int moor_sglang_update_after(moor_jp_call *call);
int moor_sglang_release_before(moor_jp_call *call);
int moor_sglang_resume_after(moor_jp_call *call);
int moor_sglang_metrics_before(moor_jp_call *call);

/* sglang_input.c */
int moor_sglang_tokenized_before(moor_jp_call *call);

/* sglang_step.c */
int moor_sglang_scheduler_after(moor_jp_call *call);
int moor_sglang_run_batch_before(moor_jp_call *call);
int moor_sglang_run_batch_after(moor_jp_call *call);
int moor_sglang_run_batch_error(moor_jp_call *call);
int moor_sglang_capture_before(moor_jp_call *call);
int moor_sglang_forward_end_before(moor_jp_call *call);
int moor_sglang_finish_before(moor_jp_call *call);
int moor_sglang_output_before(moor_jp_call *call);
int moor_sglang_abort_waiting_before(moor_jp_call *call);
int moor_sglang_alloc_after(moor_jp_call *call);
int moor_sglang_flush_after(moor_jp_call *call);

/* sglang_update.c */
int moor_sglang_session_before(moor_jp_call *call);
int moor_sglang_session_after(moor_jp_call *call);
int moor_sglang_load_before(moor_jp_call *call);
int moor_sglang_load_after(moor_jp_call *call);
int moor_sglang_load_error(moor_jp_call *call);
int moor_sglang_load_weights_after(moor_jp_call *call);
int moor_sglang_version_after(moor_jp_call *call);
int moor_sglang_kv_resume_before(moor_jp_call *call);

#endif
