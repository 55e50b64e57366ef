/* SPDX-License-Identifier: Apache-2.0 */
/* The front end's side: requests pass the gate, pause and update drive it, records are delivered in vLLM's own field. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "deliver.h"
#include "vllm.h"

/* How long an asynchronous wait sleeps between looks at the gate: short at first, then as a person would not notice. */
static PyObject *sleep_awaitable(uint32_t rounds)
{
    PyObject *asyncio = PyImport_ImportModule("asyncio");
    if (!asyncio)
        return NULL;
    PyObject *awaitable = PyObject_CallMethod(asyncio, "sleep", "d", rounds < 10 ? 0.002 : 0.02);
    Py_DECREF(asyncio);
    return awaitable;
}

static int await_a_moment(moor_jp_call *call)
{
    return moor_jp_set_awaitable(call, sleep_awaitable(call->rounds)) ? MOOR_JP_FAILED : MOOR_JP_AWAIT;
}

static int enforced(const moor_runtime *rt)
{
    return rt->process && rt->config.gate_mode == MOOR_MODE_ENFORCE;
}

static int gated(const moor_runtime *rt)
{
    return rt->process && rt->config.gate_mode != MOOR_MODE_OFF;
}

int moor_vllm_front_init(moor_jp_call *call)
{
    return moor_vllm_join(MOOR_ROLE_FRONTEND, moor_jp_param(call, 0)) < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
}

/* ---- requests pass the gate ---------------------------------------------------------------------------------------- */

typedef struct {
    moor_ticket ticket;
    uint64_t deadline_ns;
    uint32_t outcome;
} admission;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int admit(moor_jp_call *call, admission *a, const char *id, Py_ssize_t len)
{
    moor_runtime *rt = moor_runtime_get();
    long long n = moor_py_int(moor_jp_param(call, 1), "n", 1);
    uint32_t records = rt->config.record_enabled && n > 0 ? (uint32_t)n : 0;
    moor_status status = rt->api->gate_enter(rt->process, id, (uint32_t)len, records, 0.0, &a->ticket);
    if (status == MOOR_OK)
        return MOOR_JP_OK;
    if (status == MOOR_E_TIMEOUT && enforced(rt) && now_ns() < a->deadline_ns)
        return await_a_moment(call);
    moor_runtime_raise(status, "admission");
    /* A full ticket table must not cost a request; a request that the gate refuses in enforce must not run. */
    return enforced(rt) && status != MOOR_E_FULL ? MOOR_JP_RAISE : MOOR_JP_FAILED;
}

int moor_vllm_generate_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    Py_ssize_t len;
    const char *id = moor_py_text(moor_jp_param(call, 2), &len);
    if (!gated(rt) || !id)
        return MOOR_JP_OK;
    admission *a = call->state;
    if (!a) {
        a = call->state = calloc(1, sizeof(*a));
        if (!a)
            return PyErr_NoMemory(), MOOR_JP_FAILED;
        a->outcome = MOOR_OUTCOME_ABORTED; /* until it ends well */
        a->deadline_ns = now_ns() + (uint64_t)(rt->config.weights_timeout_s * 1e9);
    }
    return admit(call, a, id, len);
}

int moor_vllm_generate_after(moor_jp_call *call)
{
    admission *a = call->state;
    if (a)
        a->outcome = MOOR_OUTCOME_FINISHED;
    return MOOR_JP_OK;
}

int moor_vllm_generate_error(moor_jp_call *call)
{
    admission *a = call->state;
    if (a && !PyErr_GivenExceptionMatches(call->exc, PyExc_GeneratorExit))
        a->outcome =
            PyErr_GivenExceptionMatches(call->exc, PyExc_Exception) ? MOOR_OUTCOME_FAILED : MOOR_OUTCOME_ABORTED;
    return MOOR_JP_OK;
}

void moor_vllm_generate_finish(moor_jp_call *call)
{
    admission *a = call->state;
    moor_runtime *rt = moor_runtime_get();
    if (a && a->ticket.id && rt->process)
        rt->api->gate_leave(rt->process, &a->ticket, a->outcome, NULL);
    free(a);
    call->state = NULL;
}

/* ---- pause, sleep and update drive the gate -------------------------------------------------------------------------- */

static struct {
    int paused_by_us; /* Moor paused the engine for an update that came without a pause */
    int keep;         /* requests in flight are kept across: nothing to wait for */
    uint64_t drain_until_ns;
} gate;

static void seal(moor_runtime *rt)
{
    rt->api->gate_seal(rt->process);
    gate.drain_until_ns = now_ns() + (uint64_t)(rt->config.drain_timeout_s * 1e9);
}

/* Drains without blocking the event loop. Observe mode looks once. */
static int drain(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (gate.keep)
        return MOOR_JP_OK;
    moor_status status = rt->api->gate_drain(rt->process, 0.0);
    if (status == MOOR_OK || !enforced(rt))
        return MOOR_JP_OK;
    if (status == MOOR_E_TIMEOUT && now_ns() < gate.drain_until_ns)
        return await_a_moment(call);
    moor_runtime_raise(status, "drain");
    return MOOR_JP_RAISE;
}

int moor_vllm_pause_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!gated(rt) || call->rounds)
        return MOOR_JP_OK;
    const char *mode = moor_py_text(moor_jp_param(call, 0), NULL);
    gate.keep = mode && strcmp(mode, "keep") == 0;
    seal(rt);
    return MOOR_JP_OK;
}

int moor_vllm_pause_after(moor_jp_call *call)
{
    return gated(moor_runtime_get()) ? drain(call) : MOOR_JP_OK;
}

static int reopen(void)
{
    moor_runtime *rt = moor_runtime_get();
    if (!gated(rt))
        return MOOR_JP_OK;
    gate.keep = 0;
    moor_status status = rt->api->gate_reopen(rt->process, 0.0);
    if (status) {
        moor_runtime_raise(status, "reopen");
        return enforced(rt) ? MOOR_JP_RAISE : MOOR_JP_FAILED;
    }
    return MOOR_JP_OK;
}

int moor_vllm_resume_after(moor_jp_call *call)
{
    (void)call;
    return reopen();
}

int moor_vllm_sleep_before(moor_jp_call *call)
{
    (void)call;
    moor_runtime *rt = moor_runtime_get();
    if (gated(rt))
        seal(rt);
    return MOOR_JP_OK;
}

/* Waking the weights does not reopen; waking the KV cache does (SEMANTICS 4.8). */
int moor_vllm_wake_after(moor_jp_call *call)
{
    return moor_py_has(moor_jp_param(call, 0), "kv_cache", 1) ? reopen() : MOOR_JP_OK;
}

/* An update without a pause: in enforce Moor pauses the engine with its own pause, and resumes it afterwards. */
int moor_vllm_start_update_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->process)
        return MOOR_JP_OK;
    if (call->rounds == 0) {
        rt->api->weights_begin(rt->process, MOOR_WEIGHTS_UPDATE);
        moor_gate_status status = MOOR_GATE_STATUS_INIT;
        if (!enforced(rt) || rt->api->gate_status(rt->process, &status) || status.state != MOOR_GATE_OPEN)
            return MOOR_JP_OK;
        gate.paused_by_us = 1;
        PyObject *method = PyObject_GetAttrString(call->self, "pause_generation");
        PyObject *kwargs = Py_BuildValue("{s:s}", "mode", "wait");
        PyObject *none = PyTuple_New(0);
        PyObject *awaitable = method && kwargs && none ? PyObject_Call(method, none, kwargs) : NULL;
        Py_XDECREF(none);
        Py_XDECREF(kwargs);
        Py_XDECREF(method);
        return moor_jp_set_awaitable(call, awaitable) ? MOOR_JP_FAILED : MOOR_JP_AWAIT;
    }
    return MOOR_JP_OK;
}

int moor_vllm_update_error(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *text = PyObject_Str(call->exc);
    const char *why = moor_py_text(text, NULL);
    if (rt->process)
        rt->api->weights_end(rt->process, 0, why ? why : "the engine raised");
    PyErr_Clear();
    Py_XDECREF(text);
    return MOOR_JP_OK;
}

static int install(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    const char *label = moor_py_text(moor_jp_param(call, 0), NULL);
    rt->api->weights_end(rt->process, 1, NULL);
    moor_gate_status now = MOOR_GATE_STATUS_INIT;
    if (!gated(rt) || rt->api->gate_status(rt->process, &now) || now.state == MOOR_GATE_OPEN) {
        if (label)
            rt->api->weights_label(rt->process, label);
        return MOOR_JP_OK;
    }
    moor_status status = rt->api->gate_install(rt->process, label, gate.keep || !enforced(rt), NULL);
    if (status == MOOR_OK)
        return MOOR_JP_OK;
    moor_runtime_raise(status, "install");
    return enforced(rt) ? MOOR_JP_RAISE : MOOR_JP_FAILED;
}

int moor_vllm_finish_update_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->process || call->rounds)
        return MOOR_JP_OK;
    int result = install(call);
    if (result != MOOR_JP_OK || !gate.paused_by_us)
        return result;
    gate.paused_by_us = 0;
    PyObject *awaitable = PyObject_CallMethod(call->self, "resume_generation", NULL);
    return moor_jp_set_awaitable(call, awaitable) ? MOOR_JP_FAILED : MOOR_JP_AWAIT;
}

/* ---- delivery -------------------------------------------------------------------------------------------------------- */

/* RequestState does not keep routed_experts_prompt_start; it is noted on it, where the request is still at hand. */
int moor_vllm_request_state_after(moor_jp_call *call)
{
    PyObject *request = moor_jp_arg(call, "request");
    PyObject *start = request ? moor_py_path(request, "sampling_params.routed_experts_prompt_start") : NULL;
    if (start && PyObject_IsTrue(start) == 1 && PyObject_SetAttrString(call->result, "moor_prompt_start", start))
        PyErr_Clear();
    PyErr_Clear();
    Py_XDECREF(start);
    return MOOR_JP_OK;
}

static long long output_tokens(PyObject *state)
{
    PyObject *detokenizer = moor_py_path(state, "detokenizer");
    PyObject *n = detokenizer ? PyObject_CallMethod(detokenizer, "num_output_tokens", NULL) : NULL;
    long long tokens = n ? PyLong_AsLongLong(n) : -1;
    PyErr_Clear();
    Py_XDECREF(n);
    Py_XDECREF(detokenizer);
    return tokens;
}

int moor_vllm_completion_output_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *reason = moor_jp_param(call, 1);
    if (!rt->process || !rt->config.record_enabled || rt->config.deliver == MOOR_DELIVER_NONE || !reason ||
        reason == Py_None)
        return MOOR_JP_OK;
    long long prompt = moor_py_int(call->self, "prompt_len", 0), tokens = output_tokens(call->self);
    PyObject *id = moor_py_path(call->self, "request_id");
    moor_delivery delivery = {.timeout = 1.0};
    delivery.id = moor_py_text(id, &delivery.id_len);
    if (!delivery.id || prompt <= 0 || tokens < 0) {
        Py_XDECREF(id);
        return MOOR_JP_OK;
    }
    delivery.rows = (uint64_t)(prompt + tokens - (tokens > 0));
    delivery.start = (uint64_t)moor_py_int(call->self, "moor_prompt_start", 0);
    PyObject *field =
        rt->config.deliver == MOOR_DELIVER_REF ? moor_deliver_ref(&delivery) : moor_deliver_array(&delivery);
    int failed = !field || PyObject_SetAttrString(call->result, "routed_experts", field);
    Py_XDECREF(field);
    Py_XDECREF(id);
    rt->api->count(rt->process, failed ? "moor_deliver_errors_total" : "moor_delivered_total", 1);
    return failed ? MOOR_JP_FAILED : MOOR_JP_OK;
}

/* A reference is a str already; arrays take vLLM's way. */
int moor_vllm_base64_before(moor_jp_call *call)
{
    PyObject *array = moor_jp_param(call, 0);
    if (!array || !PyUnicode_Check(array))
        return MOOR_JP_OK;
    return moor_jp_set_result(call, Py_NewRef(array)) ? MOOR_JP_FAILED : MOOR_JP_DONE;
}

int moor_vllm_metrics_after(moor_jp_call *call)
{
    if (!moor_runtime_get()->process)
        return MOOR_JP_OK;
    PyObject *module = PyImport_ImportModule("moor.metrics");
    PyObject *none = module ? PyObject_CallMethod(module, "register", "O", call->result) : NULL;
    Py_XDECREF(none);
    Py_XDECREF(module);
    return PyErr_Occurred() ? MOOR_JP_FAILED : MOOR_JP_OK;
}
