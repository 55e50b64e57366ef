/* SPDX-License-Identifier: Apache-2.0 */
/* moor.Gate: Store.gate, the request gate seen from a trainer. Keeps its Store alive; no state of its own. */
#include "store.h"

#include "errors.h"

#include <string.h>

typedef struct gate {
    PyObject_HEAD
    moor_py_store *store;
} gate;

static PyTypeObject *gate_type;

static void gate_dealloc(PyObject *self)
{
    Py_XDECREF((PyObject *)((gate *)self)->store);
    moor_py_free(self);
}

static PyObject *status_dict(const moor_gate_status *s)
{
    static const char *const states[] = {"open", "sealed", "drained"};
    /* "N" takes the strings; NULL makes the whole NULL with the error that is set. Labels and reasons are any bytes. */
    return Py_BuildValue(
        "{s:s,s:O,s:O,s:N,s:K,s:N,s:K,s:K,s:d,s:K,s:K,s:K,s:K}", "state", s->state < 3 ? states[s->state] : "unknown",
        "kept", s->flags & MOOR_GATE_KEPT ? Py_True : Py_False, "poisoned", s->poisoned ? Py_True : Py_False,
        "poison_reason", PyUnicode_DecodeUTF8(s->poison_reason, (Py_ssize_t)strlen(s->poison_reason), "replace"),
        "epoch", (unsigned long long)s->epoch, "label",
        PyUnicode_DecodeUTF8(s->label, (Py_ssize_t)strlen(s->label), "replace"), "in_flight",
        (unsigned long long)s->in_flight, "waiting", (unsigned long long)s->waiting, "sealed_for",
        (double)s->sealed_for_ns * 1e-9, "seals", (unsigned long long)s->seals, "installs",
        (unsigned long long)s->installs, "reopens", (unsigned long long)s->reopens, "would_wait",
        (unsigned long long)s->would_wait);
}

/* One verb of the gate. The wait is one call: cutting it would count several drains. */
static PyObject *verb(PyObject *self, const char *name, const char *label, double timeout)
{
    moor_gate_status out = MOOR_GATE_STATUS_INIT;
    moor_status status;
    moor_client *client = ((gate *)self)->store->client;
    if (moor_py_timeout(timeout) < 0)
        return NULL;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->client_gate(client, name, label, timeout, &out);
    MOOR_PY_WAIT_END
    return status ? moor_py_raise(status) : status_dict(&out);
}

static PyObject *timed(PyObject *self, PyObject *args, PyObject *kwargs, const char *name)
{
    static char *names[] = {"timeout", NULL};
    double timeout = 60;
    return PyArg_ParseTupleAndKeywords(args, kwargs, "|d", names, &timeout) ? verb(self, name, NULL, timeout) : NULL;
}

static PyObject *gate_seal(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return timed(self, args, kwargs, "seal");
}

static PyObject *gate_drain(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return timed(self, args, kwargs, "drain");
}

static PyObject *gate_reopen(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return timed(self, args, kwargs, "reopen");
}

static PyObject *gate_install(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"version", NULL};
    PyObject *version = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:install", names, &version))
        return NULL;
    if (version == Py_None)
        return verb(self, "install", NULL, 60);
    PyObject *text = PyObject_Str(version); /* a step number is a label, too */
    const char *label = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    PyObject *result = label ? verb(self, "install", label, 60) : NULL;
    Py_XDECREF(text);
    return result;
}

static PyObject *gate_acknowledge(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return verb(self, "acknowledge", NULL, 60);
}

static PyObject *gate_status(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return verb(self, "status", NULL, 60);
}

PyObject *moor_py_store_gate(PyObject *self, void *Py_UNUSED(closure))
{
    gate *g = moor_py_new(gate_type);
    if (g)
        g->store = (moor_py_store *)Py_NewRef(self);
    return (PyObject *)g;
}

static PyMethodDef methods[] = {
    MOOR_PY_METHOD("seal", gate_seal, METH_VARARGS | METH_KEYWORDS,
                   "seal(timeout=60.0)\n--\n\nNew requests wait from now on."),
    MOOR_PY_METHOD(
        "drain", gate_drain, METH_VARARGS | METH_KEYWORDS,
        "drain(timeout=60.0)\n--\n\nWaits until every admitted request is settled; Timeout names those that are not."),
    MOOR_PY_METHOD(
        "install", gate_install, METH_VARARGS | METH_KEYWORDS,
        "install(version=None)\n--\n\nMoves the weight epoch, with the caller's label of it. Only when drained."),
    MOOR_PY_METHOD("reopen", gate_reopen, METH_VARARGS | METH_KEYWORDS,
                   "reopen(timeout=60.0)\n--\n\nAdmits the requests that wait, and new ones."),
    MOOR_PY_METHOD("acknowledge", gate_acknowledge, METH_NOARGS,
                   "acknowledge()\n--\n\nClears a poisoned gate: whoever calls it has dealt with the cause."),
    MOOR_PY_METHOD("status", gate_status, METH_NOARGS,
                   "status()\n--\n\nA dict: state, kept (requests in flight live through the pause), poisoned, "
                   "poison_reason, epoch, label, in_flight, waiting, "
                   "sealed_for, seals, installs, "
                   "reopens, would_wait. Every other method returns the same, as it is after it."),
    {NULL, NULL, 0, NULL},
};

int moor_py_add_gate(PyObject *module)
{
    static PyType_Slot slots[] = {{Py_tp_dealloc, gate_dealloc},
                                  {Py_tp_methods, methods},
                                  {Py_tp_doc, "The request gate of an instance. Store.gate."},
                                  {0, NULL}};
    static PyType_Spec spec = {"moor.Gate", sizeof(gate), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               slots};
    return moor_py_add_type(module, &gate_type, &spec);
}
