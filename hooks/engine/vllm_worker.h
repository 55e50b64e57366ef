/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vllm_worker.h — the worker's state, shared by vllm_worker.c (bind, store) and vllm_step.c (steps). One model runner a
 * process records; the GIL protects it. Private to the vLLM adapter.
 */
#ifndef MOOR_HOOKS_ENGINE_VLLM_WORKER_H
#define MOOR_HOOKS_ENGINE_VLLM_WORKER_H

#include "model.h"
#include "vllm.h"

typedef struct moor_vllm_worker {
    PyObject *runner;   /* borrowed: it lives as long as its steps come; NULL: this process does not record */
    PyObject *alive;    /* a weak reference to it: its successor may have its address */
    uint32_t layers;    /* 0: recording is off */
    int32_t *layer_ids; /* [layers] */
    moor_model_shape shape;
    int group, block_size; /* the KV group whose blocks cover every position */
    int prefix_unproven;   /* a KV connector may fill blocks from outside */
} moor_vllm_worker;

extern moor_vllm_worker moor_vllm_worker_state;

/* Forget the requests of an engine that is gone. */
void moor_vllm_forget_steps(void);

/* Bind again after a weight update that may have rebuilt kernels. 0, or -1 with a Python error. */
int moor_vllm_rebind(void);

#endif
