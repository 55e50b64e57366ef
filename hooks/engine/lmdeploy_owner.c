/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several engines in one process, as pipelines make them. They number their sessions alike, and nothing that a step hands over says whose it
 * is. So one that is made beside another ends the recording of both, and says so; one that is made when the other was closed, or is gone,
 * takes its place.
 */
#include "lmdeploy.h"

static PyObject *owner; /* a weak reference to the engine that is recorded; NULL: there is none, or it was closed */

static int is_another(PyObject *engine)
{
    PyObject *last = moor_py_alive(owner);
    int another = last && last != engine;
    Py_XDECREF(last);
    return another;
}

int moor_lmdeploy_own(PyObject *engine, const char **why)
{
    if (is_another(engine)) {
        *why = "this process has another engine, and Moor cannot tell their requests apart";
        return 0;
    }
    if (moor_runtime_get()->store) {
        moor_lmdeploy_drop_step();
        moor_runtime_close_store();
    }
    PyObject *last = owner;
    owner = moor_py_weak(engine);
    Py_XDECREF(last);
    return owner ? 0 : -1;
}

int moor_lmdeploy_engine_close_before(moor_jp_call *call)
{
    if (!is_another(call->self))
        Py_CLEAR(owner);
    return MOOR_JP_OK;
}
