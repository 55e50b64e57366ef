/* SPDX-License-Identifier: Apache-2.0 */
/* The model agent's side of a weight update and of a wakeup: every change of weights is reported, the cleanup window spans
 * the buckets of one update, the KV cache waits at the barrier. */
#include <string.h>

#include "lmdeploy.h"
#include "window.h"

/* A model writes its ids only when it is built with this. One with dense layers is left alone unless it is known to cope:
 * others hand their dense layers an argument that these do not take, which ends the engine. */
static int copes(PyObject *model_config)
{
    PyObject *config = moor_lmdeploy_hf_config(model_config);
    PyObject *type = moor_py_path(config, "model_type");
    const char *name = moor_py_text(type, NULL);
    int known = name && (strncmp(name, "qwen3", 5) == 0 || strcmp(name, "glm_moe_dsa") == 0);
    long layers = (long)moor_py_int(config, "num_hidden_layers", 0);
    int all = layers > 0;
    for (long i = 0; i < layers; i++)
        all &= moor_lmdeploy_is_moe(config, i);
    Py_XDECREF(type);
    Py_XDECREF(config);
    return known || all;
}

/* LMDeploy counts the ranks of all data-parallel replicas, each of which is a server of its own. */
typedef struct place {
    uint32_t rank, world, replica;
} place;

static place place_of(PyObject *context)
{
    long long world = moor_py_int(context, "dist_config.world_size", 1);
    world = moor_py_int(context, "dist_config.attn_tp", world);
    place p = {0, world > 0 ? (uint32_t)world : 1, (uint32_t)moor_py_int(context, "dp_rank", 0)};
    p.rank = (uint32_t)moor_py_int(context, "rank", 0) % p.world;
    return p;
}

int moor_lmdeploy_agent_init(moor_jp_call *call)
{
    PyObject *context = moor_jp_param(call, 0), *misc = moor_jp_param(call, 2);
    place here = place_of(context);
    int on = moor_lmdeploy_join(MOOR_ROLE_WORKER, here.rank, here.world, here.replica);
    if (on <= 0)
        return on < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
    if (!moor_runtime_get()->config.record_enabled || !misc || moor_py_true(misc, "enable_return_routed_experts", 0))
        return MOOR_JP_OK;
    if (!copes(moor_jp_param(call, 1)))
        return moor_runtime_log(1,
                                "this model has dense layers, and LMDeploy may not survive its own capture there: it "
                                "stays off unless --enable-return-routed-experts asks for it"),
               MOOR_JP_OK;
    return PyObject_SetAttrString(misc, "enable_return_routed_experts", Py_True) ? MOOR_JP_FAILED : MOOR_JP_OK;
}

/* LMDeploy 0.18 hands all_routed_experts to Qwen3-MoE's dense layers too, whose forward takes the hidden states alone. */
int moor_lmdeploy_dense_mlp_before(moor_jp_call *call)
{
    if (!call->kwargs || !PyDict_GetItemString(call->kwargs, "all_routed_experts"))
        return MOOR_JP_OK;
    PyObject *kwargs = PyDict_Copy(call->kwargs);
    int failed =
        !kwargs || PyDict_DelItemString(kwargs, "all_routed_experts") || moor_jp_set_args(call, call->args, kwargs);
    Py_XDECREF(kwargs);
    return failed ? MOOR_JP_FAILED : MOOR_JP_OK;
}

/* Enters once for all buckets of an update: LMDeploy empties the cache after every one of them. */
static void enter(void)
{
    if (moor_runtime_get()->process && !moor_window_inside())
        moor_window_enter(MOOR_PHASE_TRANSFER);
}

int moor_lmdeploy_agent_update_params_before(moor_jp_call *call)
{
    (void)call;
    enter();
    return moor_window_touched(MOOR_WEIGHTS_UPDATE, "update_params");
}

int moor_lmdeploy_agent_update_params_after(moor_jp_call *call)
{
    if (!moor_py_true(moor_jp_param(call, 0), "finished", 1))
        return MOOR_JP_OK;
    moor_window_leave();
    return moor_window_touched(MOOR_WEIGHTS_UPDATE, "update_params finished");
}

int moor_lmdeploy_agent_update_weights_before(moor_jp_call *call)
{
    if (moor_lmdeploy_rejected(call))
        return MOOR_JP_OK;
    enter();
    return moor_window_touched(MOOR_WEIGHTS_UPDATE, call->jp->name);
}

int moor_lmdeploy_agent_update_weights_after(moor_jp_call *call)
{
    if (moor_lmdeploy_rejected(call))
        return MOOR_JP_OK;
    moor_window_leave();
    return moor_window_touched(MOOR_WEIGHTS_UPDATE, call->jp->name);
}

int moor_lmdeploy_agent_update_error(moor_jp_call *call)
{
    moor_window_leave();
    return moor_window_touched(MOOR_WEIGHTS_UPDATE, call->jp->name);
}

int moor_lmdeploy_agent_wakeup_before(moor_jp_call *call)
{
    if (!moor_py_has(moor_jp_param(call, 0), "kv_cache", 1))
        return MOOR_JP_OK;
    moor_window_leave(); /* an update that never said `finished` */
    PyObject *cuda = PyImport_ImportModule("torch.cuda");
    PyObject *available = cuda ? PyObject_CallMethod(cuda, "is_initialized", NULL) : NULL;
    PyObject *torch = available == Py_True ? PyImport_ImportModule("torch") : NULL;
    PyObject *index = torch ? PyObject_CallMethod(cuda, "current_device", NULL) : NULL;
    PyObject *device = index ? PyObject_CallMethod(torch, "device", "sO", "cuda", index) : NULL;
    PyErr_Clear();
    PyObject *context = moor_py_path(call->self, "dist_ctx");
    place here = place_of(context);
    int result = moor_window_resume(device, here.rank, here.world, here.replica);
    Py_XDECREF(context);
    Py_XDECREF(device);
    Py_XDECREF(index);
    Py_XDECREF(torch);
    Py_XDECREF(available);
    Py_XDECREF(cuda);
    return result;
}
