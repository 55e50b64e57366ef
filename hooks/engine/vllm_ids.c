/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a request is called. The core has a name of its own for it ("0_a-1f2e3d4c"), whoever asked the front end another ("a"), and
 * an HTTP client perhaps a third ("a-0" is the first prompt of "a"). Only the front end knows all three, and which sample or prompt of
 * its parent it is: nothing of that can be read off a name, which may be anything. It says so in the request's extra_args, vLLM's place
 * for what a plugin in another process has to know.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "vllm.h"

#define IDS "moor_ids" /* [[id, index], …]: each other name, and the place among what shares it */

static PyObject *shown; /* id → what an HTTP handler made to answer under it; weak: gone with its request */

/* An HTTP client will see this id, while `holder` lives. 0, or -1 with an error. */
static int show(PyObject *id, PyObject *holder)
{
    if (!shown) {
        PyObject *weakref = PyImport_ImportModule("weakref");
        shown = weakref ? PyObject_CallMethod(weakref, "WeakValueDictionary", NULL) : NULL;
        Py_XDECREF(weakref);
    }
    return !shown || PyObject_SetItem(shown, id, holder) ? -1 : 0;
}

int moor_vllm_http_id_after(moor_jp_call *call)
{
    PyObject *id = moor_runtime_records() ? moor_py_path(call->self, "request_id") : NULL;
    int failed = id && PyUnicode_Check(id) && show(id, call->self);
    Py_XDECREF(id);
    return failed ? MOOR_JP_FAILED : MOOR_JP_OK;
}

/* The routes that score make nothing that would carry their id. */
int moor_vllm_label_reads_before(moor_jp_call *call)
{
    PyObject *id = moor_jp_param(call, 0);
    if (!moor_runtime_records() || !id || !PyUnicode_Check(id))
        return MOOR_JP_OK;
    PyObject *holder = PySet_New(NULL);
    call->state = holder;
    return holder && show(id, holder) == 0 ? MOOR_JP_OK : MOOR_JP_FAILED;
}

void moor_vllm_label_reads_finish(moor_jp_call *call)
{
    PyObject *holder = call->state;
    call->state = NULL;
    Py_XDECREF(holder);
}

/* ---- beam search: each step of each beam is a request, and what is returned is none ---- */

static PyObject *beaming; /* a ContextVar: the steps come from tasks of their own */

int moor_vllm_beam_search_before(moor_jp_call *call)
{
    static int said;
    (void)call;
    if (!moor_runtime_records())
        return MOOR_JP_OK;
    if (!said)
        moor_runtime_log(1, "beam search is not recorded as such: each step of each beam is a request of its own, with "
                            "a record of its own, and "
                            "neither the response nor its id has routes");
    said = 1;
    return moor_py_note(&beaming, "moor_beaming", Py_True) ? MOOR_JP_FAILED : MOOR_JP_OK;
}

void moor_vllm_beam_search_finish(moor_jp_call *call)
{
    (void)call;
    if (beaming && moor_py_note(&beaming, "moor_beaming", Py_None))
        PyErr_Clear();
}

int moor_vllm_is_beam_step(void)
{
    PyObject *now = moor_py_noted(beaming);
    Py_XDECREF(now);
    return now != NULL;
}

static int is_shown(PyObject *id)
{
    PyObject *holder = id ? PyObject_CallMethod(shown, "get", "O", id) : NULL;
    int is = holder && holder != Py_None;
    PyErr_Clear();
    Py_XDECREF(holder);
    return is;
}

/* The id that an HTTP client sees of the part number *part of its request; NULL when `id` is no such part: another client's, who calls its
 * request so, is none. New reference. */
static PyObject *shown_id(PyObject *id, unsigned long *part)
{
    Py_ssize_t len;
    const char *text = shown ? moor_py_text(id, &len) : NULL;
    if (!text || is_shown(id))
        return NULL;
    Py_ssize_t at = len;
    while (at > 0 && isdigit((unsigned char)text[at - 1]))
        at--;
    if (at == len || at < 2)
        return NULL;
    *part = strtoul(text + at, NULL, 10);
    PyObject *whole = PyUnicode_FromStringAndSize(text, at - 1);
    if (!is_shown(whole))
        Py_CLEAR(whole);
    PyErr_Clear();
    return whole;
}

static int add(PyObject *ids, PyObject *id, unsigned long index)
{
    PyObject *item = Py_BuildValue("[Ok]", id, index & 0xffffffff);
    int failed = !item || PyList_Append(ids, item);
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

/* The other names of a request that the core will call `core_id`; NULL with an error. */
static PyObject *other_ids(PyObject *state, PyObject *core_id)
{
    PyObject *ids = PyList_New(0), *given = moor_py_path(state, "external_req_id");
    PyObject *parent = moor_py_path(state, "parent_req");
    unsigned long sample = parent ? (unsigned long)moor_py_int(state, "request_index", 0) : 0, part = 0;
    PyObject *whole = shown_id(given, &part);
    Py_XDECREF(parent);
    int differs = given ? PyObject_RichCompareBool(given, core_id, Py_NE) : 0;
    int failed = !ids || differs < 0 || (differs && add(ids, given, sample));
    /* open_many's order: by prompt, then by sample. */
    failed = failed || (whole && add(ids, whole, part << 16 | (sample & 0xffff)));
    Py_XDECREF(whole);
    Py_XDECREF(given);
    if (failed)
        Py_CLEAR(ids);
    return ids;
}

/* The parameters may be shared, by samples or by the caller's requests: this request gets its own. */
static int give_ids(PyObject *request, PyObject *params, PyObject *ids)
{
    PyObject *extra = moor_py_path(params, "extra_args");
    PyObject *mine = extra && PyDict_Check(extra) ? PyDict_Copy(extra) : PyDict_New();
    PyObject *module = PyImport_ImportModule("copy");
    PyObject *copy = module ? PyObject_CallMethod(module, "copy", "O", params) : NULL;
    int failed = !copy || !mine || PyDict_SetItemString(mine, IDS, ids) ||
                 PyObject_SetAttrString(copy, "extra_args", mine) ||
                 PyObject_SetAttrString(request, "sampling_params", copy);
    Py_XDECREF(copy);
    Py_XDECREF(module);
    Py_XDECREF(mine);
    Py_XDECREF(extra);
    return failed ? -1 : 0;
}

int moor_vllm_send_ids(PyObject *request, PyObject *state)
{
    PyObject *params = request ? moor_py_path(request, "sampling_params") : NULL;
    PyObject *core_id = params ? moor_py_path(request, "request_id") : NULL;
    if (!core_id || !moor_runtime_records()) {
        Py_XDECREF(core_id);
        Py_XDECREF(params);
        return 0;
    }
    PyObject *ids = other_ids(state, core_id);
    int failed = !ids || (PyList_Size(ids) && give_ids(request, params, ids));
    Py_XDECREF(ids);
    Py_DECREF(core_id);
    Py_DECREF(params);
    return failed ? -1 : 0;
}

PyObject *moor_vllm_sent_ids(PyObject *request)
{
    PyObject *extra = moor_py_path(request, "sampling_params.extra_args");
    PyObject *ids = extra && PyDict_Check(extra) ? PyDict_GetItemString(extra, IDS) : NULL;
    Py_XINCREF(ids);
    Py_XDECREF(extra);
    return ids;
}

void moor_vllm_each_id(PyObject *ids, moor_vllm_id_seen seen, void *user)
{
    for (Py_ssize_t i = 0; ids && PyList_Check(ids) && i < PyList_Size(ids); i++) {
        PyObject *item = PyList_GetItem(ids, i);
        if (!PySequence_Check(item) || PySequence_Size(item) != 2)
            continue;
        PyObject *id = PySequence_GetItem(item, 0), *index = PySequence_GetItem(item, 1);
        Py_ssize_t len;
        const char *text = moor_py_text(id, &len);
        unsigned long number = index && PyLong_Check(index) ? PyLong_AsUnsignedLong(index) : 0;
        if (text && !PyErr_Occurred())
            seen(user, text, (uint32_t)len, (uint32_t)number);
        PyErr_Clear();
        Py_XDECREF(index);
        Py_XDECREF(id);
    }
    PyErr_Clear();
}
