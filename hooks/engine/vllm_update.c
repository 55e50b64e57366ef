/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's side of a weight update and of sleep: every change of weights is reported, the cleanup window is counted,
 * the KV cache waits at the barrier. */
#include <stdio.h>
#include <string.h>

#include "vllm_worker.h"

/* A weight change is reported before it begins (rows of a step that runs meanwhile are already suspect) and after it. */
static int touched(uint32_t kind, const char *what)
{
    moor_runtime *rt = moor_runtime_get();
    if (rt->process)
        rt->api->weights_touched(rt->process, kind, what);
    return MOOR_JP_OK;
}

/* The phase that cleanup calls belong to, and whether its one empty_cache has happened. */
static struct {
    uint32_t phase;
    int emptied;
} clean;

static int in_window(const moor_runtime *rt)
{
    return rt->process && rt->api->cleanup_window(rt->process, 0) > 0;
}

/* One call of a cleanup function by its public name, so that Moor's own calls are counted where everybody's are. */
static void call_torch(const char *module_name, const char *function)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *result = module ? PyObject_CallMethod(module, function, NULL) : NULL;
    PyErr_Clear(); /* no accelerator here: nothing to empty */
    Py_XDECREF(result);
    Py_XDECREF(module);
}

/* Bytes free on the device, or UINT64_MAX where there is no device to ask. */
static uint64_t device_free(void)
{
    uint64_t bytes = UINT64_MAX;
    PyObject *cuda = PyImport_ImportModule("torch.cuda");
    PyObject *initialized = cuda ? PyObject_CallMethod(cuda, "is_initialized", NULL) : NULL;
    if (initialized == Py_True) {
        PyObject *info = PyObject_CallMethod(cuda, "mem_get_info", NULL);
        PyObject *first = info ? PySequence_GetItem(info, 0) : NULL;
        if (first)
            bytes = PyLong_AsUnsignedLongLong(first);
        Py_XDECREF(first);
        Py_XDECREF(info);
    }
    PyErr_Clear();
    Py_XDECREF(initialized);
    Py_XDECREF(cuda);
    return bytes;
}

/* Enters a phase; in light mode with its one empty_cache, and the full cleanup where that freed too little (SEMANTICS 6.3). */
static void enter_phase(uint32_t phase)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->process)
        return;
    rt->api->cleanup_window(rt->process, +1);
    clean.phase = phase;
    clean.emptied = 0;
    if (rt->config.cleanup_mode != MOOR_CLEANUP_LIGHT)
        return;
    call_torch("torch.accelerator", "empty_cache");
    if (rt->config.escalate_free_bytes && device_free() < rt->config.escalate_free_bytes) {
        rt->api->cleanup_count(rt->process, phase, MOOR_CLEAN_ESCALATED, 0);
        rt->api->cleanup_window(rt->process, -1); /* outside the window nothing is suppressed */
        call_torch("gc", "collect");
        call_torch("torch.accelerator", "empty_cache");
        rt->api->cleanup_window(rt->process, +1);
    }
    clean.phase = phase == MOOR_PHASE_BEFORE_WEIGHTS ? MOOR_PHASE_TRANSFER : phase;
    clean.emptied = phase != MOOR_PHASE_BEFORE_WEIGHTS;
}

static void leave_phase(void)
{
    moor_runtime *rt = moor_runtime_get();
    if (in_window(rt))
        rt->api->cleanup_window(rt->process, -1);
}

int moor_vllm_worker_start_update_before(moor_jp_call *call)
{
    (void)call;
    enter_phase(MOOR_PHASE_BEFORE_WEIGHTS);
    return MOOR_JP_OK;
}

int moor_vllm_worker_update_before(moor_jp_call *call)
{
    (void)call;
    return touched(MOOR_WEIGHTS_UPDATE, "update_weights");
}

int moor_vllm_worker_update_error(moor_jp_call *call)
{
    (void)call;
    touched(MOOR_WEIGHTS_UPDATE, "update_weights failed");
    leave_phase();
    return MOOR_JP_OK;
}

int moor_vllm_worker_finish_update_after(moor_jp_call *call)
{
    (void)call;
    touched(MOOR_WEIGHTS_UPDATE, "finish_weight_update");
    leave_phase();
    return moor_vllm_rebind() ? MOOR_JP_FAILED : MOOR_JP_OK;
}

int moor_vllm_reload_before(moor_jp_call *call)
{
    (void)call;
    return touched(MOOR_WEIGHTS_RELOAD, "reload_weights");
}

int moor_vllm_reload_after(moor_jp_call *call)
{
    (void)call;
    touched(MOOR_WEIGHTS_RELOAD, "reload_weights");
    return moor_vllm_rebind() ? MOOR_JP_FAILED : MOOR_JP_OK;
}

int moor_vllm_load_weights_after(moor_jp_call *call)
{
    (void)call;
    return touched(MOOR_WEIGHTS_LOAD, "load_weights");
}

int moor_vllm_lora_after(moor_jp_call *call)
{
    return touched(MOOR_WEIGHTS_LORA, call->jp->name);
}

/* ---- barrier ------------------------------------------------------------------------------------------------------- */

/* "GPU-<uuid>" of the worker's device, "cpu:0" for a CPU: what a trainer's hold names. */
static void device_name(PyObject *self, char *out, size_t size)
{
    snprintf(out, size, "cpu:0");
    PyObject *type = moor_py_path(self, "device.type");
    const char *text = moor_py_text(type, NULL);
    int cuda = text && strcmp(text, "cuda") == 0;
    Py_XDECREF(type);
    if (!cuda)
        return;
    PyObject *device = moor_py_path(self, "device");
    PyObject *torch_cuda = PyImport_ImportModule("torch.cuda");
    PyObject *properties = torch_cuda ? PyObject_CallMethod(torch_cuda, "get_device_properties", "O", device) : NULL;
    PyObject *uuid = properties ? PyObject_GetAttrString(properties, "uuid") : NULL;
    PyObject *string = uuid ? PyObject_Str(uuid) : NULL;
    const char *name = moor_py_text(string, NULL);
    if (name)
        snprintf(out, size, "%s%s", strncmp(name, "GPU-", 4) ? "GPU-" : "", name);
    PyErr_Clear();
    Py_XDECREF(string);
    Py_XDECREF(uuid);
    Py_XDECREF(properties);
    Py_XDECREF(torch_cuda);
    Py_XDECREF(device);
}

int moor_vllm_wake_up_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->process || !moor_py_has(moor_jp_param(call, 0), "kv_cache", 1))
        return MOOR_JP_OK;
    enter_phase(MOOR_PHASE_BEFORE_KV);
    leave_phase();
    if (rt->config.barrier_mode == MOOR_MODE_OFF)
        return MOOR_JP_OK;
    uint32_t rank = (uint32_t)moor_py_int(call->self, "vllm_config.parallel_config.rank", 0);
    uint32_t world = (uint32_t)moor_py_int(call->self, "vllm_config.parallel_config.world_size", 1);
    uint32_t replica = (uint32_t)moor_py_int(call->self, "vllm_config.parallel_config.data_parallel_rank", 0);
    char device[96];
    device_name(call->self, device, sizeof(device));
    moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
    moor_status status;
    Py_BEGIN_ALLOW_THREADS status =
        rt->api->resume_arrive(rt->process, rank, world, replica, device, rt->config.barrier_timeout_s, &result);
    Py_END_ALLOW_THREADS if (status == MOOR_OK) return MOOR_JP_OK;
    moor_runtime_raise(status, "the KV cache is not resumed");
    return rt->config.barrier_mode == MOOR_MODE_ENFORCE ? MOOR_JP_RAISE : MOOR_JP_FAILED;
}

/* ---- light cleanup ------------------------------------------------------------------------------------------------- */

static int cleanup(moor_jp_call *call, uint32_t done, uint32_t skipped, int skip, PyObject *instead)
{
    moor_runtime *rt = moor_runtime_get();
    if (!in_window(rt))
        return MOOR_JP_OK;
    skip = skip && rt->config.cleanup_mode == MOOR_CLEANUP_LIGHT;
    rt->api->cleanup_count(rt->process, clean.phase, skip ? skipped : done, 0);
    if (!skip)
        return MOOR_JP_OK;
    return moor_jp_set_result(call, instead ? Py_NewRef(instead) : PyLong_FromLong(0)) ? MOOR_JP_FAILED : MOOR_JP_DONE;
}

int moor_vllm_gc_before(moor_jp_call *call)
{
    return cleanup(call, MOOR_CLEAN_GC, MOOR_CLEAN_GC_SUPPRESSED, 1, NULL);
}

int moor_vllm_empty_cache_before(moor_jp_call *call)
{
    int again = clean.emptied;
    clean.emptied = 1;
    return cleanup(call, MOOR_CLEAN_EMPTY_CACHE, MOOR_CLEAN_EMPTY_CACHE_SKIPPED, again, Py_None);
}
