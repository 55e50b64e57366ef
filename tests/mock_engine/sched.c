/* SPDX-License-Identifier: Apache-2.0 */
#include "sched.h"

#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "ids.h"
#include "mock.h"

enum state { WAITING, RUNNING, DONE };

typedef struct request {
    mk_request_spec spec;
    uint32_t sibling;
    mk_tokens tokens;
    enum state state;
    uint64_t computed;               /* tokens whose KV is there or scheduled */
    uint32_t outputs, placeholders;  /* sampled; being sampled by a step in flight */
    uint32_t in_flight, incarnation; /* steps without result; raised by a preemption */
    uint32_t spec_steps, seen;
    int32_t *blocks;
    uint32_t n_blocks, n_cached;
} request;

struct mk_sched {
    const mk_engine *engine;
    mk_freed_fn *freed;
    void *user;
    mk_blocks *blocks;
    request **request; /* in order of arrival, never removed */
    uint32_t n_requests;
    uint32_t *running, *waiting; /* indices */
    uint32_t n_running, n_waiting;
    struct mk_finished *finished;
    uint32_t n_finished;
    uint64_t steps;
};

mk_sched *mk_sched_new(const mk_engine *engine, mk_freed_fn *freed, void *user)
{
    mk_sched *s = mk_alloc(sizeof *s);
    *s = (mk_sched){.engine = engine, .freed = freed, .user = user, .blocks = mk_blocks_new(engine->kv_blocks)};
    return s;
}

void mk_sched_free(mk_sched *s)
{
    for (uint32_t i = 0; i < s->n_requests; i++) {
        free(s->request[i]->blocks);
        free(s->request[i]);
    }
    mk_blocks_free(s->blocks);
    free(s->request);
    free(s->running);
    free(s->waiting);
    free(s->finished);
    free(s);
}

static void list_remove(uint32_t *list, uint32_t *n, uint32_t value)
{
    for (uint32_t i = 0; i < *n; i++)
        if (list[i] == value) {
            memmove(list + i, list + i + 1, (*n - i - 1) * sizeof *list);
            --*n;
            return;
        }
}

void mk_sched_add(mk_sched *s, const mk_request_spec *spec)
{
    for (uint32_t i = 0; i < spec->siblings; i++) {
        request *r = mk_alloc(sizeof *r);
        *r = (request){.spec = *spec, .sibling = i, .tokens = mk_sibling_tokens(spec, i), .state = WAITING};
        s->request = mk_grow(s->request, (s->n_requests + 1) * sizeof *s->request);
        s->running = mk_grow(s->running, (s->n_requests + 1) * sizeof *s->running);
        s->waiting = mk_grow(s->waiting, (s->n_requests + 1) * sizeof *s->waiting);
        s->request[s->n_requests] = r;
        s->waiting[s->n_waiting++] = s->n_requests++;
    }
}

static uint64_t known_tokens(const request *r)
{
    return (uint64_t)r->spec.prompt + r->outputs;
}

static uint64_t block_hash(const mk_sched *s, const request *r, uint32_t block)
{
    uint64_t h = 1, size = s->engine->block_size;
    for (uint64_t p = 0; p < (block + 1) * size; p++) /* the whole prefix */
        h = mk_mix(h, mk_token(&r->tokens, p));
    return h ? h : 1;
}

static void cache_full_blocks(mk_sched *s, request *r)
{
    uint64_t tokens = r->computed < known_tokens(r) ? r->computed : known_tokens(r);
    for (; r->n_cached < tokens / s->engine->block_size; r->n_cached++)
        mk_blocks_cache(s->blocks, r->blocks[r->n_cached], block_hash(s, r, r->n_cached));
}

static int reserve_blocks(mk_sched *s, request *r, uint64_t tokens)
{
    uint32_t want = (uint32_t)((tokens + s->engine->block_size - 1) / s->engine->block_size);
    if (want > r->n_blocks && want - r->n_blocks > mk_blocks_available(s->blocks))
        return 0;
    r->blocks = mk_grow(r->blocks, (want + 1) * sizeof *r->blocks);
    while (r->n_blocks < want)
        r->blocks[r->n_blocks++] = mk_blocks_hand_out(s->blocks);
    return 1;
}

static void drop_blocks(mk_sched *s, request *r)
{
    while (r->n_blocks) /* the tail first: it is the least useful prefix */
        mk_blocks_give_back(s->blocks, r->blocks[--r->n_blocks]);
    r->n_cached = 0;
}

static void finish(mk_sched *s, uint32_t index, uint32_t outcome, int64_t rows)
{
    request *r = s->request[index];
    drop_blocks(s, r);
    list_remove(s->running, &s->n_running, index);
    list_remove(s->waiting, &s->n_waiting, index);
    r->state = DONE;
    if (r->seen) {
        s->finished = mk_grow(s->finished, (s->n_finished + 1) * sizeof *s->finished);
        s->finished[s->n_finished++] = (struct mk_finished){r->spec.line, r->sibling};
    }
    s->freed(s->user, r->spec.line, r->sibling, outcome, rows);
}

static void preempt(mk_sched *s, uint32_t index)
{
    request *r = s->request[index];
    drop_blocks(s, r);
    list_remove(s->running, &s->n_running, index);
    memmove(s->waiting + 1, s->waiting, s->n_waiting * sizeof *s->waiting);
    s->n_waiting++;
    s->waiting[0] = index;
    r->state = WAITING;
    r->computed = 0;
    r->placeholders = 0;
    r->incarnation++;
}

static mk_batch_request *batch_add(mk_sched *s, mk_batch *out, uint32_t index, uint32_t count, uint32_t spec)
{
    request *r = s->request[index];
    out->request = mk_grow(out->request, (out->n + 1) * sizeof *out->request);
    mk_batch_request *b = &out->request[out->n++];
    uint32_t accepts = r->spec.accept[r->spec_steps % r->spec.n_accept];
    *b = (mk_batch_request){
        .line = r->spec.line,
        .sibling = r->sibling,
        .start = r->computed,
        .count = count + spec,
        .spec = spec,
        .accepted = count + (accepts < spec ? accepts : spec),
        .rows_hint = r->spec.prompt + r->spec.max_tokens,
        .first = !r->seen,
        .index = index,
        .incarnation = r->incarnation,
        .n_blocks = r->n_blocks,
        .blocks = mk_alloc((r->n_blocks + 1) * sizeof(int32_t)),
        .flags = r->spec.unproven && r->computed == r->spec.external ? MOOR_STEP_PREFIX_UNPROVEN : 0,
    };
    memcpy(b->blocks, r->blocks, r->n_blocks * sizeof(int32_t));
    r->spec_steps += spec > 0;
    r->computed += b->count;
    r->seen = 1;
    r->in_flight++;
    out->tokens += b->count;
    cache_full_blocks(s, r);
    b->samples = r->spec.max_tokens && r->computed >= known_tokens(r) + r->placeholders;
    r->placeholders += b->samples;
    return b;
}

/* Makes room for one running request, at the expense of the last ones. 1: room; 0: none; -1: wait for results. */
static int make_room(mk_sched *s, uint32_t index, uint64_t tokens)
{
    while (!reserve_blocks(s, s->request[index], tokens)) {
        uint32_t victim = s->running[s->n_running - 1];
        if (s->request[victim]->in_flight)
            return -1;
        preempt(s, victim);
        if (victim == index)
            return 0;
    }
    return 1;
}

/* Continues what runs. 1: done; 0: a request was preempted or must wait, admit nothing new. */
static int schedule_running(mk_sched *s, mk_batch *out, uint32_t *budget)
{
    int calm = 1;
    for (uint32_t i = 0; i < s->n_running && *budget;) {
        uint32_t index = s->running[i], before = s->n_running;
        request *r = s->request[index];
        uint64_t want = known_tokens(r) + r->placeholders - r->computed;
        if (!want || (r->spec.max_tokens && r->outputs + r->placeholders >= r->spec.max_tokens)) {
            i++;
            continue;
        }
        uint32_t count = want < *budget ? (uint32_t)want : *budget;
        uint32_t spec = r->outputs && want == 1 && !s->engine->async ? r->spec.spec : 0;
        if (count + spec > *budget)
            spec = 0;
        int room = make_room(s, index, r->computed + count + spec);
        calm = calm && room == 1 && s->n_running == before;
        if (room != 1)
            break;
        batch_add(s, out, index, count, spec);
        *budget -= count + spec;
        i++;
    }
    return calm;
}

static void take_prefix(mk_sched *s, request *r)
{
    uint32_t size = s->engine->block_size, most = (uint32_t)((known_tokens(r) - 1) / size);
    r->blocks = mk_grow(r->blocks, (most + 1) * sizeof *r->blocks);
    for (uint32_t b = 0; b < most; b++) {
        int32_t block = mk_blocks_hit(s->blocks, block_hash(s, r, b));
        if (block < 0)
            break;
        r->blocks[r->n_blocks++] = block;
        r->n_cached = r->n_blocks;
    }
    r->computed = (uint64_t)r->n_blocks * size;
    if (r->spec.external > r->computed && reserve_blocks(s, r, r->spec.external)) {
        r->computed = r->spec.external; /* a connector filled them */
        cache_full_blocks(s, r);
    }
}

static void schedule_waiting(mk_sched *s, mk_batch *out, uint32_t *budget)
{
    while (s->n_waiting && *budget) {
        uint32_t index = s->waiting[0];
        request *r = s->request[index];
        take_prefix(s, r);
        uint64_t want = known_tokens(r) - r->computed;
        uint32_t count = want < *budget ? (uint32_t)want : *budget;
        if (!reserve_blocks(s, r, r->computed + count)) {
            drop_blocks(s, r);
            r->computed = 0;
            return;
        }
        list_remove(s->waiting, &s->n_waiting, index);
        s->running[s->n_running++] = index;
        r->state = RUNNING;
        batch_add(s, out, index, count, 0);
        *budget -= count;
    }
}

/* The worker's batch order is not the order of arrival, and changes. */
static void shuffle(mk_sched *s, mk_batch *out)
{
    for (uint32_t i = out->n; i > 1; i--) {
        uint32_t k = (uint32_t)(mk_mix(s->steps, i) % i);
        mk_batch_request swap = out->request[k];
        out->request[k] = out->request[i - 1];
        out->request[i - 1] = swap;
    }
}

int mk_sched_step(mk_sched *s, mk_batch *out)
{
    *out = (mk_batch){0};
    uint32_t budget = s->engine->step_tokens, unfinished = s->n_running + s->n_waiting;
    if (schedule_running(s, out, &budget))
        schedule_waiting(s, out, &budget);
    if (!out->n && !s->n_finished) {
        for (uint32_t i = 0; i < s->n_running; i++)
            if (s->request[s->running[i]]->in_flight)
                return -1;
        if (unfinished)
            mk_die("scheduler: %u requests and no step possible (KV blocks too few for one request?)", unfinished);
        return 0;
    }
    s->steps++;
    if (s->engine->shuffle)
        shuffle(s, out);
    out->handed_out = mk_blocks_take_log(s->blocks, &out->n_handed_out);
    out->finished = s->finished;
    out->n_finished = s->n_finished;
    s->finished = NULL;
    s->n_finished = 0;
    return 1;
}

static void result(mk_sched *s, const mk_batch_request *b)
{
    request *r = s->request[b->index];
    if (r->in_flight)
        r->in_flight--;
    if (r->state == DONE || r->incarnation != b->incarnation)
        return;
    r->computed -= b->count - b->accepted;
    if (!r->spec.max_tokens) {
        if (b->start + b->count >= r->spec.prompt)
            finish(s, b->index, MOOR_OUTCOME_FINISHED, r->spec.prompt);
        return;
    }
    if (!b->samples)
        return;
    r->placeholders--;
    r->outputs += 1 + b->accepted - (b->count - b->spec);
    uint32_t limit = r->spec.stop_at && r->spec.stop_at < r->spec.max_tokens ? r->spec.stop_at : r->spec.max_tokens;
    if (r->outputs >= limit) {
        r->outputs = limit;
        finish(s, b->index, MOOR_OUTCOME_FINISHED, (int64_t)known_tokens(r) - 1);
    }
}

void mk_sched_results(mk_sched *s, const mk_batch *batch)
{
    for (uint32_t i = 0; i < batch->n; i++)
        result(s, &batch->request[i]);
}

void mk_batch_clear(mk_batch *batch)
{
    for (uint32_t i = 0; i < batch->n; i++)
        free(batch->request[i].blocks);
    free(batch->request);
    free(batch->handed_out);
    free(batch->finished);
    *batch = (mk_batch){0};
}

uint32_t mk_sched_abort(mk_sched *s, uint32_t line)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_requests; i++) {
        request *r = s->request[i];
        if (r->spec.line != line || r->state == DONE)
            continue;
        finish(s, i, MOOR_OUTCOME_ABORTED, r->outputs ? (int64_t)known_tokens(r) - 1 : -1);
        n++;
    }
    return n;
}

uint32_t mk_sched_preempt(mk_sched *s, uint32_t line, int last)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_requests; i++)
        if (s->request[i]->spec.line == line && s->request[i]->state == RUNNING) {
            preempt(s, i);
            if (last) {
                list_remove(s->waiting, &s->n_waiting, i);
                s->waiting[s->n_waiting++] = i;
            }
            n++;
        }
    return n;
}

void mk_sched_reset_cache(mk_sched *s)
{
    mk_blocks_forget(s->blocks);
    for (uint32_t i = 0; i < s->n_running; i++)
        s->request[s->running[i]]->n_cached = UINT32_MAX / 2; /* what is computed under way is not cached any more */
}

uint32_t mk_sched_unfinished(const mk_sched *s)
{
    return s->n_running + s->n_waiting;
}
