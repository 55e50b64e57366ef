/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP process' side: requests pass the gate; sleep, wakeup and weight updates drive it. LMDeploy's update_params comes
 * in buckets, and neither locks, drains nor checks that the engine sleeps: the first bucket closes the gate, the one that
 * says `finished` installs the version, which Moor counts, LMDeploy having none. */
#include <string.h>

#include "admission.h"
#include "lmdeploy.h"

static struct {
    int updating; /* a bucket came, the one that says `finished` did not */
    int asleep;   /* the gate stays closed until the KV cache is back */
} front;

int moor_lmdeploy_front_init(moor_jp_call *call)
{
    (void)call;
    return moor_lmdeploy_join(MOOR_ROLE_FRONTEND, 0, 1, 0) < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
}

int moor_lmdeploy_generate_before(moor_jp_call *call)
{
    if (!call->rounds && moor_runtime_records())
        moor_lmdeploy_send_ids(moor_jp_param(call, 0));
    if (!moor_gate_on())
        return MOOR_JP_OK;
    PyObject *session = moor_py_path(moor_jp_param(call, 0), "session.session_id");
    PyObject *text = moor_lmdeploy_name(session);
    int result = text ? moor_admission_before(call, text, moor_runtime_records()) : MOOR_JP_OK;
    Py_XDECREF(text);
    Py_XDECREF(session);
    return result;
}

static void sent(PyObject *session)
{
    PyObject *text = moor_lmdeploy_name(session);
    moor_admission_sent(text);
    Py_XDECREF(text);
}

int moor_lmdeploy_infer_before(moor_jp_call *call)
{
    sent(moor_jp_param(call, 0));
    return MOOR_JP_OK;
}

/* An engine in this process, without the proxy. What it answers at once, it has refused. */
int moor_lmdeploy_send_after(moor_jp_call *call)
{
    PyObject *data = moor_jp_param(call, 1);
    if (data && PyDict_Check(data) && PyDict_GetItemString(data, "token_ids") &&
        !moor_py_true(call->result, "is_done", 0))
        sent(PyDict_GetItemString(data, "session_id"));
    return MOOR_JP_OK;
}

/* Who was preprocessed before the engine slept, or all sessions were stopped, is turned away when its turn comes: the engine never hears
 * of it. Where something ran after all, its record is on its way already. */
int moor_lmdeploy_generate_item(moor_jp_call *call)
{
    PyObject *reason = call->state ? moor_py_path(call->result, "finish_reason") : NULL;
    const char *text = moor_py_text(reason, NULL);
    if (text && !strcmp(text, "abort") && moor_py_int(call->result, "generate_token_len", 1) == 0)
        moor_admission_no_record(call);
    Py_XDECREF(reason);
    return moor_lmdeploy_hide_stop_row(call);
}

/* AsyncEngine.sleep aborts everything by itself. */
int moor_lmdeploy_sleep_before(moor_jp_call *call)
{
    (void)call;
    front.asleep = 1;
    moor_gate_close(0);
    return MOOR_JP_OK;
}

int moor_lmdeploy_wakeup_after(moor_jp_call *call)
{
    if (!moor_py_has(moor_jp_param(call, 0), "kv_cache", 1))
        return MOOR_JP_OK;
    front.asleep = front.updating = 0;
    return moor_gate_open();
}

/* Once the gate is closed and drained. A drain that fails leaves the gate closed and no update open: the caller may try again. */
static void begin_update(void)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->process || front.updating)
        return;
    front.updating = 1;
    rt->api->weights_begin(rt->process, MOOR_WEIGHTS_UPDATE);
}

static int end_update(int result)
{
    front.updating = 0;
    if (front.asleep)
        return result;
    int opened = moor_gate_open();
    return result == MOOR_JP_OK ? opened : result;
}

/* A plain function, which the HTTP process runs in a thread: waiting there holds nothing up. */
int moor_lmdeploy_update_params_before(moor_jp_call *call)
{
    (void)call;
    if (front.updating)
        return MOOR_JP_OK;
    moor_gate_close(0);
    int drained = moor_gate_drain_blocking();
    if (drained == MOOR_JP_OK)
        begin_update();
    return drained;
}

int moor_lmdeploy_update_params_after(moor_jp_call *call)
{
    if (!front.updating || !moor_py_true(moor_jp_param(call, 0), "finished", 1))
        return MOOR_JP_OK;
    return end_update(moor_gate_installed(NULL));
}

/* The server found the engine unprepared: what the trainer sends is read, and none of it loaded. */
int moor_lmdeploy_rejected(moor_jp_call *call)
{
    PyObject *reason = moor_jp_param(call, 1);
    return reason && reason != Py_None;
}

int moor_lmdeploy_update_weights_before(moor_jp_call *call)
{
    if (front.updating || moor_lmdeploy_rejected(call))
        return MOOR_JP_OK;
    if (!call->rounds)
        moor_gate_close(0);
    int drained = moor_gate_drain(call);
    if (drained == MOOR_JP_OK)
        begin_update();
    return drained;
}

/* (True, text), or (False, why) after which the weights are whatever they are. */
int moor_lmdeploy_update_weights_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!front.updating || moor_lmdeploy_rejected(call))
        return MOOR_JP_OK;
    PyObject *ok = PyTuple_Check(call->result) ? PyTuple_GetItem(call->result, 0) : NULL;
    PyErr_Clear();
    if (ok != Py_False)
        return end_update(moor_gate_installed(NULL));
    const char *why = PyTuple_Size(call->result) > 1 ? moor_py_text(PyTuple_GetItem(call->result, 1), NULL) : NULL;
    rt->api->weights_end(rt->process, 0, why ? why : "the engine answered False");
    return end_update(MOOR_JP_OK);
}

/* An executor without update_params refuses before anything is touched. The engine's process answers with the error's text. */
static int not_implemented(PyObject *exc)
{
    PyObject *text = PyObject_Str(exc);
    const char *utf8 = moor_py_text(text, NULL);
    int refused =
        PyErr_GivenExceptionMatches(exc, PyExc_NotImplementedError) || (utf8 && strcmp(utf8, "Not Implemented.") == 0);
    PyErr_Clear();
    Py_XDECREF(text);
    return refused;
}

int moor_lmdeploy_update_error(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!front.updating)
        return MOOR_JP_OK;
    if (not_implemented(call->exc))
        rt->api->weights_end(rt->process, 1, NULL); /* the version is as known as it was */
    else
        moor_gate_update_error(call);
    end_update(MOOR_JP_OK);
    PyErr_Clear(); /* the engine's own error is the one to see */
    return MOOR_JP_OK;
}

/* Its /metrics serves prometheus_client's own registry. */
int moor_lmdeploy_metrics_after(moor_jp_call *call)
{
    return moor_py_true(moor_jp_param(call, 0), "enable_metrics", 0) ? moor_runtime_metrics(NULL) : MOOR_JP_OK;
}
