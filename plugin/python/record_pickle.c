/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records without a store: pickling (the rows travel as out-of-band buffers with protocol 5, else as bytes in the pickle),
 * concatenation, and ids for padding. A pickle carries everything but the lease; unpickling needs no server.
 */
#include "record.h"

#include "errors.h"
#include "view.h"

#include <stdlib.h>
#include <string.h>

/* 2: (format, request_id, session_id, handle, rows, owner, model_layers, top_k, num_experts, dtype, layer_ids, versions,
 * labels, reasons, store_index, dropped, segments, first row), (buffer of each present segment, …). Append a member only with a new number. */
enum { PICKLE_FORMAT = 2 };

/* ---- data with own tables -------------------------------------------------------------------------------------------- */

/* The tables that a record_info points into, in one allocation that becomes data->memory. */
typedef struct tables {
    moor_segment *segments;
    int32_t *layer_ids;
    moor_version_run *versions;
} tables;

static int tables_new(moor_py_data *data, size_t segments, size_t layers, size_t versions, tables *out)
{
    size_t bytes = segments * sizeof(moor_segment) + versions * sizeof(moor_version_run) + layers * sizeof(int32_t);
    char *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) {
        PyErr_NoMemory();
        return -1;
    }
    data->memory = memory;
    out->segments = (moor_segment *)(void *)memory;
    out->versions = (moor_version_run *)(void *)(memory + segments * sizeof(moor_segment));
    out->layer_ids =
        (int32_t *)(void *)(memory + segments * sizeof(moor_segment) + versions * sizeof(moor_version_run));
    return 0;
}

/* ---- pickle ------------------------------------------------------------------------------------------------------------ */

static PyObject *segment_list(const moor_rows *rows)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < rows->n_segments; i++) {
        const moor_segment *s = &rows->segments[i];
        PyObject *item =
            Py_BuildValue("(KKi)", (unsigned long long)s->start, (unsigned long long)s->rows, s->present ? 1 : 0);
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* One object for each present segment: a PickleBuffer, or bytes for the protocols that have none. */
static PyObject *payloads(moor_py_data *data, bool out_of_band)
{
    PyObject *module = PyImport_ImportModule(out_of_band ? "pickle" : "builtins");
    PyObject *type = module ? PyObject_GetAttrString(module, out_of_band ? "PickleBuffer" : "bytes") : NULL;
    PyObject *list = type ? PyList_New(0) : NULL;
    const moor_rows *rows = &data->rows;
    for (uint32_t i = 0; list && i < rows->n_segments; i++) {
        const moor_segment *s = &rows->segments[i];
        if (!s->present)
            continue;
        PyObject *v = moor_py_view((PyObject *)data, s->data, s->rows, rows->layers, rows->top_k, rows->dtype);
        PyObject *payload = v ? PyObject_CallFunctionObjArgs(type, v, NULL) : NULL;
        Py_XDECREF(v);
        if (!payload || PyList_Append(list, payload) < 0)
            Py_CLEAR(list);
        Py_XDECREF(payload);
    }
    Py_XDECREF(type);
    Py_XDECREF(module);
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static PyObject *pickle_state(const moor_py_record *r, const moor_py_data *data)
{
    PyObject *segments = segment_list(&data->rows);
    if (!segments)
        return NULL;
    return Py_BuildValue("(iOOKKIIIIsOOOIIKNK)", PICKLE_FORMAT, r->request_id, r->session_id,
                         (unsigned long long)r->handle, (unsigned long long)r->rows.rows, r->owner,
                         data->rows.model_layers, r->rows.top_k, r->rows.num_experts, r->rows.dtype->name, r->layer_ids,
                         r->versions, r->labels, r->reasons, r->store_index, (unsigned long long)r->dropped, segments,
                         (unsigned long long)r->first_row);
}

PyObject *moor_py_record_reduce(PyObject *self, PyObject *protocol)
{
    moor_py_record *r = (moor_py_record *)self;
    long version = PyLong_AsLong(protocol);
    if (version == -1 && PyErr_Occurred())
        return NULL;
    moor_py_data *data = moor_py_record_data(r);
    if (!data)
        return NULL;
    Py_INCREF((PyObject *)data);
    PyObject *module = PyImport_ImportModule("moor._moor");
    PyObject *rebuild = module ? PyObject_GetAttrString(module, "_rebuild") : NULL;
    PyObject *buffers = rebuild ? payloads(data, version >= 5) : NULL;
    PyObject *state = buffers ? pickle_state(r, data) : NULL;
    PyObject *result = state ? Py_BuildValue("(O(OO))", rebuild, state, buffers) : NULL;
    Py_XDECREF(module);
    Py_XDECREF(rebuild);
    Py_XDECREF(buffers);
    Py_XDECREF(state);
    Py_DECREF((PyObject *)data);
    return result;
}

/* ---- unpickle ---------------------------------------------------------------------------------------------------------- */

/* A pickled state, its members borrowed from the tuple. */
typedef struct state {
    int format;
    unsigned long long handle, rows, dropped, first_row;
    unsigned int owner, model_layers, top_k, num_experts, reasons, store_index;
    const char *request_id, *session_id, *dtype;
    PyObject *layer_ids, *versions, *labels, *segments;
} state;

static int bad_pickle(const char *why)
{
    if (!PyErr_Occurred())
        moor_py_raise_text(MOOR_E_CORRUPT, "this is no pickled moor.Record: %s", why);
    return -1;
}

static int read_layers(const state *s, tables *t)
{
    int64_t last = -1;
    for (Py_ssize_t i = 0; i < PyTuple_Size(s->layer_ids); i++) {
        long id = PyLong_AsLong(PyTuple_GetItem(s->layer_ids, i));
        if (id <= last || id > INT32_MAX)
            return bad_pickle("its layer ids do not ascend");
        last = t->layer_ids[i] = (int32_t)id;
    }
    return 0;
}

static int read_versions(const state *s, tables *t)
{
    for (Py_ssize_t i = 0; i < PyList_Size(s->versions); i++) {
        unsigned long long start, epoch;
        PyObject *label = PyList_GetItem(s->labels, i);
        if (!PyArg_ParseTuple(PyList_GetItem(s->versions, i), "KK", &start, &epoch))
            return -1;
        const char *text = label && PyUnicode_Check(label) ? PyUnicode_AsUTF8AndSize(label, NULL) : NULL;
        if (!text)
            return bad_pickle("a version has no label");
        t->versions[i] = (moor_version_run){.start = start, .epoch = epoch, .label = text};
    }
    return 0;
}

/* Segments must cover rows 0…rows-1 in order, and each present one needs a buffer of exactly its size. */
static int read_segments(const state *s, moor_py_data *data, PyObject *buffers, size_t row_bytes, tables *t,
                         uint64_t *missing)
{
    uint64_t next = 0;
    Py_ssize_t given = PyTuple_Size(buffers);
    for (Py_ssize_t i = 0; i < PyList_Size(s->segments); i++) {
        unsigned long long start, rows;
        int present;
        if (!PyArg_ParseTuple(PyList_GetItem(s->segments, i), "KKi", &start, &rows, &present))
            return -1;
        if (start != next || rows > s->rows - next)
            return bad_pickle("its segments do not fit together");
        t->segments[i] = (moor_segment){.start = start, .rows = rows, .present = present != 0};
        next += rows;
        if (!present) {
            *missing += rows;
            continue;
        }
        if ((Py_ssize_t)data->n_buffers == given)
            return bad_pickle("a buffer is missing");
        Py_buffer *b = &data->buffers[data->n_buffers];
        if (PyObject_GetBuffer(PyTuple_GetItem(buffers, data->n_buffers), b, PyBUF_SIMPLE) < 0)
            return -1;
        data->n_buffers++;
        if (rows > SIZE_MAX / row_bytes || (size_t)b->len != rows * row_bytes)
            return bad_pickle("a buffer has not the size of its rows");
        t->segments[i].data = b->buf;
    }
    return next == s->rows ? 0 : bad_pickle("its segments end before its rows");
}

static int parse_state(PyObject *tuple, state *s)
{
    PyObject *head = PyTuple_Size(tuple) > 0 ? PyTuple_GetItem(tuple, 0) : NULL;
    long format = head && PyLong_Check(head) ? PyLong_AsLong(head) : 0;
    if (format != PICKLE_FORMAT) {
        moor_py_raise_text(MOOR_E_VERSION, "a moor.Record pickled in format %ld; this moor reads format %d", format,
                           PICKLE_FORMAT);
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "issKKIIIIsO!O!O!IIKO!K", &s->format, &s->request_id, &s->session_id, &s->handle,
                          &s->rows, &s->owner, &s->model_layers, &s->top_k, &s->num_experts, &s->dtype, &PyTuple_Type,
                          &s->layer_ids, &PyList_Type, &s->versions, &PyList_Type, &s->labels, &s->reasons,
                          &s->store_index, &s->dropped, &PyList_Type, &s->segments, &s->first_row))
        return -1;
    if (PyList_Size(s->versions) != PyList_Size(s->labels))
        return bad_pickle("versions and labels differ in number");
    return 0;
}

static int rebuild(const state *s, PyObject *buffers, moor_py_data *data, moor_record_info *info)
{
    const moor_dtype *dtype = moor_dtype_named(s->dtype);
    size_t layers = (size_t)PyTuple_Size(s->layer_ids), segments = (size_t)PyList_Size(s->segments);
    size_t versions = (size_t)PyList_Size(s->versions), given = (size_t)PyTuple_Size(buffers);
    tables t;
    if (!dtype || !layers || layers > INT32_MAX || !s->top_k || s->top_k > UINT16_MAX)
        return bad_pickle("its dtype, layers or top_k are none");
    size_t columns = layers > s->model_layers ? layers : s->model_layers;
    if (s->rows > INT64_MAX / (columns * s->top_k * sizeof(int64_t)))
        return bad_pickle("it has more rows than memory has room for, missing ones among them");
    data->buffers = calloc(given ? given : 1, sizeof(Py_buffer));
    if (!data->buffers) {
        PyErr_NoMemory();
        return -1;
    }
    if (tables_new(data, segments, layers, versions, &t) < 0)
        return -1;
    uint64_t missing = 0;
    if (read_layers(s, &t) < 0 || read_versions(s, &t) < 0 ||
        read_segments(s, data, buffers, layers * s->top_k * dtype->size, &t, &missing) < 0)
        return -1;
    *info = (moor_record_info){
        .size = sizeof(*info),
        .version = 1,
        .request_id = s->request_id,
        .session_id = s->session_id,
        .handle = s->handle,
        .rows = s->rows,
        .missing_rows = missing,
        .owner = s->owner,
        .layers = (uint32_t)layers,
        .model_layers = s->model_layers,
        .top_k = s->top_k,
        .num_experts = s->num_experts,
        .dtype = dtype->code,
        .layer_ids = t.layer_ids,
        .n_segments = (uint32_t)segments,
        .n_versions = (uint32_t)versions,
        .reasons = s->reasons,
        .store_index = s->store_index,
        .segments = t.segments,
        .versions = t.versions,
        .dropped_rows = s->dropped,
        .first_row = s->first_row,
    };
    return 0;
}

PyObject *moor_py_rebuild(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tuple, *buffers;
    state s;
    moor_record_info info;
    if (!PyArg_ParseTuple(args, "O!O!:_rebuild", &PyTuple_Type, &tuple, &PyTuple_Type, &buffers) ||
        parse_state(tuple, &s) < 0)
        return NULL;
    moor_py_data *data = moor_py_data_new();
    if (!data)
        return NULL;
    if (rebuild(&s, buffers, data, &info) < 0 || moor_py_data_set(data, &info) < 0) {
        Py_DECREF((PyObject *)data);
        return NULL;
    }
    return moor_py_record_of(data, &info);
}

/* ---- concat ------------------------------------------------------------------------------------------------------------ */

static int same_shape(const moor_py_record *h, const moor_py_record *c)
{
    const moor_rows *a = &h->rows, *b = &c->rows;
    int same = PyObject_RichCompareBool(h->layer_ids, c->layer_ids, Py_EQ);
    if (same < 0)
        return -1;
    if (same && a->top_k == b->top_k && a->num_experts == b->num_experts && a->dtype == b->dtype)
        return 0;
    moor_py_raise_text(
        MOOR_E_INVALID, "records %U (%u layers, top-%u of %u) and %U (%u layers, top-%u of %u) are not of one model",
        h->request_id, a->layers, a->top_k, a->num_experts, c->request_id, b->layers, b->top_k, b->num_experts);
    return -1;
}

/* Segments of rows from…to-1: those of src, cut. */
static uint32_t take_segments(const moor_rows *src, uint64_t from, uint64_t to, moor_segment *out)
{
    uint32_t n = 0;
    size_t row = moor_rows_bytes(src, false, src->dtype);
    for (uint32_t i = 0; i < src->n_segments; i++) {
        moor_segment s = src->segments[i];
        if (s.start + s.rows <= from || s.start >= to)
            continue;
        if (s.start < from) {
            uint64_t cut = from - s.start;
            s.data = s.present ? (const char *)s.data + cut * row : NULL;
            s.start += cut;
            s.rows -= cut;
        }
        if (s.rows > to - s.start)
            s.rows = to - s.start;
        out[n++] = s;
    }
    return n;
}

/* Runs of record r that matter in rows from…to-1, the first of them moved there; equal neighbours are one. -1: error. */
static int take_versions(const moor_py_record *r, uint64_t from, uint64_t to, moor_version_run *out, uint32_t *n)
{
    for (Py_ssize_t i = 0, last = PyList_Size(r->versions); i < last; i++) {
        unsigned long long start, epoch;
        if (!PyArg_ParseTuple(PyList_GetItem(r->versions, i), "KK", &start, &epoch))
            return -1;
        const char *label = PyUnicode_AsUTF8AndSize(PyList_GetItem(r->labels, i), NULL);
        if (!label)
            return -1;
        if (start >= to)
            break;
        if (*n && out[*n - 1].start >= from && start <= from)
            --*n; /* a later run of this record begins before `from`, too */
        if (*n && out[*n - 1].epoch == epoch)
            continue;
        out[(*n)++] = (moor_version_run){.start = start < from ? from : start, .epoch = epoch, .label = label};
    }
    return 0;
}

static int join(const moor_py_part *parts, uint32_t n, moor_py_data *data, moor_record_info *info)
{
    size_t versions = 0, segments = 0;
    uint64_t missing = 0, dropped = 0;
    uint32_t reasons = 0, n_segments = 0, n_versions = 0;
    const moor_py_record *last = parts[n - 1].record;
    const moor_rows *shape = &last->data->rows;
    tables t;
    for (uint32_t i = 0; i < n; i++) {
        versions += (size_t)PyList_Size(parts[i].record->versions);
        segments += parts[i].record->data->rows.n_segments;
        dropped += parts[i].record->dropped;
        reasons |= parts[i].record->reasons;
    }
    if (tables_new(data, segments, shape->layers, versions, &t) < 0)
        return -1;
    memcpy(t.layer_ids, shape->layer_ids, shape->layers * sizeof(int32_t));
    for (uint32_t i = 0; i < n; i++) {
        const moor_py_part *part = &parts[i];
        if (part->from == part->to)
            continue;
        n_segments += take_segments(&part->record->data->rows, part->from, part->to, t.segments + n_segments);
        if (take_versions(part->record, part->from, part->to, t.versions, &n_versions) < 0)
            return -1;
    }
    for (uint32_t i = 0; i < n_segments; i++)
        missing += t.segments[i].present ? 0 : t.segments[i].rows;
    *info = (moor_record_info){
        .size = sizeof(*info),
        .version = 1,
        .rows = parts[n - 1].to,
        .missing_rows = missing,
        .owner = last->owner,
        .layers = shape->layers,
        .model_layers = shape->model_layers,
        .top_k = shape->top_k,
        .num_experts = shape->num_experts,
        .dtype = shape->dtype->code,
        .layer_ids = t.layer_ids,
        .n_segments = n_segments,
        .n_versions = n_versions,
        .reasons = reasons,
        .store_index = last->store_index,
        .segments = t.segments,
        .versions = t.versions,
        .dropped_rows = dropped,
        .request_id = PyUnicode_AsUTF8AndSize(last->request_id, NULL),
        .session_id = PyUnicode_AsUTF8AndSize(last->session_id, NULL),
    };
    return info->request_id && info->session_id ? 0 : -1;
}

PyObject *moor_py_record_join(const moor_py_part *parts, uint32_t n)
{
    moor_record_info info;
    moor_py_data *data = moor_py_data_new();
    if (!data)
        return NULL;
    data->keeps = PyTuple_New(n);
    int failed = !data->keeps;
    for (uint32_t i = 0; !failed && i < n; i++) { /* what was allocated may have run a finalizer that released one */
        moor_py_data *part = moor_py_record_data(parts[i].record);
        failed = !part || PyTuple_SetItem(data->keeps, i, Py_NewRef((PyObject *)part)) < 0 ||
                 same_shape(parts[0].record, parts[i].record) < 0;
    }
    if (failed || join(parts, n, data, &info) < 0 || moor_py_data_set(data, &info) < 0) {
        Py_DECREF((PyObject *)data);
        return NULL;
    }
    return moor_py_record_of(data, &info);
}

PyObject *moor_py_concat(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"history", "current", NULL};
    PyObject *first, *second;
    moor_py_record *h, *c;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:concat", names, &first, &second) ||
        !(h = moor_py_record_check(first)) || !(c = moor_py_record_check(second)) || !moor_py_record_data(h) ||
        !moor_py_record_data(c) || same_shape(h, c) < 0) /* told before a difference in length */
        return NULL;
    if (h->first_row || c->first_row)
        return moor_py_raise_text(
            MOOR_E_INVALID, "records %U and %U begin at rows %llu and %llu: refs named parts of them; open them by id",
            h->request_id, c->request_id, (unsigned long long)h->first_row, (unsigned long long)c->first_row);
    if (c->rows.rows + 1 < h->rows.rows)
        return moor_py_raise_text(
            MOOR_E_RANGE, "record %U has %llu rows, its history %U has %llu: it may be short by one, not by %llu",
            c->request_id, (unsigned long long)c->rows.rows, h->request_id, (unsigned long long)h->rows.rows,
            (unsigned long long)(h->rows.rows - c->rows.rows));
    uint64_t history = h->rows.rows, all = c->rows.rows > history ? c->rows.rows : history;
    const moor_py_part parts[] = {{h, 0, history}, {c, history, all}};
    return moor_py_record_join(parts, 2);
}

/* ---- padding ----------------------------------------------------------------------------------------------------------- */

static void fill_pad(void *dst, uint64_t n, uint32_t layers, uint32_t top_k, uint32_t experts, uint64_t start,
                     const moor_dtype *dtype)
{
    char *at = dst;
    for (uint64_t i = 0; i < n; i++)
        for (uint32_t l = 0; l < layers; l++)
            for (uint32_t k = 0; k < top_k; k++, at += dtype->size) {
                /* Consecutive ids modulo the number of experts: each is used as often as any other, to within one. The
                 * layer's offset keeps a short padding from loading the same experts in every layer. */
                uint64_t id = ((start + i) % experts * top_k + (uint64_t)l * top_k + k) % experts;
                memcpy(at, &id, dtype->size); /* little-endian, like everything Moor runs on */
            }
}

PyObject *moor_py_pad_rows(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"n", "layers", "top_k", "num_experts", "start", "dtype", NULL};
    long long n, layers, top_k, experts, start = 0;
    PyObject *dtype_arg = NULL;
    void *dst;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LLLL|LO:pad_rows", names, &n, &layers, &top_k, &experts, &start,
                                     &dtype_arg))
        return NULL;
    if (n < 0 || start < 0 || layers < 1 || layers > 65536 || top_k < 1 || experts > 65536 || top_k > experts ||
        n > PY_SSIZE_T_MAX / (layers * top_k * 8))
        return moor_py_raise_text(MOOR_E_INVALID,
                                  "pad_rows: n=%lld, layers=%lld, top_k=%lld of num_experts=%lld, start=%lld", n,
                                  layers, top_k, experts, start);
    const moor_dtype *dtype = moor_py_dtype(dtype_arg, moor_dtype_of(experts <= 256 ? MOOR_DTYPE_U8 : MOOR_DTYPE_U16));
    if (!dtype)
        return NULL;
    if ((uint64_t)experts - 1 > dtype->max)
        return moor_py_raise_text(MOOR_E_RANGE, "pad_rows: %s cannot hold the ids of %lld experts", dtype->name,
                                  experts);
    uint64_t shape[3] = {(uint64_t)n, (uint64_t)layers, (uint64_t)top_k};
    PyObject *array = moor_py_array_new(3, shape, dtype->name, dtype->format, dtype->size, &dst);
    if (array)
        fill_pad(dst, (uint64_t)n, (uint32_t)layers, (uint32_t)top_k, (uint32_t)experts, (uint64_t)start, dtype);
    return array;
}
