/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h: moor.Store, a process' attachment to an instance, and moor.attach, moor.resolve.
 *
 * gate.c, hold.c, barrier.c and session.c give the Store's gate, hold(), barrier() and session(). Owns the moor_client, which lives until the
 * Store and every record opened from it are gone. Thread-safe: calls run without the GIL, libmoor does the rest.
 */
#ifndef MOOR_PYTHON_STORE_H
#define MOOR_PYTHON_STORE_H

#include "consumer.h"

typedef struct moor_py_store {
    PyObject_HEAD
    moor_client *client;
    char *dir; /* as given to attach, or NULL */
    PyObject *weakrefs;
} moor_py_store;

/* Store.gate, Store.hold(), Store.barrier(), Store.session(). */
PyObject *moor_py_store_gate(PyObject *self, void *unused);
PyObject *moor_py_store_hold(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *moor_py_store_barrier(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *moor_py_store_session(PyObject *self, PyObject *args, PyObject *kwargs);

#endif
