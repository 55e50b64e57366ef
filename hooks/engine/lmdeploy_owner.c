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
    PyObject *last = owner ? PyObject_CallNoArgs(owner) : NULL;
    int another = last && last != Py_None && last != engine;
    Py_XDECREF(last);
    PyErr_Clear();
    return another;
}

/* The last one's store goes, and with it what nobody has opened yet. */
static void make_room(void)
{
    moor_runtime *rt = moor_runtime_get();
    moor_store *store = rt->store;
    moor_client *client = rt->client;
    rt->store = NULL;
    rt->client = NULL;
    moor_lmdeploy_drop_step();
    Py_BEGIN_ALLOW_THREADS
    if (client)
        rt->api->detach(client);
    if (store)
        rt->api->store_close(store);
    Py_END_ALLOW_THREADS
}

int moor_lmdeploy_own(PyObject *engine, const char **why)
{
    if (is_another(engine)) {
        *why = "this process has another engine, and Moor cannot tell their requests apart";
        return 0;
    }
    if (moor_runtime_get()->store)
        make_room();
    PyObject *weakref = PyImport_ImportModule("weakref"), *last = owner;
    owner = weakref ? PyObject_CallMethod(weakref, "ref", "O", engine) : NULL;
    Py_XDECREF(weakref);
    Py_XDECREF(last);
    return owner ? 0 : -1;
}

int moor_lmdeploy_engine_close_before(moor_jp_call *call)
{
    if (!is_another(call->self))
        Py_CLEAR(owner);
    return MOOR_JP_OK;
}
