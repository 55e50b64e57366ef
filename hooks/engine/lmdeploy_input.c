/* SPDX-License-Identifier: Apache-2.0 */
/* No input is lost in silence (SEMANTICS 9.1): a part of a message that is an image, a video or audio must be in what the prompt
 * processor returns. LMDeploy joins a message's texts and drops a part whose type it does not know (`input_audio`); where a
 * model has no processor at all it refuses, without saying which field. */
#include "lmdeploy.h"

#include "input.h"

static void count_parts(PyObject *content, moor_input *input)
{
    for (Py_ssize_t i = 0; i < PyList_Size(content); i++) {
        PyObject *part = PyList_GetItem(content, i);
        PyObject *type = PyDict_Check(part) ? PyDict_GetItemString(part, "type") : NULL;
        const char *name = moor_py_text(type, NULL);
        int kind = moor_input_kind_of(name);
        if (kind >= 0)
            moor_input_passed(input, (moor_input_kind)kind, name, 1);
    }
}

/* The messages of a prompt; a text has no parts. Returns how many inputs were passed. */
static Py_ssize_t count_passed(const moor_jp_call *call, moor_input *input)
{
    PyObject *messages = moor_jp_param(call, 0);
    if (!moor_runtime_get()->process || !messages || !PyList_Check(messages))
        return 0;
    for (Py_ssize_t i = 0; i < PyList_Size(messages); i++) {
        PyObject *message = PyList_GetItem(messages, i);
        PyObject *content = PyDict_Check(message) ? PyDict_GetItemString(message, "content") : NULL;
        if (content && PyList_Check(content))
            count_parts(content, input);
    }
    return input->all_passed;
}

/* A text model has no encoder: nothing can arrive, and the engine's own refusal would name no field. */
int moor_lmdeploy_prompt_before(moor_jp_call *call)
{
    moor_input input = {0};
    if (call->rounds || !count_passed(call, &input))
        return MOOR_JP_OK;
    PyObject *encoder = moor_py_path(call->self, "vl_encoder");
    int text_only = !encoder;
    Py_XDECREF(encoder);
    return text_only ? moor_input_check(&input, "LMDeploy") : MOOR_JP_OK;
}

int moor_lmdeploy_prompt_after(moor_jp_call *call)
{
    moor_input input = {0};
    if (call->rounds || !count_passed(call, &input) || !call->result || !PyDict_Check(call->result))
        return MOOR_JP_OK;
    PyObject *items = PyDict_GetItemString(call->result, "multimodal");
    moor_input_arrived(&input, items && PyList_Check(items) ? items : NULL);
    return moor_input_check(&input, "LMDeploy");
}
