/* SPDX-License-Identifier: Apache-2.0 */
/* The front end's side: requests pass the gate, pause and update drive it, records are delivered in meta_info. */
#include "sglang.h"

#include <string.h>

#include "admission.h"
#include "deliver.h"

int moor_sglang_launch_before(moor_jp_call *call)
{
    (void)call;
    return moor_sglang_join(MOOR_ROLE_FRONTEND, NULL) < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
}

/* It turns tokens into text and Moor has nothing to do there; it is a member so that its end is seen. */
int moor_sglang_detokenizer_init(moor_jp_call *call)
{
    return moor_sglang_launch_before(call);
}

/* SGLang's /health sends a request of its own, which a busy scheduler passes over: it has no record, and nobody waits for it. */
static int is_health_check(const char *id)
{
    return id && strncmp(id, "HEALTH_CHECK", 12) == 0;
}

/* ---- requests pass the gate ---------------------------------------------------------------------------------------- */

/* One prompt: a text, or a flat list of token ids. */
static int is_single(PyObject *obj)
{
    PyObject *text = moor_py_path(obj, "text"), *ids = moor_py_path(obj, "input_ids");
    PyObject *first = ids && PySequence_Check(ids) && PySequence_Size(ids) > 0 ? PySequence_GetItem(ids, 0) : NULL;
    int single = (text && PyUnicode_Check(text)) || (first && PyLong_Check(first));
    PyErr_Clear();
    Py_XDECREF(first);
    Py_XDECREF(ids);
    Py_XDECREF(text);
    if (!single)
        return 0;
    PyObject *params = moor_py_path(obj, "sampling_params");
    PyObject *n = params && PyDict_Check(params) ? PyDict_GetItemString(params, "n") : NULL;
    single = !n || n == Py_None || PyLong_AsLong(n) == 1;
    PyErr_Clear();
    Py_XDECREF(params);
    return single;
}

/* The engine would name a request later; Moor needs the name now, so it gives one as the engine does. */
static PyObject *name_of(PyObject *obj, int single)
{
    PyObject *rid = moor_py_path(obj, "rid");
    if (rid && PyUnicode_Check(rid))
        return rid;
    Py_XDECREF(rid);
    PyObject *uuid = PyImport_ImportModule("uuid");
    PyObject *value = uuid ? PyObject_CallMethod(uuid, "uuid4", NULL) : NULL;
    PyObject *hex = value ? PyObject_GetAttrString(value, "hex") : NULL;
    Py_XDECREF(value);
    Py_XDECREF(uuid);
    if (hex && single && rid == NULL && PyObject_SetAttrString(obj, "rid", hex))
        PyErr_Clear();
    return hex;
}

/* A single request is settled when its record is stored; a batch, whose members the engine names, when it ends. */
int moor_sglang_generate_before(moor_jp_call *call)
{
    PyObject *obj = moor_jp_param(call, 0);
    if (!moor_gate_on() || !obj)
        return MOOR_JP_OK;
    int single = is_single(obj);
    PyObject *name = name_of(obj, single);
    const char *id = moor_py_text(name, NULL);
    int result = MOOR_JP_FAILED;
    if (id)
        result = is_health_check(id) ? MOOR_JP_OK : moor_admission_before(call, name, single ? 1 : 0);
    Py_XDECREF(name);
    return result;
}

/* ---- delivery -------------------------------------------------------------------------------------------------------- */

static long long dict_int(PyObject *dict, const char *name)
{
    PyObject *value = PyDict_GetItemString(dict, name);
    long long number = value && PyLong_Check(value) ? PyLong_AsLongLong(value) : 0;
    PyErr_Clear();
    return number;
}

/* One output: noted when it is the last of its request; the engine's own field is base64 of int32 [rows, model layers, top_k]. 0, or -1 with a
 * Python error. */
static int deliver(PyObject *obj, PyObject *output)
{
    PyObject *meta = PyDict_Check(output) ? PyDict_GetItemString(output, "meta_info") : NULL;
    PyObject *reason = meta && PyDict_Check(meta) ? PyDict_GetItemString(meta, "finish_reason") : NULL;
    if (!reason || reason == Py_None)
        return 0;
    long long prompt = dict_int(meta, "prompt_tokens"), sampled = dict_int(meta, "completion_tokens");
    moor_delivery delivery = {.timeout = 1.0, .dtype = MOOR_DTYPE_I32};
    delivery.id = moor_py_text(PyDict_GetItemString(meta, "id"), &delivery.id_len);
    if (!delivery.id || prompt <= 0 || sampled <= 0 || is_health_check(delivery.id))
        return 0; /* nothing ran, or an abort before the first token: the engine fills nothing either */
    delivery.rows = (uint64_t)(prompt + sampled - 1);
    delivery.start = (uint64_t)moor_py_int(obj, "routed_experts_start_len", 0);
    PyObject *field = moor_deliver_later(&delivery, 1);
    int failed = !field || PyDict_SetItemString(meta, "routed_experts", field);
    Py_XDECREF(field);
    return failed ? -1 : 0;
}

/* The dicts that may have the field. */
static PyObject *metas(PyObject *result)
{
    PyObject *all = PyList_New(0);
    int is_list = PyList_Check(result);
    Py_ssize_t n = is_list ? PyList_Size(result) : 1;
    for (Py_ssize_t i = 0; all && i < n; i++) {
        PyObject *output = is_list ? PyList_GetItem(result, i) : result;
        PyObject *meta = PyDict_Check(output) ? PyDict_GetItemString(output, "meta_info") : NULL;
        if (meta && PyList_Append(all, meta))
            Py_CLEAR(all);
    }
    return all;
}

/* A request asks by return_routed_experts, a batch for all of its members. */
int moor_sglang_generate_item(moor_jp_call *call)
{
    PyObject *obj = moor_jp_param(call, 0);
    if (!call->result || !moor_deliver_wanted(moor_py_true(obj, "return_routed_experts", 0)))
        return MOOR_JP_OK;
    int failed = 0, is_list = PyList_Check(call->result);
    for (Py_ssize_t i = 0; !call->rounds && i < (is_list ? PyList_Size(call->result) : 1) && !failed; i++)
        failed = deliver(obj, is_list ? PyList_GetItem(call->result, i) : call->result);
    PyObject *all = failed ? NULL : metas(call->result);
    int result = all ? moor_deliver_settle(call, all) : MOOR_JP_FAILED;
    Py_XDECREF(all);
    return result;
}

/* ---- pause, update, release and resume drive the gate ---------------------------------------------------------------- */

/* An update without a pause has MOOR_GATE_OWN, what is between begin_weight_update and end_weight_update MOOR_GATE_SESSION: each
 * call may come to another tokenizer worker. */
static int gate_is_open(void)
{
    moor_runtime *rt = moor_runtime_get();
    moor_gate_status now = MOOR_GATE_STATUS_INIT;
    return rt->api->gate_status(rt->process, &now) == MOOR_OK && now.state == MOOR_GATE_OPEN;
}

/* "abort" ends what runs; "retract" and "in_place" keep it for later. */
int moor_sglang_pause_before(moor_jp_call *call)
{
    PyObject *mode = moor_py_path(moor_jp_param(call, 0), "mode");
    const char *text = moor_py_text(mode, NULL);
    if (!call->rounds) /* whoever pauses says when the engine goes on */
        moor_gate_close(text && strcmp(text, "abort") != 0 ? MOOR_GATE_KEPT : 0);
    Py_XDECREF(mode);
    return MOOR_JP_OK;
}

int moor_sglang_pause_after(moor_jp_call *call)
{
    return moor_gate_drain(call);
}

int moor_sglang_continue_after(moor_jp_call *call)
{
    return moor_gate_open_settled(call);
}

/* An update without a pause: in enforce the gate is closed for its duration. SGLang's own lock covers single calls, and not
 * what comes between the calls of a session. */
static int close_gate(moor_jp_call *call)
{
    if (!moor_gate_enforced())
        return MOOR_JP_OK;
    if (!call->rounds && gate_is_open())
        moor_gate_close(MOOR_GATE_OWN);
    return moor_gate_is(MOOR_GATE_OWN) ? moor_gate_drain(call) : MOOR_JP_OK;
}

/* SGLang answers for all its ranks when the first one is done. */
static int open_gate(moor_jp_call *call, int installed)
{
    if (!moor_gate_is(MOOR_GATE_OWN) || installed == MOOR_JP_RAISE)
        return installed;
    return moor_gate_open_settled(call);
}

static int returned_true(moor_jp_call *call)
{
    PyObject *first = call->result && PyTuple_Check(call->result) ? PyTuple_GetItem(call->result, 0) : NULL;
    PyErr_Clear();
    return first == Py_True;
}

int moor_sglang_begin_update_before(moor_jp_call *call)
{
    return close_gate(call); /* not drained: no session, and the caller may try again */
}

/* False: a session is open. When it is not ours, nobody ends it here, and what the gate was closed for does not come. */
int moor_sglang_begin_update_after(moor_jp_call *call)
{
    if (!call->rounds && returned_true(call))
        moor_gate_note(MOOR_GATE_SESSION, 0);
    return moor_gate_is(MOOR_GATE_SESSION) ? MOOR_JP_OK : open_gate(call, MOOR_JP_OK);
}

/* What comes next is taken for an update of its own, and gated as one. */
int moor_sglang_session_error(moor_jp_call *call)
{
    moor_gate_note(0, MOOR_GATE_SESSION);
    return moor_gate_update_error(call);
}

int moor_sglang_end_update_after(moor_jp_call *call)
{
    moor_gate_note(0, MOOR_GATE_SESSION);
    return open_gate(call, !call->rounds && returned_true(call) ? moor_gate_install(NULL) : MOOR_JP_OK);
}

int moor_sglang_update_before(moor_jp_call *call)
{
    return moor_gate_is(MOOR_GATE_SESSION) ? MOOR_JP_OK : close_gate(call);
}

/* False: either nothing was touched, or the scheduler has said that the version is unknown; then the gate is poisoned, and
 * reopening it fails with the reason. */
int moor_sglang_update_after(moor_jp_call *call)
{
    if (moor_gate_is(MOOR_GATE_SESSION))
        return MOOR_JP_OK;
    PyObject *label = moor_py_path(moor_jp_param(call, 0), "weight_version");
    int installed = !call->rounds && returned_true(call) ? moor_gate_install(moor_py_text(label, NULL)) : MOOR_JP_OK;
    Py_XDECREF(label);
    return open_gate(call, installed);
}

/* Releasing memory while something runs ends the whole engine: in enforce Moor quiesces it first, with the engine's own
 * flush, which waits until it is idle. call->state: the flush has been asked for. */
int moor_sglang_release_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!moor_gate_enforced())
        return MOOR_JP_OK;
    if (call->state) {
        if (moor_py_true(call->awaited, "success", 0))
            return MOOR_JP_OK;
        PyErr_SetString(PyExc_RuntimeError, "moor: memory is not released: the engine did not become idle in time");
        return MOOR_JP_RAISE;
    }
    if (!call->rounds)
        moor_gate_close(0); /* the KV cache must be back before requests are */
    int drained = moor_gate_drain(call);
    if (drained != MOOR_JP_OK)
        return drained;
    call->state = call->self;
    PyObject *method = PyObject_GetAttrString(call->self, "flush_cache");
    PyObject *kwargs = method ? Py_BuildValue("{s:d}", "timeout_s", rt->config.drain_timeout_s) : NULL;
    PyObject *none = kwargs ? PyTuple_New(0) : NULL;
    PyObject *awaitable = none ? PyObject_Call(method, none, kwargs) : NULL;
    Py_XDECREF(none);
    Py_XDECREF(kwargs);
    Py_XDECREF(method);
    return moor_jp_set_awaitable(call, awaitable) ? MOOR_JP_FAILED : MOOR_JP_AWAIT;
}

/* Resuming the weights does not reopen; resuming the KV cache does (SEMANTICS 4.8). */
int moor_sglang_resume_after(moor_jp_call *call)
{
    PyObject *tags = moor_py_path(moor_jp_param(call, 0), "tags");
    int kv = !tags || PyObject_Size(tags) == 0 || moor_py_has(tags, "kv_cache", 1);
    PyErr_Clear();
    Py_XDECREF(tags);
    return kv ? moor_gate_open_settled(call) : MOOR_JP_OK;
}

/* The registry that SGLang makes for its /metrics, while it is made. */
int moor_sglang_metrics_before(moor_jp_call *call)
{
    PyObject *registry = moor_jp_param(call, 0);
    return registry && registry != Py_None ? moor_runtime_metrics(registry) : MOOR_JP_OK;
}
