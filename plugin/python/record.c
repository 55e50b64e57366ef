/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include "errors.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

static PyTypeObject *data_type, *record_type;

/* ---- data ---------------------------------------------------------------------------------------------------------- */

static void data_dealloc(PyObject *self)
{
    moor_py_data *d = (moor_py_data *)self;
    if (d->record) {
        /* may write to the store's socket */
        Py_BEGIN_ALLOW_THREADS
        moor_py_api()->record_release(d->record);
        Py_END_ALLOW_THREADS
    }
    for (uint32_t i = 0; i < d->n_buffers; i++)
        PyBuffer_Release(&d->buffers[i]);
    free(d->buffers);
    free(d->memory);
    Py_XDECREF(d->keeps); /* the Store, or what a record of stages is made of */
    moor_py_free(self);
}

moor_py_data *moor_py_data_new(void)
{
    return moor_py_new(data_type);
}

int moor_py_data_set(moor_py_data *data, const moor_record_info *info)
{
    const moor_dtype *dtype = moor_dtype_of(info->dtype);
    if (!dtype || dtype->code > MOOR_DTYPE_U16 || !info->layers || !info->top_k) {
        moor_py_raise_text(MOOR_E_CORRUPT, "record %s: dtype %u, %u layers, top_k %u", info->request_id, info->dtype,
                           info->layers, info->top_k);
        return -1;
    }
    data->rows = (moor_rows){.rows = info->rows,
                             .missing_rows = info->missing_rows,
                             .layers = info->layers,
                             .model_layers = info->model_layers,
                             .top_k = info->top_k,
                             .num_experts = info->num_experts,
                             .n_segments = info->n_segments,
                             .dtype = dtype,
                             .layer_ids = info->layer_ids,
                             .segments = info->segments};
    for (uint32_t l = 0; l < info->layers; l++)
        if (info->layer_ids[l] < 0 || (uint32_t)info->layer_ids[l] >= info->model_layers)
            data->rows.model_layers = 0; /* the model layout is not known: layers="model" is refused */
    return 0;
}

/* ---- making a record ----------------------------------------------------------------------------------------------- */

PyObject *moor_py_missing(const moor_rows *rows, uint64_t start, uint64_t stop)
{
    PyObject *list = PyList_New(0);
    uint64_t first, last;
    for (uint64_t from = start; list && moor_rows_missing(rows, from, &first, &last) && first < stop; from = last) {
        unsigned long long a = first > start ? first : start, b = last < stop ? last : stop;
        PyObject *range = Py_BuildValue("(KK)", a, b);
        if (!range || PyList_Append(list, range) < 0)
            Py_CLEAR(list);
        Py_XDECREF(range);
    }
    return list;
}

static PyObject *id_tuple(const int32_t *ids, uint32_t n)
{
    PyObject *tuple = PyTuple_New(n);
    for (uint32_t i = 0; tuple && i < n; i++) {
        PyObject *id = PyLong_FromLong(ids[i]);
        if (!id || PyTuple_SetItem(tuple, i, id) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static int set_versions(moor_py_record *r, const moor_record_info *info)
{
    r->versions = PyList_New(0);
    r->labels = PyList_New(0);
    for (uint32_t i = 0; r->versions && r->labels && i < info->n_versions; i++) {
        const moor_version_run *run = &info->versions[i];
        PyObject *pair = Py_BuildValue("(KK)", (unsigned long long)run->start, (unsigned long long)run->epoch);
        const char *text = run->label ? run->label : ""; /* any bytes: a C host's are not UTF-8 by themselves */
        PyObject *label = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
        int bad = !pair || !label || PyList_Append(r->versions, pair) < 0 || PyList_Append(r->labels, label) < 0;
        Py_XDECREF(pair);
        Py_XDECREF(label);
        if (bad)
            return -1;
    }
    return r->versions && r->labels ? 0 : -1;
}

PyObject *moor_py_record_of(moor_py_data *data, const moor_record_info *info)
{
    moor_py_record *r = moor_py_new(record_type);
    if (!r) {
        Py_DECREF((PyObject *)data);
        return NULL;
    }
    r->data = data;
    r->rows = data->rows;
    r->rows.segments = NULL;
    r->rows.layer_ids = NULL;
    r->handle = info->handle;
    r->dropped = info->dropped_rows;
    r->first_row = info->first_row;
    r->owner = info->owner;
    r->reasons = info->reasons;
    r->store_index = info->store_index;
    r->request_id = PyUnicode_DecodeUTF8(info->request_id, (Py_ssize_t)strlen(info->request_id), "replace");
    r->session_id = PyUnicode_DecodeUTF8(info->session_id, (Py_ssize_t)strlen(info->session_id), "replace");
    r->layer_ids = id_tuple(info->layer_ids, info->layers);
    r->missing = moor_py_missing(&data->rows, 0, info->rows);
    if (!r->request_id || !r->session_id || !r->layer_ids || !r->missing || set_versions(r, info) < 0) {
        Py_DECREF((PyObject *)r);
        return NULL;
    }
    return (PyObject *)r;
}

PyObject *moor_py_record_opened(moor_record *record, PyObject *store)
{
    moor_record_info info = MOOR_RECORD_INFO_INIT;
    moor_py_data *data = moor_py_data_new();
    if (!data) {
        moor_py_api()->record_release(record);
        return NULL;
    }
    data->record = record;
    data->keeps = store ? Py_NewRef(store) : NULL;
    moor_status status = moor_py_api()->record_info(record, &info);
    if (status) {
        Py_DECREF((PyObject *)data);
        return moor_py_raise(status);
    }
    if (moor_py_data_set(data, &info) < 0) {
        Py_DECREF((PyObject *)data);
        return NULL;
    }
    return moor_py_record_of(data, &info);
}

/* ---- the type ------------------------------------------------------------------------------------------------------ */

moor_py_record *moor_py_record_check(PyObject *object)
{
    if (Py_TYPE(object) == record_type)
        return (moor_py_record *)object;
    PyErr_Format(PyExc_TypeError, "a moor.Record is needed, not %R", Py_TYPE(object));
    return NULL;
}

moor_py_data *moor_py_record_data(moor_py_record *r)
{
    if (!r->data)
        moor_py_raise_text(MOOR_E_CLOSED, "record %U was released", r->request_id);
    return r->data;
}

moor_record *moor_py_record_lease(moor_py_record *r)
{
    moor_py_data *data = moor_py_record_data(r);
    if (data && !data->record)
        moor_py_raise_text(MOOR_E_INVALID, "record %U is a copy: it holds no lease of a store", r->request_id);
    return data ? data->record : NULL;
}

void moor_py_record_refresh(moor_py_record *r)
{
    moor_record_info info = MOOR_RECORD_INFO_INIT;
    if (r->data && r->data->record && moor_py_api()->record_info(r->data->record, &info) == MOOR_OK)
        r->owner = info.owner;
}

static const char *const owners[] = {"none", "rollout", "trace_store"};

const char *moor_py_owner_name(uint32_t owner)
{
    return owner < sizeof(owners) / sizeof(owners[0]) ? owners[owner] : "unknown";
}

int moor_py_owner(PyObject *arg)
{
    const char *name = PyUnicode_Check(arg) ? PyUnicode_AsUTF8AndSize(arg, NULL) : "";
    for (int i = 0; name && i < (int)(sizeof(owners) / sizeof(owners[0])); i++)
        if (!strcmp(owners[i], name))
            return i;
    if (name)
        moor_py_raise_text(MOOR_E_INVALID, "owner %R: one of \"none\", \"rollout\", \"trace_store\" is needed", arg);
    return -1;
}

static void record_dealloc(PyObject *self)
{
    moor_py_record *r = (moor_py_record *)self;
    if (r->weakrefs)
        PyObject_ClearWeakRefs(self);
    Py_XDECREF((PyObject *)r->data);
    Py_XDECREF(r->request_id);
    Py_XDECREF(r->session_id);
    Py_XDECREF(r->layer_ids);
    Py_XDECREF(r->missing);
    Py_XDECREF(r->versions);
    Py_XDECREF(r->labels);
    moor_py_free(self);
}

static PyObject *record_release(PyObject *self, PyObject *Py_UNUSED(unused))
{
    moor_py_record *r = (moor_py_record *)self;
    moor_py_data *data = r->data;
    r->data = NULL; /* first: dropping the lease lets other threads run */
    Py_XDECREF((PyObject *)data);
    Py_RETURN_NONE;
}

static PyObject *record_enter(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return moor_py_record_data((moor_py_record *)self) ? Py_NewRef(self) : NULL;
}

static PyObject *record_exit(PyObject *self, PyObject *Py_UNUSED(args))
{
    return record_release(self, NULL);
}

static PyObject *record_repr(PyObject *self)
{
    moor_py_record *r = (moor_py_record *)self;
    return PyUnicode_FromFormat("<moor.Record %U: %llu rows of %u layers x %u, %s, %llu missing%s>", r->request_id,
                                (unsigned long long)r->rows.rows, r->rows.layers, r->rows.top_k, r->rows.dtype->name,
                                (unsigned long long)r->rows.missing_rows,
                                !r->data          ? ", released"
                                : r->data->record ? ""
                                                  : ", a copy");
}

/* ---- attributes ---------------------------------------------------------------------------------------------------- */

enum { U64 = 1, U32, OBJECT, LIST };
typedef struct field {
    int kind;
    size_t offset;
} field;
#define FIELD(name, kind, member, doc)                                                                                 \
    {                                                                                                                  \
        name, record_field, NULL, doc, (void *)&(const field)                                                          \
        {                                                                                                              \
            kind, offsetof(moor_py_record, member)                                                                     \
        }                                                                                                              \
    }

static PyObject *record_field(PyObject *self, void *closure)
{
    const field *f = closure;
    const char *at = (const char *)self + f->offset;
    if (f->kind == U64)
        return PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
    if (f->kind == U32)
        return PyLong_FromUnsignedLong(*(const uint32_t *)at);
    PyObject *object = *(PyObject *const *)at;
    if (f->kind == LIST) /* a list of the caller's own */
        return PyList_GetSlice(object, 0, PyList_Size(object));
    return Py_NewRef(object);
}

static PyObject *record_owner(PyObject *self, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(moor_py_owner_name(((moor_py_record *)self)->owner));
}

static PyObject *record_dtype(PyObject *self, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(((moor_py_record *)self)->rows.dtype->name);
}

static PyObject *record_complete(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((moor_py_record *)self)->rows.missing_rows == 0);
}

static PyObject *record_nbytes(PyObject *self, void *Py_UNUSED(closure))
{
    const moor_rows *rows = &((moor_py_record *)self)->rows;
    return PyLong_FromUnsignedLongLong(rows->rows * moor_rows_bytes(rows, false, rows->dtype));
}

static PyObject *record_released(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(!((moor_py_record *)self)->data);
}

/* Why rows are missing, as a list of names. */
static PyObject *record_reasons(PyObject *self, void *Py_UNUSED(closure))
{
    static const char *const names[] = {"arena_full",  "layer_missing", "prefix_unknown", "short",
                                        "step_failed", "validation",    "versions"};
    uint32_t bits = ((moor_py_record *)self)->reasons;
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < sizeof(names) / sizeof(names[0]); i++) {
        if (!(bits >> i & 1))
            continue;
        PyObject *name = PyUnicode_FromString(names[i]);
        if (!name || PyList_Append(list, name) < 0)
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *record_ref(PyObject *self, void *Py_UNUSED(closure))
{
    char ref[8192]; /* of 64 pipeline stages at most */
    moor_record *lease = moor_py_record_lease((moor_py_record *)self);
    if (!lease)
        return NULL;
    moor_status status = moor_py_api()->record_ref(lease, ref, sizeof(ref));
    return status ? moor_py_raise(status) : PyUnicode_FromString(ref);
}

static PyGetSetDef record_getset[] = {
    FIELD("request_id", OBJECT, request_id, "The engine core's id."),
    FIELD("session_id", OBJECT, session_id, "The session, \"\" when none."),
    FIELD("handle", U64, handle, "Handle in its store; 0 for a concatenation."),
    FIELD("rows", U64, rows.rows, "Tokens that went through the model."),
    FIELD("first_row", U64, first_row, "The request's row that is row 0 here; not 0 where a ref named a part of it."),
    FIELD("layers", U32, rows.layers, "MoE layers: columns of a row."),
    FIELD("model_layers", U32, rows.model_layers, "All layers of the model."),
    FIELD("top_k", U32, rows.top_k, "Experts a token and layer."),
    FIELD("num_experts", U32, rows.num_experts, "Experts of a layer."),
    FIELD("store_index", U32, store_index, "The store it came from."),
    FIELD("missing_rows", U64, rows.missing_rows, "How many rows are missing."),
    FIELD("dropped_rows", U64, dropped, "Recomputed rows that lost against the first accepted ones."),
    FIELD("layer_ids", OBJECT, layer_ids, "The model's layer number of each column."),
    FIELD("missing", LIST, missing, "Missing ranges, [(start, stop), ...]."),
    FIELD("versions", LIST, versions, "Weight epochs, [(first row, epoch), ...]."),
    FIELD("version_labels", LIST, labels, "The caller's label of each entry of versions, \"\" when none."),
    {"owner", record_owner, NULL, "\"none\", \"rollout\" or \"trace_store\".", NULL},
    {"dtype", record_dtype, NULL, "Stored dtype: \"uint8\" or \"uint16\".", NULL},
    {"complete", record_complete, NULL, "True when no row is missing.", NULL},
    {"nbytes", record_nbytes, NULL, "Bytes of all rows as stored.", NULL},
    {"released", record_released, NULL, "True after release().", NULL},
    {"reasons", record_reasons, NULL, "Why rows are missing: names.", NULL},
    {"ref", record_ref, NULL, "Short string that moor.resolve() opens on this host.", NULL},
    {"mask", moor_py_record_mask, NULL, "[rows] of bool: True where the row is present.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef record_methods[] = {
    MOOR_PY_METHOD(
        "segments", moor_py_record_segments, METH_NOARGS,
        "segments()\n--\n\nRead-only memoryviews [n, layers, top_k] of the present rows, in order, zero-copy."),
    MOOR_PY_METHOD(
        "array", moor_py_record_array, METH_VARARGS | METH_KEYWORDS,
        "array(start=0, stop=None, layers='moe', dtype=None, allow_missing=False)\n--\n\n"
        "Rows start...stop-1 as [rows, layers, top_k]: a numpy array when numpy can be imported, else a memoryview. "
        "Read-only and zero-copy when they lie in one piece and are asked for as stored; else a copy. "
        "layers='model' has a column for every layer of the model, 0 in dense ones. Missing rows raise "
        "moor.Incomplete; with allow_missing they read as 0 and mask tells. Not for torch.from_numpy(): a write "
        "through such a tensor is a SIGSEGV; see tensor()."),
    MOOR_PY_METHOD(
        "tensor", moor_py_record_tensor, METH_VARARGS | METH_KEYWORDS,
        "tensor(start=0, stop=None, layers='moe', dtype=None, allow_missing=False)\n--\n\n"
        "What array() has, as a torch tensor on the CPU. Always a copy, which is the caller's to write: torch has no "
        "read-only tensors, and the rows are mapped read-only."),
    MOOR_PY_METHOD(
        "copy_into", moor_py_record_copy_into, METH_VARARGS | METH_KEYWORDS,
        "copy_into(buffer, start=0, stop=None, layers='moe', dtype=None, allow_missing=False)\n--\n\n"
        "Copies rows into a writable C-contiguous buffer of exactly their size; returns how many. dtype None: the "
        "buffer's own (an array's), else as stored."),
    MOOR_PY_METHOD("release", record_release, METH_NOARGS,
                   "release()\n--\n\nLets go. The lease ends when the last view (segment, zero-copy array) is gone, "
                   "too. Twice is once."),
    MOOR_PY_METHOD("__enter__", record_enter, METH_NOARGS, NULL),
    MOOR_PY_METHOD("__exit__", record_exit, METH_VARARGS, NULL),
    MOOR_PY_METHOD("__reduce_ex__", moor_py_record_reduce, METH_O, NULL),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef record_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(moor_py_record, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef functions[] = {
    MOOR_PY_METHOD("_rebuild", moor_py_rebuild, METH_VARARGS, "Unpickles a Record."),
    MOOR_PY_METHOD(
        "concat", moor_py_concat, METH_VARARGS | METH_KEYWORDS,
        "concat(history, current)\n--\n\nThe rows of history, then those of current behind them, zero-copy. current "
        "covers its request from row 0; its first rows lose against history's (first accepted wins). It may be short "
        "of history by one row, by more raises moor.RangeError."),
    MOOR_PY_METHOD(
        "pad_rows", moor_py_pad_rows, METH_VARARGS | METH_KEYWORDS,
        "pad_rows(n, layers, top_k, num_experts, start=0, dtype=None)\n--\n\n[n, layers, top_k] ids for padding "
        "tokens: distinct "
        "within a token, and every expert of a layer used equally often, to within one. start: rows already padded."),
    {NULL, NULL, 0, NULL},
};

int moor_py_add_record(PyObject *module)
{
    static PyType_Slot data_slots[] = {{Py_tp_dealloc, data_dealloc}, {0, NULL}};
    static PyType_Spec data_spec = {"moor._moor.Data", sizeof(moor_py_data), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, data_slots};
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, record_dealloc},
        {Py_tp_repr, record_repr},
        {Py_tp_getset, record_getset},
        {Py_tp_methods, record_methods},
        {Py_tp_members, record_members},
        {Py_tp_doc, "The routed experts of one request. Made by Store.open()."},
        {0, NULL},
    };
    static PyType_Spec spec = {"moor.Record", sizeof(moor_py_record), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    if (moor_py_add_type(module, &data_type, &data_spec) < 0 || moor_py_add_type(module, &record_type, &spec) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
