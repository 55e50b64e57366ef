/* SPDX-License-Identifier: Apache-2.0 */
#include "window.h"

#include <stdio.h>
#include <string.h>

int moor_window_touched(uint32_t kind, const char *what)
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

int moor_window_inside(void)
{
    const moor_runtime *rt = moor_runtime_get();
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

void moor_window_enter(uint32_t phase)
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

void moor_window_leave(void)
{
    moor_runtime *rt = moor_runtime_get();
    if (moor_window_inside())
        rt->api->cleanup_window(rt->process, -1);
}

/* ---- barrier ------------------------------------------------------------------------------------------------------- */

/* "GPU-<uuid>" of the device, "cpu:0" for a CPU: what a trainer's hold names. */
static void device_name(PyObject *device, char *out, size_t size)
{
    snprintf(out, size, "cpu:0");
    PyObject *type = moor_py_path(device, "type");
    const char *text = moor_py_text(type, NULL);
    int cuda = text && strcmp(text, "cuda") == 0;
    Py_XDECREF(type);
    if (!cuda)
        return;
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
}

int moor_window_resume(PyObject *device, uint32_t rank, uint32_t world, uint32_t replica)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->process)
        return MOOR_JP_OK;
    moor_window_enter(MOOR_PHASE_BEFORE_KV);
    moor_window_leave();
    if (rt->config.barrier_mode == MOOR_MODE_OFF)
        return MOOR_JP_OK;
    char name[96];
    device_name(device, name, sizeof(name));
    moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
    moor_status status;
    Py_BEGIN_ALLOW_THREADS
    status = rt->api->resume_arrive(rt->process, rank, world, replica, name, rt->config.barrier_timeout_s, &result);
    Py_END_ALLOW_THREADS
    if (status == MOOR_OK)
        return MOOR_JP_OK;
    moor_runtime_raise(status, "the KV cache is not resumed");
    return rt->config.barrier_mode == MOOR_MODE_ENFORCE ? MOOR_JP_RAISE : MOOR_JP_FAILED;
}

/* ---- light cleanup ------------------------------------------------------------------------------------------------- */

static int cleanup(moor_jp_call *call, uint32_t done, uint32_t skipped, int skip, PyObject *instead)
{
    moor_runtime *rt = moor_runtime_get();
    if (!moor_window_inside())
        return MOOR_JP_OK;
    skip = skip && rt->config.cleanup_mode == MOOR_CLEANUP_LIGHT;
    rt->api->cleanup_count(rt->process, clean.phase, skip ? skipped : done, 0);
    if (!skip)
        return MOOR_JP_OK;
    return moor_jp_set_result(call, instead ? Py_NewRef(instead) : PyLong_FromLong(0)) ? MOOR_JP_FAILED : MOOR_JP_DONE;
}

int moor_window_gc_before(moor_jp_call *call)
{
    return cleanup(call, MOOR_CLEAN_GC, MOOR_CLEAN_GC_SUPPRESSED, 1, NULL);
}

int moor_window_empty_cache_before(moor_jp_call *call)
{
    int again = clean.emptied;
    clean.emptied = 1;
    return cleanup(call, MOOR_CLEAN_EMPTY_CACHE, MOOR_CLEAN_EMPTY_CACHE_SKIPPED, again, Py_None);
}
