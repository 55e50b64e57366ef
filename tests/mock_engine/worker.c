/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.c — one rank of the mock engine. The first rank of each replica owns a store and records; every rank takes part in
 * weight updates and in the meeting before the KV cache resumes. One thread, messages in order.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ids.h"
#include "mock.h"
#include "wire.h"

typedef struct worker {
    mk_context *context;
    const moor_api *api;
    const mk_engine *engine;
    moor_process *process;
    moor_store *store;   /* NULL on the other ranks */
    uint64_t generation; /* of the weights: what the ids depend on */
    uint8_t *source;     /* the buffer that the model hands over, used again for every layer */
    size_t source_bytes;
    moor_status status; /* of the message under way: the first failure */
    char text[1024];
} worker;

/* The tokens that one capture call sees, in its order. */
typedef struct mk_lane {
    uint64_t token, position;
} mk_lane;

static void check(worker *w, moor_status status, const char *what)
{
    if (!status || w->status)
        return;
    w->status = status;
    snprintf(w->text, sizeof w->text, "%s: %s", what, w->api->last_error());
}

static uint32_t item_bytes(uint32_t dtype)
{
    return dtype == MOOR_DTYPE_U8 ? 1 : dtype == MOOR_DTYPE_I32 ? 4 : dtype == MOOR_DTYPE_I64 ? 8 : 2;
}

static void put_id(uint8_t *at, uint32_t dtype, uint64_t value)
{
    memcpy(at, &value, item_bytes(dtype)); /* little-endian, like everything Moor runs on */
}

/* A replica's tokens of a step, in batch order. The drafts that the sampler will reject are other tokens than those that
 * end up at their positions. */
static mk_lane *lanes_of(worker *w, const mk_batch *batch, mk_lane *out)
{
    for (uint32_t i = 0; i < batch->n; i++) {
        const mk_batch_request *r = &batch->request[i];
        mk_request_spec spec;
        mk_request_parse(mk_script_line(&w->context->script, r->line), &spec);
        mk_tokens tokens = mk_sibling_tokens(&spec, r->sibling);
        for (uint32_t k = 0; k < r->count; k++, out++) {
            out->position = r->start + k;
            out->token = mk_token(&tokens, out->position);
            if (k >= r->accepted)
                out->token = mk_rejected_token(out->token);
        }
    }
    return out;
}

/* What the engine's layout makes a capture see: all replicas' tokens, padded shards of them, or the local ones. */
static uint32_t lay_out(worker *w, const mk_batch *batch, mk_lane **lanes, moor_dp_layout *dp, uint32_t *counts,
                        uint32_t *shards)
{
    const mk_engine *e = w->engine;
    uint32_t most = 0;
    for (uint32_t r = 0; r < e->dp; r++) {
        counts[r] = batch[r].tokens;
        most += batch[r].tokens + e->tp;
    }
    *lanes = mk_alloc((most + 2) * sizeof **lanes); /* padding is token 0 at position 0 */
    *dp = (moor_dp_layout){.tokens_per_dp = counts};
    if (e->layout == MK_LAYOUT_LOCAL)
        return (uint32_t)(lanes_of(w, &batch[w->context->dp], *lanes) - *lanes);
    mk_lane *at = *lanes;
    for (uint32_t r = 0; r < e->dp; r++) {
        mk_lane *end = lanes_of(w, &batch[r], at);
        if (e->layout == MK_LAYOUT_SHARDS) {
            uint32_t shard = (counts[r] + e->tp - 1) / e->tp;
            for (uint32_t t = 0; t < e->tp; t++)
                shards[dp->n_shards++] = shard;
            end = at + (size_t)shard * e->tp;
        }
        at = end;
    }
    if (e->layout == MK_LAYOUT_SHARDS)
        dp->shard_sizes = shards;
    return (uint32_t)(at - *lanes);
}

typedef struct fault {
    char kind[16];
    uint32_t layer, value;
} fault;

static fault parse_fault(worker *w, uint32_t line)
{
    fault f = {"", UINT32_MAX, 0};
    if (!line)
        return f;
    const mk_command *command = mk_script_line(&w->context->script, line);
    if (mk_arg_number(command, "dp", 0) != w->context->dp)
        return f;
    sscanf(mk_arg_text(command, "fault", ""), "%15[^:]:%u:%u", f.kind, &f.layer, &f.value);
    return f;
}

/* One MoE layer: the router's choice in the model's own type and layout, handed over, and the buffer used again. */
static void run_layer(worker *w, uint32_t layer, const mk_lane *lanes, uint32_t n, const moor_dp_layout *dp,
                      const fault *f)
{
    const mk_engine *e = w->engine;
    uint32_t size = item_bytes(e->source), stride = e->strided ? e->top_k * 2 + 3 : e->top_k, chosen[256];
    int here = f->layer == layer;
    uint32_t tokens =
        n + (here && !strcmp(f->kind, "count")) + (here && !strcmp(f->kind, "oversize") ? e->step_tokens + 1 : 0);
    size_t need = (size_t)(tokens + 1) * stride * size;
    if (need > w->source_bytes) {
        w->source = mk_grow(w->source, need);
        w->source_bytes = need;
    }
    memset(w->source, 0, need);
    for (uint32_t t = 0; t < n; t++) {
        mk_experts(e, lanes[t].token, lanes[t].position, layer, w->generation, chosen);
        for (uint32_t k = 0; k < e->top_k; k++) {
            uint64_t id = w->context->breaks & MK_BREAK_SHIFT_IDS ? (chosen[k] + 1) % e->experts : chosen[k];
            if (here && !strcmp(f->kind, "bad_id") && t == n - 1 && k == e->top_k - 1)
                id = f->value;
            put_id(w->source + ((size_t)t * stride + k * (e->strided ? 2 : 1)) * size, e->source, id);
        }
    }
    if ((here && !strcmp(f->kind, "drop")) || (layer == e->layers / 2 && w->context->breaks & MK_BREAK_DROP_LAYER))
        return;
    moor_ids ids = {.data = w->source, .dtype = e->source, .tokens = tokens, .top_k = e->top_k};
    if (e->strided) {
        ids.stride_token = stride;
        ids.stride_k = 2;
    }
    check(w, w->api->capture(w->store, layer, &ids, e->dp > 1 ? dp : NULL), "capture");
    memset(w->source, 0x5a, need); /* SEMANTICS 1.13 */
}

static void name_first_rows(worker *w, const mk_batch *batch)
{
    for (uint32_t i = 0; i < batch->n; i++) {
        const mk_batch_request *r = &batch->request[i];
        char core[MK_ID_BYTES], external[MK_ID_BYTES];
        mk_request_spec spec;
        if (!r->first)
            continue;
        mk_request_parse(mk_script_line(&w->context->script, r->line), &spec);
        mk_core_id(&spec, r->sibling, core);
        mk_external_id(&spec, r->sibling, external);
        uint32_t len = (uint32_t)strlen(core);
        check(w, w->api->request_alias(w->store, core, len, external, (uint32_t)strlen(external), 0), "request_alias");
        check(w, w->api->request_alias(w->store, core, len, spec.id, (uint32_t)strlen(spec.id), r->sibling),
              "request_alias");
    }
}

static void begin(worker *w, const mk_batch *batch, char (*ids)[MK_ID_BYTES], uint32_t *accepted, uint32_t *unknown)
{
    moor_step_request *requests = mk_alloc((batch->n + 1) * sizeof *requests);
    for (uint32_t i = 0; i < batch->n; i++) {
        const mk_batch_request *r = &batch->request[i];
        mk_request_spec spec;
        mk_request_parse(mk_script_line(&w->context->script, r->line), &spec);
        mk_core_id(&spec, r->sibling, ids[i]);
        requests[i] = (moor_step_request){
            .id = ids[i],
            .id_len = (uint32_t)strlen(ids[i]),
            .count = r->count,
            .start = r->start,
            .spec = r->spec,
            .n_kv_blocks = r->n_blocks,
            .kv_blocks = r->blocks,
            .rows_hint = r->rows_hint,
            .flags = r->flags,
        };
        accepted[i] = r->accepted;
        *unknown += r->spec && mk_arg_number(mk_script_line(&w->context->script, r->line), "late", 0);
    }
    check(w, w->api->step_begin(w->store, requests, batch->n), "step_begin");
    for (uint32_t i = 0; i < batch->n; i++)
        memset(ids[i], 'x', strlen(ids[i])); /* copied when the record was created */
    free(requests);
}

static void notices(worker *w, const mk_batch *batch)
{
    if (batch->n_handed_out && !(w->context->breaks & MK_BREAK_STALE_SLOT) && w->engine->kv_index)
        check(w, w->api->kv_handed_out(w->store, batch->handed_out, batch->n_handed_out), "kv_handed_out");
    for (uint32_t i = 0; i < batch->n_finished; i++) {
        mk_request_spec spec;
        char id[MK_ID_BYTES];
        mk_request_parse(mk_script_line(&w->context->script, batch->finished[i].line), &spec);
        mk_core_id(&spec, batch->finished[i].sibling, id);
        moor_status status = w->api->request_finished(w->store, id, (uint32_t)strlen(id));
        if (status != MOOR_E_NOT_FOUND) /* long sealed, opened and freed */
            check(w, status, "request_finished");
    }
}

static void record_step(worker *w, const mk_batch *all, const fault *f)
{
    const mk_batch *batch = &all[w->context->dp];
    notices(w, batch);
    uint32_t total = 0, unknown = 0, counts[MK_MAX_DP], shards[MK_MAX_DP * 8];
    for (uint32_t r = 0; r < w->engine->dp; r++)
        total += all[r].tokens;
    if (!batch->n && (!total || w->engine->layout == MK_LAYOUT_LOCAL))
        return;
    char(*ids)[MK_ID_BYTES] = mk_alloc((batch->n + 1) * sizeof *ids);
    uint32_t *accepted = mk_alloc((batch->n + 1) * sizeof *accepted);
    mk_lane *lanes;
    moor_dp_layout dp;
    begin(w, batch, ids, accepted, &unknown);
    name_first_rows(w, batch);
    uint32_t n = lay_out(w, all, &lanes, &dp, counts, shards);
    for (uint32_t layer = 0; layer < w->engine->layers; layer++)
        run_layer(w, layer, lanes, n, &dp, f);
    if (!strcmp(f->kind, "abandon"))
        check(w, w->api->step_abandon(w->store), "step_abandon");
    else if (strcmp(f->kind,
                    "forget")) /* forget: the model raised, nobody said so; the next begin finds the step open */
        check(w, w->api->step_commit(w->store, unknown ? NULL : accepted, unknown ? 0 : batch->n), "step_commit");
    free(lanes);
    free(accepted);
    free(ids);
}

static void step(worker *w, mk_buffer *body)
{
    uint32_t line = mk_get_u32(body);
    fault f = parse_fault(w, line);
    mk_batch batch[MK_MAX_DP];
    for (uint32_t r = 0; r < w->engine->dp; r++)
        mk_get_batch(body, &batch[r]);
    if (w->store)
        record_step(w, batch, &f);
    for (uint32_t r = 0; r < w->engine->dp; r++)
        mk_batch_clear(&batch[r]);
}

static void update(worker *w, const mk_command *command)
{
    static const struct {
        const char *name;
        uint32_t kind;
    } kinds[] = {{"update", MOOR_WEIGHTS_UPDATE},
                 {"rpc", MOOR_WEIGHTS_RPC},
                 {"load", MOOR_WEIGHTS_LOAD},
                 {"reload", MOOR_WEIGHTS_RELOAD},
                 {"lora", MOOR_WEIGHTS_LORA}};
    const char *kind = mk_arg_text(command, "kind", "update");
    uint32_t k = 0;
    while (k < 4 && strcmp(kinds[k].name, kind))
        k++;
    if (mk_arg_number(command, "fail", UINT32_MAX) == w->context->tp) { /* this rank rejects it */
        w->status = MOOR_E_INVALID;
        snprintf(w->text, sizeof w->text, "rank %u rejects the weights", w->context->tp);
        return;
    }
    if (!mk_arg_text(command, "fail", NULL))
        w->generation++;
    check(w, w->api->weights_touched(w->process, kinds[k].kind, kind), "weights_touched");
}

/* wake tags=kv: memory of the training phase goes first (a random while), then the ranks meet, then the KV cache comes. */
static void wake(worker *w, const mk_command *command)
{
    mk_context *c = w->context;
    if (strcmp(mk_arg_text(command, "tags", "kv"), "kv"))
        return;
    if (mk_arg_number(command, "absent", UINT32_MAX) == c->tp)
        return;
    if (mk_arg_number(command, "die", UINT32_MAX) == c->tp)
        kill(getpid(), SIGKILL);
    double stagger = mk_arg_real(command, "stagger", 0);
    atomic_fetch_add(&c->ledger->held, 1 << 20);
    mk_sleep_ms(stagger * (double)(mk_mix(mk_now_ns(), (uint64_t)getpid()) % 1000) / 1000.0);
    atomic_fetch_sub(&c->ledger->held, 1 << 20);
    if (!(c->breaks & MK_BREAK_NO_BARRIER)) {
        moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
        check(w,
              w->api->resume_arrive(w->process, c->tp, w->engine->tp, c->dp, "cpu:0",
                                    mk_arg_real(command, "timeout", 10), &result),
              "resume_arrive");
    }
    int64_t held = atomic_load(&c->ledger->held);
    if (!w->status && held) {
        w->status = MOOR_E_STATE;
        snprintf(w->text, sizeof w->text, "rank %u resumes its KV cache while %lld bytes are held", c->tp,
                 (long long)held);
    }
}

/* Rows that come from outside, e.g. from another engine. */
static void fill(worker *w, const mk_command *command)
{
    const mk_engine *e = w->engine;
    const mk_command *add = mk_script_add(&w->context->script, command->word, command->line);
    mk_request_spec spec;
    char id[MK_ID_BYTES];
    mk_request_parse(add, &spec);
    mk_core_id(&spec, 0, id);
    uint64_t start = mk_arg_number(command, "start", 0), rows = mk_arg_number(command, "rows", 1);
    int32_t *data = mk_alloc(rows * e->layers * e->top_k * sizeof *data);
    for (uint64_t row = 0; row < rows; row++)
        for (uint32_t layer = 0; layer < e->layers; layer++) {
            uint32_t chosen[256];
            mk_experts(e, mk_token(&spec.tokens, start + row), start + row, layer, w->generation, chosen);
            for (uint32_t k = 0; k < e->top_k; k++)
                data[(row * e->layers + layer) * e->top_k + k] = (int32_t)chosen[k];
        }
    moor_ids ids = {.data = data, .dtype = MOOR_DTYPE_I32, .tokens = (uint32_t)(rows * e->layers), .top_k = e->top_k};
    check(w, w->api->request_fill(w->store, id, (uint32_t)strlen(id), start, &ids, rows), "request_fill");
    free(data);
}

static void cut(worker *w, const mk_command *command)
{
    mk_request_spec spec;
    char id[MK_ID_BYTES];
    mk_request_parse(mk_script_add(&w->context->script, command->word, command->line), &spec);
    mk_core_id(&spec, 0, id);
    check(w,
          w->api->truncate(w->store, id, (uint32_t)strlen(id), mk_arg_number(command, "rows", 0),
                           mk_arg_number(command, "min", 0)),
          "truncate");
}

static void handle(worker *w, uint32_t type, mk_buffer *body)
{
    if (type == MK_STEP) {
        step(w, body);
        return;
    }
    const mk_command *command = mk_script_line(&w->context->script, mk_get_u32(body));
    if (type == MK_UPDATE)
        update(w, command);
    else if (type == MK_WAKE)
        wake(w, command);
    else if (!w->store)
        return;
    else if (type == MK_RESET_CACHE)
        check(w, w->api->kv_reset(w->store), "kv_reset");
    else if (type == MK_FILL)
        fill(w, command);
    else if (type == MK_TRUNCATE)
        cut(w, command);
}

static void open_store(worker *w)
{
    const mk_engine *e = w->engine;
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    args.store_index = w->context->dp;
    args.layers = e->layers;
    args.top_k = e->top_k;
    args.num_experts = e->experts;
    args.layer_ids = e->layer_ids;
    args.model_layers = e->model_layers;
    args.max_step_tokens = e->step_tokens;
    if (e->kv_index) {
        args.kv_blocks = e->kv_blocks;
        args.kv_block_size = e->block_size;
    }
    args.max_requests = 64;
    args.dp_size = e->dp;
    args.dp_rank = w->context->dp;
    args.tp_size = e->tp;
    args.tp_rank = w->context->tp;
    args.arena_bytes = e->arena_bytes;
    check(w, w->api->store_open(w->process, &args, &w->store), "store_open");
}

int mk_worker_main(mk_context *context)
{
    worker w = {.context = context, .api = context->api, .engine = &context->script.engine, .generation = 1};
    signal(SIGPIPE, SIG_IGN);
    check(&w, mk_join(context, MOOR_ROLE_WORKER, context->tp, &w.process), "process_join");
    if (!w.status && !context->tp && context->script.engine.record)
        open_store(&w);
    mk_buffer body = {0};
    uint32_t type;
    int failed = w.status != MOOR_OK;
    mk_send_done(context->fd, w.status, w.text);
    while (!failed && !mk_receive(context->fd, &type, &body)) {
        w.status = MOOR_OK;
        w.text[0] = 0;
        handle(&w, type, &body);
        if (w.status)
            mk_say(context, "%s: %s", context->api->status_name(w.status), w.text);
        if (mk_send_done(context->fd, w.status, w.text))
            break;
    }
    if (w.store)
        context->api->store_close(w.store);
    if (w.process)
        context->api->process_leave(w.process);
    mk_buffer_clear(&body);
    free(w.source);
    return failed ? 2 : 0;
}
