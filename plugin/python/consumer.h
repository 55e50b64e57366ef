/* SPDX-License-Identifier: Apache-2.0 */
/*
 * consumer.h: the consumer's Python API (moor.attach, Store, Record, …) as one part of _moor.
 *
 * Called by module.c, once, when _moor is imported. Owns the types and functions it adds to the module, for the life of
 * the process: there is one interpreter (module.c refuses others), so they are plain statics, and a module that is
 * imported again gets the same ones.
 * The GIL protects everything; calls that wait or may take more than ~10 µs release it and touch no Python object meanwhile.
 */
#ifndef MOOR_PYTHON_CONSUMER_H
#define MOOR_PYTHON_CONSUMER_H

#include "module.h"

#include <stdbool.h>

/* Adds everything to the module. 0, or -1 with an error. */
int moor_py_consumer_init(PyObject *module);

/* The parts of the above, one a file: add their types and functions. 0, or -1 with an error. */
int moor_py_add_errors(PyObject *module);
int moor_py_add_view(PyObject *module);
int moor_py_add_record(PyObject *module);
int moor_py_add_store(PyObject *module);
int moor_py_add_gate(PyObject *module);
int moor_py_add_hold(PyObject *module);
int moor_py_add_barrier(PyObject *module);
int moor_py_add_session(PyObject *module);

/* A method's or function's line in a table. */
#define MOOR_PY_METHOD(name, function, flags, doc)                                                                     \
    {                                                                                                                  \
        name, (PyCFunction)(void (*)(void))(function), flags, doc                                                      \
    }

/* Makes a heap type from spec, unless *type has it already, and adds it to the module under its last name part. */
int moor_py_add_type(PyObject *module, PyTypeObject **type, PyType_Spec *spec);
/* A new zeroed object of a type made so, or NULL with MemoryError. */
void *moor_py_new(PyTypeObject *type);
/* The end of every dealloc of such an object. */
void moor_py_free(PyObject *self);

/* A timeout argument: finite seconds ≥ 0. 0, or -1 with an error. */
int moor_py_timeout(double seconds);
/* Around a call of libmoor's that may wait, in the place of Py_BEGIN_ALLOW_THREADS: releases the GIL, and looks for signals. When a handler
 * raises, the call ends with MOOR_E_INTERRUPTED, and moor_py_raise adds what it left to the exception. */
typedef struct moor_py_wait {
    PyThreadState *thread;
} moor_py_wait;
void moor_py_wait_begin(moor_py_wait *wait);
void moor_py_wait_end(moor_py_wait *wait);
#define MOOR_PY_WAIT_BEGIN                                                                                             \
    {                                                                                                                  \
        moor_py_wait wait_of_call;                                                                                     \
        moor_py_wait_begin(&wait_of_call);
#define MOOR_PY_WAIT_END                                                                                               \
    moor_py_wait_end(&wait_of_call);                                                                                   \
    }

/* CLOCK_MONOTONIC in seconds. */
double moor_py_now(void);

#endif
