/* SPDX-License-Identifier: Apache-2.0 */
#include "deliver.h"

#include <string.h>

/* Waiting holds the engine's event loop up. A step commits its rows before its response is on the way, so only what is lost is waited
 * for in vain; then nothing is, until a record is there again. */
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
    if (status == MOOR_E_CLOSED) { /* the store's process was restarted: attach anew next time */
        rt->api->detach(client);
        rt->client = NULL;
    }
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
    char text[8192]; /* of 64 pipeline stages at most */
    char part[sizeof(text)];
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
