/* SPDX-License-Identifier: Apache-2.0 */
/* The engine core's side: seal where a request is freed, what the workers must know about KV blocks, RPCs seen. */
#include <stdlib.h>
#include <string.h>

#include "vllm.h"

/* Block ids handed out since the last schedule(); sent with the next SchedulerOutput. */
static struct {
    int32_t *ids;
    size_t n, cap;
    int reset;
} handed;

int moor_vllm_core_init(moor_jp_call *call)
{
    int on = moor_vllm_join(MOOR_ROLE_CORE, moor_jp_param(call, 0));
    if (on > 0)
        handed.n = handed.reset = 0; /* of an engine that was here before */
    return on < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
}

int moor_vllm_scheduler_init_after(moor_jp_call *call)
{
    PyObject *pool = moor_vllm_is_off(call->self) ? moor_py_path(call->self, "kv_cache_manager.block_pool") : NULL;
    int failed = pool && PyObject_SetAttrString(pool, MOOR_VLLM_OFF, Py_True);
    Py_XDECREF(pool);
    return failed ? MOOR_JP_FAILED : MOOR_JP_OK;
}

/* Each pipeline stage of this replica has a store, and is told. Returns the first failure. */
static moor_status seal_stages(PyObject *scheduler, const char *id, Py_ssize_t len, uint64_t rows, uint32_t flags)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *config = moor_py_path(scheduler, "vllm_config");
    moor_vllm_place here = moor_vllm_read_place(config);
    moor_status first = MOOR_OK;
    Py_XDECREF(config);
    for (uint32_t stage = 0; stage < here.stages; stage++) {
        moor_status status = rt->api->seal(rt->process, here.first_store + stage, id, (uint32_t)len, rows, flags);
        first = first ? first : status;
    }
    return first;
}

/* Where the scheduler has never seen to it that a request runs, no store ever hears of its other ids: who waits for its record by one
 * of them is told here. */
#define RAN "moor_ran"

static void seal_alias(void *user, const char *id, uint32_t len, uint32_t index)
{
    (void)index;
    (void)seal_stages(user, id, (Py_ssize_t)len, 0, MOOR_SEAL_ABORTED);
}

static void never_ran(PyObject *scheduler, PyObject *request)
{
    PyObject *ids = moor_vllm_sent_ids(request);
    moor_vllm_each_id(ids, seal_alias, scheduler);
    Py_XDECREF(ids);
}

static int is_aborted(PyObject *request)
{
    PyObject *name = moor_py_path(request, "status.name");
    const char *text = moor_py_text(name, NULL);
    int aborted = text && strstr(text, "ABORTED") != NULL;
    Py_XDECREF(name);
    return aborted;
}

/* Rows = tokens that went through the model (SEMANTICS 1.1): the last sampled token did not. num_computed_tokens is no
 * help once something was sampled: it falls back to 0 when the request is preempted, and runs ahead of rejected drafts. */
int moor_vllm_free_request_before(moor_jp_call *call)
{
    PyObject *request = moor_jp_param(call, 0);
    if (!request || !moor_runtime_records() || moor_vllm_is_off(call->self))
        return MOOR_JP_OK;
    PyObject *id = moor_py_path(request, "request_id");
    Py_ssize_t len;
    const char *text = moor_py_text(id, &len);
    uint32_t flags = is_aborted(request) ? MOOR_SEAL_ABORTED : 0;
    long long rows;
    if (moor_py_int(request, "num_output_tokens", 0) > 0) {
        rows = moor_py_int(request, "num_tokens", 1) - 1;
    } else {
        rows = moor_py_int(request, "num_computed_tokens", 0);
        if (flags)
            flags |= MOOR_SEAL_COMMITTED; /* the step in flight decides */
    }
    moor_status status = MOOR_OK;
    if (text)
        status = seal_stages(call->self, text, len, rows > 0 ? (uint64_t)rows : 0, flags);
    Py_XDECREF(id);
    if (!moor_py_true(request, RAN, 0))
        never_ran(call->self, request);
    if (status) {
        moor_runtime_raise(status, "seal");
        return MOOR_JP_FAILED;
    }
    return MOOR_JP_OK;
}

int moor_vllm_new_blocks_after(moor_jp_call *call)
{
    if (!moor_runtime_get()->process || moor_py_true(call->self, MOOR_VLLM_OFF, 0))
        return MOOR_JP_OK;
    Py_ssize_t n = PySequence_Size(call->result);
    if (n <= 0)
        return n < 0 ? MOOR_JP_FAILED : MOOR_JP_OK;
    if (handed.n + (size_t)n > handed.cap) {
        size_t cap = 2 * (handed.n + (size_t)n);
        int32_t *grown = realloc(handed.ids, cap * sizeof(*grown));
        if (!grown) {
            handed.reset = 1; /* not knowing which, none can be trusted */
            PyErr_NoMemory();
            return MOOR_JP_FAILED;
        }
        handed.ids = grown;
        handed.cap = cap;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *block = PySequence_GetItem(call->result, i);
        handed.ids[handed.n++] = (int32_t)moor_py_int(block, "block_id", -1);
        Py_XDECREF(block);
    }
    return MOOR_JP_OK;
}

static void mark_new(PyObject *scheduler, PyObject *output)
{
    PyObject *scheduled = moor_py_path(output, "scheduled_new_reqs"), *requests = moor_py_path(scheduler, "requests");
    Py_ssize_t n = scheduled && requests ? PySequence_Size(scheduled) : 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *first = PySequence_GetItem(scheduled, i), *id = moor_py_path(first, "req_id");
        PyObject *request = id ? PyObject_GetItem(requests, id) : NULL;
        if (request)
            (void)PyObject_SetAttrString(request, RAN, Py_True);
        PyErr_Clear();
        Py_XDECREF(request);
        Py_XDECREF(id);
        Py_XDECREF(first);
    }
    PyErr_Clear();
    Py_XDECREF(requests);
    Py_XDECREF(scheduled);
}

int moor_vllm_schedule_after(moor_jp_call *call)
{
    if (moor_vllm_is_off(call->self))
        return MOOR_JP_OK;
    if (moor_runtime_records())
        mark_new(call->self, call->result);
    if (handed.reset) {
        if (PyObject_SetAttrString(call->result, MOOR_VLLM_KV_RESET, Py_True))
            return MOOR_JP_FAILED;
        handed.reset = 0;
    }
    if (!handed.n)
        return MOOR_JP_OK;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)handed.ids, (Py_ssize_t)(handed.n * sizeof(int32_t)));
    int failed = !bytes || PyObject_SetAttrString(call->result, MOOR_VLLM_HANDED_OUT, bytes);
    Py_XDECREF(bytes);
    if (failed)
        return MOOR_JP_FAILED; /* kept: sent with the next one */
    handed.n = 0;
    return MOOR_JP_OK;
}

int moor_vllm_reset_prefix_after(moor_jp_call *call)
{
    if (call->result != Py_False && !moor_vllm_is_off(call->self))
        handed.reset = 1;
    return MOOR_JP_OK;
}

/* Methods of a worker that are known to leave the weights alone, or that have join points of their own in the worker. */
static int is_harmless(const char *method)
{
    static const char *const exact[] = {"check_health",
                                        "profile",
                                        "list_loras",
                                        "pin_lora",
                                        "execute_model",
                                        "sample_tokens",
                                        "sleep",
                                        "wake_up",
                                        "determine_available_memory",
                                        "compile_or_warm_up_model",
                                        "initialize_from_config",
                                        "initialize_cache",
                                        "init_device",
                                        "load_model",
                                        "init_weight_transfer_engine",
                                        "shutdown_weight_transfer_engine",
                                        "start_weight_update",
                                        "start_draft_weight_update",
                                        "update_weights",
                                        "finish_weight_update",
                                        "reload_weights",
                                        "add_lora",
                                        "remove_lora",
                                        "synchronize_device",
                                        "take_draft_token_ids",
                                        "shutdown",
                                        "compute_weight_checksums",
                                        "execute_dummy_batch",
                                        "supported_tasks",
                                        NULL};
    static const char *const prefixes[] = {"get_", "is_", "has_", "reset_", "report_", "list_", NULL};
    for (int i = 0; exact[i]; i++)
        if (!strcmp(method, exact[i]))
            return 1;
    for (int i = 0; prefixes[i]; i++)
        if (!strncmp(method, prefixes[i], strlen(prefixes[i])))
            return 1;
    return 0;
}

/* The engine's own route for a method of all workers is a trainer's way to Moor's gate over HTTP. No worker has such a method. */
int moor_vllm_rpc_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    const char *name = moor_py_text(moor_jp_param(call, 0), NULL);
    if (!rt->process || !name || strcmp(name, MOOR_VLLM_ACKNOWLEDGE) != 0)
        return MOOR_JP_OK;
    moor_gate_status gate = MOOR_GATE_STATUS_INIT;
    moor_status status = rt->api->gate_status(rt->process, &gate);
    if (!status)
        status = rt->api->gate_acknowledge(rt->process);
    if (status)
        return moor_runtime_raise(status, "acknowledge"), MOOR_JP_RAISE;
    PyObject *answer = gate.poisoned ? Py_BuildValue("[s]", gate.poison_reason) : PyList_New(0);
    return moor_jp_set_result(call, answer) ? MOOR_JP_FAILED : MOOR_JP_DONE;
}

/* A method that a framework invented (verl calls update_weights_from_ipc), or a function that runs in the worker: what it
 * does to the weights cannot be seen from here, so the epoch moves. */
int moor_vllm_rpc_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->process)
        return MOOR_JP_OK;
    PyObject *method = moor_jp_param(call, 0);
    const char *name = moor_py_text(method, NULL);
    if (name && is_harmless(name))
        return MOOR_JP_OK;
    rt->api->weights_touched(rt->process, MOOR_WEIGHTS_RPC, name ? name : "a callable");
    return MOOR_JP_OK;
}

/* A rank's refusal becomes the core's error, when all ranks have answered. */
int moor_vllm_executor_rpc_after(moor_jp_call *call)
{
    if (!PyList_Check(call->result))
        return MOOR_JP_OK;
    for (Py_ssize_t i = 0; i < PyList_Size(call->result); i++) {
        PyObject *answer = PyList_GetItem(call->result, i);
        PyObject *mark = PyTuple_Check(answer) && PyTuple_Size(answer) == 2 ? PyTuple_GetItem(answer, 0) : NULL;
        const char *text = moor_py_text(mark, NULL);
        if (!text || strcmp(text, MOOR_VLLM_REFUSED) != 0)
            continue;
        PyErr_SetObject(PyExc_RuntimeError, PyTuple_GetItem(answer, 1));
        return MOOR_JP_RAISE;
    }
    return MOOR_JP_OK;
}

/* Workers of a Ray cluster that was there before do not inherit our environment: vLLM copies the names of this set to them. */
int moor_vllm_ray_env_after(moor_jp_call *call)
{
    static const char *const names[] = {"MOOR_CONFIG", "MOOR_INSTANCE", "MOOR_DIR"};
    if (!moor_runtime_get()->process || !PySet_Check(call->result))
        return MOOR_JP_OK;
    for (int i = 0; i < 3; i++) {
        PyObject *name = PyUnicode_FromString(names[i]);
        int failed = !name || PySet_Add(call->result, name);
        Py_XDECREF(name);
        if (failed)
            return MOOR_JP_FAILED;
    }
    return MOOR_JP_OK;
}

int moor_vllm_set_version_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    const char *label = moor_py_text(moor_jp_param(call, 0), NULL);
    if (rt->process && label && !moor_vllm_is_off(call->self))
        rt->api->weights_label(rt->process, label);
    return MOOR_JP_OK;
}
