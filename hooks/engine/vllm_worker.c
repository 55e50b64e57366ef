/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's side, before the first step: routers bound at load_model, the store opened when the KV cache is there. */
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "model.h"
#include "vllm_worker.h"

moor_vllm_worker moor_vllm_worker_state;
#define W moor_vllm_worker_state

/* ---- bind ------------------------------------------------------------------------------------------------------ */

typedef struct {
    int32_t layer;
    PyObject *module; /* owned */
    enum { BIND_ROUTER, BIND_SOURCE, BIND_BYPASS } how;
} bind_point;

static int compare_layer(const void *a, const void *b)
{
    int32_t x = ((const bind_point *)a)->layer, y = ((const bind_point *)b)->layer;
    return (x > y) - (x < y);
}

/* The model's layer number: an attribute, else the number in the layer's dotted name. */
static int32_t layer_of(PyObject *module)
{
    long long id = moor_py_int(module, "layer_id", -1);
    if (id >= 0)
        return (int32_t)id;
    PyObject *name = moor_py_path(module, "layer_name");
    Py_ssize_t length;
    const char *text = moor_py_text(name, &length);
    int32_t found = -1;
    const char *at = text ? strstr(text, "layers.") : NULL;
    if (at)
        found = (int32_t)strtol(at + strlen("layers."), NULL, 10);
    Py_XDECREF(name);
    return found;
}

/* 1 and *point filled when the module is a place where expert ids can be taken. A CPU MoE kernel that routes by itself
 * goes first: there the router is present and is never asked. */
static int find_bind_point(PyObject *module, bind_point *point)
{
    static const char *const bypass[] = {"quant_method.cpu_fused_moe", "_quant_method.cpu_fused_moe", NULL};
    int32_t layer = layer_of(module);
    if (layer < 0)
        return 0;
    for (int i = 0; bypass[i]; i++) {
        PyObject *kernel = moor_py_path(module, bypass[i]);
        PyObject *method = kernel ? moor_py_path(kernel, "forward_method") : NULL;
        Py_XDECREF(method);
        if (method) {
            *point = (bind_point){layer, kernel, BIND_BYPASS};
            return 1;
        }
        Py_XDECREF(kernel);
    }
    PyObject *router = moor_py_path(module, "router");
    PyObject *set_fn = router ? moor_py_path(router, "set_capture_fn") : NULL;
    Py_XDECREF(set_fn);
    if (set_fn) {
        *point = (bind_point){layer, router, BIND_ROUTER};
        return 1;
    }
    Py_XDECREF(router);
    if (PyObject_HasAttrString(module, "capture_fn")) {
        *point = (bind_point){layer, Py_NewRef(module), BIND_SOURCE};
        return 1;
    }
    return 0;
}

static void free_points(bind_point *points, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        Py_XDECREF(points[i].module);
    free(points);
}

/* All bind points of a model in layer order, one per layer; -1 with a Python error. */
static int collect_points(PyObject *model, bind_point **out, uint32_t *count)
{
    PyObject *modules = PyObject_CallMethod(model, "modules", NULL);
    PyObject *iterator = modules ? PyObject_GetIter(modules) : NULL;
    Py_XDECREF(modules);
    if (!iterator)
        return -1;
    bind_point *points = NULL;
    uint32_t n = 0, cap = 0;
    PyObject *module;
    while ((module = PyIter_Next(iterator))) {
        bind_point point;
        int found = find_bind_point(module, &point);
        Py_DECREF(module);
        if (!found)
            continue;
        if (n == cap) {
            cap = cap ? 2 * cap : 64;
            bind_point *grown = realloc(points, cap * sizeof(*points));
            if (!grown) {
                Py_DECREF(point.module);
                PyErr_NoMemory();
                break;
            }
            points = grown;
        }
        points[n++] = point;
    }
    Py_DECREF(iterator);
    if (PyErr_Occurred()) {
        free_points(points, n);
        return -1;
    }
    if (n)
        qsort(points, n, sizeof(*points), compare_layer);
    *out = points;
    *count = n;
    return 0;
}

/* Inside a graph (vLLM 0.24 calls a CPU's kernel there) no wrapper can stand: torch.compile would refuse the model. */
static int bind_bypass_compiled(PyObject *kernel, uint32_t column)
{
    PyObject *method = PyObject_GetAttrString(kernel, "forward_method");
    if (!method || PyObject_HasAttrString(method, "moor_column")) {
        Py_XDECREF(method);
        return PyErr_Occurred() ? -1 : 0;
    }
    PyObject *fn = moor_capture_compiled(column, method);
    int failed = !fn || PyObject_SetAttrString(kernel, "forward_method", fn);
    Py_XDECREF(fn);
    Py_DECREF(method);
    return failed ? -1 : 0;
}

static int bind_one(const bind_point *point, uint32_t column, int compiled)
{
    if (point->how == BIND_BYPASS && compiled)
        return bind_bypass_compiled(point->module, column);
    if (point->how == BIND_BYPASS) {
        /* The wrapper of forward_method finds its column here, through the bound method's __self__. */
        PyObject *number = PyLong_FromUnsignedLong(column);
        int failed = !number || PyObject_SetAttrString(point->module, "moor_column", number);
        Py_XDECREF(number);
        return failed || moor_jp_wrap_attr(moor_vllm_jp("worker.moe_forward"), point->module, "forward_method") < 0 ? -1
                                                                                                                    : 0;
    }
    PyObject *fn = compiled ? moor_capture_compiled(column, NULL) : moor_capture_callable(column);
    if (!fn)
        return -1;
    int result;
    if (point->how == BIND_ROUTER) {
        PyObject *none = PyObject_CallMethod(point->module, "set_capture_fn", "O", fn);
        result = none ? 0 : -1;
        Py_XDECREF(none);
    } else {
        result = PyObject_SetAttrString(point->module, "capture_fn", fn);
    }
    Py_DECREF(fn);
    return result;
}

/* Binds every point; fills W.layer_ids the first time, keeps the columns afterwards (a kernel rebuilt by a weight
 * update is bound anew). Returns the number of layers, or -1 with a Python error. */
static int bind_model(PyObject *model, int compiled)
{
    bind_point *points = NULL;
    uint32_t n = 0;
    if (collect_points(model, &points, &n))
        return -1;
    int32_t *ids = calloc(n ? n : 1, sizeof(*ids));
    uint32_t layers = 0;
    int result = -1;
    if (!ids) {
        PyErr_NoMemory();
        goto out;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!layers || ids[layers - 1] != points[i].layer)
            ids[layers++] = points[i].layer;
        if (bind_one(&points[i], layers - 1, compiled))
            goto out;
    }
    if (W.layers && W.layers != layers) {
        PyErr_Format(PyExc_RuntimeError, "moor: the model had %u MoE layers when it was loaded and has %u now",
                     W.layers, layers);
        goto out;
    }
    free(W.layer_ids);
    W.layer_ids = ids;
    W.layers = layers;
    ids = NULL;
    moor_jp_bound(moor_vllm_jp("worker.capture"), n && points[0].how == BIND_BYPASS ? "forward_method" : "capture_fn",
                  layers);
    result = (int)layers;
out:
    free(ids);
    free_points(points, n);
    return result;
}

static int refuse_or_warn(const char *why)
{
    W.layers = 0;
    return moor_recording_refused(why);
}

/* Another engine of this process had these before: its store goes, and with it what nobody has opened yet. */
static void make_room(PyObject *runner)
{
    PyObject *last = moor_py_alive(W.alive);
    int same = !W.alive || last == runner;
    Py_XDECREF(last);
    if (same)
        return;
    moor_vllm_forget_steps();
    free(W.layer_ids);
    Py_DECREF(W.alive);
    W = (moor_vllm_worker){0};
    moor_runtime_close_store();
}

static int note_alive(PyObject *runner)
{
    if (!W.alive)
        W.alive = moor_py_weak(runner);
    return W.alive ? 0 : -1;
}

static int bind_loaded(PyObject *runner, PyObject *model, PyObject *vllm_config)
{
    if (moor_jp_wrap_attr(moor_vllm_jp("worker.load_weights"), model, "load_weights") < 0)
        PyErr_Clear(); /* a model without load_weights cannot be changed that way */
    moor_runtime *rt = moor_runtime_get();
    moor_vllm_place here = moor_vllm_read_place(vllm_config);
    if (!rt->config.record_enabled || !here.records)
        return MOOR_JP_OK;
    PyObject *device = moor_py_path(runner, "device.type");
    const char *type = moor_py_text(device, NULL);
    int on_cpu = !type || strcmp(type, "cpu") == 0;
    Py_XDECREF(device);
    if (!on_cpu)
        return refuse_or_warn("this version of Moor records only models whose expert ids are in host memory");
    moor_capture_attach(moor_vllm_jp("worker.capture"));
    int layers = bind_model(model, moor_py_int(vllm_config, "compilation_config.mode", 0) > 0);
    if (layers < 0)
        return MOOR_JP_FAILED;
    PyObject *model_config = moor_py_path(vllm_config, "model_config");
    moor_model_read_shape(model_config, &W.shape);
    Py_XDECREF(model_config);
    if (layers == 0)
        return refuse_or_warn(here.stages > 1
                                  ? "no MoE router was found in a pipeline stage: no request would have all rows"
                                  : "no MoE router was found in the model");
    if (!W.shape.num_experts || !W.shape.top_k || !W.shape.model_layers)
        return refuse_or_warn(
            "the model's configuration does not say how many experts, experts per token or layers it has");
    W.runner = runner;
    moor_runtime_log(2, "bound %d MoE layers: %u experts, %u per token", layers, W.shape.num_experts, W.shape.top_k);
    return MOOR_JP_OK;
}

int moor_vllm_load_model_after(moor_jp_call *call)
{
    PyObject *vllm_config = moor_py_path(call->self, "vllm_config");
    int on = moor_vllm_join(MOOR_ROLE_WORKER, vllm_config);
    int result = on < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
    PyObject *model = on > 0 ? moor_py_path(call->self, "model") : NULL;
    if (model) {
        make_room(call->self);
        result = note_alive(call->self) ? MOOR_JP_FAILED : bind_loaded(call->self, model, vllm_config);
    }
    Py_XDECREF(model);
    Py_XDECREF(vllm_config);
    return result;
}

int moor_vllm_rebind(void)
{
    PyObject *model = W.layers ? moor_py_path(W.runner, "model") : NULL;
    if (!model)
        return 0;
    int layers = bind_model(model, moor_py_int(W.runner, "vllm_config.compilation_config.mode", 0) > 0);
    Py_DECREF(model);
    return layers < 0 ? -1 : 0;
}

int moor_vllm_bypass_before(moor_jp_call *call)
{
    long long column = moor_py_int(call->original, "__self__.moor_column", -1);
    PyObject *ids = moor_jp_param(call, 3);
    if (column < 0 || !ids || moor_capture_state() == MOOR_STEP_NONE)
        return MOOR_JP_OK;
    return moor_capture_tensor((uint32_t)column, ids) ? MOOR_JP_FAILED : MOOR_JP_OK;
}

/* ---- the KV cache is there: the store can be made ---------------------------------------------------------------- */

/* The KV group whose block table holds every position: full attention; sliding windows drop blocks. */
static int full_attention_group(PyObject *groups)
{
    Py_ssize_t n = groups ? PySequence_Size(groups) : 0;
    if (n < 0)
        PyErr_Clear();
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *group = PySequence_GetItem(groups, i);
        PyObject *name = moor_py_path(group, "kv_cache_spec.__class__.__name__");
        const char *text = moor_py_text(name, NULL);
        int full = text && (strstr(text, "Full") || strstr(text, "MLA"));
        Py_XDECREF(name);
        Py_XDECREF(group);
        if (full)
            return (int)i;
    }
    return 0;
}

int moor_vllm_kv_cache_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *profiling = moor_jp_param(call, 1);
    if (!W.layers || rt->store || call->self != W.runner || profiling == Py_True)
        return MOOR_JP_OK;
    if (!moor_runtime_records()) { /* another pipeline stage cannot record, and all models are loaded by now */
        W.layers = 0;
        return MOOR_JP_OK;
    }
    PyObject *kv = moor_jp_param(call, 0);
    PyObject *groups = moor_py_path(kv, "kv_cache_groups");
    W.group = full_attention_group(groups);
    PyObject *group = groups ? PySequence_GetItem(groups, W.group) : NULL;
    PyErr_Clear();
    W.block_size = (int)moor_py_int(group, "kv_cache_spec.block_size", 0);
    Py_XDECREF(group);
    Py_XDECREF(groups);
    PyObject *config = moor_py_path(call->self, "vllm_config");
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    moor_vllm_place here = moor_vllm_read_place(config);
    args.store_index = here.first_store + here.stage;
    args.stages = here.stages;
    args.layers = W.layers;
    args.layer_ids = W.layer_ids;
    args.top_k = W.shape.top_k;
    args.num_experts = W.shape.num_experts;
    args.model_layers = W.shape.model_layers;
    args.max_step_tokens = (uint32_t)moor_py_int(config, "scheduler_config.max_num_batched_tokens", 8192);
    args.max_requests = (uint32_t)moor_py_int(config, "scheduler_config.max_num_seqs", 256);
    args.dp_size = (uint32_t)moor_py_int(config, "parallel_config.data_parallel_size", 1);
    args.dp_rank = here.replica;
    args.tp_size = (uint32_t)moor_py_int(config, "parallel_config.tensor_parallel_size", 1);
    if (W.block_size > 0) {
        args.kv_blocks = (uint32_t)moor_py_int(kv, "num_blocks", 0);
        args.kv_block_size = args.kv_blocks ? (uint32_t)W.block_size : 0;
    }
    PyObject *connector = moor_py_path(config, "kv_transfer_config");
    W.prefix_unproven = connector != NULL;
    Py_XDECREF(connector);
    Py_XDECREF(config);
    moor_store *store = NULL;
    moor_status status = rt->api->store_open(rt->process, &args, &store);
    if (status) {
        W.layers = 0;
        return moor_recording_failed(status);
    }
    rt->store = store;
    rt->store_index = args.store_index;
    return MOOR_JP_OK;
}
