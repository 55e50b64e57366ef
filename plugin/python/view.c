/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include "errors.h"

#include <stdlib.h>
#include <string.h>

typedef struct view {
    PyObject_HEAD
    PyObject *owner; /* NULL: `data` is ours, from malloc */
    void *data;
    const char *format; /* a literal */
    int ndim, readonly;
    Py_ssize_t itemsize, nbytes, shape[3], strides[3];
} view;

static PyTypeObject *view_type;
static PyObject *numpy; /* the module, once imported; None: it cannot be imported */

static void view_dealloc(PyObject *self)
{
    view *v = (view *)self;
    if (v->owner)
        Py_DECREF(v->owner);
    else
        free(v->data);
    moor_py_free(self);
}

static int view_getbuffer(PyObject *self, Py_buffer *out, int flags)
{
    view *v = (view *)self;
    out->obj = NULL;
    if ((flags & PyBUF_WRITABLE) && v->readonly) {
        PyErr_SetString(PyExc_BufferError, "recorded rows are read-only");
        return -1;
    }
    *out = (Py_buffer){
        .buf = v->data,
        .obj = Py_NewRef(self),
        .len = v->nbytes,
        .itemsize = v->itemsize,
        .readonly = v->readonly,
        .ndim = v->ndim,
        .format = (flags & PyBUF_FORMAT) ? (char *)v->format : NULL,
        .shape = (flags & PyBUF_ND) ? v->shape : NULL,
        .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? v->strides : NULL,
    };
    return 0;
}

static view *view_new(int ndim, const uint64_t *shape, const char *format, size_t itemsize)
{
    view *v = moor_py_new(view_type);
    if (!v)
        return NULL;
    v->format = format;
    v->ndim = ndim;
    v->itemsize = (Py_ssize_t)itemsize;
    v->nbytes = (Py_ssize_t)itemsize;
    for (int i = ndim - 1; i >= 0; i--) {
        v->shape[i] = (Py_ssize_t)shape[i];
        v->strides[i] = v->nbytes;
        v->nbytes *= (Py_ssize_t)shape[i];
    }
    return v;
}

PyObject *moor_py_view(PyObject *owner, const void *data, uint64_t rows, uint32_t layers, uint32_t top_k,
                       const moor_dtype *dtype)
{
    static const char nothing[8];
    view *v = view_new(3, (const uint64_t[]){rows, layers, top_k}, dtype->format, dtype->size);
    if (!v)
        return NULL;
    v->owner = Py_NewRef(owner);
    v->data = (void *)(uintptr_t)(data ? data : nothing); /* an empty view still wants an address */
    v->readonly = 1;
    return (PyObject *)v;
}

/* Borrowed, or NULL without an error when it cannot be imported. */
static PyObject *import_numpy(void)
{
    if (!numpy) {
        numpy = PyImport_ImportModule("numpy");
        if (!numpy) {
            PyErr_Clear(); /* not installed, or broken: memoryviews then */
            numpy = Py_NewRef(Py_None);
        }
    }
    return numpy == Py_None ? NULL : numpy;
}

PyObject *moor_py_view_array(PyObject *v)
{
    if (!v)
        return NULL;
    PyObject *np = import_numpy();
    PyObject *array = np ? PyObject_CallMethod(np, "asarray", "O", v) : PyMemoryView_FromObject(v);
    Py_DECREF(v);
    return array;
}

static PyObject *numpy_new(PyObject *np, int ndim, const uint64_t *shape, const char *dtype_name, void **data)
{
    PyObject *dims = PyTuple_New(ndim), *array = NULL;
    Py_buffer buffer;
    for (int i = 0; dims && i < ndim; i++) {
        PyObject *n = PyLong_FromUnsignedLongLong(shape[i]);
        if (!n || PyTuple_SetItem(dims, i, n) < 0)
            Py_CLEAR(dims);
    }
    if (dims)
        array = PyObject_CallMethod(np, "empty", "Os", dims, dtype_name);
    Py_XDECREF(dims);
    if (!array)
        return NULL;
    if (PyObject_GetBuffer(array, &buffer, PyBUF_WRITABLE) < 0) {
        Py_DECREF(array);
        return NULL;
    }
    *data = buffer.buf; /* a fresh array nobody else knows: it stays where it is */
    PyBuffer_Release(&buffer);
    return array;
}

PyObject *moor_py_array_new(int ndim, const uint64_t *shape, const char *dtype_name, const char *format,
                            size_t itemsize, void **data)
{
    PyObject *np = import_numpy();
    if (np)
        return numpy_new(np, ndim, shape, dtype_name, data);
    view *v = view_new(ndim, shape, format, itemsize);
    if (!v)
        return NULL;
    v->data = malloc(v->nbytes ? (size_t)v->nbytes : 1);
    if (!v->data) {
        Py_DECREF((PyObject *)v);
        return PyErr_NoMemory();
    }
    *data = v->data;
    PyObject *array = PyMemoryView_FromObject((PyObject *)v);
    Py_DECREF((PyObject *)v);
    return array;
}

/* The text that names a dtype: itself, numpy.dtype.name, numpy.uint8.__name__, "torch.int32". New reference. */
static PyObject *dtype_text(PyObject *arg)
{
    if (PyUnicode_Check(arg))
        return Py_NewRef(arg);
    static const char *const attributes[] = {"name", "__name__"};
    for (int i = 0; i < 2; i++) {
        PyObject *text = PyObject_GetAttrString(arg, attributes[i]);
        if (text && PyUnicode_Check(text))
            return text;
        Py_XDECREF(text);
        PyErr_Clear();
    }
    return PyObject_Str(arg);
}

const moor_dtype *moor_py_dtype(PyObject *arg, const moor_dtype *fallback)
{
    if (!arg || arg == Py_None)
        return fallback;
    PyObject *text = dtype_text(arg);
    const char *name = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    const moor_dtype *found = NULL;
    if (name) {
        found = moor_dtype_named(strncmp(name, "torch.", 6) ? name : name + 6);
        if (!found)
            moor_py_raise_text(MOOR_E_INVALID, "dtype %R: one of uint8, uint16, int16, int32, int64 is needed", arg);
    }
    Py_XDECREF(text);
    return found;
}

int moor_py_add_view(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, view_dealloc},
        {Py_tp_doc, "Memory of a record, or a copy of it; memoryview() and numpy.asarray() read it."},
        {Py_bf_getbuffer, view_getbuffer},
        {0, NULL},
    };
    static PyType_Spec spec = {"moor._moor.View", sizeof(view), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    return moor_py_add_type(module, &view_type, &spec);
}
