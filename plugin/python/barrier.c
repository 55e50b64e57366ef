/* SPDX-License-Identifier: Apache-2.0 */
/* moor.Barrier: Store.barrier(name, size), a meeting of external processes. Keeps its Store alive. */
#include "store.h"

#include "errors.h"

typedef struct barrier {
    PyObject_HEAD
    moor_py_store *store;
    PyObject *name; /* str */
    uint32_t size;
} barrier;

static PyTypeObject *barrier_type;

static void barrier_dealloc(PyObject *self)
{
    Py_XDECREF((PyObject *)((barrier *)self)->store);
    Py_XDECREF(((barrier *)self)->name);
    moor_py_free(self);
}

/* One wait in one call: cutting it would be several arrivals. */
static PyObject *barrier_arrive(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"rank", "timeout", NULL};
    barrier *b = (barrier *)self;
    long long rank;
    double timeout = 60;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L|d:arrive", names, &rank, &timeout) ||
        moor_py_timeout(timeout) < 0)
        return NULL;
    if (rank < 0 || rank >= b->size)
        return moor_py_raise_text(MOOR_E_RANGE, "barrier %U: rank %lld of %u", b->name, rank, b->size);
    const char *name = PyUnicode_AsUTF8AndSize(b->name, NULL);
    if (!name)
        return NULL;
    moor_barrier_result out = MOOR_BARRIER_RESULT_INIT;
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->barrier_arrive(b->store->client, name, b->size, (uint32_t)rank, timeout, &out);
    MOOR_PY_WAIT_END
    if (status)
        return moor_py_raise(status);
    return Py_BuildValue("{s:K,s:d}", "generation", (unsigned long long)out.generation, "waited",
                         (double)out.waited_ns * 1e-9);
}

static PyObject *barrier_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<moor.Barrier %R of %u>", ((barrier *)self)->name, ((barrier *)self)->size);
}

PyObject *moor_py_store_barrier(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "size", NULL};
    PyObject *name;
    long long size;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UL:barrier", names, &name, &size))
        return NULL;
    if (size < 1 || size > UINT16_MAX)
        return moor_py_raise_text(MOOR_E_INVALID, "barrier %R: size %lld", name, size);
    barrier *b = moor_py_new(barrier_type);
    if (!b)
        return NULL;
    b->store = (moor_py_store *)Py_NewRef(self);
    b->name = Py_NewRef(name);
    b->size = (uint32_t)size;
    return (PyObject *)b;
}

static PyMethodDef methods[] = {
    MOOR_PY_METHOD("arrive", barrier_arrive, METH_VARARGS | METH_KEYWORDS,
                   "arrive(rank, timeout=60.0)\n--\n\nWaits until all ranks have arrived: {\"generation\", \"waited\" "
                   "in seconds}. Timeout names "
                   "those missing; Broken: another one gave up or died. Decided once for all of a generation."),
    {NULL, NULL, 0, NULL},
};

int moor_py_add_barrier(PyObject *module)
{
    static PyType_Slot slots[] = {{Py_tp_dealloc, barrier_dealloc},
                                  {Py_tp_repr, barrier_repr},
                                  {Py_tp_methods, methods},
                                  {Py_tp_doc, "A named barrier of an instance. Made by Store.barrier()."},
                                  {0, NULL}};
    static PyType_Spec spec = {"moor.Barrier", sizeof(barrier), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    return moor_py_add_type(module, &barrier_type, &spec);
}
