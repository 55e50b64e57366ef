/* SPDX-License-Identifier: Apache-2.0 */
/* Record.segments(), .array(), .tensor(), .copy_into(), .mask: what a consumer reads. */
#include "record.h"

#include "errors.h"
#include "view.h"

#include <string.h>

enum { COPY_WITH_GIL = 32 << 10 }; /* bytes that are copied in a few µs */

/* What array(), tensor() and copy_into() were asked for. */
typedef struct request {
    moor_py_data *data; /* a reference of ours: another thread may release the record while we copy */
    uint64_t start, stop;
    const moor_dtype *dtype;
    bool model_layout, allow_missing;
} request;

static int fit_dtype(const moor_py_record *r, const moor_dtype *dtype)
{
    if (r->rows.num_experts && r->rows.num_experts - 1 > dtype->max) {
        moor_py_raise_text(MOOR_E_RANGE, "record %U: %s cannot hold the ids of %u experts", r->request_id, dtype->name,
                           r->rows.num_experts);
        return -1;
    }
    return 0;
}

static int set_layout(const moor_py_record *r, const moor_py_data *data, const char *layers, request *out)
{
    out->model_layout = !strcmp(layers, "model");
    if (!out->model_layout && strcmp(layers, "moe")) {
        moor_py_raise_text(MOOR_E_INVALID, "layers=\"%s\": \"moe\" or \"model\" is needed", layers);
        return -1;
    }
    if (out->model_layout && !data->rows.model_layers) {
        moor_py_raise_text(MOOR_E_UNSUPPORTED, "record %U: its layers are not numbers of the model's %u layers",
                           r->request_id, r->rows.model_layers);
        return -1;
    }
    return 0;
}

static int set_range(const moor_py_record *r, PyObject *start, PyObject *stop, request *out)
{
    uint64_t rows = r->rows.rows;
    long long a = start ? PyLong_AsLongLong(start) : 0, b = 0;
    if (a == -1 && PyErr_Occurred())
        return -1;
    if (!stop || stop == Py_None)
        out->stop = rows;
    else if ((b = PyLong_AsLongLong(stop)) == -1 && PyErr_Occurred())
        return -1;
    else
        out->stop = b < 0 ? UINT64_MAX : (uint64_t)b;
    out->start = a < 0 ? UINT64_MAX : (uint64_t)a;
    if (out->stop <= rows && out->start <= out->stop)
        return 0;
    moor_py_raise_text(MOOR_E_RANGE, "record %U: rows %lld...%R of %llu", r->request_id, a, stop ? stop : Py_None,
                       (unsigned long long)rows);
    return -1;
}

static int refuse_missing(const moor_py_record *r, const request *q)
{
    if (q->allow_missing || !moor_rows_incomplete(&q->data->rows, q->start, q->stop))
        return 0;
    PyObject *missing = moor_py_missing(&q->data->rows, q->start, q->stop);
    if (missing) {
        moor_py_raise_text(MOOR_E_INCOMPLETE,
                           "record %U: rows %R (start, stop) are missing; allow_missing=True reads them as 0",
                           r->request_id, missing);
        moor_py_raised_with("missing", missing);
    }
    return -1;
}

/* What needs the data, of which the caller has a reference: asking an argument for its value may run code that releases the record. */
static int parse_request(const moor_py_record *r, moor_py_data *data, PyObject *start, PyObject *stop,
                         const char *layers, PyObject *dtype, const moor_dtype *fallback, request *out)
{
    out->dtype = moor_py_dtype(dtype, fallback);
    if (!out->dtype && PyErr_Occurred())
        return -1;
    if ((out->dtype && fit_dtype(r, out->dtype) < 0) || set_layout(r, data, layers, out) < 0)
        return -1;
    return set_range(r, start, stop, out) < 0 ? -1 : refuse_missing(r, out);
}

/* Parses; the caller drops out->data when 0 came back. format: of PyArg_ParseTupleAndKeywords, beginning with the buffer if there is one. */
static int parse(PyObject *self, PyObject *args, PyObject *kwargs, const char *format, PyObject **buffer, request *out)
{
    static char *with_buffer[] = {"buffer", "start", "stop", "layers", "dtype", "allow_missing", NULL};
    moor_py_record *r = (moor_py_record *)self;
    PyObject *start = NULL, *stop = NULL, *dtype = NULL;
    const char *layers = "moe";
    int allow = 0;
    int parsed = buffer ? PyArg_ParseTupleAndKeywords(args, kwargs, format, with_buffer, buffer, &start, &stop, &layers,
                                                      &dtype, &allow)
                        : PyArg_ParseTupleAndKeywords(args, kwargs, format, with_buffer + 1, &start, &stop, &layers,
                                                      &dtype, &allow);
    moor_py_data *data = parsed ? moor_py_record_data(r) : NULL;
    if (!data)
        return -1;
    Py_INCREF((PyObject *)data);
    *out = (request){.data = data, .allow_missing = allow};
    if (parse_request(r, data, start, stop, layers, dtype, buffer ? NULL : data->rows.dtype, out) == 0)
        return 0;
    Py_DECREF((PyObject *)data);
    return -1;
}

static void copy_rows(const request *q, void *dst, size_t nbytes)
{
    const moor_rows *rows = &q->data->rows;
    PyThreadState *thread = nbytes > COPY_WITH_GIL ? PyEval_SaveThread() : NULL;
    moor_rows_copy(rows, q->start, q->stop, q->model_layout, q->dtype, dst);
    if (thread)
        PyEval_RestoreThread(thread);
}

PyObject *moor_py_record_segments(PyObject *self, PyObject *Py_UNUSED(unused))
{
    moor_py_data *data = moor_py_record_data((moor_py_record *)self);
    PyObject *list = data ? PyList_New(0) : NULL;
    if (!list)
        return NULL;
    Py_INCREF((PyObject *)data);
    const moor_rows *rows = &data->rows;
    for (uint32_t i = 0; list && i < rows->n_segments; i++) {
        const moor_segment *s = &rows->segments[i];
        if (!s->present || !s->rows)
            continue;
        PyObject *v = moor_py_view((PyObject *)data, s->data, s->rows, rows->layers, rows->top_k, rows->dtype);
        PyObject *m = v ? PyMemoryView_FromObject(v) : NULL;
        Py_XDECREF(v);
        if (!m || PyList_Append(list, m) < 0)
            Py_CLEAR(list);
        Py_XDECREF(m);
    }
    Py_DECREF((PyObject *)data);
    return list;
}

PyObject *moor_py_record_array(PyObject *self, PyObject *args, PyObject *kwargs)
{
    request q;
    if (parse(self, args, kwargs, "|OOsOp:array", NULL, &q) < 0)
        return NULL;
    const moor_rows *rows = &q.data->rows;
    const void *at = moor_rows_address(rows, q.start, q.stop);
    bool as_stored = !q.model_layout && q.dtype->code == rows->dtype->code && (at || q.start == q.stop);
    uint64_t n = q.stop - q.start;
    PyObject *array;
    if (as_stored) {
        array = moor_py_view_array(moor_py_view((PyObject *)q.data, at, n, rows->layers, rows->top_k, rows->dtype));
    } else {
        void *dst;
        uint64_t shape[3] = {n, q.model_layout ? rows->model_layers : rows->layers, rows->top_k};
        array = moor_py_array_new(3, shape, q.dtype->name, q.dtype->format, q.dtype->size, &dst);
        if (array)
            copy_rows(&q, dst, n * moor_rows_bytes(rows, q.model_layout, q.dtype));
    }
    Py_DECREF((PyObject *)q.data);
    return array;
}

/* torch.empty(shape, dtype=…, device="cpu"): whatever device is the default. New reference; NULL with an error. */
static PyObject *torch_empty(PyObject *torch, const uint64_t shape[3], const moor_dtype *dtype)
{
    PyObject *torch_dtype = PyObject_GetAttrString(torch, dtype->name);
    if (!torch_dtype) {
        PyErr_Clear();
        return moor_py_raise_text(MOOR_E_UNSUPPORTED, "this torch has no %s: ask for dtype=\"int32\"", dtype->name);
    }
    PyObject *empty = PyObject_GetAttrString(torch, "empty"), *tensor = NULL;
    PyObject *args = Py_BuildValue("((KKK))", (unsigned long long)shape[0], (unsigned long long)shape[1],
                                   (unsigned long long)shape[2]);
    PyObject *kwargs = Py_BuildValue("{s:O,s:s}", "dtype", torch_dtype, "device", "cpu");
    if (empty && args && kwargs)
        tensor = PyObject_Call(empty, args, kwargs);
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    Py_XDECREF(empty);
    Py_DECREF(torch_dtype);
    return tensor;
}

/* Always a copy: torch has no read-only tensors, and a write through one over the mapped rows would be a SIGSEGV. */
PyObject *moor_py_record_tensor(PyObject *self, PyObject *args, PyObject *kwargs)
{
    request q;
    if (parse(self, args, kwargs, "|OOsOp:tensor", NULL, &q) < 0)
        return NULL;
    const moor_rows *rows = &q.data->rows;
    uint64_t n = q.stop - q.start;
    uint64_t shape[3] = {n, q.model_layout ? rows->model_layers : rows->layers, rows->top_k};
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *tensor = torch ? torch_empty(torch, shape, q.dtype) : NULL;
    PyObject *address = tensor ? PyObject_CallMethod(tensor, "data_ptr", NULL) : NULL;
    void *dst = address ? PyLong_AsVoidPtr(address) : NULL;
    if (dst)
        copy_rows(&q, dst, n * moor_rows_bytes(rows, q.model_layout, q.dtype));
    else if (PyErr_Occurred() || n)
        Py_CLEAR(tensor);
    Py_XDECREF(address);
    Py_XDECREF(torch);
    Py_DECREF((PyObject *)q.data);
    return tensor;
}

/* The dtype of a copy into buffer: asked for, or the array's own, or the stored one for plain bytes. */
static const moor_dtype *buffer_dtype(const moor_py_record *r, const request *q, const Py_buffer *b)
{
    const moor_dtype *own = b->format ? moor_dtype_format(b->format, (size_t)b->itemsize) : NULL;
    bool bytes = !b->format || (b->itemsize == 1 && !strcmp(b->format, "B") && b->ndim <= 1);
    if (q->dtype && (bytes || own == q->dtype))
        return q->dtype;
    if (q->dtype || (!own && !bytes)) {
        moor_py_raise_text(MOOR_E_INVALID, "record %U: a buffer of format \"%s\" cannot take %s", r->request_id,
                           b->format, q->dtype ? q->dtype->name : "expert ids");
        return NULL;
    }
    return bytes ? r->rows.dtype : own;
}

static int fit_buffer(const moor_py_record *r, const request *q, const Py_buffer *b)
{
    const moor_rows *rows = &q->data->rows;
    uint64_t n = q->stop - q->start, layers = q->model_layout ? rows->model_layers : rows->layers;
    uint64_t need = n * moor_rows_bytes(rows, q->model_layout, q->dtype);
    bool shape = b->ndim != 3 || ((uint64_t)b->shape[0] == n && (uint64_t)b->shape[1] == layers &&
                                  (uint64_t)b->shape[2] == rows->top_k);
    if (shape && (uint64_t)b->len == need)
        return 0;
    moor_py_raise_text(MOOR_E_INVALID, "record %U: [%llu, %llu, %u] of %s are %llu bytes; the buffer has %zd bytes%s",
                       r->request_id, (unsigned long long)n, (unsigned long long)layers, rows->top_k, q->dtype->name,
                       (unsigned long long)need, b->len, shape ? "" : " and another shape");
    return -1;
}

PyObject *moor_py_record_copy_into(PyObject *self, PyObject *args, PyObject *kwargs)
{
    moor_py_record *r = (moor_py_record *)self;
    PyObject *target = NULL, *result = NULL;
    Py_buffer b;
    request q;
    if (parse(self, args, kwargs, "O|OOsOp:copy_into", &target, &q) < 0)
        return NULL;
    if (PyObject_GetBuffer(target, &b, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        Py_DECREF((PyObject *)q.data);
        return NULL;
    }
    q.dtype = buffer_dtype(r, &q, &b);
    if (q.dtype && fit_dtype(r, q.dtype) == 0 && fit_buffer(r, &q, &b) == 0) {
        copy_rows(&q, b.buf, (size_t)b.len);
        result = PyLong_FromUnsignedLongLong(q.stop - q.start);
    }
    PyBuffer_Release(&b);
    Py_DECREF((PyObject *)q.data);
    return result;
}

PyObject *moor_py_record_mask(PyObject *self, void *Py_UNUSED(unused))
{
    moor_py_data *data = moor_py_record_data((moor_py_record *)self);
    if (!data)
        return NULL;
    Py_INCREF((PyObject *)data); /* importing numpy lets other threads run */
    void *dst;
    PyObject *array = moor_py_array_new(1, &data->rows.rows, "bool", "?", 1, &dst);
    if (array)
        moor_rows_mask(&data->rows, 0, data->rows.rows, dst);
    Py_DECREF((PyObject *)data);
    return array;
}
