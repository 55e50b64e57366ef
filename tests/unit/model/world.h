/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.h — an engine small enough to be right: requests with prompts that some of them share, chunked prefill, speculative
 * decoding, a KV cache of blocks with prefix caching and preemption. It says what a step asks of the store, and what every KV slot
 * really holds (the truth that a prefix hit is judged by). It knows neither the store nor the model.
 *
 * What a token's row is follows from who computed it and how: its seed. The tokens of one prompt group are the same tokens, and give
 * the same rows under the same weights; sampled tokens are their request's own.
 */
#ifndef MOOR_TEST_WORLD_H
#define MOOR_TEST_WORLD_H

#include "model.h"

enum { W_REQUESTS = 6, W_GROUPS = 6, W_PROMPT_BLOCKS = 64, W_ROW_BYTES = 512 /* of the widest store */ };

typedef struct w_request {
    uint32_t state; /* 0 free, 1 running, 2 ended: one step more may come */
    uint32_t name, uid, group, prompt, most;
    uint64_t done;     /* tokens whose KV is in the cache */
    uint64_t computed; /* the furthest ever accepted */
    uint32_t n_kv;
    int32_t kv[M_REQUEST_KV];
    uint32_t draws[M_ROWS]; /* how often the token at a position was drawn anew, after a rejection */
} w_request;

typedef struct w_block {
    uint32_t users;
    int32_t group, number; /* cached as this block of a prompt; -1 */
} w_block;

typedef struct world {
    uint32_t layers, k, experts, kv_size, bad_rows;
    uint64_t epoch;
    uint32_t uids;
    w_request request[W_REQUESTS];
    uint32_t group_prompt[W_GROUPS]; /* its length */
    w_block block[M_KV_BLOCKS];
    uint32_t queue[M_KV_BLOCKS], n_queue; /* blocks without users, in the order in which they are given out */
    m_row truth[M_KV_BLOCKS][M_KV_SIZE], was[M_KV_BLOCKS][M_KV_SIZE]; /* now, and before the last step */
    int32_t handed_out[4 * M_KV_BLOCKS];
    uint32_t n_handed_out;
    /* The step in flight. */
    uint32_t n, who[M_BATCH];
    m_request step[M_BATCH];
    m_row rows[M_BATCH][M_TOKENS], before[M_BATCH][M_TOKENS];
} world;

void w_open(world *w);
/* A new request under `name`, with the prompt of a group. NULL: all places are taken. */
w_request *w_admit(world *w, uint32_t name, uint32_t group, uint32_t sampled);
/* Adds the request to the step that is being put together: up to `tokens` of its prompt, or one token and `spec` drafts. 0: it cannot run now. */
int w_schedule(world *w, w_request *q, uint32_t tokens, uint32_t spec);
void w_new_step(world *w);
/* The step ran: KV slots hold its tokens. Call it before the outcome of the step is known. */
void w_execute(world *w);
/* The store was not told of the step. Slots that it wrote anew lost their rows with the hand-out; but the last token of a prompt that is all
 * cached goes over the same token's KV of perhaps older weights, and of that nobody told the store. It did not happen. */
void w_unwrite(world *w);
/* One step more of a request that has ended. */
int w_late(world *w, w_request *q);
/* accepted[i]: tokens of request i of the step that count (prompts: all). */
void w_settle(world *w, const uint32_t *accepted);
/* The step never ran, or nobody knows of it. */
void w_forget(world *w);
void w_preempt(world *w, w_request *q);
void w_end(world *w, w_request *q);
void w_kv_reset(world *w);
m_row w_row(const world *w, const w_request *q, uint64_t position);
/* The ids of a row, layer by layer, as int32. */
void w_ids(const world *w, m_row row, uint32_t layer, int32_t *ids);
/* Is it the row that the bytes are? */
int w_is(const world *w, m_row row, const uint8_t *bytes);

#endif
