/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

static long long call_int(PyObject *object, const char *method)
{
    PyObject *value =
        object && PyObject_HasAttrString(object, method) ? PyObject_CallMethod(object, method, NULL) : NULL;
    long long number = value ? PyLong_AsLongLong(value) : -1;
    if (PyErr_Occurred()) {
        PyErr_Clear();
        number = -1;
    }
    Py_XDECREF(value);
    return number;
}

/* The first of the method or the configuration names that gives a positive number. */
static uint32_t geometry(PyObject *model_config, const char *method, const char *const names[])
{
    long long value = call_int(model_config, method);
    for (int i = 0; value <= 0 && names[i]; i++)
        value = moor_py_int(model_config, names[i], -1);
    return value > 0 && value <= UINT32_MAX ? (uint32_t)value : 0;
}

void moor_model_read_shape(PyObject *model_config, moor_model_shape *out)
{
    static const char *const experts[] = {"hf_text_config.num_experts", "hf_text_config.n_routed_experts",
                                          "hf_text_config.num_local_experts", "hf_text_config.moe_num_experts", NULL};
    static const char *const top_k[] = {"hf_text_config.num_experts_per_tok",
                                        "hf_text_config.num_experts_per_token",
                                        "hf_text_config.moe_topk",
                                        "hf_text_config.moe_k",
                                        "hf_text_config.experts_per_token",
                                        NULL};
    static const char *const layers[] = {"hf_text_config.num_hidden_layers", "hf_text_config.n_layers", NULL};
    out->num_experts = geometry(model_config, "get_num_experts", experts);
    out->top_k = geometry(model_config, "get_num_experts_per_tok", top_k);
    out->model_layers = geometry(model_config, "get_total_num_hidden_layers", layers);
}

int moor_recording_refused(const char *why)
{
    if (moor_runtime_get()->config.on_error == MOOR_ON_ERROR_STRICT) {
        PyErr_Format(PyExc_RuntimeError, "moor: recording is on (record.enabled) and on_error is strict, but %s", why);
        return MOOR_JP_RAISE;
    }
    moor_runtime *rt = moor_runtime_get();
    moor_runtime_log(1, "recording is off: %s", why);
    rt->api->recording_off(rt->process, why);
    return MOOR_JP_OK;
}

int moor_recording_failed(moor_status status)
{
    moor_runtime *rt = moor_runtime_get();
    moor_runtime_raise(status, "opening the store");
    if (status == MOOR_E_CONFIG || rt->config.on_error == MOOR_ON_ERROR_STRICT)
        return MOOR_JP_RAISE;
    rt->api->recording_off(rt->process, rt->api->last_error());
    return MOOR_JP_FAILED;
}
