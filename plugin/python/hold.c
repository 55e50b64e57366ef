/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moor.Hold: memory that this process holds on a device. Needs no server and keeps none alive. Ends by release(), by the
 * end of its with block, with the object, or with the process; a forked child has none.
 */
#include "store.h"

#include "errors.h"

typedef struct hold {
    PyObject_HEAD
    moor_hold *held; /* NULL after release */
    PyObject *device, *label;
} hold;

static PyTypeObject *hold_type;

static void let_go(hold *h)
{
    moor_hold *held = h->held;
    h->held = NULL;
    if (!held)
        return;
    Py_BEGIN_ALLOW_THREADS
    moor_py_api()->hold_release(held);
    Py_END_ALLOW_THREADS
}

static void hold_dealloc(PyObject *self)
{
    hold *h = (hold *)self;
    let_go(h);
    Py_XDECREF(h->device);
    Py_XDECREF(h->label);
    moor_py_free(self);
}

static PyObject *hold_release(PyObject *self, PyObject *Py_UNUSED(args))
{
    let_go((hold *)self);
    Py_RETURN_NONE;
}

static PyObject *hold_enter(PyObject *self, PyObject *Py_UNUSED(unused))
{
    if (!((hold *)self)->held)
        return moor_py_raise_text(MOOR_E_CLOSED, "the hold %U on %U was released", ((hold *)self)->label,
                                  ((hold *)self)->device);
    return Py_NewRef(self);
}

static PyObject *hold_repr(PyObject *self)
{
    hold *h = (hold *)self;
    return PyUnicode_FromFormat("<moor.Hold %U on %U%s>", h->label, h->device, h->held ? "" : ", released");
}

static PyObject *hold_seen_by(PyObject *self, void *Py_UNUSED(closure))
{
    hold *h = (hold *)self;
    char *text = NULL;
    size_t len;
    if (!h->held)
        return moor_py_raise_text(MOOR_E_CLOSED, "the hold %U on %U was released", h->label, h->device);
    moor_status status =
        moor_py_api()->hold_seen_by(h->held, &text, &len); /* with the GIL: nobody releases it meanwhile */
    if (status)
        return moor_py_raise(status);
    PyObject *all = PyUnicode_DecodeFSDefaultAndSize(text, (Py_ssize_t)len);
    moor_py_api()->text_free(text);
    PyObject *lines = all ? PyUnicode_Splitlines(all, 0) : NULL;
    PyObject *out = lines ? PyList_AsTuple(lines) : NULL;
    Py_XDECREF(lines);
    Py_XDECREF(all);
    return out;
}

static PyObject *take(const char *dir, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", "label", "nbytes", NULL};
    PyObject *device, *label;
    long long nbytes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UU|L:hold", names, &device, &label, &nbytes))
        return NULL;
    if (nbytes < 0)
        return moor_py_raise_text(MOOR_E_INVALID, "hold on %U: nbytes=%lld", device, nbytes);
    const char *device_text = PyUnicode_AsUTF8AndSize(device, NULL), *label_text = PyUnicode_AsUTF8AndSize(label, NULL);
    hold *h = device_text && label_text ? moor_py_new(hold_type) : NULL;
    if (!h)
        return NULL;
    h->device = Py_NewRef(device);
    h->label = Py_NewRef(label);
    moor_hold *held = NULL;
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->hold_take(dir, device_text, label_text, (uint64_t)nbytes, &held);
    MOOR_PY_WAIT_END
    if (status) {
        Py_DECREF((PyObject *)h);
        return moor_py_raise(status);
    }
    h->held = held;
    return (PyObject *)h;
}

PyObject *moor_py_store_hold(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return take(((moor_py_store *)self)->dir, args, kwargs);
}

static PyObject *module_hold(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    return take(NULL, args, kwargs);
}

static PyMethodDef methods[] = {
    MOOR_PY_METHOD("release", hold_release, METH_NOARGS, "release()\n--\n\nEnds it. Twice is once."),
    MOOR_PY_METHOD("__enter__", hold_enter, METH_NOARGS, NULL),
    MOOR_PY_METHOD("__exit__", hold_release, METH_VARARGS, NULL),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"seen_by", hold_seen_by, NULL,
     "The servers that live now where the hold lies, as (\"<dir>/<instance>\", …). A server with a directory of its "
     "own sees it too; it is\n"
     "named when the hold was taken with that directory's Store.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef functions[] = {
    MOOR_PY_METHOD(
        "hold", module_hold, METH_VARARGS | METH_KEYWORDS,
        "hold(device, label, nbytes=0)\n--\n\nStore.hold() without a Store: a trainer may start before any server."),
    {NULL, NULL, 0, NULL},
};

int moor_py_add_hold(PyObject *module)
{
    static PyType_Slot slots[] = {{Py_tp_dealloc, hold_dealloc},
                                  {Py_tp_repr, hold_repr},
                                  {Py_tp_methods, methods},
                                  {Py_tp_getset, getters},
                                  {Py_tp_doc, "Memory held on a device. Made by Store.hold() or moor.hold()."},
                                  {0, NULL}};
    static PyType_Spec spec = {"moor.Hold", sizeof(hold), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               slots};
    return moor_py_add_type(module, &hold_type, &spec) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
