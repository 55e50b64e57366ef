/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves the engine's process: the routes of a response, and the environment of its Ray workers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deliver.h"
#include "lmdeploy.h"

/* What takes the marker's place in the response: a note of uint16 [rows, model layers, K] as the engine's own, or of a reference. now: not a
 * note; the engine is to put the array into its own Ray store, for which it waits as well. */
static PyObject *deliver(PyObject *marker, long long num_all_ids, int now)
{
    moor_runtime *rt = moor_runtime_get();
    moor_delivery delivery = {.timeout = 1.0, .dtype = MOOR_DTYPE_U16};
    const char *text = moor_py_text(marker, &delivery.id_len);
    delivery.id = text + strlen(MOOR_LMDEPLOY_MARKER);
    delivery.id_len -= (Py_ssize_t)strlen(MOOR_LMDEPLOY_MARKER);
    delivery.rows = (uint64_t)(num_all_ids - 1);
    if (!now)
        return moor_deliver_later(&delivery, 0);
    PyObject *field = moor_deliver_array(&delivery);
    rt->api->count(rt->process, field ? "moor_delivered_total" : "moor_deliver_errors_total", 1);
    return field;
}

static int is_marker(PyObject *field)
{
    const char *text = moor_py_text(field, NULL);
    return text && strncmp(text, MOOR_LMDEPLOY_MARKER, strlen(MOOR_LMDEPLOY_MARKER)) == 0;
}

/* The last response of a request, finished or cancelled, carries its routes. */
int moor_lmdeploy_extra_outputs_before(moor_jp_call *call)
{
    PyObject *response = moor_jp_param(call, 0), *count = moor_jp_param(call, 1);
    PyObject *data = moor_py_path(response, "data");
    PyObject *marker = data && PyDict_Check(data) ? PyDict_GetItemString(data, "routed_experts") : NULL;
    if (!marker || !is_marker(marker)) {
        Py_XDECREF(data);
        return MOOR_JP_OK;
    }
    long long ids = count ? PyLong_AsLongLong(count) : -1;
    int now =
        moor_py_true(call->self, "_enable_transfer_obj_ref", 0) &&
        moor_runtime_get()->config.deliver != MOOR_DELIVER_REF; /* a reference has no shape, which that looks at */
    PyObject *field = ids > 1 ? deliver(marker, ids, now) : NULL;
    int result = field || ids <= 1 ? MOOR_JP_OK : MOOR_JP_FAILED;
    if (ids < 0) {
        result = MOOR_JP_FAILED;
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "_get_extra_outputs says no number of ids");
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyDict_SetItemString(data, "routed_experts", field && now ? field : Py_None);
    PyErr_Restore(type, value, trace);
    if (field && !now) {
        PyObject *extra = Py_BuildValue("{sO}", "routed_experts", field);
        result = moor_jp_set_result(call, extra) ? MOOR_JP_FAILED : MOOR_JP_DONE;
    }
    Py_XDECREF(field);
    Py_DECREF(data);
    return result;
}

/* EngineInstance.async_stream_infer: the response leaves. */
int moor_lmdeploy_stream_item(moor_jp_call *call)
{
    return moor_deliver_settle(call, call->result);
}

/* LMDeploy takes the row of a stop token that it does not show off an array, and leaves a text as it is. */
int moor_lmdeploy_hide_stop_row(moor_jp_call *call)
{
    PyObject *reason = moor_py_path(call->result, "finish_reason"),
             *field = moor_py_path(call->result, "routed_experts");
    const char *why = moor_py_text(reason, NULL), *ref = moor_py_text(field, NULL);
    int result = MOOR_JP_OK;
    if (why && !strcmp(why, "stop") && ref && !strncmp(ref, "moor1:", 6) &&
        !moor_py_true(moor_jp_param(call, 0), "gen_config.include_stop_str_in_output", 0)) {
        char part[MOOR_REF_BYTES];
        moor_status status = moor_runtime_get()->api->ref_part(ref, strlen(ref), 0, 1, part, sizeof(part));
        PyObject *text = status ? moor_runtime_raise(status, "delivery by reference") : PyUnicode_FromString(part);
        if (!text || PyObject_SetAttrString(call->result, "routed_experts", text))
            result = MOOR_JP_FAILED;
        Py_XDECREF(text);
    }
    Py_XDECREF(field);
    Py_XDECREF(reason);
    return result;
}

/* ---- Ray -------------------------------------------------------------------------------------------------------------- */

/* Workers of a Ray cluster that was there before do not inherit this process' environment. */
int moor_lmdeploy_ray_env_after(moor_jp_call *call)
{
    static const char *const names[] = {"LD_PRELOAD", "MOOR_CONFIG", "MOOR_INSTANCE", "MOOR_DIR", NULL};
    PyObject *vars = moor_runtime_get()->process && PyDict_Check(call->result)
                         ? PyDict_GetItemString(call->result, "env_vars")
                         : NULL;
    char told[128] = "";
    for (int i = 0; vars && names[i]; i++) {
        const char *value = getenv(names[i]);
        PyObject *text = value && *value ? PyUnicode_DecodeFSDefault(value) : NULL;
        int failed = text && PyDict_SetItemString(vars, names[i], text);
        size_t used = strlen(told);
        if (text && !failed)
            snprintf(told + used, sizeof(told) - used, "%s%s", used ? ", " : "", names[i]);
        Py_XDECREF(text);
        if (failed || PyErr_Occurred())
            return MOOR_JP_FAILED;
    }
    if (*told)
        moor_runtime_log(2, "Ray's runtime_env carries %s to the workers", told);
    return MOOR_JP_OK;
}
