/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c — what processes and threads pay to share: lease and unlease, gate enter and leave, opening and reading a sealed
 * record from another process, and a barrier of N processes.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { LOOPS = 200000, TOKENS = 4096, MEETINGS = 150, MAX_RANKS = 16 };

/* One sealed record of `tokens` rows. */
static moor_handle make_record(const bench *b, const char *id, uint32_t tokens)
{
    int32_t *ids = bench_alloc((size_t)tokens * BENCH_TOP_K * sizeof *ids);
    moor_step_request request = {.id = id, .id_len = (uint32_t)strlen(id), .count = tokens, .rows_hint = tokens};
    moor_handle handle;
    bench_check(b, b->api->step_begin(b->store, &request, 1), "step_begin");
    for (uint32_t layer = 0; layer < BENCH_LAYERS; layer++) {
        for (uint32_t i = 0; i < tokens * BENCH_TOP_K; i++)
            ids[i] = (int32_t)((i * 7 + layer) % BENCH_EXPERTS);
        moor_ids call = {.data = ids, .dtype = MOOR_DTYPE_I32, .tokens = tokens, .top_k = BENCH_TOP_K};
        bench_check(b, b->api->capture(b->store, layer, &call, NULL), "capture");
    }
    bench_check(b, b->api->step_commit(b->store, NULL, 0), "step_commit");
    bench_check(b, b->api->request_finished(b->store, id, request.id_len), "request_finished");
    bench_check(b, b->api->find(b->store, id, request.id_len, &handle), "find");
    free(ids);
    return handle;
}

static double mutex_pairs(pthread_mutex_t *mutex, volatile uint64_t *counter)
{
    uint64_t t0 = bench_now_ns();
    for (uint32_t i = 0; i < LOOPS; i++) {
        pthread_mutex_lock(mutex);
        ++*counter;
        pthread_mutex_unlock(mutex);
        pthread_mutex_lock(mutex);
        --*counter;
        pthread_mutex_unlock(mutex);
    }
    return (double)(bench_now_ns() - t0) / LOOPS;
}

void bench_lease(bench *b)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    volatile uint64_t counter = 0;
    bench_samples moor = {0}, peer = {0};
    bench_open(b, 64u << 20, 0, TOKENS);
    moor_handle handle = make_record(b, "lease", 64);
    for (uint32_t rep = 0; rep < b->repetitions; rep++) {
        uint64_t t0 = bench_now_ns();
        for (uint32_t i = 0; i < LOOPS; i++)
            if (b->api->lease(b->store, handle) || b->api->unlease(b->store, handle))
                bench_die("lease: %s", b->api->last_error());
        bench_add(&moor, (double)(bench_now_ns() - t0) / LOOPS);
        bench_add(&peer, mutex_pairs(&mutex, &counter));
    }
    bench_print("lease + unlease", "moor", "ns", &moor);
    bench_print("lease + unlease", "counter under a mutex, twice", "ns", &peer);
    bench_close(b);
}

void bench_gate(bench *b)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    volatile uint64_t counter = 0;
    bench_samples moor = {0}, peer = {0};
    char id[32];
    bench_open(b, 0, 0, 0);
    for (uint32_t rep = 0; rep < b->repetitions; rep++) {
        int n = snprintf(id, sizeof id, "gate-%u", rep);
        uint64_t t0 = bench_now_ns();
        for (uint32_t i = 0; i < LOOPS; i++) {
            moor_ticket ticket;
            if (b->api->gate_enter(b->process, id, (uint32_t)n, 0, 0, &ticket) ||
                b->api->gate_leave(b->process, &ticket, MOOR_OUTCOME_FINISHED, NULL))
                bench_die("gate: %s", b->api->last_error());
        }
        bench_add(&moor, (double)(bench_now_ns() - t0) / LOOPS);
        bench_add(&peer, mutex_pairs(&mutex, &counter));
    }
    bench_print("gate enter + leave", "moor", "ns", &moor);
    bench_print("gate enter + leave", "counter under a mutex, twice", "ns", &peer);
    bench_close(b);
}

static uint64_t read_record(const bench *b, moor_client *client, uint32_t *checksum)
{
    moor_record *record;
    moor_record_info info = MOOR_RECORD_INFO_INIT;
    uint64_t t0 = bench_now_ns(), sum = 0;
    bench_check(b, b->api->open(client, "sealed", 6, 5, 0, 0, &record), "open");
    bench_check(b, b->api->record_info(record, &info), "record_info");
    for (uint32_t s = 0; s < info.n_segments; s++) {
        const uint8_t *data = info.segments[s].data;
        for (uint64_t i = 0; i < info.segments[s].rows * BENCH_ROW; i++)
            sum += data[i];
    }
    b->api->record_release(record);
    *checksum = (uint32_t)sum;
    return bench_now_ns() - t0;
}

/* The consumer is another process; every byte is read. The peer, base64 in JSON, is bench.py's. */
void bench_open_read(bench *b)
{
    bench_open(b, 64u << 20, 0, TOKENS);
    make_record(b, "sealed", TOKENS);
    uint32_t right = 0, got = 0;
    for (uint32_t layer = 0; layer < BENCH_LAYERS; layer++)
        for (uint32_t i = 0; i < TOKENS * BENCH_TOP_K; i++)
            right += (i * 7 + layer) % BENCH_EXPERTS;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        moor_client *client;
        bench_samples samples = {0};
        bench_check(b, b->api->attach("bench", b->dir, 5, &client), "attach");
        read_record(b, client, &got); /* maps the arena */
        for (uint32_t rep = 0; rep < b->repetitions * 20; rep++) {
            bench_add(&samples, (double)read_record(b, client, &got) / 1e6);
            if (got != right)
                bench_die("open: the sum of the ids is %u, must be %u", got, right);
        }
        bench_print("open + read 4,096 tokens, another process", "moor", "ms", &samples);
        b->api->detach(client);
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        bench_die("open: the consumer failed");
    bench_close(b);
}

/* Of each meeting: when a rank arrived and when it was let go, [moor or peer]. */
typedef struct meeting {
    pthread_barrier_t align, peer;
    double arrived[2][MEETINGS][MAX_RANKS], left[2][MEETINGS][MAX_RANKS];
} meeting;

/* Ranks come one after another, as they do when an engine wakes; what counts is the time from the last arrival to the last
 * leaving. */
static void meet(bench *b, meeting *m, uint32_t rank, uint32_t n)
{
    for (uint32_t i = 0; i < MEETINGS; i++)
        for (int peer = 0; peer < 2; peer++) {
            moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
            pthread_barrier_wait(&m->align);
            usleep(2000 + (rank * 7 + i * 13) % 5 * 100);
            m->arrived[peer][i][rank] = (double)bench_now_ns() / 1e3;
            if (peer)
                pthread_barrier_wait(&m->peer);
            else
                bench_check(b, b->api->resume_arrive(b->process, rank, n, 0, "cpu:0", 30, &result), "resume_arrive");
            m->left[peer][i][rank] = (double)bench_now_ns() / 1e3;
        }
}

static void add_meetings(const meeting *m, uint32_t n, int peer, bench_samples *out)
{
    for (uint32_t i = MEETINGS / 10; i < MEETINGS; i++) {
        double arrived = 0, left = 0;
        for (uint32_t rank = 0; rank < n; rank++) {
            arrived = m->arrived[peer][i][rank] > arrived ? m->arrived[peer][i][rank] : arrived;
            left = m->left[peer][i][rank] > left ? m->left[peer][i][rank] : left;
        }
        bench_add(out, left - arrived);
    }
}

void bench_barrier(bench *b, uint32_t n)
{
    char name[64];
    bench_samples moor = {0}, peer = {0};
    pthread_barrierattr_t attributes;
    if (n < 2 || n > MAX_RANKS)
        bench_die("barrier: %u processes", n);
    meeting *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        bench_die("mmap");
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&m->align, &attributes, n);
    pthread_barrier_init(&m->peer, &attributes, n);
    bench_open(b, 0, 0, 0);
    for (uint32_t rank = 1; rank < n; rank++) {
        pid_t pid = fork();
        if (pid < 0)
            bench_die("fork");
        if (!pid) {
            bench_join(b, rank, n); /* the parent's membership does not cross the fork */
            meet(b, m, rank, n);
            b->api->process_leave(b->process);
            _exit(0);
        }
    }
    meet(b, m, 0, n);
    for (uint32_t rank = 1; rank < n; rank++) {
        int status;
        if (wait(&status) < 0 || status)
            bench_die("barrier: a rank failed");
    }
    add_meetings(m, n, 0, &moor);
    add_meetings(m, n, 1, &peer);
    snprintf(name, sizeof name, "barrier, %u processes", n);
    bench_print(name, "moor", "us", &moor);
    bench_print(name, "pthread_barrier", "us", &peer);
    bench_close(b);
}
