/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moor-bench decode|prefill|lease|gate|open|barrier [N] — the C half of `make bench`; bench.py runs it and makes the table.
 * BENCH_REPETITIONS is how often each pair is measured (default 9).
 */
#include "bench.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

uint64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void bench_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "moor-bench: ");
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void *bench_alloc(size_t size)
{
    void *memory = calloc(1, size);
    if (!memory)
        bench_die("out of memory: %zu bytes", size);
    return memory;
}

void bench_check(const bench *b, moor_status status, const char *what)
{
    if (status)
        bench_die("%s: %s: %s", what, b->api->status_name(status), b->api->last_error());
}

void bench_join(bench *b, uint32_t rank, uint32_t world)
{
    char json[256];
    moor_config *config;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    snprintf(json, sizeof json,
             "{\"instance\": \"bench\", \"dir\": \"%s\", \"log\": \"error\", "
             "\"gate\": {\"mode\": \"enforce\"}, \"barrier\": {\"mode\": \"enforce\"}}",
             b->dir);
    bench_check(b, b->api->config_parse(json, strlen(json), &config), "config_parse");
    args.engine = "bench";
    args.roles = MOOR_ROLE_FRONTEND | MOOR_ROLE_CORE | MOOR_ROLE_WORKER;
    args.rank = rank;
    args.world_size = world;
    bench_check(b, b->api->process_join(config, &args, &b->process), "process_join");
    b->api->config_free(config);
}

void bench_open(bench *b, uint64_t arena_bytes, uint32_t kv_blocks, uint32_t max_step_tokens)
{
    static int32_t layer_ids[BENCH_LAYERS];
    snprintf(b->dir, sizeof b->dir, "%s/moor-bench-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(b->dir))
        bench_die("%s: %s", b->dir, strerror(errno));
    bench_join(b, 0, 1);
    if (!arena_bytes)
        return;
    for (int32_t i = 0; i < BENCH_LAYERS; i++)
        layer_ids[i] = i;
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    args.layers = args.model_layers = BENCH_LAYERS;
    args.top_k = BENCH_TOP_K;
    args.num_experts = BENCH_EXPERTS;
    args.layer_ids = layer_ids;
    args.max_step_tokens = max_step_tokens;
    args.kv_blocks = kv_blocks;
    args.kv_block_size = kv_blocks ? BENCH_BLOCK : 0;
    args.max_requests = 1024;
    args.arena_bytes = arena_bytes;
    bench_check(b, b->api->store_open(b->process, &args, &b->store), "store_open");
}

void bench_close(bench *b)
{
    char command[128];
    if (b->store)
        b->api->store_close(b->store);
    b->api->process_leave(b->process);
    snprintf(command, sizeof command, "rm -rf '%s'", b->dir);
    if (system(command))
        fprintf(stderr, "%s: not removed\n", b->dir);
}

void bench_add(bench_samples *s, double value)
{
    double *grown = realloc(s->value, (s->n + 1) * sizeof *grown);
    if (!grown)
        bench_die("out of memory");
    s->value = grown;
    s->value[s->n++] = value;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const bench_samples *s)
{
    double *sorted = bench_alloc(s->n * sizeof *sorted);
    memcpy(sorted, s->value, s->n * sizeof *sorted);
    qsort(sorted, s->n, sizeof *sorted, compare);
    double median = s->n % 2 ? sorted[s->n / 2] : (sorted[s->n / 2 - 1] + sorted[s->n / 2]) / 2;
    free(sorted);
    return median;
}

void bench_print(const char *name, const char *what, const char *unit, bench_samples *s)
{
    printf("{\"name\": \"%s\", \"what\": \"%s\", \"unit\": \"%s\", \"values\": [", name, what, unit);
    for (uint32_t i = 0; i < s->n; i++)
        printf("%s%.6g", i ? ", " : "", s->value[i]);
    printf("]}\n");
    fflush(stdout);
    free(s->value);
    *s = (bench_samples){0};
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(bench *);
    } all[] = {{"decode", bench_decode},
               {"prefill", bench_prefill},
               {"lease", bench_lease},
               {"gate", bench_gate},
               {"open", bench_open_read}};
    const char *which = argc > 1 ? argv[1] : "", *repetitions = getenv("BENCH_REPETITIONS");
    bench b = {.api = moor_get_api(MOOR_API_VERSION, NULL),
               .repetitions = repetitions ? (uint32_t)atoi(repetitions) : 9};
    if (!b.api)
        bench_die("libmoor has no table of version %u", MOOR_API_VERSION);
    if (!strcmp(which, "barrier") && argc > 2) {
        bench_barrier(&b, (uint32_t)atoi(argv[2]));
        return 0;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(which, all[i].name)) {
            all[i].run(&b);
            return 0;
        }
    bench_die("usage: moor-bench decode|prefill|lease|gate|open | barrier N");
}
