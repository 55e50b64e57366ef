/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

int moor_input_kind_of(const char *name)
{
    static const char *const words[MOOR_INPUT_KINDS] = {"image", "video", "audio"};
    for (int kind = 0; name && kind < MOOR_INPUT_KINDS; kind++) {
        size_t n = strlen(words[kind]);
        for (const char *at = name; *at; at++) {
            if (strncasecmp(at, words[kind], n) == 0)
                return kind;
        }
    }
    return -1;
}

void moor_input_passed(moor_input *input, moor_input_kind kind, const char *field, Py_ssize_t n)
{
    if (n <= 0)
        return;
    if (!input->passed[kind])
        snprintf(input->field[kind], sizeof input->field[kind], "%s", field);
    input->passed[kind] += n;
    input->all_passed += n;
}

/* A modality is an enum whose name says it, or a text. */
static int modality_of(PyObject *item)
{
    PyObject *modality = PyDict_Check(item) ? PyDict_GetItemString(item, "modality") : NULL;
    Py_XINCREF(modality);
    if (!modality && !PyDict_Check(item))
        modality = moor_py_path(item, "modality");
    PyObject *name = modality ? moor_py_path(modality, "name") : NULL;
    int kind = moor_input_kind_of(moor_py_text(name ? name : modality, NULL));
    PyErr_Clear();
    Py_XDECREF(name);
    Py_XDECREF(modality);
    return kind;
}

void moor_input_arrived(moor_input *input, PyObject *items)
{
    Py_ssize_t n = items && items != Py_None ? PySequence_Size(items) : 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PySequence_GetItem(items, i);
        int kind = item ? modality_of(item) : -1;
        if (kind >= 0)
            input->arrived[kind]++;
        input->all_arrived++;
        Py_XDECREF(item);
    }
    PyErr_Clear();
}

/* A processor may hand a video on as images: a modality that is not there is proven lost only when there are no more items than
 * the caller's other inputs account for. */
int moor_input_check(const moor_input *input, const char *engine)
{
    for (int kind = 0; kind < MOOR_INPUT_KINDS; kind++) {
        if (!input->passed[kind] || input->arrived[kind] ||
            input->all_arrived > input->all_passed - input->passed[kind])
            continue;
        PyErr_Format(PyExc_ValueError,
                     "moor: %s was passed (%zd) and would not reach the model: it or its processor takes none, and %s "
                     "would drop it",
                     input->field[kind], input->passed[kind], engine);
        return MOOR_JP_RAISE;
    }
    return MOOR_JP_OK;
}
