/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h — what an adapter must know of the model, read from an object that every engine has: a model configuration with a
 * Hugging Face configuration inside. Called at set-up, with the GIL held; owns nothing.
 */
#ifndef MOOR_HOOKS_ENGINE_MODEL_H
#define MOOR_HOOKS_ENGINE_MODEL_H

#include "runtime.h"

typedef struct moor_model_shape {
    uint32_t num_experts, top_k, model_layers; /* 0: the configuration does not say */
} moor_model_shape;

void moor_model_read_shape(PyObject *model_config, moor_model_shape *out);
/* Recording cannot be on: MOOR_JP_RAISE with a Python error under strict, else one line in the log and MOOR_JP_OK. */
int moor_recording_refused(const char *why);
/* store_open failed: the same, with its reason; a wrong configuration (record.restore) is never passed over. MOOR_JP_RAISE or
 * MOOR_JP_FAILED, with a Python error. */
int moor_recording_failed(moor_status status);

#endif
