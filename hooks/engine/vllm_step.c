/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's steps: the batch map is read at the first capture, when vLLM's batch is final; rows are committed when
 * it is known which tokens were accepted. */
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "table.h"
#include "vllm_worker.h"

#define W moor_vllm_worker_state

/* A request as the runner last showed it: its list of KV blocks is read only where it grew. */
typedef struct tracked {
    UT_hash_handle hh;
    int32_t *blocks;
    uint32_t n_blocks, cap_blocks, rows_hint;
    int aliased;   /* the store knows the request's other ids */
    PyObject *ids; /* these, until it does; owned */
    uint64_t next; /* where a plain continuation starts; anything else means the list may have been replaced */
    char id[];
} tracked;

static struct {
    PyObject *output; /* the SchedulerOutput of the step that is expected or open; owned */
    tracked *requests;
    moor_step_request *batch;
    PyObject **ids; /* owned while the step is open: their texts are the batch's ids */
    uint32_t *accepted;
    uint32_t n, cap;
    int has_spec;
} step;

static void track_forget(tracked *t)
{
    HASH_DEL(step.requests, t);
    Py_XDECREF(t->ids);
    free(t->blocks);
    free(t);
}

void moor_vllm_forget_steps(void)
{
    while (step.requests)
        track_forget(step.requests);
    for (uint32_t i = 0; i < step.n; i++)
        Py_CLEAR(step.ids[i]);
    step.n = 0;
    Py_CLEAR(step.output);
    moor_capture_done();
}

static tracked *track_find(const char *id, size_t len)
{
    tracked *t;
    HASH_FIND(hh, step.requests, id, len, t);
    return t;
}

/* Rows this request may come to have: prompt + max_tokens. */
static uint32_t rows_hint(PyObject *state)
{
    PyObject *prompt = moor_py_path(state, "prompt_token_ids");
    Py_ssize_t n = prompt ? PyObject_Size(prompt) : 0;
    PyErr_Clear();
    Py_XDECREF(prompt);
    long long most = moor_py_int(state, "sampling_params.max_tokens", 0);
    long long rows = (n > 0 ? n : 0) + (most > 0 ? most : 0);
    return rows > 0 && rows < UINT32_MAX ? (uint32_t)rows : 0;
}

/* The record is found by all of its ids. */
static void add_alias(void *user, const char *alias, uint32_t len, uint32_t index)
{
    const tracked *t = user;
    moor_runtime *rt = moor_runtime_get();
    rt->api->request_alias(rt->store, t->id, (uint32_t)t->hh.keylen, alias, len, index);
}

static tracked *track_new(const char *id, size_t len, PyObject *state)
{
    tracked *t = calloc(1, sizeof(*t) + len + 1);
    if (!t) {
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(t->id, id, len);
    t->next = UINT64_MAX;
    t->rows_hint = rows_hint(state);
    t->ids = moor_vllm_sent_ids(state);
    HASH_ADD(hh, step.requests, id, len, t);
    if (MOOR_TABLE_HAS(t))
        return t;
    Py_XDECREF(t->ids);
    free(t);
    PyErr_NoMemory();
    return NULL;
}

static int track_blocks(tracked *t, PyObject *state, uint64_t start, uint32_t count)
{
    if (start != t->next)
        t->n_blocks = 0;
    t->next = start + count;
    PyObject *groups = W.block_size > 0 ? moor_py_path(state, "block_ids") : NULL;
    PyObject *list = groups ? PySequence_GetItem(groups, W.group) : NULL;
    Py_XDECREF(groups);
    Py_ssize_t n = list ? PyList_Size(list) : 0;
    PyErr_Clear();
    if (n > t->cap_blocks) {
        uint32_t cap = (uint32_t)n + 16;
        int32_t *grown = realloc(t->blocks, cap * sizeof(*grown));
        if (!grown) {
            Py_DECREF(list);
            PyErr_NoMemory();
            return -1;
        }
        t->blocks = grown;
        t->cap_blocks = cap;
    }
    for (Py_ssize_t i = t->n_blocks; i < n; i++) {
        long block = PyLong_AsLong(PyList_GetItem(list, i));
        t->blocks[i] = block < 0 || block > INT32_MAX ? -1 : (int32_t)block;
    }
    PyErr_Clear();
    t->n_blocks = n > 0 ? (uint32_t)n : 0;
    Py_XDECREF(list);
    return 0;
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
    uint32_t *accepted = realloc(step.accepted, cap * sizeof(*accepted));
    if (accepted)
        step.accepted = accepted;
    if (!batch || !ids || !accepted) {
        PyErr_NoMemory();
        return -1;
    }
    step.cap = cap;
    return 0;
}

/* What the loop over the batch reads, fetched once a step. */
typedef struct {
    PyObject *req_ids, *scheduled, *spec, *states, *computed;
    Py_buffer computed_view;
    int has_view;
} batch_view;

static void close_view(batch_view *v)
{
    if (v->has_view)
        PyBuffer_Release(&v->computed_view);
    Py_XDECREF(v->req_ids);
    Py_XDECREF(v->scheduled);
    Py_XDECREF(v->spec);
    Py_XDECREF(v->states);
    Py_XDECREF(v->computed);
}

static int open_view(batch_view *v)
{
    memset(v, 0, sizeof(*v));
    v->req_ids = moor_py_path(W.runner, "input_batch.req_ids");
    v->computed = moor_py_path(W.runner, "input_batch.num_computed_tokens_cpu");
    v->states = moor_py_path(W.runner, "requests");
    v->scheduled = moor_py_path(step.output, "num_scheduled_tokens");
    v->spec = moor_py_path(step.output, "scheduled_spec_decode_tokens");
    if (!v->req_ids || !v->computed || !v->states || !v->scheduled) {
        PyErr_SetString(PyExc_AttributeError,
                        "the runner's batch has no req_ids, num_computed_tokens_cpu, requests or num_scheduled_tokens");
        return -1;
    }
    if (PyObject_GetBuffer(v->computed, &v->computed_view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT))
        return -1;
    v->has_view = 1;
    if (v->computed_view.itemsize != 4 && v->computed_view.itemsize != 8) {
        PyErr_Format(PyExc_TypeError, "num_computed_tokens_cpu has items of %zd bytes", v->computed_view.itemsize);
        return -1;
    }
    return 0;
}

static int64_t computed_at(const batch_view *v, Py_ssize_t i)
{
    if (i >= v->computed_view.len / v->computed_view.itemsize)
        return -1;
    return v->computed_view.itemsize == 4 ? ((const int32_t *)v->computed_view.buf)[i]
                                          : ((const int64_t *)v->computed_view.buf)[i];
}

/* Request i of the batch into step.batch[step.n]; 0, 1 (not scheduled in this step), or -1 with an error. */
static int read_request(const batch_view *v, Py_ssize_t i)
{
    PyObject *id = PySequence_GetItem(v->req_ids, i);
    Py_ssize_t len;
    const char *text = moor_py_text(id, &len);
    PyObject *scheduled = text ? PyObject_GetItem(v->scheduled, id) : NULL;
    if (!scheduled) {
        PyErr_Clear();
        Py_XDECREF(id);
        return 1;
    }
    long count = PyLong_AsLong(scheduled);
    Py_DECREF(scheduled);
    int64_t start = computed_at(v, i);
    PyObject *state = PyObject_GetItem(v->states, id);
    tracked *t = state ? track_find(text, (size_t)len) : NULL;
    int is_new = state && !t;
    if (is_new)
        t = track_new(text, (size_t)len, state);
    if (!t || count <= 0 || start < 0 || track_blocks(t, state, (uint64_t)start, (uint32_t)count)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "request %s: %ld tokens scheduled from position %lld", text, count,
                         (long long)start);
        Py_XDECREF(state);
        Py_DECREF(id);
        return -1;
    }
    Py_DECREF(state);
    uint32_t spec = 0;
    PyObject *drafts = v->spec ? PyDict_GetItem(v->spec, id) : NULL;
    if (drafts) {
        Py_ssize_t n = PyObject_Size(drafts);
        PyErr_Clear();
        spec = n > 0 && n < count ? (uint32_t)n : 0;
    }
    step.has_spec |= spec != 0;
    step.ids[step.n] = id;
    step.batch[step.n++] = (moor_step_request){
        .id = text,
        .id_len = (uint32_t)len,
        .count = (uint32_t)count,
        .start = (uint64_t)start,
        .spec = spec,
        .n_kv_blocks = t->n_blocks,
        .kv_blocks = t->n_blocks ? t->blocks : NULL,
        .rows_hint = t->rows_hint,
        .flags = is_new && W.prefix_unproven ? MOOR_STEP_PREFIX_UNPROVEN : 0,
    };
    return 0;
}

static void drop_ids(void)
{
    for (uint32_t i = 0; i < step.n; i++)
        Py_CLEAR(step.ids[i]);
    step.n = 0;
}

static int begin_step(void *user)
{
    (void)user;
    moor_runtime *rt = moor_runtime_get();
    batch_view view;
    drop_ids();
    step.has_spec = 0;
    int result = open_view(&view);
    Py_ssize_t n = result ? 0 : PySequence_Size(view.req_ids);
    if (n > 0 && reserve((uint32_t)n))
        result = -1;
    for (Py_ssize_t i = 0; i < n && result == 0; i++)
        result = read_request(&view, i) < 0 ? -1 : 0;
    close_view(&view);
    if (result)
        return -1;
    moor_status status = rt->api->step_begin(rt->store, step.batch, step.n);
    if (status) {
        moor_runtime_raise(status, "step_begin");
        return -1;
    }
    for (uint32_t i = 0; i < step.n; i++) {
        tracked *t = track_find(step.batch[i].id, step.batch[i].id_len);
        if (t && !t->aliased) { /* first step of this request: the record exists now */
            moor_vllm_each_id(t->ids, add_alias, t);
            Py_CLEAR(t->ids);
            t->aliased = 1;
        }
    }
    return 0;
}

static void end_step(void)
{
    drop_ids();
    Py_CLEAR(step.output);
    moor_capture_done();
}

static void commit(const uint32_t *accepted)
{
    moor_runtime *rt = moor_runtime_get();
    moor_status status = rt->api->step_commit(rt->store, accepted, accepted ? step.n : 0);
    if (status)
        moor_runtime_log(1, "committing a step: %s", rt->api->last_error());
    end_step();
}

/* A request whose first step failed has no record: who waits for one by another id than the core's must hear of its end. */
static void seal_alias(void *user, const char *alias, uint32_t len, uint32_t index)
{
    (void)user, (void)index;
    moor_runtime *rt = moor_runtime_get();
    rt->api->seal(rt->process, rt->store_index, alias, len, 0, MOOR_SEAL_ABORTED);
}

/* The core's hand-outs and resets, then what finished: in the order in which the core decided them. */
static void read_events(PyObject *output)
{
    moor_runtime *rt = moor_runtime_get();
    if (moor_py_true(output, MOOR_VLLM_KV_RESET, 0))
        rt->api->kv_reset(rt->store);
    PyObject *blocks = moor_py_path(output, MOOR_VLLM_HANDED_OUT);
    if (blocks && PyBytes_Check(blocks))
        rt->api->kv_handed_out(rt->store, (const int32_t *)(const void *)PyBytes_AsString(blocks),
                               (uint32_t)((size_t)PyBytes_Size(blocks) / sizeof(int32_t)));
    Py_XDECREF(blocks);
    PyObject *finished = moor_py_path(output, "finished_req_ids");
    PyObject *iterator = finished ? PyObject_GetIter(finished) : NULL;
    PyObject *id;
    while (iterator && (id = PyIter_Next(iterator))) {
        Py_ssize_t len;
        const char *text = moor_py_text(id, &len);
        if (text) {
            rt->api->request_finished(rt->store, text, (uint32_t)len);
            tracked *t = track_find(text, (size_t)len);
            if (t) {
                moor_vllm_each_id(t->ids, seal_alias, NULL);
                track_forget(t);
            }
        }
        Py_DECREF(id);
    }
    Py_XDECREF(iterator);
    Py_XDECREF(finished);
    PyErr_Clear();
}

int moor_vllm_execute_before(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->store || call->self != W.runner)
        return MOOR_JP_OK;
    PyObject *output = moor_jp_param(call, 0);
    if (!output)
        return MOOR_JP_OK;
    if (step.output) { /* vLLM gave the last step up without sample_tokens */
        rt->api->step_abandon(rt->store);
        end_step();
    }
    read_events(output);
    if (moor_py_int(output, "total_num_scheduled_tokens", 0) > 0) {
        step.output = Py_NewRef(output);
        moor_capture_expect(begin_step, NULL);
    }
    return MOOR_JP_OK;
}

int moor_vllm_execute_after(moor_jp_call *call)
{
    if (!step.output || call->self != W.runner)
        return MOOR_JP_OK;
    if (moor_capture_settle() != MOOR_STEP_OPEN) {
        end_step();
        return PyErr_Occurred() ? MOOR_JP_FAILED : MOOR_JP_OK;
    }
    if (!step.has_spec)
        commit(NULL);
    return MOOR_JP_OK;
}

int moor_vllm_execute_error(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!step.output || call->self != W.runner)
        return MOOR_JP_OK;
    if (moor_capture_state() == MOOR_STEP_OPEN)
        rt->api->step_abandon(rt->store);
    end_step();
    return MOOR_JP_OK;
}

/* accepted[i] = tokens of request i that were verified: all but its drafts, plus as many drafts as were sampled after the
 * first token. 0 when the output does not tell (an asynchronous one): the next start or the seal decides then. */
static int read_accepted(PyObject *output)
{
    PyObject *sampled = moor_py_path(output, "sampled_token_ids");
    PyObject *index = moor_py_path(output, "req_id_to_index");
    int known = sampled && index && PyList_Check(sampled);
    for (uint32_t i = 0; known && i < step.n; i++) {
        const moor_step_request *request = &step.batch[i];
        step.accepted[i] = request->count;
        if (!request->spec)
            continue;
        PyObject *at = PyObject_GetItem(index, step.ids[i]);
        PyObject *tokens = at ? PyObject_GetItem(sampled, at) : NULL;
        Py_ssize_t n = tokens ? PyObject_Size(tokens) : -1;
        Py_XDECREF(tokens);
        Py_XDECREF(at);
        known = n >= 1 && n <= (Py_ssize_t)request->spec + 1;
        if (known)
            step.accepted[i] = request->count - request->spec + (uint32_t)n - 1;
    }
    PyErr_Clear();
    Py_XDECREF(sampled);
    Py_XDECREF(index);
    return known;
}

int moor_vllm_sample_after(moor_jp_call *call)
{
    if (!step.output || call->self != W.runner || moor_capture_state() != MOOR_STEP_OPEN)
        return MOOR_JP_OK;
    commit(read_accepted(call->result) ? step.accepted : NULL);
    return MOOR_JP_OK;
}
