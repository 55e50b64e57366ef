/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.c — what recording costs the engine's step thread: one decode step of 256 requests, one prefill of 8,192 rows. The
 * model's ids are int32, [tokens][8], one buffer a layer, as the routers hand them over.
 *
 * Peers: "row copy" puts 256 rows of 384 bytes, already narrow and in row order, into 256 streams; "narrow + scatter" starts from the
 * same int32 buffers as Moor does; "memcpy" copies the source ids of the prefill.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum {
    REQUESTS = 256,
    STEPS = 200,
    PROMPT = 8,
    PREFILL = 8192,
    PER_REQUEST = (PROMPT + STEPS + BENCH_BLOCK - 1) / BENCH_BLOCK
};

static int32_t *make_ids(uint32_t tokens)
{
    int32_t *ids = bench_alloc((size_t)BENCH_LAYERS * tokens * BENCH_TOP_K * sizeof *ids);
    uint32_t x = 1;
    for (size_t i = 0; i < (size_t)BENCH_LAYERS * tokens; i++) {
        x = x * 1664525u + 1013904223u;
        for (uint32_t k = 0; k < BENCH_TOP_K; k++)
            ids[i * BENCH_TOP_K + k] = (int32_t)(((x >> 8) + k * 13) % BENCH_EXPERTS);
    }
    return ids;
}

/* The same, narrowed by whoever made them. */
static uint8_t *make_narrow(const int32_t *ids, uint32_t tokens)
{
    size_t n = (size_t)BENCH_LAYERS * tokens * BENCH_TOP_K;
    uint8_t *narrow = bench_alloc(n);
    for (size_t i = 0; i < n; i++)
        narrow[i] = (uint8_t)ids[i];
    return narrow;
}

static void capture_all(const bench *b, const void *ids, uint32_t dtype, uint32_t tokens)
{
    size_t bytes = dtype == MOOR_DTYPE_U8 ? sizeof(uint8_t) : sizeof(int32_t);
    for (uint32_t layer = 0; layer < BENCH_LAYERS; layer++) {
        moor_ids call = {.data = (const uint8_t *)ids + (size_t)layer * tokens * BENCH_TOP_K * bytes,
                         .dtype = dtype,
                         .tokens = tokens,
                         .top_k = BENCH_TOP_K};
        moor_status status = b->api->capture(b->store, layer, &call, NULL);
        if (status)
            bench_check(b, status, "capture");
    }
}

typedef struct batch {
    moor_step_request request[REQUESTS];
    char id[REQUESTS][32];
    int32_t blocks[REQUESTS][PER_REQUEST];
} batch;

static void fill_batch(batch *t, uint32_t round)
{
    for (uint32_t r = 0; r < REQUESTS; r++) {
        int n = snprintf(t->id[r], sizeof t->id[r], "req-%u-%u", round, r);
        for (int32_t i = 0; i < PER_REQUEST; i++)
            t->blocks[r][i] = (int32_t)r * PER_REQUEST + i;
        t->request[r] = (moor_step_request){.id = t->id[r],
                                            .id_len = (uint32_t)n,
                                            .count = PROMPT,
                                            .kv_blocks = t->blocks[r],
                                            .n_kv_blocks = 1,
                                            .rows_hint = PROMPT + STEPS};
    }
}

static void step(const bench *b, batch *t, const void *ids, uint32_t dtype, uint32_t tokens)
{
    bench_check(b, b->api->step_begin(b->store, t->request, REQUESTS), "step_begin");
    capture_all(b, ids, dtype, tokens);
    bench_check(b, b->api->step_commit(b->store, NULL, 0), "step_commit");
}

/* All requests of the round are sealed and let go, as after an export. */
static void end_round(const bench *b, batch *t)
{
    for (uint32_t r = 0; r < REQUESTS; r++) {
        moor_handle handle;
        bench_check(b, b->api->request_finished(b->store, t->id[r], t->request[r].id_len), "request_finished");
        bench_check(b, b->api->find(b->store, t->id[r], t->request[r].id_len, &handle), "find");
        bench_check(b, b->api->event(b->store, handle, MOOR_EVENT_DISCARD), "event");
    }
    bench_check(b, b->api->kv_reset(b->store), "kv_reset");
}

/* 256 streams, each one growing request's rows, for both peers. */
typedef struct streams {
    uint8_t *at[REQUESTS], *memory;
    size_t bytes;
} streams;

static void row_copy(streams *s, const uint8_t *rows)
{
    for (uint32_t r = 0; r < REQUESTS; r++) {
        memcpy(s->at[r], rows + (size_t)r * BENCH_ROW, BENCH_ROW);
        s->at[r] += BENCH_ROW;
    }
}

static void narrow_scatter(streams *s, const int32_t *ids)
{
    for (uint32_t layer = 0; layer < BENCH_LAYERS; layer++) {
        const int32_t *from = ids + (size_t)layer * REQUESTS * BENCH_TOP_K;
        for (uint32_t r = 0; r < REQUESTS; r++)
            for (uint32_t k = 0; k < BENCH_TOP_K; k++)
                s->at[r][layer * BENCH_TOP_K + k] = (uint8_t)from[r * BENCH_TOP_K + k];
    }
    for (uint32_t r = 0; r < REQUESTS; r++)
        s->at[r] += BENCH_ROW;
}

static void rewind_streams(streams *s)
{
    size_t each = (size_t)(STEPS + PROMPT) * BENCH_ROW;
    if (!s->memory) {
        s->bytes = each * REQUESTS;
        s->memory = bench_alloc(s->bytes);
        memset(s->memory, 1, s->bytes); /* pages are there, as the arena's are from the second round on */
    }
    for (uint32_t r = 0; r < REQUESTS; r++)
        s->at[r] = s->memory + r * each;
}

typedef struct decode {
    batch requests;
    streams copy, narrow;
    int32_t *ids, *prompt;
    uint8_t *rows, *bytes;
    bench_samples moor, copies, narrows;
} decode;

/* One round: 200 steps, each of them Moor's, the copy and the narrowing in turn. Medians of the steps are the samples. */
static void decode_round(const bench *b, decode *d, uint32_t dtype, uint32_t round)
{
    const void *ids = dtype == MOOR_DTYPE_U8 ? (const void *)d->bytes : d->ids;
    bench_samples moor = {0}, copies = {0}, narrows = {0};
    fill_batch(&d->requests, round);
    step(b, &d->requests, d->prompt, MOOR_DTYPE_I32, REQUESTS * PROMPT);
    rewind_streams(&d->copy);
    rewind_streams(&d->narrow);
    for (uint32_t s = 0; s < STEPS; s++) {
        for (uint32_t r = 0; r < REQUESTS; r++) {
            d->requests.request[r].start = PROMPT + s;
            d->requests.request[r].count = 1;
            d->requests.request[r].n_kv_blocks = (PROMPT + s) / BENCH_BLOCK + 1;
        }
        uint64_t t0 = bench_now_ns();
        step(b, &d->requests, ids, dtype, REQUESTS);
        uint64_t t1 = bench_now_ns();
        row_copy(&d->copy, d->rows);
        uint64_t t2 = bench_now_ns();
        narrow_scatter(&d->narrow, d->ids);
        uint64_t t3 = bench_now_ns();
        bench_add(&moor, (double)(t1 - t0) / 1e3);
        bench_add(&copies, (double)(t2 - t1) / 1e3);
        bench_add(&narrows, (double)(t3 - t2) / 1e3);
    }
    end_round(b, &d->requests);
    if (round) { /* round 0 brings the pages */
        bench_add(&d->moor, bench_median(&moor));
        bench_add(&d->copies, bench_median(&copies));
        bench_add(&d->narrows, bench_median(&narrows));
    }
    free(moor.value);
    free(copies.value);
    free(narrows.value);
}

void bench_decode(bench *b)
{
    static const struct {
        uint32_t dtype;
        const char *name;
    } source[] = {{MOOR_DTYPE_I32, "decode step, 256 requests, 48x8 u8"},
                  {MOOR_DTYPE_U8, "the same, from ids of one byte"}};
    decode *d = bench_alloc(sizeof *d);
    d->ids = make_ids(REQUESTS);
    d->bytes = make_narrow(d->ids, REQUESTS);
    d->prompt = make_ids(REQUESTS * PROMPT);
    d->rows = bench_alloc((size_t)REQUESTS * BENCH_ROW);
    for (int s = 0; s < 2; s++) {
        bench_open(b, 256u << 20, REQUESTS * PER_REQUEST, 8192);
        for (uint32_t round = 0; round <= b->repetitions; round++)
            decode_round(b, d, source[s].dtype, round);
        bench_close(b);
        bench_print(source[s].name, "moor", "us", &d->moor);
        bench_print(source[s].name, "row copy", "us", &d->copies);
        if (source[s].dtype == MOOR_DTYPE_I32)
            bench_print(source[s].name, "narrow + scatter", "us", &d->narrows);
    }
    free(d->narrows.value);
    free(d->copy.memory);
    free(d->narrow.memory);
    free(d->rows);
    free(d->ids);
    free(d->bytes);
    free(d->prompt);
    free(d);
}

void bench_prefill(bench *b)
{
    size_t bytes = (size_t)PREFILL * BENCH_ROW * sizeof(int32_t);
    int32_t *ids = make_ids(PREFILL), *blocks = bench_alloc(PREFILL / BENCH_BLOCK * sizeof *blocks);
    void *copy = bench_alloc(bytes);
    bench_samples moor = {0}, peer = {0};
    bench_open(b, 256u << 20, PREFILL / BENCH_BLOCK, PREFILL);
    for (int32_t i = 0; i < PREFILL / BENCH_BLOCK; i++)
        blocks[i] = i;
    for (uint32_t rep = 0; rep <= b->repetitions; rep++) {
        char id[32];
        moor_handle handle;
        int n = snprintf(id, sizeof id, "prefill-%u", rep);
        moor_step_request request = {.id = id,
                                     .id_len = (uint32_t)n,
                                     .count = PREFILL,
                                     .kv_blocks = blocks,
                                     .n_kv_blocks = PREFILL / BENCH_BLOCK,
                                     .rows_hint = PREFILL};
        uint64_t t0 = bench_now_ns();
        bench_check(b, b->api->step_begin(b->store, &request, 1), "step_begin");
        capture_all(b, ids, MOOR_DTYPE_I32, PREFILL);
        bench_check(b, b->api->step_commit(b->store, NULL, 0), "step_commit");
        uint64_t t1 = bench_now_ns();
        memcpy(copy, ids, bytes);
        uint64_t t2 = bench_now_ns();
        if (rep) {
            bench_add(&moor, (double)(t1 - t0) / 1e6);
            bench_add(&peer, (double)(t2 - t1) / 1e6);
        }
        bench_check(b, b->api->request_finished(b->store, id, (uint32_t)n), "request_finished");
        bench_check(b, b->api->find(b->store, id, (uint32_t)n, &handle), "find");
        bench_check(b, b->api->event(b->store, handle, MOOR_EVENT_DISCARD), "event");
        bench_check(b, b->api->kv_reset(b->store), "kv_reset");
    }
    bench_print("prefill of 8,192 rows", "moor", "ms", &moor);
    bench_print("prefill of 8,192 rows", "memcpy of the source ids", "ms", &peer);
    free(copy);
    free(blocks);
    free(ids);
    bench_close(b);
}
