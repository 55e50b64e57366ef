/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler process, which is core and worker in one: set-up when it is built, the steps, the KV slots, the seal. */
#include "sglang.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "model.h"

enum { MAX_LAYERS = 1024 };

static struct {
    PyObject *scheduler; /* borrowed: it lives as long as its steps come; NULL: this process does not record */
    PyObject *allocator; /* borrowed: the scheduler's own; the pools inside a composite one count differently */
    PyObject *batch;     /* of the step that is expected or open; owned */
    moor_model_shape shape;
    int32_t layer_ids[MAX_LAYERS];
    int16_t column_of[MAX_LAYERS]; /* by the model's layer number; -1: no column */
    uint32_t layers;
    int prefix_unproven; /* a tier below may fill slots */
    int replaces;        /* Moor delivers: the engine's own capture has nothing to do */
    moor_step_request *requests;
    PyObject **rids; /* owned during begin_step */
    uint32_t n, cap;
} S;

/* ---- set-up -------------------------------------------------------------------------------------------------------- */

static void note_layer(PyObject *module)
{
    PyObject *config = moor_py_path(module, "topk_config");
    long long layer = config ? moor_py_int(module, "layer_id", -1) : -1;
    if (layer >= 0 && layer < MAX_LAYERS && moor_py_true(config, "allow_routed_experts_capture", 1))
        S.column_of[layer] = 0;
    Py_XDECREF(config);
}

/* The modules that choose experts carry a topk_config and the model's layer number. 0, or -1 with a Python error. */
static int find_layers(PyObject *model)
{
    memset(S.column_of, -1, sizeof(S.column_of));
    S.layers = 0;
    PyObject *modules = PyObject_CallMethod(model, "modules", NULL);
    PyObject *iterator = modules ? PyObject_GetIter(modules) : NULL;
    Py_XDECREF(modules);
    PyObject *module;
    while (iterator && (module = PyIter_Next(iterator))) {
        note_layer(module);
        Py_DECREF(module);
    }
    Py_XDECREF(iterator);
    for (int32_t layer = 0; layer < MAX_LAYERS; layer++) {
        if (S.column_of[layer] < 0)
            continue;
        S.column_of[layer] = (int16_t)S.layers;
        S.layer_ids[S.layers++] = layer;
    }
    return PyErr_Occurred() ? -1 : 0;
}

static const char *why_not(PyObject *scheduler, const moor_sglang_place *place)
{
    PyObject *type = moor_py_path(scheduler, "server_args.device");
    const char *device = moor_py_text(type, NULL);
    int on_cpu = !device || strcmp(device, "cpu") == 0;
    Py_XDECREF(type);
    PyObject *drafts = moor_py_path(scheduler, "draft_worker");
    Py_XDECREF(drafts);
    if (!S.layers)
        return "no MoE router was found in the model";
    if (!S.shape.num_experts || !S.shape.top_k || !S.shape.model_layers)
        return "the model's configuration does not say how many experts, experts per token or layers it has";
    if (!moor_py_true(scheduler, "is_generation", 1))
        return "this version of Moor records only what SGLang generates";
    if (!on_cpu)
        return "this version of Moor records only models whose expert ids are in host memory";
    if (drafts)
        return "this version of Moor does not know which speculative tokens SGLang accepts";
    if (place->pp_size > 1 || moor_py_true(scheduler, "server_args.enable_dp_attention", 0))
        return "this version of Moor records neither pipeline stages nor data-parallel attention in SGLang";
    return NULL;
}

static int open_store(PyObject *scheduler, const moor_sglang_place *place)
{
    moor_runtime *rt = moor_runtime_get();
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    args.store_index = args.dp_rank = place->dp_rank;
    args.layers = S.layers;
    args.layer_ids = S.layer_ids;
    args.top_k = S.shape.top_k;
    args.num_experts = S.shape.num_experts;
    args.model_layers = S.shape.model_layers;
    long long chunk = moor_py_int(scheduler, "max_prefill_tokens", 16384);
    long long longest = moor_py_int(scheduler, "max_req_input_len", 0);
    args.max_requests = (uint32_t)moor_py_int(scheduler, "max_running_requests", 256);
    args.max_step_tokens = (uint32_t)(chunk > longest ? chunk : longest) + args.max_requests;
    args.dp_size = place->dp_size;
    args.tp_size = place->tp_size;
    long long slots = moor_py_int(S.allocator, "size", 0), page = moor_py_int(S.allocator, "page_size", 1);
    if (slots > 0) { /* a slot is a KV block of one token; slot numbers run to size + page - 1 */
        args.kv_blocks = (uint32_t)(slots + page);
        args.kv_block_size = 1;
    }
    moor_store *store = NULL;
    moor_status status = rt->api->store_open(rt->process, &args, &store);
    if (status)
        return moor_recording_failed(status);
    rt->store = store;
    rt->store_index = args.store_index;
    S.scheduler = scheduler;
    moor_capture_attach(moor_sglang_jp("scheduler.capture"));
    moor_jp_bound(moor_sglang_jp("scheduler.capture"), "capture_routed_experts_if_allowed", S.layers);
    moor_runtime_log(2, "bound %u MoE layers: %u experts, %u per token", S.layers, args.num_experts, args.top_k);
    return MOOR_JP_OK;
}

/* Only the first rank of a tensor-parallel group records: all of them route alike. */
static int set_up(PyObject *scheduler, PyObject *model, const moor_sglang_place *place)
{
    moor_runtime *rt = moor_runtime_get();
    if (moor_jp_wrap_attr(moor_sglang_jp("scheduler.load_weights"), model, "load_weights") < 0)
        PyErr_Clear(); /* a model without load_weights cannot be changed that way */
    if (!rt->config.record_enabled)
        return MOOR_JP_OK;
    PyObject *config = moor_py_path(scheduler, "model_config");
    moor_model_read_shape(config, &S.shape);
    Py_XDECREF(config);
    if (find_layers(model))
        return MOOR_JP_FAILED;
    const char *why = why_not(scheduler, place);
    if (why)
        return moor_recording_refused(why);
    S.prefix_unproven =
        moor_py_true(scheduler, "enable_hierarchical_cache", 0) || moor_py_true(scheduler, "enable_lmcache", 0);
    int result = MOOR_JP_OK;
    if (place->tp_rank == 0) {
        S.allocator = moor_py_path(scheduler, "token_to_kv_pool_allocator");
        result = open_store(scheduler, place);
        Py_XDECREF(S.allocator);
    }
    S.replaces = result == MOOR_JP_OK && rt->config.deliver != MOOR_DELIVER_NONE;
    return result;
}

int moor_sglang_scheduler_after(moor_jp_call *call)
{
    moor_sglang_place place = moor_sglang_read_place(call->self);
    int on = moor_sglang_join(MOOR_ROLE_CORE | MOOR_ROLE_WORKER, &place);
    if (on <= 0)
        return on < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
    PyObject *model = moor_py_path(call->self, "tp_worker.model_runner.model");
    int result = model ? set_up(call->self, model, &place) : MOOR_JP_OK;
    Py_XDECREF(model);
    return result;
}

/* ---- steps --------------------------------------------------------------------------------------------------------- */

static int reserve(uint32_t n)
{
    if (n <= S.cap)
        return 0;
    uint32_t cap = n + 64;
    moor_step_request *requests = realloc(S.requests, cap * sizeof(*requests));
    if (requests)
        S.requests = requests;
    PyObject **rids = realloc(S.rids, cap * sizeof(*rids));
    if (rids)
        S.rids = rids;
    if (!requests || !rids) {
        PyErr_NoMemory();
        return -1;
    }
    S.cap = cap;
    return 0;
}

/* What the loop over the batch reads, fetched once a step. */
typedef struct {
    PyObject *reqs, *starts, *counts; /* counts NULL: a decode step, starts are sequence lengths */
    PyObject *slots;                  /* numpy view of req_to_token */
    Py_buffer view;
    int has_view;
} batch_view;

static void close_view(batch_view *v)
{
    if (v->has_view)
        PyBuffer_Release(&v->view);
    Py_XDECREF(v->reqs);
    Py_XDECREF(v->starts);
    Py_XDECREF(v->counts);
    Py_XDECREF(v->slots);
}

static PyObject *call_path(PyObject *object, const char *path, const char *method)
{
    PyObject *at = moor_py_path(object, path);
    PyObject *result = at ? PyObject_CallMethod(at, method, NULL) : NULL;
    Py_XDECREF(at);
    return result;
}

static int open_view(batch_view *v)
{
    memset(v, 0, sizeof(*v));
    v->reqs = moor_py_path(S.batch, "reqs");
    PyObject *extend = call_path(S.batch, "forward_mode", "is_extend");
    if (extend == Py_True) { /* mixed batches too: their decoding requests extend by one */
        v->starts = moor_py_path(S.batch, "prefix_lens");
        v->counts = moor_py_path(S.batch, "extend_lens");
    } else {
        v->starts = call_path(S.batch, "seq_lens_cpu", "tolist");
    }
    v->slots = call_path(S.batch, "req_to_token_pool.req_to_token", "numpy");
    int missing = !extend || !v->reqs || !v->starts || !v->slots || (extend == Py_True && !v->counts);
    Py_XDECREF(extend);
    if (missing) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_AttributeError, "the batch has no forward_mode, reqs, prefix_lens, extend_lens, "
                                                  "seq_lens_cpu or req_to_token");
        return -1;
    }
    if (PyObject_GetBuffer(v->slots, &v->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT))
        return -1;
    v->has_view = 1;
    if (v->view.ndim != 2 || v->view.itemsize != sizeof(int32_t)) {
        PyErr_Format(PyExc_TypeError, "req_to_token has %d dimensions and items of %zd bytes", v->view.ndim,
                     v->view.itemsize);
        return -1;
    }
    return 0;
}

static long long item_at(PyObject *list, Py_ssize_t i)
{
    PyObject *item = PySequence_GetItem(list, i);
    long long number = item ? PyLong_AsLongLong(item) : -1;
    Py_XDECREF(item);
    return number;
}

/* The request's row of req_to_token: its slots from position 0, read in place. */
static const int32_t *slots_of(const batch_view *v, PyObject *req, uint64_t stop)
{
    long long row = moor_py_int(req, "kv.req_pool_idx", -1);
    if (row < 0)
        row = moor_py_int(req, "req_pool_idx", -1);
    if (row < 0 || row >= v->view.shape[0] || stop > (uint64_t)v->view.shape[1])
        return NULL;
    return (const int32_t *)v->view.buf + row * v->view.shape[1];
}

static uint32_t rows_hint(PyObject *req)
{
    PyObject *prompt = moor_py_path(req, "origin_input_ids");
    Py_ssize_t n = prompt ? PyObject_Size(prompt) : 0;
    PyErr_Clear();
    Py_XDECREF(prompt);
    long long most = moor_py_int(req, "sampling_params.max_new_tokens", 0), rows = (n > 0 ? n : 0) + most;
    return rows > 0 && rows < 1 << 24 ? (uint32_t)rows : 0;
}

/* Request i of the batch into S.requests[S.n]; 0, or -1 with an error. */
static int read_request(const batch_view *v, Py_ssize_t i)
{
    PyObject *req = PySequence_GetItem(v->reqs, i);
    PyObject *rid = moor_py_path(req, "rid");
    Py_ssize_t len = 0;
    const char *text = moor_py_text(rid, &len);
    long long start = item_at(v->starts, i), count = v->counts ? item_at(v->counts, i) : 1;
    start -= v->counts ? 0 : 1; /* a sequence length counts the token that this step runs */
    if (!text || start < 0 || count < 0) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "request %s: %lld tokens from position %lld", text ? text : "?", count,
                         start);
        Py_XDECREF(rid);
        Py_XDECREF(req);
        return -1;
    }
    const int32_t *slots = slots_of(v, req, (uint64_t)(start + count));
    S.rids[S.n] = rid;
    S.requests[S.n++] = (moor_step_request){
        .id = text,
        .id_len = (uint32_t)len,
        .count = (uint32_t)count,
        .start = (uint64_t)start,
        .n_kv_blocks = slots ? (uint32_t)(start + count) : 0,
        .kv_blocks = slots,
        .rows_hint = v->counts ? rows_hint(req) : 0,
        .flags = v->counts && S.prefix_unproven ? MOOR_STEP_PREFIX_UNPROVEN : 0,
    };
    Py_DECREF(req);
    return 0;
}

static int begin_step(void *user)
{
    (void)user;
    moor_runtime *rt = moor_runtime_get();
    batch_view view;
    S.n = 0;
    int result = open_view(&view);
    Py_ssize_t n = result ? 0 : PySequence_Size(view.reqs);
    if (n < 0 || reserve((uint32_t)n))
        result = -1;
    for (Py_ssize_t i = 0; i < n && result == 0; i++)
        result = read_request(&view, i);
    if (result == 0) {
        moor_status status = rt->api->step_begin(rt->store, S.requests, S.n);
        if (status) {
            moor_runtime_raise(status, "step_begin");
            result = -1;
        }
    }
    for (uint32_t i = 0; i < S.n; i++)
        Py_CLEAR(S.rids[i]);
    close_view(&view);
    return result;
}

static void end_step(void)
{
    Py_CLEAR(S.batch);
    moor_capture_done();
}

static int ours(const moor_jp_call *call)
{
    return S.scheduler && call->self == S.scheduler && moor_runtime_get()->store;
}

int moor_sglang_run_batch_before(moor_jp_call *call)
{
    PyObject *batch = ours(call) ? moor_jp_param(call, 0) : NULL;
    PyObject *reqs = batch ? moor_py_path(batch, "reqs") : NULL;
    Py_ssize_t n = reqs ? PyObject_Size(reqs) : 0;
    Py_XDECREF(reqs);
    PyObject *idle = n > 0 ? call_path(batch, "forward_mode", "is_idle") : NULL;
    PyErr_Clear();
    if (n > 0 && idle != Py_True) {
        S.batch = Py_NewRef(batch);
        moor_capture_expect(begin_step, NULL);
    }
    Py_XDECREF(idle);
    return MOOR_JP_OK;
}

/* Without speculation every token that ran is accepted, whatever is sampled after it; a step of the overlap scheduler is
 * over here as well, only its result is looked at later. */
int moor_sglang_run_batch_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!ours(call) || !S.batch)
        return MOOR_JP_OK;
    int open = moor_capture_settle() == MOOR_STEP_OPEN;
    if (open && rt->api->step_commit(rt->store, NULL, 0))
        moor_runtime_log(1, "committing a step: %s", rt->api->last_error());
    end_step();
    return PyErr_Occurred() ? MOOR_JP_FAILED : MOOR_JP_OK;
}

int moor_sglang_run_batch_error(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!ours(call) || !S.batch)
        return MOOR_JP_OK;
    if (moor_capture_state() == MOOR_STEP_OPEN)
        rt->api->step_abandon(rt->store);
    end_step();
    return MOOR_JP_OK;
}

static int replaced(moor_jp_call *call)
{
    if (!S.replaces)
        return MOOR_JP_OK;
    return moor_jp_set_result(call, Py_NewRef(Py_None)) ? MOOR_JP_FAILED : MOOR_JP_DONE;
}

/* Older releases have no function of their own for the capture: the ids pass through one that does more, and is not replaced. */
static int only_captures(const moor_jp_call *call)
{
    static PyObject *known;
    static int only;
    if (call->original != known) {
        PyObject *name = PyObject_GetAttrString(call->original, "__name__");
        const char *text = moor_py_text(name, NULL);
        only = text && strstr(text, "capture") != NULL;
        known = call->original;
        PyErr_Clear();
        Py_XDECREF(name);
    }
    return only;
}

int moor_sglang_capture_before(moor_jp_call *call)
{
    PyObject *config = moor_jp_param(call, 0), *ids = moor_jp_param(call, 2);
    PyObject *number = moor_jp_param(call, 1);
    if (!S.layers || !config || !ids || !number || !moor_py_true(config, "allow_routed_experts_capture", 1))
        return MOOR_JP_OK; /* a draft's layers choose experts as well */
    long long layer = PyLong_AsLongLong(number);
    PyErr_Clear();
    if (S.batch && layer >= 0 && layer < MAX_LAYERS && S.column_of[layer] >= 0 &&
        moor_capture_tensor((uint32_t)S.column_of[layer], ids))
        return MOOR_JP_FAILED;
    return only_captures(call) ? replaced(call) : MOOR_JP_OK;
}

/* The engine's copy of what it captured, which is nothing when Moor has taken its place. */
int moor_sglang_forward_end_before(moor_jp_call *call)
{
    PyObject *name = moor_py_path(call->self, "__class__.__name__");
    const char *text = moor_py_text(name, NULL);
    int experts = text && strstr(text, "Experts") != NULL; /* not the indexer's */
    Py_XDECREF(name);
    return experts ? replaced(call) : MOOR_JP_OK;
}

/* ---- the end of a request -------------------------------------------------------------------------------------------- */

/* A request has several ends, of which more than one may be told of: the first one counts. A later request may have its id. */
static int sealed_before(PyObject *req)
{
    int before = PyObject_HasAttrString(req, "moor_sealed");
    if (!before && PyObject_SetAttrString(req, "moor_sealed", Py_True))
        PyErr_Clear();
    return before;
}

/* Rows = tokens that went through the model (SEMANTICS 1.1): the last sampled token did not. */
static void seal(PyObject *req, uint32_t flags)
{
    moor_runtime *rt = moor_runtime_get();
    if (sealed_before(req))
        return;
    PyObject *rid = moor_py_path(req, "rid"), *prompt = moor_py_path(req, "origin_input_ids");
    PyObject *output = moor_py_path(req, "output_ids_through_stop");
    if (!output)
        output = moor_py_path(req, "output_ids");
    Py_ssize_t len = 0, sampled = output ? PyObject_Size(output) : 0, before = prompt ? PyObject_Size(prompt) : 0;
    PyErr_Clear();
    const char *text = moor_py_text(rid, &len);
    if (sampled <= 0 || before <= 0)
        flags |= MOOR_SEAL_COMMITTED; /* how far a prefill came, the steps decide */
    if (text && rt->api->seal(rt->process, rt->store_index, text, (uint32_t)len,
                              (uint64_t)(before + (sampled > 0 ? sampled - 1 : 0)), flags))
        rt->api->request_finished(rt->store, text, (uint32_t)len); /* the ring is full: rows = what is committed */
    Py_XDECREF(output);
    Py_XDECREF(prompt);
    Py_XDECREF(rid);
}

static void seal_finished(PyObject *req)
{
    PyObject *name = moor_py_path(req, "finished_reason.__class__.__name__");
    const char *text = moor_py_text(name, NULL);
    seal(req, text && strstr(text, "ABORT") ? MOOR_SEAL_ABORTED : 0);
    Py_XDECREF(name);
}

int moor_sglang_finish_before(moor_jp_call *call)
{
    PyObject *req = moor_jp_param(call, 0);
    if (moor_runtime_get()->store && req)
        seal_finished(req);
    return replaced(call);
}

/* Whatever the scheduler ended it for (a sampled token that may not be committed, a request that never ran), its client is told of it
 * here: those whose routes it did not collect have their end here. */
int moor_sglang_output_before(moor_jp_call *call)
{
    PyObject *reqs = moor_runtime_get()->store ? moor_jp_param(call, 0) : NULL;
    Py_ssize_t n = reqs && PyList_Check(reqs) ? PyList_Size(reqs) : 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *req = PyList_GetItem(reqs, i), *reason = moor_py_path(req, "finished_reason");
        if (reason && reason != Py_None)
            seal_finished(req);
        Py_XDECREF(reason);
    }
    return MOOR_JP_OK;
}

/* A request that is aborted while it waits, or told that it is: one that was retracted has rows. */
int moor_sglang_abort_waiting_before(moor_jp_call *call)
{
    PyObject *req = moor_jp_param(call, 0);
    if (moor_runtime_get()->store && req)
        seal(req, MOOR_SEAL_ABORTED);
    return MOOR_JP_OK;
}

/* ---- KV slots --------------------------------------------------------------------------------------------------------- */

int moor_sglang_alloc_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->store || call->self != S.allocator || !call->result || call->result == Py_None)
        return MOOR_JP_OK;
    PyObject *narrow = PyObject_CallMethod(call->result, "int", NULL); /* int64 slots as int32 */
    PyObject *array = narrow ? PyObject_CallMethod(narrow, "numpy", NULL) : NULL;
    Py_buffer view;
    int result = -1;
    if (array && PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0) {
        if (view.itemsize == sizeof(int32_t))
            rt->api->kv_handed_out(rt->store, view.buf, (uint32_t)((size_t)view.len / sizeof(int32_t)));
        PyBuffer_Release(&view);
        result = 0;
    }
    Py_XDECREF(array);
    Py_XDECREF(narrow);
    if (result) /* not knowing which, none can be trusted */
        rt->api->kv_reset(rt->store);
    return result ? MOOR_JP_FAILED : MOOR_JP_OK;
}

int moor_sglang_flush_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (rt->store && call->result != Py_False)
        rt->api->kv_reset(rt->store);
    return MOOR_JP_OK;
}
