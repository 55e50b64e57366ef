/* SPDX-License-Identifier: Apache-2.0 */
#include "deliver.h"

#include <string.h>

/* A step commits its rows before its response is on the way, so only what is lost is waited for in vain; then nothing is, until a record
 * is there again. */
static int waits = 1;

int moor_deliver_wanted(int asked)
{
    const moor_runtime *rt = moor_runtime_get();
    return moor_runtime_records() && rt->config.deliver != MOOR_DELIVER_NONE && (asked || rt->config.deliver_always);
}

PyObject *moor_deliver_field(const moor_delivery *d)
{
    return moor_runtime_get()->config.deliver == MOOR_DELIVER_REF ? moor_deliver_ref(d) : moor_deliver_array(d);
}

/* Private: a helper process that the engine forks at this moment must not keep the lease for its whole life. */
static moor_record *open_record(const moor_delivery *d)
{
    moor_runtime *rt = moor_runtime_get();
    moor_client *client = moor_runtime_client();
    if (!client)
        return NULL;
    moor_record *record = NULL;
    moor_status status;
    Py_BEGIN_ALLOW_THREADS
    status = rt->api->open(client, d->id, (uint32_t)d->id_len, waits ? d->timeout : 0,
                           MOOR_OPEN_PREFIX | MOOR_OPEN_PRIVATE, d->rows, &record);
    Py_END_ALLOW_THREADS
    waits = status != MOOR_E_TIMEOUT && status != MOOR_E_NOT_FOUND;
    if (status) {
        moor_runtime_raise(status, "delivery");
        return NULL;
    }
    return record;
}

static PyObject *empty_array(uint64_t rows, const moor_record_info *info, uint32_t dtype)
{
    static const char *const names[] = {NULL, "uint8", "uint16", "int16", "int32", "int64"};
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (!numpy)
        return NULL;
    PyObject *array = PyObject_CallMethod(numpy, "empty", "((KII)s)", (unsigned long long)rows,
                                          (unsigned)info->model_layers, (unsigned)info->top_k, names[dtype]);
    Py_DECREF(numpy);
    return array;
}

PyObject *moor_deliver_array(const moor_delivery *d)
{
    moor_runtime *rt = moor_runtime_get();
    moor_record *record = open_record(d);
    if (!record)
        return NULL;
    moor_record_info info = MOOR_RECORD_INFO_INIT;
    PyObject *array = NULL;
    Py_buffer view;
    moor_status status = rt->api->record_info(record, &info);
    if (status) {
        moor_runtime_raise(status, "delivery");
        goto out;
    }
    uint64_t start = d->start < d->rows ? d->start : d->rows;
    uint32_t dtype = d->dtype ? d->dtype : info.dtype;
    array = empty_array(d->rows - start, &info, dtype);
    if (!array || PyObject_GetBuffer(array, &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)) {
        Py_CLEAR(array);
        goto out;
    }
    Py_BEGIN_ALLOW_THREADS
    status = rt->api->record_copy(record, start, d->rows, 1, dtype, view.buf, (size_t)view.len, NULL);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    if (status) {
        moor_runtime_raise(status, "delivery");
        Py_CLEAR(array);
    }
out:
    Py_BEGIN_ALLOW_THREADS
    rt->api->record_release(record);
    Py_END_ALLOW_THREADS
    return array;
}

PyObject *moor_deliver_ref(const moor_delivery *d)
{
    moor_runtime *rt = moor_runtime_get();
    moor_record *record = open_record(d);
    if (!record)
        return NULL;
    char text[MOOR_REF_BYTES], part[MOOR_REF_BYTES];
    moor_status status = rt->api->record_ref(record, text, sizeof(text));
    if (!status) /* it has d->rows rows */
        status = rt->api->ref_part(text, strlen(text), d->start < d->rows ? d->start : d->rows, 0, part, sizeof(part));
    Py_BEGIN_ALLOW_THREADS
    rt->api->record_release(record);
    Py_END_ALLOW_THREADS
    if (status)
        return moor_runtime_raise(status, "delivery by reference");
    return PyUnicode_FromString(part);
}

/* ---- off the event loop ----------------------------------------------------------------------------------------------- */

enum { NOTE_FIELDS = 7 }; /* of a note: the tuple (mark, id, start, rows, timeout, dtype, encode) */

static PyObject *mark(void)
{
    static PyObject *object; /* nobody else has it in a tuple */
    if (!object)
        object = PyObject_CallFunction((PyObject *)&PyBaseObject_Type, NULL);
    return object;
}

PyObject *moor_deliver_later(const moor_delivery *d, int encode)
{
    PyObject *first = mark();
    return first ? Py_BuildValue("(Os#KKdIi)", first, d->id, d->id_len, (unsigned long long)d->start,
                                 (unsigned long long)d->rows, d->timeout, d->dtype, encode)
                 : NULL;
}

static int is_note(PyObject *field)
{
    return field && PyTuple_Check(field) && PyTuple_Size(field) == NOTE_FIELDS && PyTuple_GetItem(field, 0) == mark();
}

static PyObject *encoded(PyObject *array)
{
    PyObject *base64 = array ? PyImport_ImportModule("base64") : NULL;
    PyObject *bytes = base64 ? PyObject_CallMethod(base64, "b64encode", "O", array) : NULL;
    PyObject *text = bytes ? PyObject_CallMethod(bytes, "decode", "s", "ascii") : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(base64);
    Py_XDECREF(array);
    return text;
}

/* In a thread. An error is returned, not raised: who awaits is the engine, whose response goes out without the field. */
static PyObject *deliver_note(PyObject *Py_UNUSED(self), PyObject *note)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *first, *field = NULL, *type, *value, *trace;
    unsigned long long start, rows;
    unsigned dtype;
    int encode;
    moor_delivery d = {.id = NULL};
    if (PyArg_ParseTuple(note, "Os#KKdIi", &first, &d.id, &d.id_len, &start, &rows, &d.timeout, &dtype, &encode)) {
        d.start = start;
        d.rows = rows;
        d.dtype = dtype;
        field = moor_deliver_field(&d);
        if (encode && field && !PyUnicode_Check(field))
            field = encoded(field);
    }
    if (rt->process)
        rt->api->count(rt->process, field ? "moor_delivered_total" : "moor_deliver_errors_total", 1);
    if (field)
        return field;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value ? value : Py_NewRef(Py_None);
}

static int await_note(moor_jp_call *call, PyObject *note)
{
    static PyMethodDef method = {"deliver", deliver_note, METH_O, NULL};
    static PyObject *function;
    if (!function)
        function = PyCFunction_New(&method, NULL);
    PyObject *module = function ? PyImport_ImportModule("moor._delivery") : NULL;
    PyObject *awaitable = module ? PyObject_CallMethod(module, "later", "OO", function, note) : NULL;
    Py_XDECREF(module);
    return moor_jp_set_awaitable(call, awaitable) ? MOOR_JP_FAILED : MOOR_JP_AWAIT;
}

static int set_field(PyObject *has_field, PyObject *field)
{
    return PyDict_Check(has_field) ? PyDict_SetItemString(has_field, "routed_experts", field)
                                   : PyObject_SetAttrString(has_field, "routed_experts", field);
}

/* Nothing of ours stays in the response. The error that is set stays. */
static int give_up(PyObject *has_field)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (PyDict_Check(has_field) ? PyDict_DelItemString(has_field, "routed_experts") : set_field(has_field, Py_None))
        PyErr_Clear();
    PyErr_Restore(type, value, trace);
    return MOOR_JP_FAILED;
}

/* One object's note, if it has one. */
static int settle_one(moor_jp_call *call, PyObject *has_field, int *used)
{
    PyObject *field = PyDict_Check(has_field) ? Py_XNewRef(PyDict_GetItemString(has_field, "routed_experts"))
                                              : PyObject_GetAttrString(has_field, "routed_experts");
    int result = MOOR_JP_OK;
    if (!field)
        PyErr_Clear();
    if (is_note(field)) {
        PyObject *awaited = *used ? NULL : call->awaited;
        if (!awaited)
            result = await_note(call, field);
        else if (PyErr_GivenExceptionMatches(awaited, PyExc_BaseException))
            PyErr_SetObject((PyObject *)Py_TYPE(awaited), awaited), result = MOOR_JP_FAILED;
        else if (set_field(has_field, awaited))
            result = MOOR_JP_FAILED;
        *used = 1;
        if (result == MOOR_JP_FAILED)
            give_up(has_field);
    }
    Py_XDECREF(field);
    return result;
}

int moor_deliver_settle(moor_jp_call *call, PyObject *one_or_list)
{
    PyObject *type = NULL, *value = NULL, *trace = NULL; /* the last failure */
    int used = call->rounds == 0, result = MOOR_JP_OK, is_list = one_or_list && PyList_Check(one_or_list);
    Py_ssize_t n = !one_or_list ? 0 : is_list ? PyList_Size(one_or_list) : 1;
    for (Py_ssize_t i = 0; i < n && result != MOOR_JP_AWAIT; i++) {
        int settled = settle_one(call, is_list ? PyList_GetItem(one_or_list, i) : one_or_list, &used);
        if (settled == MOOR_JP_FAILED) {
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(trace);
            PyErr_Fetch(&type, &value, &trace);
        }
        result = settled == MOOR_JP_OK ? result : settled;
    }
    if (result == MOOR_JP_FAILED) {
        PyErr_Restore(type, value, trace);
    } else {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    }
    return result;
}
