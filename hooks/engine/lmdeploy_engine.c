/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's side: LMDeploy hands each step's ids, [tokens, layers, K] in host memory, to its loop together with the
 * sequences they belong to. They are recorded there, before the engine splits, appends and copies them; with Moor
 * recording, the sequences keep none of their own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deliver.h"
#include "lmdeploy.h"
#include "model.h"

static struct {
    uint32_t layers, top_k, num_experts, model_layers; /* layers 0: recording is off */
    int32_t *layer_ids;                                /* [layers] the model's number of each MoE layer */
    int kv_index;                                      /* the prefix cache is on */
    int prefix_unproven;                               /* a KV connector may fill blocks from outside */
} E;

static struct {
    moor_step_request *batch;
    PyObject **ids, **blocks; /* owned while the step is open: the batch points into them */
    uint32_t n, cap;
} step;

void moor_lmdeploy_drop_step(void)
{
    for (uint32_t i = 0; i < step.n; i++) {
        Py_CLEAR(step.ids[i]);
        Py_CLEAR(step.blocks[i]);
    }
    step.n = 0;
}

/* ---- start ------------------------------------------------------------------------------------------------------- */

int moor_lmdeploy_engine_init_before(moor_jp_call *call)
{
    PyObject *config = moor_jp_param(call, 0);
    uint32_t dp_rank = (uint32_t)moor_py_int(config, "dp_rank", 0);
    int on = moor_lmdeploy_join(MOOR_ROLE_CORE, 0, 1, dp_rank);
    return on < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
}

static uint32_t geometry(PyObject *config, const char *const names[])
{
    long long value = -1;
    for (int i = 0; value <= 0 && names[i]; i++)
        value = moor_py_int(config, names[i], -1);
    return value > 0 && value <= UINT32_MAX ? (uint32_t)value : 0;
}

/* Whether layer `layer` has experts, by the names that the model families use. */
int moor_lmdeploy_is_moe(PyObject *config, long layer)
{
    PyObject *dense = moor_py_path(config, "mlp_only_layers");
    PyObject *number = PyLong_FromLong(layer);
    int listed = dense && number ? PySequence_Contains(dense, number) : 0;
    PyErr_Clear();
    Py_XDECREF(number);
    Py_XDECREF(dense);
    long long sparse = moor_py_int(config, "decoder_sparse_step", 1);
    long long period = moor_py_int(config, "moe_layer_freq", 1);
    int each = 1;
    PyObject *pattern = moor_py_path(config, "moe_layer_freq");
    if (pattern && PyList_Check(pattern) && layer < PyList_Size(pattern))
        each = PyObject_IsTrue(PyList_GetItem(pattern, layer)) == 1;
    Py_XDECREF(pattern);
    return listed <= 0 && each && layer >= moor_py_int(config, "first_k_dense_replace", 0) &&
           (sparse <= 1 || (layer + 1) % sparse == 0) && (period <= 1 || layer % period == 0);
}

PyObject *moor_lmdeploy_hf_config(PyObject *model_config)
{
    PyObject *config = moor_py_path(model_config, "hf_config");
    PyObject *text = moor_py_path(config, "text_config");
    if (!text)
        return config;
    Py_DECREF(config);
    return text;
}

static int read_geometry(PyObject *engine)
{
    static const char *const experts[] = {"num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts",
                                          NULL};
    static const char *const top_k[] = {
        "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "experts_per_token", NULL};
    static const char *const layers[] = {"num_hidden_layers", "n_layers", NULL};
    PyObject *model = moor_py_path(engine, "model_config");
    PyObject *config = moor_lmdeploy_hf_config(model);
    Py_XDECREF(model);
    E.num_experts = geometry(config, experts);
    E.top_k = geometry(config, top_k);
    E.model_layers = geometry(config, layers);
    E.layers = 0;
    free(E.layer_ids);
    E.layer_ids = calloc(E.model_layers ? E.model_layers : 1, sizeof(*E.layer_ids));
    for (long i = 0; E.layer_ids && E.num_experts && E.top_k && i < (long)E.model_layers; i++)
        if (moor_lmdeploy_is_moe(config, i))
            E.layer_ids[E.layers++] = (int32_t)i;
    Py_XDECREF(config);
    if (!E.layer_ids)
        return PyErr_NoMemory(), -1;
    return 0;
}

/* NULL, or why this engine's steps cannot be recorded. */
static const char *unsupported(PyObject *engine)
{
    PyObject *paradigm = moor_py_path(engine, "model_config.model_paradigm");
    PyObject *draft = moor_py_path(engine, "specdecode_config");
    const char *name = moor_py_text(paradigm, NULL);
    const char *why = NULL;
    if (draft || (name && strcmp(name, "ar")))
        why = "this version of Moor records LMDeploy only without speculative and without diffusion decoding";
    else if (!E.layers)
        why = "the model's configuration shows no MoE layers";
    Py_XDECREF(draft);
    Py_XDECREF(paradigm);
    return why;
}

static int open_store(PyObject *engine)
{
    moor_runtime *rt = moor_runtime_get();
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    args.store_index = (uint32_t)moor_py_int(engine, "dp_rank", 0);
    args.layers = E.layers;
    args.layer_ids = E.layer_ids;
    args.top_k = E.top_k;
    args.num_experts = E.num_experts;
    args.model_layers = E.model_layers;
    PyObject *cache = moor_py_path(engine, "cache_config");
    uint32_t most = (uint32_t)moor_py_int(cache, "max_prefill_token_num", 8192);
    args.max_step_tokens = 2 * (most > 8192 ? most : 8192); /* a multimodal chunk is not cut in the middle of an item */
    args.max_requests = (uint32_t)moor_py_int(cache, "max_batches", 256);
    args.dp_size = (uint32_t)moor_py_int(engine, "dp", 1);
    args.dp_rank = args.store_index;
    args.tp_size = (uint32_t)moor_py_int(engine, "tp", 1);
    E.kv_index = moor_py_true(cache, "enable_prefix_caching", 0);
    if (E.kv_index) {
        args.kv_blocks = (uint32_t)(moor_py_int(cache, "num_gpu_blocks", 0) + moor_py_int(cache, "num_cpu_blocks", 0));
        args.kv_block_size = (uint32_t)moor_py_int(cache, "block_size", 0);
    }
    PyObject *connector = moor_py_path(cache, "kv_transfer_config");
    E.prefix_unproven = connector != NULL;
    Py_XDECREF(connector);
    Py_XDECREF(cache);
    moor_store *store = NULL;
    moor_status status = rt->api->store_open(rt->process, &args, &store);
    if (status)
        return moor_recording_failed(status);
    rt->store = store;
    rt->store_index = args.store_index;
    return 0;
}

int moor_lmdeploy_engine_init_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->process || !rt->config.record_enabled)
        return MOOR_JP_OK;
    const char *why = NULL;
    if (moor_lmdeploy_own(call->self, &why) || (!why && read_geometry(call->self)))
        return MOOR_JP_FAILED;
    if (!why)
        why = unsupported(call->self);
    int result = why ? moor_recording_refused(why) : open_store(call->self);
    if (why || result) {
        E.layers = 0;
        return result;
    }
    /* The front end asks this before it lets a request ask for its routes. */
    PyObject *config = moor_py_path(call->self, "engine_config");
    if (config && PyObject_SetAttrString(config, "enable_return_routed_experts", Py_True))
        PyErr_Clear();
    Py_XDECREF(config);
    moor_jp_bound(moor_lmdeploy_jp("engine.capture"), "all_routed_experts", E.layers);
    moor_runtime_log(2, "records %u MoE layers of %u: %u experts, %u per token", E.layers, E.model_layers,
                     E.num_experts, E.top_k);
    return MOOR_JP_OK;
}

static int recording(void)
{
    const moor_runtime *rt = moor_runtime_get();
    return rt->store && E.layers;
}

/* Moor's own copy of the routes is the only one: sequences that keep none do not grow, copy and trim theirs. */
int moor_lmdeploy_sampling_param_after(moor_jp_call *call)
{
    if (!recording())
        return MOOR_JP_OK;
    if (moor_lmdeploy_keep_ids(moor_jp_param(call, 0), call->result))
        return MOOR_JP_FAILED;
    if (!moor_deliver_wanted(moor_py_true(call->result, "return_routed_experts", 0)))
        return MOOR_JP_OK;
    if (PyObject_SetAttrString(call->result, "moor_wanted", Py_True) ||
        PyObject_SetAttrString(call->result, "return_routed_experts", Py_False))
        return MOOR_JP_FAILED;
    return MOOR_JP_OK;
}

int moor_lmdeploy_need_routes_after(moor_jp_call *call)
{
    return recording() && moor_jp_set_result(call, Py_NewRef(Py_True)) ? MOOR_JP_FAILED : MOOR_JP_OK;
}

/* A block's old rows end when the scheduler hands it out, which comes before the step that fills it. */
int moor_lmdeploy_allocate_after(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!recording() || !E.kv_index)
        return MOOR_JP_OK;
    PyObject *narrow = PyObject_CallMethod(call->result, "astype", "s", "int32");
    Py_buffer view;
    if (!narrow || PyObject_GetBuffer(narrow, &view, PyBUF_C_CONTIGUOUS)) {
        Py_XDECREF(narrow);
        rt->api->kv_reset(rt->store); /* not knowing which, none can be trusted */
        return MOOR_JP_FAILED;
    }
    rt->api->kv_handed_out(rt->store, view.buf, (uint32_t)((size_t)view.len / sizeof(int32_t)));
    PyBuffer_Release(&view);
    Py_DECREF(narrow);
    return MOOR_JP_OK;
}

/* ---- steps --------------------------------------------------------------------------------------------------------- */

/* The ids of a step: [tokens][width][top_k] of u16, anywhere in host memory. */
typedef struct {
    Py_buffer view;
    int open;
} routes;

static void routes_close(routes *r)
{
    if (r->open)
        PyBuffer_Release(&r->view);
    r->open = 0;
}

/* 1 opened, 0 the step has none, -1 with an error. */
static int routes_open(routes *r, PyObject *outputs)
{
    r->open = 0;
    PyObject *ids = moor_py_path(outputs, "all_routed_experts");
    PyObject *array =
        ids && PyObject_HasAttrString(ids, "numpy") ? PyObject_CallMethod(ids, "numpy", NULL) : Py_XNewRef(ids);
    Py_XDECREF(ids);
    if (!array)
        return PyErr_Occurred() ? -1 : 0;
    int failed = PyObject_GetBuffer(array, &r->view, PyBUF_STRIDES | PyBUF_FORMAT);
    Py_DECREF(array); /* the buffer keeps it */
    if (failed)
        return -1;
    r->open = 1;
    const Py_buffer *v = &r->view;
    if (v->ndim == 3 && v->itemsize == 2 && v->shape[2] == E.top_k &&
        (v->shape[1] == E.model_layers || v->shape[1] == E.layers))
        return 1;
    PyErr_Format(PyExc_ValueError,
                 "all_routed_experts has %d dimensions, items of %zd bytes: expected [tokens, %u, %u] of uint16",
                 v->ndim, v->itemsize, E.model_layers, E.top_k);
    routes_close(r);
    return -1;
}

static int reserve(uint32_t n)
{
    if (n <= step.cap)
        return 0;
    uint32_t cap = n + 64;
    moor_step_request *batch = realloc(step.batch, cap * sizeof(*batch));
    if (batch)
        step.batch = batch;
    PyObject **ids = realloc(step.ids, cap * sizeof(*ids));
    if (ids)
        step.ids = ids;
    PyObject **blocks = realloc(step.blocks, cap * sizeof(*blocks));
    if (blocks)
        step.blocks = blocks;
    if (!batch || !ids || !blocks)
        return PyErr_NoMemory(), -1;
    step.cap = cap;
    return 0;
}

/* The sequence's KV blocks from position 0 as int32 bytes, or NULL without an error when they are of no use. */
static PyObject *blocks_of(PyObject *sequence)
{
    PyObject *logical = E.kv_index ? moor_py_path(sequence, "logical_blocks") : NULL;
    PyObject *real = logical ? PyObject_CallMethod(logical, "get_real_blocks", NULL) : NULL;
    PyObject *narrow = real ? PyObject_CallMethod(real, "astype", "s", "int32") : NULL;
    PyObject *bytes = narrow ? PyObject_CallMethod(narrow, "tobytes", NULL) : NULL;
    PyErr_Clear();
    Py_XDECREF(narrow);
    Py_XDECREF(real);
    Py_XDECREF(logical);
    return bytes;
}

static int add(PyObject *sequence, uint64_t start, uint32_t count, int prefill)
{
    PyObject *session = moor_py_path(sequence, "session_id");
    PyObject *id = moor_lmdeploy_name(session);
    Py_ssize_t len;
    const char *text = moor_py_text(id, &len);
    Py_XDECREF(session);
    if (!text) {
        Py_XDECREF(id);
        PyErr_SetString(PyExc_AttributeError, "a sequence of the batch has no session_id");
        return -1;
    }
    if (prefill) /* told before its step */
        moor_lmdeploy_add_ids(sequence, text, (uint32_t)len);
    PyObject *blocks = blocks_of(sequence);
    long long more = moor_py_int(sequence, "sampling_param.max_new_tokens", 0);
    long long hint = moor_py_int(sequence, "num_valid_ids", 0) + (prefill && more > 0 ? more : 0);
    step.ids[step.n] = id;
    step.blocks[step.n] = blocks;
    step.batch[step.n++] = (moor_step_request){
        .id = text,
        .id_len = (uint32_t)len,
        .count = count,
        .start = start,
        .n_kv_blocks = blocks ? (uint32_t)((size_t)PyBytes_Size(blocks) / sizeof(int32_t)) : 0,
        .kv_blocks = blocks ? (const int32_t *)(const void *)PyBytes_AsString(blocks) : NULL,
        .rows_hint = hint > 0 && hint < UINT32_MAX ? (uint32_t)hint : 0,
        .flags = prefill && E.prefix_unproven ? MOOR_STEP_PREFIX_UNPROVEN : 0,
    };
    return 0;
}

/* 1: the ids of tokens first…first+n-1 of the batch are there. 0: there are none, or too few of them, which is reported. */
static int covers(const routes *r, uint32_t first, uint32_t n)
{
    if (!r->open || (uint64_t)first + n <= (uint64_t)r->view.shape[0])
        return r->open;
    PyErr_Format(PyExc_ValueError, "all_routed_experts has %zd tokens, the batch goes on to %llu", r->view.shape[0],
                 (unsigned long long)first + n);
    moor_jp_failed(moor_lmdeploy_jp("engine.capture"), "reading a step's ids");
    return 0;
}

/* The sequences gathered so far, whose ids begin at token `first` of the batch. Without routes: rows that are missing. */
static int flush(const routes *r, uint32_t first)
{
    moor_runtime *rt = moor_runtime_get();
    if (!step.n)
        return 0;
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < step.n; i++)
        tokens += step.batch[i].count;
    int have = covers(r, first, tokens);
    moor_status status = rt->api->step_begin(rt->store, step.batch, step.n);
    for (uint32_t column = 0; !status && have && column < E.layers; column++) {
        const Py_buffer *v = &r->view;
        Py_ssize_t layer = v->shape[1] == E.layers ? (Py_ssize_t)column : E.layer_ids[column];
        moor_ids ids = {
            .data = (const char *)v->buf + (Py_ssize_t)first * v->strides[0] + layer * v->strides[1],
            .dtype = MOOR_DTYPE_U16,
            .tokens = tokens,
            .top_k = E.top_k,
            .stride_token = v->strides[0] / 2,
            .stride_k = v->strides[2] / 2,
        };
        status = rt->api->capture(rt->store, column, &ids, NULL);
    }
    if (!status)
        status = rt->api->step_commit(rt->store, NULL, 0);
    moor_lmdeploy_drop_step();
    if (!status)
        return PyErr_Occurred() ? -1 : 0;
    rt->api->step_abandon(rt->store);
    moor_runtime_raise(status, "recording a step");
    return -1;
}

static int is_running(PyObject *sequence)
{
    PyObject *name = moor_py_path(sequence, "status.name");
    const char *text = moor_py_text(name, NULL);
    int running = text && strcmp(text, "RUNNING") == 0;
    Py_XDECREF(name);
    return running;
}

/* Element `i` of a tensor of lengths as the engine itself reads it. */
static PyObject *lengths(PyObject *inputs, const char *name)
{
    PyObject *tensor = moor_py_path(inputs, name);
    PyObject *list = tensor ? PyObject_CallMethod(tensor, "tolist", NULL) : NULL;
    Py_XDECREF(tensor);
    if (!list && !PyErr_Occurred())
        PyErr_Format(PyExc_AttributeError, "the step's inputs have no %s", name);
    return list;
}

/* Sequences that the engine stopped meanwhile are in the batch, and their tokens count for nothing: as it skips them, the
 * batch is recorded in the runs between them. A chunk that is not a prompt's last has moved its sequence on already. */
static int record_batch(const routes *r, PyObject *running, PyObject *inputs, int prefill)
{
    int chunk = prefill && moor_py_true(inputs, "is_chunk", 0) && !moor_py_true(inputs, "is_last_chunk", 0);
    PyObject *counts = lengths(inputs, "seq_length");
    PyObject *starts = chunk ? lengths(inputs, "history_lengths") : NULL;
    Py_ssize_t n = counts && !PyErr_Occurred() ? PySequence_Size(running) : -1;
    uint32_t first = 0, at = 0;
    int result = n < 0 || reserve((uint32_t)n) ? -1 : 0;
    for (Py_ssize_t i = 0; i < n && result == 0; i++) {
        PyObject *sequence = PySequence_GetItem(running, i);
        long count = PyLong_AsLong(PyList_GetItem(counts, i));
        long long start =
            starts ? PyLong_AsLongLong(PyList_GetItem(starts, i)) : moor_py_int(sequence, "num_history_ids", -1);
        if (PyErr_Occurred() || count < 0 || start < 0) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "sequence %zd of the batch: %ld tokens from position %lld", i, count,
                             start);
            result = -1;
        } else if (count && is_running(sequence)) {
            result = add(sequence, (uint64_t)start, (uint32_t)count, prefill);
            at += (uint32_t)count;
        } else {
            result = flush(r, first);
            first = at += (uint32_t)count;
        }
        Py_XDECREF(sequence);
    }
    if (result == 0)
        result = flush(r, first);
    moor_lmdeploy_drop_step();
    Py_XDECREF(starts);
    Py_XDECREF(counts);
    return result;
}

int moor_lmdeploy_outputs_before(moor_jp_call *call)
{
    if (!recording())
        return MOOR_JP_OK;
    PyObject *running = moor_jp_param(call, 1), *inputs = moor_jp_param(call, 2), *delta = moor_jp_param(call, 3);
    int prefill = inputs && inputs != Py_None;
    if (prefill && moor_py_true(inputs, "is_dummy", 0))
        return MOOR_JP_OK;
    routes r;
    int have = routes_open(&r, moor_jp_param(call, 0));
    if (have < 0)
        moor_jp_failed(moor_lmdeploy_jp("engine.capture"), "reading a step's ids");
    if (have > 0)
        moor_jp_fired(moor_lmdeploy_jp("engine.capture"));
    int result = record_batch(&r, running, prefill ? inputs : delta, prefill);
    routes_close(&r);
    return result ? MOOR_JP_FAILED : MOOR_JP_OK;
}

/* ---- ends ---------------------------------------------------------------------------------------------------------- */

static int seal(PyObject *sequence, uint64_t rows, uint32_t flags)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *session = moor_py_path(sequence, "session_id");
    PyObject *id = moor_lmdeploy_name(session);
    Py_ssize_t len;
    const char *text = moor_py_text(id, &len);
    moor_status status = MOOR_OK;
    if (text)
        status = rt->api->seal(rt->process, rt->store_index, text, (uint32_t)len, rows, flags);
    Py_XDECREF(id);
    Py_XDECREF(session);
    if (status)
        moor_runtime_raise(status, "seal");
    return status ? -1 : 0;
}

/* Marks the field of a request that asked for its routes; seals the record of one that ended. */
static int finish_one(PyObject *sequence, PyObject *output)
{
    if (moor_py_true(sequence, "sampling_param.moor_wanted", 0)) {
        PyObject *session = moor_py_path(sequence, "session_id"), *name = moor_lmdeploy_name(session);
        PyObject *marker = name ? PyUnicode_FromFormat(MOOR_LMDEPLOY_MARKER "%S", name) : NULL;
        Py_XDECREF(name);
        Py_XDECREF(session);
        int failed = !marker || PyObject_SetAttrString(output, "routed_experts", marker);
        Py_XDECREF(marker);
        if (failed)
            return -1;
    }
    /* A scoring request ends without a sampled token, and has no routes. */
    if (!moor_py_true(output, "finish", 0) || moor_py_int(sequence, "sampling_param.max_new_tokens", 1) == 0)
        return 0;
    long long rows = moor_py_int(sequence, "num_valid_ids", 1) - 1;
    return seal(sequence, rows > 0 ? (uint64_t)rows : 0, 0);
}

int moor_lmdeploy_outputs_after(moor_jp_call *call)
{
    PyObject *running = moor_jp_param(call, 1);
    if (!recording() || !PyDict_Check(call->result))
        return MOOR_JP_OK;
    int result = MOOR_JP_OK;
    Py_ssize_t n = PySequence_Size(running);
    if (n < 0)
        return MOOR_JP_FAILED;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *sequence = PySequence_GetItem(running, i);
        PyObject *session = moor_py_path(sequence, "session_id");
        PyObject *output = session ? PyDict_GetItem(call->result, session) : NULL;
        if (output && finish_one(sequence, output))
            result = MOOR_JP_FAILED;
        Py_XDECREF(session);
        Py_XDECREF(sequence);
    }
    return result;
}

/* Each sequence of a session: aborted when it had not ended; forgotten when the session goes. */
static int each_of_session(moor_jp_call *call, int ends)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *id = moor_jp_param(call, 0);
    PyObject *sessions = recording() && id ? moor_py_path(call->self, "sessions") : NULL;
    PyObject *session = sessions ? PyObject_GetItem(sessions, id) : NULL;
    PyObject *sequences = session ? moor_py_path(session, "sequences") : NULL;
    PyObject *values = sequences ? PyMapping_Values(sequences) : NULL;
    PyErr_Clear();
    int result = MOOR_JP_OK;
    for (Py_ssize_t i = 0; values && i < PyList_Size(values); i++) {
        PyObject *sequence = PyList_GetItem(values, i);
        PyObject *name = moor_py_path(sequence, "status.name");
        const char *status = moor_py_text(name, NULL);
        if (status && strcmp(status, "STOPPED") && strcmp(status, "TO_BE_MIGRATED") &&
            seal(sequence, 0, MOOR_SEAL_ABORTED | MOOR_SEAL_COMMITTED))
            result = MOOR_JP_FAILED;
        Py_XDECREF(name);
    }
    PyObject *text = values && ends ? PyObject_Str(id) : NULL;
    Py_ssize_t len;
    const char *utf8 = moor_py_text(text, &len);
    if (utf8)
        rt->api->request_finished(rt->store, utf8, (uint32_t)len);
    Py_XDECREF(text);
    Py_XDECREF(values);
    Py_XDECREF(sequences);
    Py_XDECREF(session);
    Py_XDECREF(sessions);
    return result;
}

int moor_lmdeploy_stop_session_before(moor_jp_call *call)
{
    return each_of_session(call, 0);
}

int moor_lmdeploy_end_session_before(moor_jp_call *call)
{
    return each_of_session(call, 1);
}

/* ---- the rest ------------------------------------------------------------------------------------------------------ */

/* The KV cache went; what is prefilled next is computed anew. */
int moor_lmdeploy_engine_sleep_after(moor_jp_call *call)
{
    (void)call;
    moor_runtime *rt = moor_runtime_get();
    if (recording())
        rt->api->kv_reset(rt->store);
    return MOOR_JP_OK;
}
