/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h — what the benchmarks share: a clock, an instance with a store through moor.h alone, and samples written as JSON
 * lines that bench.py reads. Moor and what it is compared with alternate, repetition by repetition, in one process.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stddef.h>
#include <stdint.h>

#include <moor/moor.h>

enum {
    BENCH_LAYERS = 48,
    BENCH_TOP_K = 8,
    BENCH_EXPERTS = 128,
    BENCH_ROW = BENCH_LAYERS * BENCH_TOP_K,
    BENCH_BLOCK = 16
};

typedef struct bench {
    const moor_api *api;
    moor_process *process;
    moor_store *store; /* NULL unless asked for */
    char dir[64];
    uint32_t repetitions;
} bench;

typedef struct bench_samples {
    double *value;
    uint32_t n;
} bench_samples;

uint64_t bench_now_ns(void);
_Noreturn void bench_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *bench_alloc(size_t size);
void bench_check(const bench *b, moor_status status, const char *what);

/* An instance of its own in /dev/shm; with a store when kv_blocks or arena_bytes is not 0. */
void bench_open(bench *b, uint64_t arena_bytes, uint32_t kv_blocks, uint32_t max_step_tokens);
void bench_close(bench *b);
void bench_join(bench *b, uint32_t rank, uint32_t world);

void bench_add(bench_samples *samples, double value);
double bench_median(const bench_samples *samples);
/* {"name": …, "what": …, "unit": …, "values": […]} and frees the samples. what: "moor" or the peer's name. */
void bench_print(const char *name, const char *what, const char *unit, bench_samples *samples);

void bench_decode(bench *b);
void bench_prefill(bench *b);
void bench_lease(bench *b);
void bench_gate(bench *b);
void bench_open_read(bench *b);
void bench_barrier(bench *b, uint32_t processes);

#endif
