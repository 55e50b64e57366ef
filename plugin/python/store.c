/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include "errors.h"
#include "record.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

static PyTypeObject *store_type;

static void store_dealloc(PyObject *self)
{
    moor_py_store *s = (moor_py_store *)self;
    if (s->weakrefs)
        PyObject_ClearWeakRefs(self);
    if (s->client) {
        Py_BEGIN_ALLOW_THREADS
        moor_py_api()->detach(s->client);
        Py_END_ALLOW_THREADS
    }
    free(s->dir);
    moor_py_free(self);
}

/* ---- open -------------------------------------------------------------------------------------------------------------- */

typedef struct opening {
    moor_client *client;
    const char *id;
    uint32_t id_len;
    moor_record *record;   /* open */
    moor_record **records; /* open_all */
    uint32_t n;
} opening;

static int set_id(PyObject *id, opening *out)
{
    Py_ssize_t len;
    if (!PyUnicode_Check(id)) {
        PyErr_Format(PyExc_TypeError, "a request id is a str, not %R", Py_TYPE(id));
        return -1;
    }
    out->id = PyUnicode_AsUTF8AndSize(id, &len);
    if (!out->id)
        return -1;
    if (len == 0 || len > INT32_MAX) {
        moor_py_raise_text(MOOR_E_INVALID, "request id of %zd bytes", len);
        return -1;
    }
    out->id_len = (uint32_t)len;
    return 0;
}

/* Records of an array that open_all gave, appended to list. Takes all of them, also when it fails. */
static int append_records(moor_record **records, uint32_t n, PyObject *store, PyObject *list)
{
    int result = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (result < 0) {
            moor_py_api()->record_release(records[i]);
            continue;
        }
        PyObject *r = moor_py_record_opened(records[i], store);
        result = r ? PyList_Append(list, r) : -1;
        Py_XDECREF(r);
    }
    moor_py_api()->records_free(records, n);
    return result;
}

/* The full ids that an ambiguous id means, in index order; those that are sealed already when some are not. */
static PyObject *full_ids(const opening *asked)
{
    opening o = *asked;
    moor_status status;
    Py_BEGIN_ALLOW_THREADS
    status = moor_py_api()->open_all(o.client, o.id, o.id_len, 0, &o.records, &o.n);
    Py_END_ALLOW_THREADS
    PyObject *list = PyList_New(0);
    if (status)
        return list;
    for (uint32_t i = 0; i < o.n; i++) { /* released also when there is no list */
        moor_record_info info = MOOR_RECORD_INFO_INIT;
        if (list && moor_py_api()->record_info(o.records[i], &info) == MOOR_OK) {
            PyObject *id = PyUnicode_DecodeUTF8(info.request_id, (Py_ssize_t)strlen(info.request_id), "replace");
            if (!id || PyList_Append(list, id) < 0)
                Py_CLEAR(list);
            Py_XDECREF(id);
        }
        moor_py_api()->record_release(o.records[i]);
    }
    moor_py_api()->records_free(o.records, o.n);
    return list;
}

static PyObject *open_failed(moor_status status, const opening *asked)
{
    moor_py_raise(status);
    if (status != MOOR_E_AMBIGUOUS)
        return NULL;
    PyObject *type, *exc, *trace;
    PyErr_Fetch(&type, &exc, &trace);
    PyObject *ids = full_ids(asked);
    if (!ids)
        PyErr_Clear();
    PyErr_Restore(type, exc, trace);
    moor_py_raised_with("ids", ids);
    return NULL;
}

static PyObject *store_open(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"request_id", "timeout", NULL};
    PyObject *id;
    double timeout = 0;
    opening o = {.client = ((moor_py_store *)self)->client};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|d:open", names, &id, &timeout) || set_id(id, &o) < 0 ||
        moor_py_timeout(timeout) < 0)
        return NULL;
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->open(o.client, o.id, o.id_len, timeout, 0, 0, &o.record);
    MOOR_PY_WAIT_END
    return status ? open_failed(status, &o) : moor_py_record_opened(o.record, self);
}

/* All records of one id, appended to list. */
static int open_all_of(PyObject *self, PyObject *id, double deadline, PyObject *list)
{
    opening o = {.client = ((moor_py_store *)self)->client};
    moor_status status;
    if (set_id(id, &o) < 0)
        return -1;
    MOOR_PY_WAIT_BEGIN
    double left = deadline - moor_py_now();
    status = moor_py_api()->open_all(o.client, o.id, o.id_len, left > 0 ? left : 0, &o.records, &o.n);
    MOOR_PY_WAIT_END
    if (status) {
        open_failed(status, &o);
        return -1;
    }
    return append_records(o.records, o.n, self, list);
}

static PyObject *store_open_many(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"request_ids", "timeout", NULL};
    PyObject *ids;
    double timeout = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|d:open_many", names, &ids, &timeout) ||
        moor_py_timeout(timeout) < 0)
        return NULL;
    double deadline = moor_py_now() + timeout; /* one for all */
    PyObject *list = PyList_New(0);
    if (list && PyUnicode_Check(ids)) {
        if (open_all_of(self, ids, deadline, list) < 0)
            Py_CLEAR(list);
        return list;
    }
    PyObject *iterator = list ? PyObject_GetIter(ids) : NULL, *id;
    if (!iterator)
        Py_CLEAR(list);
    while (list && (id = PyIter_Next(iterator))) {
        if (open_all_of(self, id, deadline, list) < 0)
            Py_CLEAR(list);
        Py_DECREF(id);
    }
    Py_XDECREF(iterator);
    if (PyErr_Occurred())
        Py_CLEAR(list);
    return list;
}

/* The waiting is done in Python, where coroutines are made. */
static PyObject *store_open_async(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"request_id", "timeout", NULL};
    PyObject *id;
    double timeout = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|d:open_async", names, &id, &timeout) ||
        moor_py_timeout(timeout) < 0)
        return NULL;
    PyObject *module = PyImport_ImportModule("moor._async");
    PyObject *result = module ? PyObject_CallMethod(module, "open_async", "OOd", self, id, timeout) : NULL;
    Py_XDECREF(module);
    return result;
}

/* ---- ownership --------------------------------------------------------------------------------------------------------- */

static PyObject *store_claim(PyObject *Py_UNUSED(self), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"record", "owner", NULL};
    PyObject *object, *owner_arg;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:claim", names, &object, &owner_arg))
        return NULL;
    int owner = moor_py_owner(owner_arg);
    moor_py_record *r = owner < 0 ? NULL : moor_py_record_check(object);
    moor_record *lease = r ? moor_py_record_lease(r) : NULL;
    if (!lease)
        return NULL;
    moor_py_data *data = r->data;
    Py_INCREF((PyObject *)data); /* another thread may release the record meanwhile */
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->record_claim(lease, (uint32_t)owner);
    MOOR_PY_WAIT_END
    if (!status)
        r->owner = (uint32_t)owner;
    Py_DECREF((PyObject *)data);
    if (status)
        return moor_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *record_event(PyObject *object, uint32_t event)
{
    moor_py_record *r = moor_py_record_check(object);
    moor_record *lease = r ? moor_py_record_lease(r) : NULL;
    if (!lease)
        return NULL;
    moor_py_data *data = r->data;
    Py_INCREF((PyObject *)data);
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->record_event(lease, event);
    MOOR_PY_WAIT_END
    Py_DECREF((PyObject *)data);
    if (status)
        return moor_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *store_reset(PyObject *Py_UNUSED(self), PyObject *record)
{
    return record_event(record, MOOR_EVENT_RESET);
}

static PyObject *store_discard(PyObject *Py_UNUSED(self), PyObject *record)
{
    return record_event(record, MOOR_EVENT_DISCARD);
}

static PyObject *store_truncate(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"request_id", "rows", "min_rows", NULL};
    PyObject *id;
    long long rows, min_rows = 0;
    opening o = {.client = ((moor_py_store *)self)->client};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OL|L:truncate", names, &id, &rows, &min_rows) || set_id(id, &o) < 0)
        return NULL;
    if (rows < 0 || min_rows < 0)
        return moor_py_raise_text(MOOR_E_INVALID, "truncate(%R, rows=%lld, min_rows=%lld)", id, rows, min_rows);
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->client_truncate_within(o.client, o.id, o.id_len, (uint64_t)rows, (uint64_t)min_rows);
    MOOR_PY_WAIT_END
    if (status)
        return moor_py_raise(status);
    Py_RETURN_NONE;
}

/* ---- snapshot ---------------------------------------------------------------------------------------------------------- */

/* The server's working directory is not ours: the path goes there as an absolute one. */
static PyObject *absolute_path(PyObject *path)
{
    PyObject *module = PyImport_ImportModule("os.path");
    PyObject *name = module ? PyObject_CallMethod(module, "abspath", "O", path) : NULL;
    Py_XDECREF(module);
    PyObject *bytes = NULL;
    if (name && !PyUnicode_FSConverter(name, &bytes))
        bytes = NULL;
    Py_XDECREF(name);
    return bytes;
}

static PyObject *store_snapshot(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"directory", "timeout", NULL};
    PyObject *path;
    double timeout = 60.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|d:snapshot", names, &path, &timeout) ||
        moor_py_timeout(timeout) < 0)
        return NULL;
    PyObject *bytes = absolute_path(path);
    const char *dir = bytes ? PyBytes_AsString(bytes) : NULL;
    moor_status status = MOOR_OK;
    if (dir) {
        MOOR_PY_WAIT_BEGIN
        status = moor_py_api()->client_save(((moor_py_store *)self)->client, dir, timeout);
        MOOR_PY_WAIT_END
    }
    Py_XDECREF(bytes);
    if (!dir)
        return NULL;
    if (status)
        return moor_py_raise(status);
    Py_RETURN_NONE;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------------- */

static PyObject *store_stats(PyObject *self, PyObject *Py_UNUSED(unused))
{
    char *text = NULL;
    size_t len = 0;
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->client_stats(((moor_py_store *)self)->client, &text, &len);
    MOOR_PY_WAIT_END
    if (status)
        return moor_py_raise(status);
    PyObject *json = PyImport_ImportModule("json");
    PyObject *result = json ? PyObject_CallMethod(json, "loads", "s#", text, (Py_ssize_t)len) : NULL;
    Py_XDECREF(json);
    moor_py_api()->text_free(text);
    return result;
}

static PyObject *store_instance(PyObject *self, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(moor_py_api()->client_instance(((moor_py_store *)self)->client));
}

static PyObject *store_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<moor.Store of instance %s>",
                                moor_py_api()->client_instance(((moor_py_store *)self)->client));
}

/* ---- functions --------------------------------------------------------------------------------------------------------- */

static PyObject *attach(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"instance", "timeout", "dir", NULL};
    const char *instance = NULL, *dir = NULL;
    moor_client *client = NULL;
    double timeout = 5.0;
    moor_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zdz:attach", names, &instance, &timeout, &dir) ||
        moor_py_timeout(timeout) < 0)
        return NULL;
    moor_py_store *s = moor_py_new(store_type);
    if (!s)
        return NULL;
    if (dir && !(s->dir = strdup(dir))) {
        Py_DECREF((PyObject *)s);
        return PyErr_NoMemory();
    }
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->attach(instance, dir, timeout, &client);
    MOOR_PY_WAIT_END
    if (!status) {
        s->client = client;
        return (PyObject *)s;
    }
    moor_py_raise(status);
    Py_DECREF((PyObject *)s);
    return NULL;
}

static PyObject *resolve(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"ref", "timeout", NULL};
    const char *ref;
    moor_record *record = NULL;
    Py_ssize_t len;
    double timeout = 5.0;
    moor_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s#|d:resolve", names, &ref, &len, &timeout) ||
        moor_py_timeout(timeout) < 0)
        return NULL;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->resolve(ref, (size_t)len, timeout, &record);
    MOOR_PY_WAIT_END
    return status ? moor_py_raise(status) : moor_py_record_opened(record, NULL);
}

static PyObject *status_text(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"instance", "dir", "format", NULL};
    const char *instance = NULL, *dir = NULL, *format = "human";
    char *text = NULL;
    size_t len = 0;
    moor_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zzs:status_text", names, &instance, &dir, &format))
        return NULL;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->status_text(instance, dir, format, &text, &len);
    MOOR_PY_WAIT_END
    if (status)
        return moor_py_raise(status);
    PyObject *result = PyUnicode_DecodeUTF8(text, (Py_ssize_t)len, "replace");
    moor_py_api()->text_free(text);
    return result;
}

static PyMethodDef store_methods[] = {
    MOOR_PY_METHOD("open", store_open, METH_VARARGS | METH_KEYWORDS,
                   "open(request_id, timeout=0.0)\n--\n\nThe record that the id means (the engine core's, the external "
                   "or the HTTP id), leased. "
                   "Waits up to timeout for it to be known and sealed. Raises NotFound, Ambiguous, Timeout."),
    MOOR_PY_METHOD("open_many", store_open_many, METH_VARARGS | METH_KEYWORDS,
                   "open_many(request_ids, timeout=0.0)\n--\n\nAll records of one id, or of each of several, in order; "
                   "an HTTP id of n > 1 gives n. "
                   "One deadline for all; all or none."),
    MOOR_PY_METHOD("open_async", store_open_async, METH_VARARGS | METH_KEYWORDS,
                   "open_async(request_id, timeout=0.0)\n--\n\nawait it: open() that never blocks the event loop."),
    MOOR_PY_METHOD(
        "claim", store_claim, METH_VARARGS | METH_KEYWORDS,
        "claim(record, owner)\n--\n\nMakes owner (\"rollout\", \"trace_store\", \"none\") the record's owner."),
    MOOR_PY_METHOD("reset", store_reset, METH_O,
                   "reset(record, /)\n--\n\nThe request is retried: frees the record unless a session owns it."),
    MOOR_PY_METHOD(
        "discard", store_discard, METH_O,
        "discard(record, /)\n--\n\nThe request is given up: frees the record, a session's with its session."),
    MOOR_PY_METHOD(
        "truncate", store_truncate, METH_VARARGS | METH_KEYWORDS,
        "truncate(request_id, rows, min_rows=0)\n--\n\nCuts the record to its first rows, and the tokens that its "
        "session has of it. Records already open keep theirs. Fewer than min_rows: RangeError, and nothing changed."),
    MOOR_PY_METHOD("session", moor_py_store_session, METH_VARARGS | METH_KEYWORDS,
                   "session(session_id, create=False, keep=False)\n--\n\nThe session of this id, a trace trie. create: "
                   "starts it, also one that was released. Otherwise its first insert() does; reading never. It ends "
                   "with release(), with this process' connection unless keep, or with the with block."),
    MOOR_PY_METHOD(
        "snapshot", store_snapshot, METH_VARARGS | METH_KEYWORDS,
        "snapshot(directory, timeout=60.0)\n--\n\nEvery store writes its sealed records to "
        "directory/store-<n>.moor (a directory of the server's host); record.restore loads them. Raises "
        "StateError while a request is not sealed; an earlier snapshot stays until the new one is complete."),
    MOOR_PY_METHOD("hold", moor_py_store_hold, METH_VARARGS | METH_KEYWORDS,
                   "hold(device, label, nbytes=0)\n--\n\nSays that this process holds memory on device (a GPU's UUID, "
                   "or \"cpu:0\"): engines on it "
                   "resume their KV cache only after release(), the end of the with block, or of this process."),
    MOOR_PY_METHOD("barrier", moor_py_store_barrier, METH_VARARGS | METH_KEYWORDS,
                   "barrier(name, size)\n--\n\nA named meeting of size ranks; see Barrier.arrive()."),
    MOOR_PY_METHOD("stats", store_stats, METH_NOARGS, "stats()\n--\n\nCounters and sizes of the instance, as a dict."),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef store_getset[] = {
    {"instance", store_instance, NULL, "Name of the instance.", NULL},
    {"gate", moor_py_store_gate, NULL, "The request gate.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef store_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(moor_py_store, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef functions[] = {
    MOOR_PY_METHOD("attach", attach, METH_VARARGS | METH_KEYWORDS,
                   "attach(instance=None, timeout=5.0, dir=None)\n--\n\nThe Store of a server on this host. instance "
                   "None: $MOOR_INSTANCE, "
                   "else \"default\". Waits up to timeout for the server to be there."),
    MOOR_PY_METHOD("resolve", resolve, METH_VARARGS | METH_KEYWORDS,
                   "resolve(ref, timeout=5.0)\n--\n\nOpens the record that a string from an engine's response "
                   "(deliver: ref) names, on this host."),
    MOOR_PY_METHOD("status_text", status_text, METH_VARARGS | METH_KEYWORDS,
                   "status_text(instance=None, dir=None, format='human')\n--\n\nWhat `moor status` prints: \"human\", "
                   "\"json\" or \"prometheus\"."),
    {NULL, NULL, 0, NULL},
};

int moor_py_add_store(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, store_dealloc},
        {Py_tp_repr, store_repr},
        {Py_tp_methods, store_methods},
        {Py_tp_getset, store_getset},
        {Py_tp_members, store_members},
        {Py_tp_doc, "The record store of one server. Made by moor.attach()."},
        {0, NULL},
    };
    static PyType_Spec spec = {"moor.Store", sizeof(moor_py_store), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    return moor_py_add_type(module, &store_type, &spec) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
