/* SPDX-License-Identifier: Apache-2.0 */
/* The model agent's side of a weight update and of a wakeup: every change of weights is reported, the cleanup window spans
 * the buckets of one update, the KV cache waits at the barrier. */
#include "lmdeploy.h"
#include "window.h"

static int joined(moor_jp_call *call, uint32_t *rank, uint32_t *world, uint32_t *replica)
{
    PyObject *context = moor_jp_param(call, 0);
    *rank = (uint32_t)moor_py_int(context, "rank", 0);
    *world = (uint32_t)moor_py_int(context, "dist_config.world_size", 1);
    *replica = (uint32_t)moor_py_int(context, "dp_rank", 0);
    return moor_lmdeploy_join(MOOR_ROLE_WORKER, *rank, *world, *replica);
}

int moor_lmdeploy_agent_init(moor_jp_call *call)
{
    uint32_t rank, world, replica;
    return joined(call, &rank, &world, &replica) < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
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
    enter();
    return moor_window_touched(MOOR_WEIGHTS_UPDATE, call->jp->name);
}

int moor_lmdeploy_agent_update_weights_after(moor_jp_call *call)
{
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
    int result = moor_window_resume(device, (uint32_t)moor_py_int(context, "rank", 0),
                                    (uint32_t)moor_py_int(context, "dist_config.world_size", 1),
                                    (uint32_t)moor_py_int(context, "dp_rank", 0));
    Py_XDECREF(context);
    Py_XDECREF(device);
    Py_XDECREF(index);
    Py_XDECREF(torch);
    Py_XDECREF(available);
    Py_XDECREF(cuda);
    return result;
}
