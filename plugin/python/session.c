/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moor.Session: Store.session(id), a trace trie in the store. Names an id only and keeps its Store alive: nothing is asked
 * or made before a method is called. Calls run without the GIL.
 */
#include "store.h"

#include "errors.h"
#include "record.h"

#include <stdlib.h>
#include <string.h>

typedef struct session {
    PyObject_HEAD
    moor_py_store *store;
    PyObject *id; /* str */
} session;

static PyTypeObject *session_type, *segment_type, *trace_type;

static void session_dealloc(PyObject *self)
{
    Py_XDECREF((PyObject *)((session *)self)->store);
    Py_XDECREF(((session *)self)->id);
    moor_py_free(self);
}

static moor_client *client_of(PyObject *self)
{
    return ((session *)self)->store->client;
}

/* ---- arguments ------------------------------------------------------------------------------------------------------- */

/* A str as UTF-8, which lives as long as the object. -1: error. */
static int text_of(PyObject *object, const char *what, const char **text, uint32_t *length)
{
    Py_ssize_t n;
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s is a str, not %R", what, Py_TYPE(object));
        return -1;
    }
    *text = PyUnicode_AsUTF8AndSize(object, &n);
    if (!*text)
        return -1;
    if (n > INT32_MAX) {
        moor_py_raise_text(MOOR_E_INVALID, "%s of %zd bytes", what, n);
        return -1;
    }
    *length = (uint32_t)n;
    return 0;
}

static int id_of(PyObject *self, const char **id, uint32_t *length)
{
    return text_of(((session *)self)->id, "a session's id", id, length);
}

/* None → the default; else an int that is no less than 0. -1: error. */
static int number_of(PyObject *object, const char *what, uint64_t *out)
{
    if (!object || object == Py_None)
        return 0;
    PyObject *index = PyNumber_Index(object);
    if (!index)
        return -1;
    long long value = PyLong_AsLongLong(index);
    Py_DECREF(index);
    if (value == -1 && PyErr_Occurred())
        return -1;
    if (value < 0) {
        moor_py_raise_text(MOOR_E_INVALID, "%s=%lld", what, value);
        return -1;
    }
    *out = (uint64_t)value;
    return 0;
}

static int token_of(long long value, int32_t *out)
{
    if (value < INT32_MIN || value > INT32_MAX) {
        moor_py_raise_text(MOOR_E_RANGE, "token %lld does not fit 32 bits", value);
        return -1;
    }
    *out = (int32_t)value;
    return 0;
}

/* Tokens of a one-dimensional buffer of int32 or int64 (numpy, array, a memoryview). 0, or -1 with an error; 1: it is none. */
static int tokens_of_buffer(PyObject *object, int32_t **out, uint64_t *n)
{
    Py_buffer b;
    if (PyObject_GetBuffer(object, &b, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) {
        PyErr_Clear(); /* not contiguous, say: its elements are read one by one */
        return 1;
    }
    const char *format = b.format ? b.format : "B";
    int result = 1;
    if (b.ndim == 1 && (b.itemsize == 4 || b.itemsize == 8) && strchr("ilq", format[0]) && !format[1]) {
        *n = (uint64_t)(b.len / b.itemsize);
        *out = malloc((size_t)*n * sizeof(int32_t) + 1);
        result = *out ? 0 : -1;
        if (!*out)
            PyErr_NoMemory();
        for (uint64_t i = 0; result == 0 && i < *n; i++) {
            int32_t narrow;
            int64_t wide;
            if (b.itemsize == 4) {
                memcpy(&narrow, (const char *)b.buf + i * 4, 4);
                wide = narrow;
            } else {
                memcpy(&wide, (const char *)b.buf + i * 8, 8);
            }
            result = token_of(wide, *out + i);
        }
    }
    PyBuffer_Release(&b);
    return result;
}

static int tokens_of_sequence(PyObject *object, int32_t **out, uint64_t *n)
{
    PyObject *list = PySequence_List(object);
    if (!list)
        return -1;
    int result = 0;
    *n = (uint64_t)PyList_Size(list);
    *out = malloc((size_t)*n * sizeof(int32_t) + 1);
    if (!*out) {
        PyErr_NoMemory();
        result = -1;
    }
    for (uint64_t i = 0; result == 0 && i < *n; i++) {
        PyObject *index = PyNumber_Index(PyList_GetItem(list, (Py_ssize_t)i));
        long long value = index ? PyLong_AsLongLong(index) : -1;
        Py_XDECREF(index);
        result = value == -1 && PyErr_Occurred() ? -1 : token_of(value, *out + i);
    }
    Py_DECREF(list);
    return result;
}

/* None: *out NULL. Otherwise malloc'ed. -1: error, nothing to free. */
static int tokens_of(PyObject *object, int32_t **out, uint64_t *n)
{
    *out = NULL;
    *n = 0;
    if (!object || object == Py_None)
        return 0;
    int result = PyObject_CheckBuffer(object) ? tokens_of_buffer(object, out, n) : 1;
    if (result == 1)
        result = tokens_of_sequence(object, out, n);
    if (result < 0) {
        free(*out);
        *out = NULL;
    }
    return result;
}

/* ---- results --------------------------------------------------------------------------------------------------------- */

/* A read-only memoryview of int32. */
static PyObject *token_view(const int32_t *tokens, uint64_t n)
{
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)tokens, (Py_ssize_t)(n * sizeof(int32_t)));
    PyObject *view = bytes ? PyMemoryView_FromObject(bytes) : NULL;
    PyObject *cast = view ? PyObject_CallMethod(view, "cast", "s", "i") : NULL;
    Py_XDECREF(view);
    Py_XDECREF(bytes);
    return cast;
}

/* Steals the items; NULL if one is. */
static PyObject *struct_of(PyTypeObject *type, PyObject **items, Py_ssize_t n)
{
    PyObject *result = PyStructSequence_New(type);
    int good = result != NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        good &= items[i] != NULL;
        if (result && items[i])
            PyStructSequence_SetItem(result, i, items[i]);
        else
            Py_XDECREF(items[i]);
    }
    if (!good)
        Py_CLEAR(result);
    return result;
}

static PyObject *key_of(const char *text, uint32_t length)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "strict");
}

static PyObject *none(void)
{
    return Py_NewRef(Py_None);
}

/* ---- methods --------------------------------------------------------------------------------------------------------- */

static PyObject *session_insert(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "record", "tokens", "start", "length", NULL};
    PyObject *key_arg, *record = Py_None, *tokens_arg = NULL, *start = NULL, *length = NULL;
    moor_segment_args segment = MOOR_SEGMENT_ARGS_INIT;
    const char *id, *key;
    uint32_t id_len, key_len;
    int32_t *tokens;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOOO:insert", names, &key_arg, &record, &tokens_arg, &start,
                                     &length) ||
        id_of(self, &id, &id_len) < 0 || text_of(key_arg, "a key", &key, &key_len) < 0 ||
        number_of(start, "start", &segment.start) < 0 || number_of(length, "length", &segment.length) < 0)
        return NULL;
    moor_py_record *r = record == Py_None ? NULL : moor_py_record_check(record);
    segment.record = r ? moor_py_record_lease(r) : NULL;
    if (record != Py_None && !segment.record)
        return NULL;
    PyObject *data = r ? Py_NewRef((PyObject *)r->data) : NULL; /* another thread, or a token's code, may release it */
    if (tokens_of(tokens_arg, &tokens, &segment.n_tokens) < 0) {
        Py_XDECREF(data);
        return NULL;
    }
    segment.tokens = tokens;
    moor_client *client = client_of(self);
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->session_insert(client, id, id_len, key, key_len, &segment);
    MOOR_PY_WAIT_END
    free(tokens);
    Py_XDECREF(data);
    if (status)
        return moor_py_raise(status);
    if (r) {
        PyObject *before = r->session_id;
        r->owner = MOOR_OWNER_TRACE_STORE;
        r->session_id = Py_NewRef(((session *)self)->id);
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}

static PyObject *session_search(PyObject *self, PyObject *text_arg)
{
    const char *id, *text;
    uint32_t id_len, text_len;
    moor_found_key *found;
    if (id_of(self, &id, &id_len) < 0 || text_of(text_arg, "a text", &text, &text_len) < 0)
        return NULL;
    moor_client *client = client_of(self);
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->session_search(client, id, id_len, text, text_len, &found);
    MOOR_PY_WAIT_END
    if (status)
        return moor_py_raise(status);
    if (!found)
        Py_RETURN_NONE;
    PyObject *items[] = {
        key_of(text, found->key_len),
        PyLong_FromUnsignedLongLong(found->start),
        PyLong_FromUnsignedLongLong(found->length),
        found->has_tokens ? token_view(found->tokens, found->n_tokens) : none(),
        PyUnicode_DecodeUTF8(found->request_id, (Py_ssize_t)strlen(found->request_id), "replace"),
        PyLong_FromUnsignedLongLong(found->handle),
    };
    moor_py_api()->session_free(found);
    return struct_of(segment_type, items, 6);
}

/* The keys' text, put together from what each shares with the one before. */
static PyObject *list_of_keys(const moor_key_list *keys)
{
    uint64_t longest = 0, at = 0;
    for (uint64_t i = 0; i < keys->n; i++) {
        uint32_t head[2];
        memcpy(head, keys->data + at, sizeof(head));
        at += sizeof(head) + head[1];
        longest = (uint64_t)head[0] + head[1] > longest ? (uint64_t)head[0] + head[1] : longest;
    }
    PyObject *list = PyList_New(0);
    char *key = malloc((size_t)longest + 1);
    if (list && !key) {
        PyErr_NoMemory();
        Py_CLEAR(list);
    }
    at = 0;
    for (uint64_t i = 0; list && i < keys->n; i++) {
        uint32_t head[2];
        memcpy(head, keys->data + at, sizeof(head));
        memcpy(key + head[0], keys->data + at + sizeof(head), head[1]);
        at += sizeof(head) + head[1];
        PyObject *text = key_of(key, head[0] + head[1]);
        if (!text || PyList_Append(list, text) < 0)
            Py_CLEAR(list);
        Py_XDECREF(text);
    }
    free(key);
    return list;
}

static PyObject *session_keys(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const char *id;
    uint32_t id_len;
    moor_key_list *keys;
    if (id_of(self, &id, &id_len) < 0)
        return NULL;
    moor_client *client = client_of(self);
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->session_keys(client, id, id_len, &keys);
    MOOR_PY_WAIT_END
    if (status)
        return moor_py_raise(status);
    PyObject *list = list_of_keys(keys);
    moor_py_api()->session_free(keys);
    return list;
}

/* One Record of all parts, which it takes, also when it fails. */
static PyObject *record_of_parts(const moor_exported *trace, PyObject *store)
{
    moor_py_part *parts = calloc(trace->n_parts + 1u, sizeof(*parts));
    uint32_t made = 0;
    int good = parts != NULL;
    if (!parts)
        PyErr_NoMemory();
    for (uint32_t i = 0; i < trace->n_parts; i++) {
        PyObject *record = good ? moor_py_record_opened(trace->parts[i].record, store) : NULL;
        if (!good)
            moor_py_api()->record_release(trace->parts[i].record);
        else if (record)
            parts[made++] = (moor_py_part){(moor_py_record *)record, trace->parts[i].start, trace->parts[i].stop};
        good = good && record;
    }
    PyObject *result = NULL;
    if (good)
        result = made ? moor_py_record_join(parts, made) : none();
    for (uint32_t i = 0; i < made; i++)
        Py_DECREF((PyObject *)parts[i].record);
    free(parts);
    return result;
}

static PyObject *segments_of(const moor_exported *trace, const char *key)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < trace->n_keys; i++) {
        const moor_trace_key *k = &trace->keys[i];
        PyObject *prefix = key_of(key, k->key_len);
        PyObject *item =
            prefix ? Py_BuildValue("(OKK)", prefix, (unsigned long long)k->start, (unsigned long long)k->length) : NULL;
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
        Py_XDECREF(prefix);
    }
    return list;
}

static PyObject *session_export(PyObject *self, PyObject *key_arg)
{
    const char *id, *key;
    uint32_t id_len, key_len;
    moor_exported *trace;
    if (id_of(self, &id, &id_len) < 0 || text_of(key_arg, "a key", &key, &key_len) < 0)
        return NULL;
    moor_client *client = client_of(self);
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->session_export(client, id, id_len, key, key_len, &trace);
    MOOR_PY_WAIT_END
    if (status)
        return moor_py_raise(status);
    PyObject *record = record_of_parts(trace, (PyObject *)((session *)self)->store);
    PyObject *items[] = {record && trace->tokens ? token_view(trace->tokens, trace->n_tokens)
                         : record                ? none()
                                                 : NULL,
                         record, record ? segments_of(trace, key) : NULL};
    moor_py_api()->session_free(trace);
    return struct_of(trace_type, items, 3);
}

static PyObject *session_rollback(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "tokens", "min_tokens", NULL};
    PyObject *key_arg, *tokens_arg, *min_arg = NULL;
    const char *id, *key;
    uint32_t id_len, key_len, left;
    uint64_t n, min = 0, kept;
    int32_t *tokens;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:rollback", names, &key_arg, &tokens_arg, &min_arg) ||
        id_of(self, &id, &id_len) < 0 || text_of(key_arg, "a key", &key, &key_len) < 0 ||
        number_of(min_arg, "min_tokens", &min) < 0 || tokens_of(tokens_arg, &tokens, &n) < 0)
        return NULL;
    moor_client *client = client_of(self);
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->session_rollback(client, id, id_len, key, key_len, tokens, n, min, &kept, &left);
    MOOR_PY_WAIT_END
    free(tokens);
    if (status)
        return moor_py_raise(status);
    PyObject *end = key_of(key, left);
    PyObject *result = end ? Py_BuildValue("(KO)", (unsigned long long)kept, end) : NULL;
    Py_XDECREF(end);
    return result;
}

static PyObject *release(PyObject *self, PyObject *key_arg)
{
    const char *id, *key = NULL;
    uint32_t id_len, key_len = 0;
    if (id_of(self, &id, &id_len) < 0 || (key_arg != Py_None && text_of(key_arg, "a key", &key, &key_len) < 0))
        return NULL;
    moor_client *client = client_of(self);
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = key ? moor_py_api()->session_release_key(client, id, id_len, key, key_len)
                 : moor_py_api()->session_release(client, id, id_len);
    MOOR_PY_WAIT_END
    if (status)
        return moor_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *session_release(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", NULL};
    PyObject *key = Py_None;
    return PyArg_ParseTupleAndKeywords(args, kwargs, "|O:release", names, &key) ? release(self, key) : NULL;
}

static PyObject *session_enter(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return Py_NewRef(self);
}

/* A block that never inserted has nothing to release; one whose store is gone has nothing left. Its own exception matters more. */
static PyObject *session_exit(PyObject *self, PyObject *Py_UNUSED(args))
{
    const char *id;
    uint32_t id_len;
    if (id_of(self, &id, &id_len) < 0)
        return NULL;
    moor_client *client = client_of(self);
    moor_status status;
    MOOR_PY_WAIT_BEGIN
    status = moor_py_api()->session_release(client, id, id_len);
    MOOR_PY_WAIT_END
    if (status && status != MOOR_E_NOT_FOUND && status != MOOR_E_CLOSED)
        return moor_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *session_id(PyObject *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(((session *)self)->id);
}

static PyObject *session_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<moor.Session %R>", ((session *)self)->id);
}

PyObject *moor_py_store_session(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"session_id", "create", "keep", NULL};
    PyObject *id_arg;
    const char *id;
    uint32_t id_len;
    int create = 0, keep = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|pp:session", names, &id_arg, &create, &keep) ||
        text_of(id_arg, "a session's id", &id, &id_len) < 0)
        return NULL;
    if (!id_len || (keep && !create))
        return moor_py_raise_text(MOOR_E_INVALID, "session(%R, create=%i, keep=%i): %s", id_arg, create, keep,
                                  id_len ? "keep goes with create" : "the id is empty");
    moor_client *client = ((moor_py_store *)self)->client;
    moor_status status = MOOR_OK;
    if (create) {
        MOOR_PY_WAIT_BEGIN
        status = moor_py_api()->session_start(client, id, id_len, keep ? MOOR_SESSION_KEEP : 0);
        MOOR_PY_WAIT_END
    }
    if (status)
        return moor_py_raise(status);
    session *s = moor_py_new(session_type);
    if (!s)
        return NULL;
    s->store = (moor_py_store *)Py_NewRef(self);
    s->id = Py_NewRef(id_arg);
    return (PyObject *)s;
}

static PyMethodDef methods[] = {
    MOOR_PY_METHOD("insert", session_insert, METH_VARARGS | METH_KEYWORDS,
                   "insert(key, record=None, tokens=None, start=None, length=None)\n--\n\nThe key stands for tokens "
                   "start… of its trace and the record's rows at these positions. start: where the nearest key above "
                   "ends. The session owns the record from now on; one that is overwritten stays until the session "
                   "goes."),
    MOOR_PY_METHOD("search", session_search, METH_O,
                   "search(text, /)\n--\n\nThe longest key that text begins with, as a Segment, or None."),
    MOOR_PY_METHOD("keys", session_keys, METH_NOARGS, "keys()\n--\n\nAll keys, depth first, in the order they came."),
    MOOR_PY_METHOD("export", session_export, METH_O,
                   "export(key, /)\n--\n\nThe Trace from the root to the key: all tokens, and one zero-copy Record of "
                   "their rows. A hole raises Incomplete, which names it."),
    MOOR_PY_METHOD(
        "rollback", session_rollback, METH_VARARGS | METH_KEYWORDS,
        "rollback(key, tokens, min_tokens=0)\n--\n\nCuts the trace down to key where its tokens first differ "
        "from these; tokens and rows together. Returns (tokens left, the key it ends at now). RangeError: "
        "that would be before min_tokens; StateError: other keys hang on it. Nothing has changed then."),
    MOOR_PY_METHOD("release", session_release, METH_VARARGS | METH_KEYWORDS,
                   "release(key=None)\n--\n\nFrees the key, or the whole session, whose id is Gone until "
                   "session(id, create=True)."),
    MOOR_PY_METHOD("__enter__", session_enter, METH_NOARGS, NULL),
    MOOR_PY_METHOD("__exit__", session_exit, METH_VARARGS, NULL),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"id", session_id, NULL, "Its id.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static int add_struct(PyObject *module, PyTypeObject **type, PyStructSequence_Desc *desc)
{
    if (!*type)
        *type = PyStructSequence_NewType(desc);
    return *type ? PyModule_AddObjectRef(module, strrchr(desc->name, '.') + 1, (PyObject *)*type) : -1;
}

int moor_py_add_session(PyObject *module)
{
    static PyStructSequence_Field segment_fields[] = {
        {"key", "the text"},
        {"start", "of its tokens, in the trace"},
        {"length", "tokens"},
        {"tokens", "memoryview of int32, or None"},
        {"request_id", "of the record, or ''"},
        {"handle", "of the record, or 0"},
        {NULL, NULL},
    };
    static PyStructSequence_Field trace_fields[] = {
        {"tokens", "memoryview of int32, or None: not all are known"},
        {"record", "Record of all rows, or None: no key has one"},
        {"segments", "[(key, start, length), ...]"},
        {NULL, NULL},
    };
    static PyStructSequence_Desc segment_desc = {"moor.Segment", "What a key of a session stands for.", segment_fields,
                                                 6};
    static PyStructSequence_Desc trace_desc = {"moor.Trace", "A trace from the root to a key.", trace_fields, 3};
    static PyType_Slot slots[] = {{Py_tp_dealloc, session_dealloc},
                                  {Py_tp_repr, session_repr},
                                  {Py_tp_methods, methods},
                                  {Py_tp_getset, getset},
                                  {Py_tp_doc, "A session's trace trie. Made by Store.session()."},
                                  {0, NULL}};
    static PyType_Spec spec = {"moor.Session", sizeof(session), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    if (add_struct(module, &segment_type, &segment_desc) < 0 || add_struct(module, &trace_type, &trace_desc) < 0)
        return -1;
    return moor_py_add_type(module, &session_type, &spec);
}
