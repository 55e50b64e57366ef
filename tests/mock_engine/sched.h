/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched.h — the mock engine's scheduler: continuous batching with chunked prefill, KV blocks, a prefix cache, preemption,
 * speculative tokens and (async) one step ahead. It behaves like vLLM's where that decides what a recorder sees: a full
 * block is cached when it is scheduled, so a sibling of the same step hits it; a preempted request starts over at 0.
 *
 * Used by the core's one thread; owns requests and blocks; knows nothing of Moor. One per data-parallel replica.
 */
#ifndef MOCK_SCHED_H
#define MOCK_SCHED_H

#include "script.h"

typedef struct mk_sched mk_sched;

typedef struct mk_batch_request {
    uint32_t line, sibling;
    uint64_t start;
    uint32_t count, spec, accepted; /* accepted of count; known to the sampler only */
    uint32_t rows_hint, flags;      /* MOOR_STEP_* */
    uint32_t first;                 /* the worker has not seen it before */
    uint32_t n_blocks;
    int32_t *blocks;
    uint32_t index, incarnation; /* the scheduler's own */
    uint32_t samples;
} mk_batch_request;

typedef struct mk_batch {
    mk_batch_request *request;
    uint32_t n, tokens;
    int32_t *handed_out; /* blocks given out before this step */
    uint32_t n_handed_out;
    struct mk_finished {
        uint32_t line, sibling;
    } * finished; /* since the last batch */
    uint32_t n_finished;
} mk_batch;

/* rows < 0: not known, "what is committed". */
typedef void mk_freed_fn(void *user, uint32_t line, uint32_t sibling, uint32_t outcome, int64_t rows);

mk_sched *mk_sched_new(const mk_engine *engine, mk_freed_fn *freed, void *user);
void mk_sched_free(mk_sched *sched);
void mk_sched_add(mk_sched *sched, const mk_request_spec *spec);

/* 1: *out is a step (perhaps only notices); 0: nothing to do; -1: results of the step in flight are needed first. */
int mk_sched_step(mk_sched *sched, mk_batch *out);
void mk_sched_results(mk_sched *sched, const mk_batch *batch);
void mk_batch_clear(mk_batch *batch);

/* All siblings of an add. No step may be in flight for preempt. Returns how many there were. */
uint32_t mk_sched_abort(mk_sched *sched, uint32_t line);
uint32_t mk_sched_preempt(mk_sched *sched, uint32_t line, int last); /* last: behind all that wait, not before them */
void mk_sched_reset_cache(mk_sched *sched);
uint32_t mk_sched_unfinished(const mk_sched *sched);

#endif
