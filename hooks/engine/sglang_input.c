/* SPDX-License-Identifier: Apache-2.0 */
/* No input is lost in silence (SEMANTICS 9.1): what the caller passed as image, video or audio must be in the request that goes
 * to the scheduler. SGLang drops it where the model has no processor for it, or where the processor passes it over. */
#include "sglang.h"

#include <string.h>

enum { KINDS = 3, DEEPEST = 4 };

static const struct {
    const char *field, *modality;
} kinds[KINDS] = {{"image_data", "IMAGE"}, {"video_data", "VIDEO"}, {"audio_data", "AUDIO"}};

/* How many inputs `value` is: nested lists of them, None being none. */
static Py_ssize_t count(PyObject *value, int depth)
{
    if (!value || value == Py_None)
        return 0;
    if (!PyList_Check(value) || depth >= DEEPEST)
        return 1;
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(value); i++)
        total += count(PyList_GetItem(value, i), depth + 1);
    return total;
}

/* Items of each modality in the processor's output; returns how many items there are. */
static Py_ssize_t arrived(PyObject *inputs, Py_ssize_t of_kind[KINDS])
{
    PyObject *items = inputs && inputs != Py_None ? moor_py_path(inputs, "mm_items") : NULL;
    Py_ssize_t n = items ? PySequence_Size(items) : 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PySequence_GetItem(items, i), *modality = moor_py_path(item, "modality.name");
        const char *name = moor_py_text(modality, NULL);
        for (int kind = 0; name && kind < KINDS; kind++)
            of_kind[kind] += strstr(name, kinds[kind].modality) != NULL;
        Py_XDECREF(modality);
        Py_XDECREF(item);
    }
    PyErr_Clear();
    Py_XDECREF(items);
    return n < 0 ? 0 : n;
}

/* A processor may hand a video on as images: a modality that is not there is proven lost only when there are no more items than
 * the caller's other inputs account for. */
int moor_sglang_tokenized_before(moor_jp_call *call)
{
    PyObject *obj = moor_jp_param(call, 0);
    if (!moor_runtime_get()->process || !obj || moor_py_true(obj, "need_wait_for_mm_inputs", 0))
        return MOOR_JP_OK;
    Py_ssize_t passed[KINDS], of_kind[KINDS] = {0}, all = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        PyObject *value = moor_py_path(obj, kinds[kind].field);
        all += passed[kind] = count(value, 0);
        Py_XDECREF(value);
    }
    if (!all)
        return MOOR_JP_OK;
    Py_ssize_t items = arrived(moor_jp_param(call, 1), of_kind);
    for (int kind = 0; kind < KINDS; kind++) {
        if (!passed[kind] || of_kind[kind] || items > all - passed[kind])
            continue;
        PyErr_Format(PyExc_ValueError,
                     "moor: %s was passed (%zd) and did not reach the scheduler's request: the model or its processor "
                     "takes none, and SGLang would drop it",
                     kinds[kind].field, passed[kind]);
        return MOOR_JP_RAISE;
    }
    return MOOR_JP_OK;
}
