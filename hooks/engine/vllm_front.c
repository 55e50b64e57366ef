/* SPDX-License-Identifier: Apache-2.0 */
/* The front end's side: requests pass the gate, pause and update drive it, records are delivered in vLLM's own field. */
#include <string.h>

#include "admission.h"
#include "deliver.h"
#include "vllm.h"

static int server_asks; /* for the routes of every request: vLLM has no request that does */

int moor_vllm_front_init(moor_jp_call *call)
{
    return moor_vllm_join(MOOR_ROLE_FRONTEND, moor_jp_param(call, 0)) < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
}

void moor_vllm_front_serves(PyObject *config)
{
    moor_runtime_get()->acknowledge_route =
        "POST /collective_rpc {\"method\": \"" MOOR_VLLM_ACKNOWLEDGE "\"}, where the server has its development routes";
    server_asks = moor_py_true(config, "aux_output_config.enable_return_routed_experts", 0) ||
                  moor_py_true(config, "model_config.enable_return_routed_experts", 0);
}

/* Moor will fill the field of this server's requests. Everything else that vLLM says against its switch is left to vLLM. */
static int fills_the_field(PyObject *config, const moor_config_values *moor)
{
    PyObject *device = moor_py_path(config, "device_config.device_type");
    PyObject *runner = moor_py_path(config, "model_config.runner_type");
    const char *where = moor_py_text(device, NULL), *what = moor_py_text(runner, NULL);
    int fills = where && !strcmp(where, "cpu") && what && !strcmp(what, "generate") &&
                moor_py_true(config, "model_config.is_moe", 0) && moor->record_enabled &&
                moor->deliver != MOOR_DELIVER_NONE;
    Py_XDECREF(runner);
    Py_XDECREF(device);
    return fills;
}

/* The switch becomes record.always of Moor's section, which goes wherever the configuration does. 0, or -1 with an error. */
static int take_switch_over(PyObject *config, PyObject *section)
{
    PyObject *outputs = moor_py_path(config, "aux_output_config");
    PyObject *none = PyDict_New();
    PyObject *record = outputs && none ? PyObject_CallMethod(section, "setdefault", "sO", "record", none) : NULL;
    int failed = !record || PyMapping_SetItemString(record, "always", Py_True) ||
                 PyObject_SetAttrString(outputs, "enable_return_routed_experts", Py_False);
    Py_XDECREF(record);
    Py_XDECREF(none);
    Py_XDECREF(outputs);
    return failed ? -1 : 0;
}

/* On a CPU vLLM refuses to start with --enable-return-routed-experts, because its own capture does not run there. Moor's does. */
int moor_vllm_aux_output_before(moor_jp_call *call)
{
    if (!moor_py_true(call->self, "aux_output_config.enable_return_routed_experts", 0))
        return MOOR_JP_OK;
    moor_config_values moor;
    PyObject *section = moor_vllm_section(call->self);
    int result = MOOR_JP_OK, on = moor_runtime_configured(section, &moor);
    if (on < 0) {
        result = MOOR_JP_RAISE;
    } else if (on && section && PyDict_Check(section) && fills_the_field(call->self, &moor)) {
        if (take_switch_over(call->self, section))
            result = MOOR_JP_FAILED;
        else
            moor_runtime_log(2, "--enable-return-routed-experts: Moor fills the field, vLLM cannot on a CPU");
    }
    Py_XDECREF(section);
    return result;
}

/* ---- requests pass the gate ---------------------------------------------------------------------------------------- */

int moor_vllm_generate_before(moor_jp_call *call)
{
    if (moor_vllm_is_off(call->self))
        return MOOR_JP_OK;
    /* A prompt that is a request of the core's already brings the id that is used; the parameter is ignored then. */
    PyObject *own = moor_py_path(moor_jp_param(call, 0), "request_id");
    long long n = moor_py_int(moor_jp_param(call, 1), "n", 1);
    int result = moor_admission_before(call, own ? own : moor_jp_param(call, 2),
                                       moor_runtime_records() && n > 0 ? (uint32_t)n : 0);
    Py_XDECREF(own);
    return result;
}

/* Each sample of n > 1 goes to the core by itself, and its client may go in between. What else is sent has no id of a client's. */
int moor_vllm_send_after(moor_jp_call *call)
{
    PyObject *id = moor_vllm_is_off(call->self) ? NULL : moor_py_path(moor_jp_param(call, 1), "external_req_id");
    moor_admission_sent(id);
    Py_XDECREF(id);
    return MOOR_JP_OK;
}

/* ---- pause, sleep and update drive the gate -------------------------------------------------------------------------- */

static int pausing;        /* the next pause is Moor's own, for an update that came without one */
static PyObject *resuming; /* the task that ends that pause after the update failed; event loops hold theirs weakly */

/* vLLM's pause modes: "wait" lets running requests end, "keep" freezes them, "abort" (its default) ends them. In all three
 * a request that reaches the core later is queued there until the resume. */
static int mode_is(const moor_jp_call *call, unsigned param, const char *name)
{
    const char *mode = moor_py_text(moor_jp_param(call, param), NULL);
    return strcmp(mode ? mode : "abort", name) == 0;
}

/* "wait" is drained before the engine pauses: a request that passed the gate just in time is still on its way to the core,
 * which would queue it once it is paused, and the drain would wait for a request that nobody runs. */
static int close_for(moor_jp_call *call, unsigned param)
{
    if (moor_vllm_is_off(call->self))
        return MOOR_JP_OK;
    if (call->rounds == 0) {
        uint32_t flags = (mode_is(call, param, "keep") ? MOOR_GATE_KEPT : 0) | (pausing ? MOOR_GATE_OWN : 0);
        pausing = 0;
        call->state = moor_gate_close(flags) ? &pausing : NULL;
    }
    return mode_is(call, param, "wait") ? moor_gate_drain(call) : MOOR_JP_OK;
}

/* After an abort only such late-comers can be left: they have not started, and are kept. */
static int settle_after(moor_jp_call *call, unsigned param)
{
    return mode_is(call, param, "abort") && !moor_vllm_is_off(call->self) ? moor_gate_drain_or_keep(call) : MOOR_JP_OK;
}

int moor_vllm_pause_before(moor_jp_call *call)
{
    return close_for(call, 0);
}

int moor_vllm_pause_after(moor_jp_call *call)
{
    return settle_after(call, 0);
}

/* Nobody resumes an engine that did not pause. A caller that was cancelled cannot know whether it did: then the gate stays closed. */
int moor_vllm_pause_error(moor_jp_call *call)
{
    if (!call->state || !PyErr_GivenExceptionMatches(call->exc, PyExc_Exception))
        return MOOR_JP_OK;
    moor_gate_open();
    PyErr_Clear(); /* the engine's own error is the one to see */
    return MOOR_JP_OK;
}

/* The caller is that task: the gate stays as the failure left it. */
static int in_resuming(void)
{
    PyObject *asyncio = resuming ? PyImport_ImportModule("asyncio") : NULL;
    PyObject *task = asyncio ? PyObject_CallMethod(asyncio, "current_task", NULL) : NULL;
    int same = task && task == resuming;
    PyErr_Clear();
    Py_XDECREF(task);
    Py_XDECREF(asyncio);
    return same;
}

int moor_vllm_resume_after(moor_jp_call *call)
{
    if (moor_vllm_is_off(call->self))
        return MOOR_JP_OK;
    return in_resuming() ? MOOR_JP_OK : moor_gate_open();
}

int moor_vllm_sleep_before(moor_jp_call *call)
{
    return close_for(call, 1);
}

int moor_vllm_sleep_after(moor_jp_call *call)
{
    return settle_after(call, 1);
}

/* Waking the weights does not reopen; waking the KV cache does (SEMANTICS 4.8), and so does what ends a sleep of level 0: False says
 * that memory is missing still. */
int moor_vllm_wake_after(moor_jp_call *call)
{
    PyObject *tags = moor_jp_param(call, 0);
    int wakes = moor_py_has(tags, "kv_cache", 1) || (moor_py_has(tags, "scheduling", 0) && call->result != Py_False);
    return wakes && !moor_vllm_is_off(call->self) ? moor_gate_open() : MOOR_JP_OK;
}

static PyObject *pause_awaitable(PyObject *engine)
{
    PyObject *method = PyObject_GetAttrString(engine, "pause_generation");
    PyObject *kwargs = Py_BuildValue("{s:s}", "mode", "wait");
    PyObject *none = PyTuple_New(0);
    PyObject *awaitable = method && kwargs && none ? PyObject_Call(method, none, kwargs) : NULL;
    Py_XDECREF(none);
    Py_XDECREF(kwargs);
    Py_XDECREF(method);
    return awaitable;
}

/* An update without a pause: in enforce Moor pauses the engine with its own pause, and resumes it afterwards. The session
 * begins when nothing can refuse the update any more. */
int moor_vllm_start_update_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    moor_gate_status status = MOOR_GATE_STATUS_INIT;
    if (!rt->process || moor_vllm_is_off(call->self))
        return MOOR_JP_OK;
    if (moor_gate_enforced() && rt->api->gate_status(rt->process, &status) == MOOR_OK) {
        if (call->rounds == 0 && (status.state == MOOR_GATE_OPEN || (status.flags & MOOR_GATE_OWN))) {
            if (moor_jp_set_awaitable(call, pause_awaitable(call->self)))
                return MOOR_JP_FAILED;
            pausing = 1; /* it is awaited at once, with nothing in between */
            return MOOR_JP_AWAIT;
        }
        int drained = status.state == MOOR_GATE_SEALED ? moor_gate_drain(call) : MOOR_JP_OK;
        if (drained != MOOR_JP_OK)
            return drained;
    }
    rt->api->weights_begin(rt->process, MOOR_WEIGHTS_UPDATE);
    return MOOR_JP_OK;
}

/* Nobody else would end Moor's own pause: once the operator has acknowledged the failure, requests would pass the gate into an
 * engine that stands still. Until then the gate holds them, and none is left in the engine. 0, or -1 with an error. */
static int resume_later(PyObject *engine)
{
    if (!moor_gate_is(MOOR_GATE_OWN))
        return 0;
    PyObject *asyncio = PyImport_ImportModule("asyncio");
    PyObject *resume = asyncio ? PyObject_CallMethod(engine, "resume_generation", NULL) : NULL;
    PyObject *task = resume ? PyObject_CallMethod(asyncio, "ensure_future", "O", resume) : NULL;
    Py_XDECREF(resume);
    Py_XDECREF(asyncio);
    if (!task)
        return -1;
    PyObject *old = resuming;
    resuming = task;
    Py_XDECREF(old);
    return 0;
}

int moor_vllm_finish_update_after(moor_jp_call *call)
{
    if (call->rounds || moor_vllm_is_off(call->self))
        return MOOR_JP_OK;
    int result = moor_gate_installed(moor_py_text(moor_jp_param(call, 0), NULL));
    if (result != MOOR_JP_OK) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        resume_later(call->self);
        PyErr_Restore(type, value, trace);
        return result;
    }
    if (!moor_gate_is(MOOR_GATE_OWN))
        return MOOR_JP_OK;
    PyObject *awaitable = PyObject_CallMethod(call->self, "resume_generation", NULL);
    return moor_jp_set_awaitable(call, awaitable) ? MOOR_JP_FAILED : MOOR_JP_AWAIT;
}

int moor_vllm_update_error(moor_jp_call *call)
{
    if (moor_vllm_is_off(call->self))
        return MOOR_JP_OK;
    int result = moor_gate_update_error(call);
    return resume_later(call->self) ? MOOR_JP_FAILED : result;
}

/* ---- delivery -------------------------------------------------------------------------------------------------------- */

#define START "moor_prompt_start" /* routed_experts_prompt_start, which a RequestState does not keep */

/* Notes where the field of this request is to begin. 0, or -1 with an error. */
static int note_start(PyObject *state, PyObject *request)
{
    PyObject *start = request ? moor_py_path(request, "sampling_params.routed_experts_prompt_start") : NULL;
    int failed = start && PyObject_IsTrue(start) == 1 && PyObject_SetAttrString(state, START, start);
    Py_XDECREF(start);
    return failed ? -1 : 0;
}

/* A RequestState is made for what goes to the core next, while the request is still at hand. */
int moor_vllm_request_state_after(moor_jp_call *call)
{
    PyObject *request = moor_jp_arg(call, "request");
    if (moor_py_true(request, "sampling_params." MOOR_VLLM_OFF, 0))
        return PyObject_SetAttrString(call->result, MOOR_VLLM_OFF, Py_True) ? MOOR_JP_FAILED : MOOR_JP_OK;
    int failed = note_start(call->result, request) || moor_vllm_send_ids(request, call->result) ||
                 (moor_vllm_is_beam_step() && PyObject_SetAttrString(call->result, MOOR_VLLM_OFF, Py_True));
    return failed ? MOOR_JP_FAILED : MOOR_JP_OK;
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

/* ---- streaming input: one request, one record, several turns. Each turn's last token is sampled, seen by the client, and dropped by the
 * scheduler before the next turn's input is put behind what was computed. ---- */

#define TURNS "moor_turns"        /* that ended before the present one */
#define SEEN "moor_turn_tokens"   /* sampled when the present one began */
#define INPUTS "moor_next_starts" /* of turns that have not begun: where their fields begin */

/* The next turn's input, which may have to wait for the present turn's end. */
int moor_vllm_session_input_before(moor_jp_call *call)
{
    PyObject *state = moor_jp_param(call, 0), *request = moor_jp_param(call, 1);
    if (!moor_runtime_records() || !state || !moor_py_true(request, "resumable", 0))
        return MOOR_JP_OK;
    PyObject *waiting = moor_py_path(state, INPUTS);
    if (!waiting && (waiting = PyList_New(0)) && PyObject_SetAttrString(state, INPUTS, waiting))
        Py_CLEAR(waiting);
    PyObject *start = PyLong_FromLongLong(moor_py_int(request, "sampling_params.routed_experts_prompt_start", 0));
    int failed = !waiting || !start || PyList_Append(waiting, start);
    Py_XDECREF(start);
    Py_XDECREF(waiting);
    return failed ? MOOR_JP_FAILED : MOOR_JP_OK;
}

static int set_int(PyObject *object, const char *name, long long value)
{
    PyObject *number = PyLong_FromLongLong(value);
    int failed = !number || PyObject_SetAttrString(object, name, number);
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

int moor_vllm_session_turn_before(moor_jp_call *call)
{
    PyObject *state = call->self, *waiting = moor_runtime_records() ? moor_py_path(state, INPUTS) : NULL;
    if (!waiting)
        return MOOR_JP_OK;
    PyObject *start = PyObject_CallMethod(waiting, "pop", "i", 0);
    int failed = !start || PyObject_SetAttrString(state, START, start) ||
                 set_int(state, TURNS, moor_py_int(state, TURNS, 0) + 1) || set_int(state, SEEN, output_tokens(state));
    Py_XDECREF(start);
    Py_DECREF(waiting);
    return failed ? MOOR_JP_FAILED : MOOR_JP_OK;
}

/* What vLLM 0.24's own capture says on a CPU is 0 everywhere. */
static void empty_field(PyObject *output)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (PyObject_SetAttrString(output, "routed_experts", Py_None))
        PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

int moor_vllm_completion_output_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *reason = moor_jp_param(call, 1);
    if (!reason || reason == Py_None || moor_py_true(call->self, MOOR_VLLM_OFF, 0) || !moor_deliver_wanted(server_asks))
        return MOOR_JP_OK;
    long long prompt = moor_py_int(call->self, "prompt_len", 0), tokens = output_tokens(call->self);
    PyObject *id = moor_py_path(call->self, "request_id");
    moor_delivery delivery = {.timeout = 1.0};
    delivery.id = moor_py_text(id, &delivery.id_len);
    if (!delivery.id || prompt <= 0 || tokens <= moor_py_int(call->self, SEEN, 0)) {
        Py_XDECREF(id); /* an abort before the first token: nobody knows how much of the prompt ran */
        return MOOR_JP_OK;
    }
    delivery.rows = (uint64_t)(prompt + tokens - 1 - moor_py_int(call->self, TURNS, 0));
    delivery.start = (uint64_t)moor_py_int(call->self, START, 0);
    PyObject *queue =
        moor_py_path(call->self, "queue"); /* from which AsyncLLM.generate takes it; LLM has none, and waits here */
    PyObject *field = queue ? moor_deliver_later(&delivery, 0) : moor_deliver_field(&delivery);
    int noted = queue != NULL;
    Py_XDECREF(queue);
    int failed = !field || PyObject_SetAttrString(call->result, "routed_experts", field);
    if (failed)
        empty_field(call->result);
    Py_XDECREF(field);
    Py_XDECREF(id);
    if (!noted)
        rt->api->count(rt->process, failed ? "moor_deliver_errors_total" : "moor_delivered_total", 1);
    return failed ? MOOR_JP_FAILED : MOOR_JP_OK;
}

int moor_vllm_generate_item(moor_jp_call *call)
{
    PyObject *outputs = moor_py_path(call->result, "outputs");
    int result = moor_deliver_settle(call, outputs);
    Py_XDECREF(outputs);
    return result;
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
    return moor_runtime_metrics(call->result);
}
