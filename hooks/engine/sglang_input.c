/* SPDX-License-Identifier: Apache-2.0 */
/* No input is lost in silence (SEMANTICS 9.1): what the caller passed as image, video or audio must be in the request that goes
 * to the scheduler. SGLang drops it where the model has no processor for it, or where the processor passes it over. */
#include "sglang.h"

#include "admission.h"
#include "input.h"

enum { DEEPEST = 4 };

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

int moor_sglang_tokenized_before(moor_jp_call *call)
{
    static const char *const fields[MOOR_INPUT_KINDS] = {"image_data", "video_data", "audio_data"};
    PyObject *obj = moor_jp_param(call, 0), *outputs = moor_jp_param(call, 1);
    if (!moor_runtime_get()->process || !obj)
        return MOOR_JP_OK;
    PyObject *rid = moor_py_path(obj, "rid");
    moor_admission_sent(rid); /* to the scheduler, next */
    Py_XDECREF(rid);
    if (moor_py_true(obj, "need_wait_for_mm_inputs", 0))
        return MOOR_JP_OK;
    moor_input input = {0};
    for (int kind = 0; kind < MOOR_INPUT_KINDS; kind++) {
        PyObject *value = moor_py_path(obj, fields[kind]);
        moor_input_passed(&input, (moor_input_kind)kind, fields[kind], count(value, 0));
        Py_XDECREF(value);
    }
    if (!input.all_passed)
        return MOOR_JP_OK;
    PyObject *items = outputs && outputs != Py_None ? moor_py_path(outputs, "mm_items") : NULL;
    moor_input_arrived(&input, items);
    Py_XDECREF(items);
    return moor_input_check(&input, "SGLang");
}
