/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several engines in one process. A process is a member of one instance, which has one gate, one epoch and one store for each rank: what
 * two engines alive at a time would mix. So Moor serves the first; one that is made beside it runs without Moor, and says so. One that
 * is made after it takes its place.
 */
#include "vllm.h"

static PyObject *owner; /* a weak reference to the front end that Moor serves; NULL: there is none */
static int served;      /* there was one */

static int refuse(PyObject *vllm_config)
{
    static const char why[] =
        "another engine of this process is served by Moor, which serves one at a time: this one has neither "
        "records nor a gate";
    moor_runtime *rt = moor_runtime_get();
    if (rt->config.on_error == MOOR_ON_ERROR_STRICT) {
        PyErr_Format(PyExc_RuntimeError, "moor: on_error is strict, but %s", why);
        return MOOR_JP_RAISE;
    }
    moor_runtime_log(1, "%s", why);
    return PyObject_SetAttrString(vllm_config, MOOR_VLLM_OFF, Py_True) ? MOOR_JP_RAISE : MOOR_JP_OK;
}

int moor_vllm_owner_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *vllm_config = moor_jp_param(call, 0), *other = moor_py_alive(owner);
    int beside = rt->process && other && other != call->self;
    Py_XDECREF(other);
    if (beside)
        return refuse(vllm_config);
    if (moor_vllm_join(MOOR_ROLE_FRONTEND, vllm_config) < 0)
        return MOOR_JP_RAISE;
    if (!rt->process)
        return MOOR_JP_OK;
    moor_vllm_front_serves(vllm_config);
    if (served) /* what the last one had said holds for it alone */
        rt->api->recording_off(rt->process, NULL);
    PyObject *last = owner;
    owner = moor_py_weak(call->self);
    Py_XDECREF(last);
    served = 1;
    return owner ? MOOR_JP_OK : MOOR_JP_FAILED;
}

/* Its requests are told apart where they are made. */
int moor_vllm_owner_after(moor_jp_call *call)
{
    PyObject *outputs = moor_vllm_is_off(call->self) ? moor_py_path(call->self, "output_processor") : NULL;
    int failed = outputs && PyObject_SetAttrString(outputs, MOOR_VLLM_OFF, Py_True);
    Py_XDECREF(outputs);
    return failed ? MOOR_JP_FAILED : MOOR_JP_OK;
}

/* It did not come up, or was shut down; somebody may hold it all the same. */
int moor_vllm_owner_gone(moor_jp_call *call)
{
    PyObject *now = moor_py_alive(owner);
    if (now == call->self)
        Py_CLEAR(owner);
    Py_XDECREF(now);
    return MOOR_JP_OK;
}

int moor_vllm_is_off(PyObject *part)
{
    return moor_py_true(part, "vllm_config." MOOR_VLLM_OFF, 0);
}

int moor_vllm_add_request_before(moor_jp_call *call)
{
    PyObject *params =
        moor_py_true(call->self, MOOR_VLLM_OFF, 0) ? moor_py_path(moor_jp_param(call, 0), "sampling_params") : NULL;
    int failed = params && PyObject_SetAttrString(params, MOOR_VLLM_OFF, Py_True);
    Py_XDECREF(params);
    return failed ? MOOR_JP_FAILED : MOOR_JP_OK;
}
