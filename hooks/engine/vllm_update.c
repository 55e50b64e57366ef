/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's side of a weight update and of sleep: every change of weights is reported, the cleanup window is counted,
 * the KV cache waits at the barrier. */
#include "vllm_worker.h"
#include "window.h"

int moor_vllm_worker_start_update_before(moor_jp_call *call)
{
    (void)call;
    moor_window_enter(MOOR_PHASE_BEFORE_WEIGHTS);
    return MOOR_JP_OK;
}

int moor_vllm_worker_update_before(moor_jp_call *call)
{
    (void)call;
    return moor_window_touched(MOOR_WEIGHTS_UPDATE, "update_weights");
}

int moor_vllm_worker_update_error(moor_jp_call *call)
{
    (void)call;
    moor_window_touched(MOOR_WEIGHTS_UPDATE, "update_weights failed");
    moor_window_leave();
    return MOOR_JP_OK;
}

int moor_vllm_worker_finish_update_after(moor_jp_call *call)
{
    (void)call;
    moor_window_touched(MOOR_WEIGHTS_UPDATE, "finish_weight_update");
    moor_window_leave();
    return moor_vllm_rebind() ? MOOR_JP_FAILED : MOOR_JP_OK;
}

int moor_vllm_reload_before(moor_jp_call *call)
{
    (void)call;
    return moor_window_touched(MOOR_WEIGHTS_RELOAD, "reload_weights");
}

int moor_vllm_reload_after(moor_jp_call *call)
{
    (void)call;
    moor_window_touched(MOOR_WEIGHTS_RELOAD, "reload_weights");
    return moor_vllm_rebind() ? MOOR_JP_FAILED : MOOR_JP_OK;
}

int moor_vllm_load_weights_after(moor_jp_call *call)
{
    (void)call;
    return moor_window_touched(MOOR_WEIGHTS_LOAD, "load_weights");
}

int moor_vllm_lora_after(moor_jp_call *call)
{
    return moor_window_touched(MOOR_WEIGHTS_LORA, call->jp->name);
}

/* The pending error as the worker's answer. vLLM's executor stops reading at the first rank that raised and leaves the others'
 * answers in their queues, where they are taken for answers to later calls: so no rank raises, and the core does. */
static int answer_refusal(moor_jp_call *call)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    PyErr_Clear();
    PyObject *answer = Py_BuildValue("(sO)", MOOR_VLLM_REFUSED, text ? text : Py_None);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return moor_jp_set_result(call, answer) ? MOOR_JP_FAILED : MOOR_JP_DONE;
}

int moor_vllm_wake_up_before(moor_jp_call *call)
{
    if (!moor_py_has(moor_jp_param(call, 0), "kv_cache", 1))
        return MOOR_JP_OK;
    PyObject *device = moor_py_path(call->self, "device");
    PyObject *config = moor_py_path(call->self, "vllm_config");
    moor_vllm_place here = moor_vllm_read_place(config);
    int result = moor_window_resume(device, here.rank, here.world, here.replica);
    Py_XDECREF(config);
    Py_XDECREF(device);
    return result == MOOR_JP_RAISE ? answer_refusal(call) : result;
}
