/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's side of a weight update and of resume: every change of weights is reported, whatever the engine answers;
 * the KV cache waits at the barrier. */
#include "sglang.h"

#include <string.h>

#include "window.h"

static PyObject *member(moor_jp_call *call, const char *name)
{
    return call->result ? moor_py_path(call->result, name) : NULL;
}

/* 1 when the engine says that the call succeeded. */
static int succeeded(moor_jp_call *call)
{
    return moor_py_true(call->result, "success", 1);
}

/* call->state of a call that changes weights: it is reported, and it opened a cleanup window. */
static char reported, with_window;

/* `empties`: the caller left the engine's own empty_cache on (torch_empty_cache), so that Moor may have its one; the calls of a
 * session share the session's window. */
static void open_window(moor_jp_call *call, int empties)
{
    moor_runtime *rt = moor_runtime_get();
    rt->api->weights_begin(rt->process, MOOR_WEIGHTS_UPDATE);
    call->state = &reported;
    if (!empties || moor_window_inside())
        return;
    call->state = &with_window;
    moor_window_enter(MOOR_PHASE_BEFORE_WEIGHTS);
}

static void close_window(moor_jp_call *call)
{
    if (call->state == &with_window)
        moor_window_leave();
}

int moor_sglang_session_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *session = moor_py_path(call->self, "_session");
    int beginning = strstr(call->jp->name, "begin") != NULL;
    /* A begin inside a session and an end outside of one change nothing: the engine refuses them. */
    call->state = rt->process && (session != NULL) != beginning ? call->self : NULL;
    Py_XDECREF(session);
    if (call->state && beginning)
        open_window(call, 1);
    return MOOR_JP_OK;
}

int moor_sglang_session_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (call->state && strstr(call->jp->name, "end")) {
        rt->api->weights_end(rt->process, succeeded(call), "end_weight_update returned False");
        moor_window_leave();
    }
    return MOOR_JP_OK;
}

/* Calls that need a session, and find none: they are refused before anything is touched. */
static int refused_by_engine(moor_jp_call *call)
{
    if (!strstr(call->jp->name, "tensor") && !strstr(call->jp->name, "distributed"))
        return 0;
    if (!PyObject_HasAttrString(call->self, "_session"))
        return 0; /* an older release has no sessions */
    PyObject *session = moor_py_path(call->self, "_session");
    Py_XDECREF(session);
    return session == NULL;
}

int moor_sglang_load_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    call->state = NULL;
    if (!rt->process || refused_by_engine(call))
        return MOOR_JP_OK;
    open_window(call, moor_py_true(moor_jp_param(call, 0), "torch_empty_cache", 1));
    moor_window_touched(MOOR_WEIGHTS_UPDATE, call->jp->name);
    return MOOR_JP_OK;
}

/* "False" may well come after the weights were changed and before the cache was flushed: the version is then unknown, and
 * nothing in the KV cache can be trusted to be of it. */
static void failed(moor_jp_call *call, const char *why)
{
    moor_runtime *rt = moor_runtime_get();
    char text[160];
    PyOS_snprintf(text, sizeof(text), "%s: %s", call->jp->name, why ? why : "the engine raised");
    rt->api->weights_end(rt->process, 0, text);
    close_window(call);
    if (rt->store)
        rt->api->kv_reset(rt->store);
}

int moor_sglang_load_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!call->state)
        return MOOR_JP_OK;
    if (succeeded(call)) {
        moor_window_touched(MOOR_WEIGHTS_UPDATE, call->jp->name);
        rt->api->weights_end(rt->process, 1, NULL);
        close_window(call);
        return MOOR_JP_OK;
    }
    PyObject *message = member(call, "message");
    failed(call, moor_py_text(message, NULL));
    Py_XDECREF(message);
    return MOOR_JP_OK;
}

int moor_sglang_load_error(moor_jp_call *call)
{
    if (!moor_runtime_get()->process)
        return MOOR_JP_OK;
    PyObject *text = PyObject_Str(call->exc);
    failed(call, moor_py_text(text, NULL));
    PyErr_Clear();
    Py_XDECREF(text);
    return MOOR_JP_OK;
}

int moor_sglang_load_weights_after(moor_jp_call *call)
{
    (void)call;
    return moor_window_touched(MOOR_WEIGHTS_LOAD, "load_weights");
}

int moor_sglang_version_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    const char *label = moor_py_text(moor_jp_param(call, 0), NULL);
    if (rt->process && label)
        rt->api->weights_label(rt->process, label);
    return MOOR_JP_OK;
}

/* ---- barrier ------------------------------------------------------------------------------------------------------- */

static PyObject *taken_error(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

/* The engine's own answer, instead of its resume. */
static int answer(moor_jp_call *call)
{
    PyObject *module = PyImport_ImportModule("sglang.srt.managers.io_struct");
    PyObject *output = module ? PyObject_CallMethod(module, "ResumeMemoryOccupationReqOutput", NULL) : NULL;
    Py_XDECREF(module);
    return moor_jp_set_result(call, output) ? MOOR_JP_FAILED : MOOR_JP_DONE;
}

/* An exception here would end the scheduler, and the server with it. A refused resume leaves the KV cache released, and the
 * gate poisoned with the reason: the front end's call fails with that text, and so does every request until an operator
 * acknowledges. */
static int refuse(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *error = taken_error(), *text = error ? PyObject_Str(error) : NULL;
    const char *why = moor_py_text(text, NULL);
    rt->api->gate_poison(rt->process, why ? why : "the KV cache was not resumed");
    Py_XDECREF(text);
    Py_XDECREF(error);
    PyErr_Clear();
    return answer(call);
}

/* The torch.device of this rank; NULL on a CPU. */
static PyObject *device_of(PyObject *updater)
{
    PyObject *type = moor_py_path(updater, "tp_worker.model_runner.device"), *device = NULL;
    const char *text = moor_py_text(type, NULL);
    if (text && strcmp(text, "cpu") != 0) {
        PyObject *torch = PyImport_ImportModule("torch");
        device = torch ? PyObject_CallMethod(torch, "device", "si", text,
                                             (int)moor_py_int(updater, "tp_worker.model_runner.gpu_id", 0))
                       : NULL;
        Py_XDECREF(torch);
        PyErr_Clear();
    }
    Py_XDECREF(type);
    return device;
}

/* The request's tags (new reference); no tags, or an empty list of them, are all that the engine knows. */
static PyObject *tags_of(PyObject *request)
{
    PyObject *tags = moor_py_path(request, "tags");
    if (tags && PyObject_Size(tags) > 0)
        return tags;
    Py_XDECREF(tags);
    PyErr_Clear();
    PyObject *module = PyImport_ImportModule("sglang.srt.constants");
    PyObject *all = module ? PyObject_GetAttrString(module, "GPU_MEMORY_ALL_TYPES") : NULL;
    Py_XDECREF(module);
    PyErr_Clear();
    return all;
}

/* Those of `tags` that are released, as a list; NULL when that cannot be told. */
static PyObject *released_of(PyObject *updater, PyObject *tags)
{
    PyObject *offloaded = moor_py_path(updater, "offload_tags");
    PyObject *list = offloaded && tags ? PyList_New(0) : NULL;
    Py_ssize_t n = list ? PySequence_Size(tags) : 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *tag = PySequence_GetItem(tags, i);
        int there = tag ? PySequence_Contains(offloaded, tag) : -1;
        int failed = there < 0 || (there && PyList_Append(list, tag));
        Py_XDECREF(tag);
        if (failed) {
            Py_CLEAR(list);
            break;
        }
    }
    PyErr_Clear();
    Py_XDECREF(offloaded);
    return list;
}

/* Resuming what was not released ends SGLang's scheduler with a KeyError. 1: nothing is left to resume; 0: go on. */
static int nothing_to_resume(PyObject *updater, PyObject *request, PyObject *tags)
{
    PyObject *released = released_of(updater, tags);
    Py_ssize_t wanted = released ? PySequence_Size(tags) : 0, left = released ? PyList_Size(released) : wanted;
    if (left < wanted) {
        PyObject *text = PyObject_Str(tags);
        const char *names = moor_py_text(text, NULL);
        moor_runtime_log(1, "resume_memory_occupation of %s: %zd of %zd are released, the others are left alone",
                         names ? names : "?", left, wanted);
        Py_XDECREF(text);
        if (left > 0)
            PyObject_SetAttrString(request, "tags", released);
    }
    PyErr_Clear();
    Py_XDECREF(released);
    return wanted > 0 && left == 0;
}

int moor_sglang_kv_resume_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->process)
        return MOOR_JP_OK;
    PyObject *request = moor_jp_param(call, 0), *tags = tags_of(request);
    int kv = !tags || moor_py_has(tags, "kv_cache", 1);
    int nothing = nothing_to_resume(call->self, request, tags);
    PyErr_Clear();
    Py_XDECREF(tags);
    if (nothing)
        return answer(call);
    if (!kv)
        return MOOR_JP_OK;
    moor_sglang_place place = moor_sglang_read_place(call->self);
    PyObject *device = device_of(call->self);
    int result = moor_window_resume(device, place.pp_rank * place.tp_size + place.tp_rank,
                                    place.tp_size * place.pp_size, place.dp_rank);
    Py_XDECREF(device);
    return result == MOOR_JP_RAISE ? refuse(call) : result;
}
