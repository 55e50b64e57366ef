/* SPDX-License-Identifier: Apache-2.0 */
#include "consumer.h"

#include "errors.h"

#include <string.h>
#include <time.h>

int moor_py_add_type(PyObject *module, PyTypeObject **type, PyType_Spec *spec)
{
    if (!*type)
        *type = (PyTypeObject *)PyType_FromSpec(spec);
    if (!*type)
        return -1;
    return PyModule_AddObjectRef(module, strrchr(spec->name, '.') + 1, (PyObject *)*type);
}

void *moor_py_new(PyTypeObject *type)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

void moor_py_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

int moor_py_timeout(double seconds)
{
    if (seconds >= 0 && seconds <= 1e9) /* false for a NaN */
        return 0;
    PyObject *shown = PyFloat_FromDouble(seconds);
    if (shown)
        moor_py_raise_text(MOOR_E_INVALID, "timeout=%R: seconds from 0 to 1e9 are needed", shown);
    Py_XDECREF(shown);
    return -1;
}

/* The exception that a handler raised stays the thread's, and is found when the call is over. */
static int look_for_signals(void *user)
{
    moor_py_wait *wait = user;
    PyEval_RestoreThread(wait->thread);
    int raised = PyErr_CheckSignals() < 0;
    wait->thread = PyEval_SaveThread();
    return raised;
}

void moor_py_wait_begin(moor_py_wait *wait)
{
    moor_py_api()->wait_check(look_for_signals, wait);
    wait->thread = PyEval_SaveThread();
}

void moor_py_wait_end(moor_py_wait *wait)
{
    PyEval_RestoreThread(wait->thread);
    moor_py_api()->wait_check(NULL, NULL);
}

double moor_py_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int moor_py_consumer_init(PyObject *module)
{
    static int (*const parts[])(PyObject *) = {
        moor_py_add_errors, moor_py_add_view, moor_py_add_record,  moor_py_add_store,
        moor_py_add_gate,   moor_py_add_hold, moor_py_add_barrier, moor_py_add_session,
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (parts[i](module) < 0)
            return -1;
    return 0;
}
