/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far the store goes, with figures: a million records, a record of a million tokens, a day's churn. docs/performance.md ("Limits") has
 * what it printed. Needs some GiB of memory that is free, else it does less and says so.
 */
#include <malloc.h>
#include <stdlib.h>

#include "support/lab.h"

static uint64_t lines_of(const char *path)
{
    FILE *file = fopen(path, "r");
    uint64_t n = 0;
    for (int c; file && (c = getc(file)) != EOF;)
        n += c == '\n';
    if (file)
        fclose(file);
    return n;
}

static uint64_t free_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib = 0;
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib << 10;
}

static double seconds_since(uint64_t begin)
{
    return (double)(moor_now_ns() - begin) / 1e9;
}

/* 48 layers of 8 ids: 384 bytes a row. */
static void open_big(lab_store *lab, uint64_t arena_bytes)
{
    lab_defaults(lab);
    lab->config.layers = 48;
    lab->config.top_k = 8;
    lab->config.arena_bytes = arena_bytes;
    lab->config.kv_blocks = lab->config.kv_block_size = 0;
    lab_open_with(lab);
}

static void run_step(lab_store *lab, const moor_step_request *requests, uint32_t n, uint32_t tokens)
{
    assert_status(moor_records_step_begin(lab->records, requests, n, lab->epoch), MOOR_OK);
    moor_ids ids = {.data = lab->source, .dtype = MOOR_DTYPE_I32, .tokens = tokens, .top_k = lab->config.top_k};
    for (uint32_t layer = 0; layer < lab->config.layers; layer++)
        assert_status(moor_records_capture(lab->records, layer, &ids), MOOR_OK);
    assert_status(moor_records_step_commit(lab->records, NULL, 0), MOOR_OK);
}

/* Sealed records of 4 rows each, 1,024 a step. */
static void make_records(lab_store *lab, uint32_t from, uint32_t to)
{
    static char id[1024][16];
    static moor_step_request step[1024];
    for (uint32_t at = from; at < to;) {
        uint32_t n = 0;
        for (; n < 1024 && at < to; n++, at++) {
            int len = snprintf(id[n], sizeof(id[n]), "request-%u", at);
            step[n] = (moor_step_request){.id = id[n], .id_len = (uint32_t)len, .count = 4, .rows_hint = 4};
        }
        run_step(lab, step, n, 4 * n);
        for (uint32_t i = 0; i < n; i++)
            assert_status(moor_records_seal(lab->records, moor_id_hash(id[i], step[i].id_len), 4, 0), MOOR_OK);
    }
}

static void S2_7_a_million_live_records(void **state)
{
    (void)state;
    uint32_t records = free_bytes() > 9ull << 30 ? 1000000 : 100000;
    lab_store lab;
    open_big(&lab, (uint64_t)records * 17 << 10);
    struct mallinfo2 before = mallinfo2();
    uint64_t begin = moor_now_ns();
    make_records(&lab, 0, records);
    double took = seconds_since(begin);
    struct mallinfo2 after = mallinfo2();
    moor_records_stats stats = lab_stats(&lab);
    uint64_t maps = lines_of("/proc/self/maps");
    double heap = (double)(after.uordblks + after.hblkhd - before.uordblks - before.hblkhd) / records;
    print_message(
        "%u live records of 4 rows of 384 bytes, made and sealed in %.1f s (%.2f us each): %.0f bytes of heap "
        "and %.0f bytes of arena each (%.0f resident); %llu lines in /proc/self/maps\n",
        records, took, took * 1e6 / records, heap, (double)stats.live_bytes / records,
        (double)stats.resident_bytes / records, (unsigned long long)maps);
    assert_int_equal(stats.records, records);
    assert_true(maps < 1000);
    assert_true(heap < 2048);
    begin = moor_now_ns();
    for (uint32_t i = 0; i < 1000; i++) {
        char id[16];
        snprintf(id, sizeof(id), "request-%u", (uint32_t)((uint64_t)i * 2654435761u % records));
        lab_unview(&lab, lab_view(&lab, id));
    }
    print_message("open and close of one among them: %.2f us\n", seconds_since(begin) * 1e3);
    begin = moor_now_ns();
    uint32_t gone = moor_records_expire(lab.records, moor_now_ns());
    assert_int_equal(gone, 0);
    double idle = seconds_since(begin);
    lab.records->config.keep_s = 1;
    begin = moor_now_ns();
    gone = moor_records_expire(lab.records, moor_now_ns() + 1000000000000u);
    print_message("the keep policy: %.3f ms when none is due, %.2f us a record when all are\n", idle * 1e3,
                  seconds_since(begin) * 1e6 / records);
    assert_int_equal(gone, records);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void a_record_of_a_million_tokens(void **state)
{
    (void)state;
    enum { TOKENS = 1000000, CHUNK = 8192 };
    lab_store lab;
    open_big(&lab, 1ull << 30);
    uint64_t begin = moor_now_ns();
    for (uint32_t at = 0; at < TOKENS; at += CHUNK) {
        uint32_t n = TOKENS - at < CHUNK ? TOKENS - at : CHUNK;
        for (uint32_t i = 0; i < n * 8; i++)
            lab.source[i] = (int32_t)((at + i / 8 + i % 8 * 7) % LAB_EXPERTS);
        moor_step_request step = {.id = "long", .id_len = 4, .start = at, .count = n, .rows_hint = TOKENS};
        run_step(&lab, &step, 1, n);
    }
    for (uint32_t i = 0; i < 1000; i++) { /* and on, token by token */
        moor_step_request step = {.id = "long", .id_len = 4, .start = TOKENS + i, .count = 1};
        run_step(&lab, &step, 1, 1);
    }
    assert_status(lab_seal(&lab, "long", TOKENS + 1000), MOOR_OK);
    double took = seconds_since(begin);
    begin = moor_now_ns();
    moor_view *view = lab_view(&lab, "long");
    double opened = seconds_since(begin);
    assert_int_equal(view->rows, TOKENS + 1000);
    assert_int_equal(view->missing_rows, 0);
    for (uint32_t row = 0; row < TOKENS; row += 997)
        for (uint32_t k = 0; k < 8; k++)
            assert_int_equal(lab_row(&lab, view, row)[47 * 8 + k], (row + k * 7) % LAB_EXPERTS);
    moor_records_stats stats = lab_stats(&lab);
    print_message(
        "a record of 1,001,000 tokens of 384 bytes: recorded in %.2f s, %u segments, opened in %.1f us, %.1f%% of "
        "its arena memory is rows\n",
        took, view->n_segments, opened * 1e6, 100.0 * (TOKENS + 1000) * 384 / (double)stats.live_bytes);
    assert_true(view->n_segments < 2 * (TOKENS / 5461) + 8);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

/* ---- a day: requests grow side by side, are held for a while, and go in any order ---- */

enum { SLOTS = 160, STREAMS = 16 };

typedef struct day {
    lab_store lab;
    uint64_t random, rows;
    char id[STREAMS][24];
    uint32_t length[STREAMS], at[STREAMS], serial;
    moor_handle held[SLOTS];
    uint32_t n_held, requests, incomplete;
} day;

static uint32_t draw(day *d, uint32_t below)
{
    d->random ^= d->random << 13;
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    return (uint32_t)((d->random >> 33) % below);
}

static void finish(day *d, uint32_t s)
{
    moor_handle handle;
    uint32_t len = (uint32_t)strlen(d->id[s]);
    assert_status(lab_seal(&d->lab, d->id[s], d->length[s]), MOOR_OK);
    assert_status(moor_records_find(d->lab.records, d->id[s], len, &handle), MOOR_OK);
    d->requests++;
    d->rows += d->length[s];
    d->length[s] = 0;
    if (d->n_held == SLOTS) {
        uint32_t gone = draw(d, SLOTS);
        assert_status(moor_records_event(d->lab.records, d->held[gone], MOOR_EVENT_DISCARD), MOOR_OK);
        d->held[gone] = handle;
    } else {
        d->held[d->n_held++] = handle;
    }
}

static void pass_time(day *d)
{
    moor_step_request step[STREAMS];
    uint32_t tokens = 0;
    for (uint32_t s = 0; s < STREAMS; s++) {
        if (!d->length[s]) { /* from 32 rows (12 KB) to 8,192 (3 MB), as many short ones as long ones */
            d->length[s] = (32u << draw(d, 9)) - draw(d, 16);
            d->at[s] = 0;
            snprintf(d->id[s], sizeof(d->id[s]), "request-%u", d->serial++);
        }
        uint32_t n = d->at[s] ? 48 : 16 + draw(d, 400);
        n = n < d->length[s] - d->at[s] ? n : d->length[s] - d->at[s];
        step[s] = (moor_step_request){.id = d->id[s],
                                      .id_len = (uint32_t)strlen(d->id[s]),
                                      .start = d->at[s],
                                      .count = n,
                                      .rows_hint = s % 2 ? 8192 : 0};
        d->at[s] += n;
        tokens += n;
    }
    run_step(&d->lab, step, STREAMS, tokens);
    for (uint32_t s = 0; s < STREAMS; s++)
        if (d->at[s] == d->length[s])
            finish(d, s);
    if (draw(d, 64) == 0)
        moor_arena_purge(d->lab.records->arena);
}

static void S1_17_a_day_of_churn(void **state)
{
    (void)state;
    enum { STEPS = 10000 };
    day *d = calloc(1, sizeof(*d));
    assert_non_null(d);
    d->random = 88172645463325252u;
    open_big(&d->lab, 768ull << 20);
    uint64_t begin = moor_now_ns(), most = 0, segments = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        pass_time(d);
        uint64_t live = atomic_load(&d->lab.records->arena->live);
        most = live > most ? live : most;
    }
    moor_arena_purge(d->lab.records->arena);
    moor_records_stats stats = lab_stats(&d->lab);
    uint64_t rows = 0;
    for (uint32_t i = 0; i < d->lab.records->slots.count; i++) {
        const moor_record_slot *slot = moor_slots_at(&d->lab.records->slots, i);
        rows += slot->used ? slot->rows.end - slot->rows.missing : 0;
        segments += slot->used ? slot->rows.n : 0;
    }
    print_message(
        "%u requests, %llu rows in %.0f s; live %.0f MiB (at most %.0f), of which rows %.1f%%; resident %.0f MiB; "
        "%.2f segments a record; %llu refused\n",
        d->requests, (unsigned long long)d->rows, seconds_since(begin), (double)stats.live_bytes / (1 << 20),
        (double)most / (1 << 20), 100.0 * (double)rows * 384 / (double)stats.live_bytes,
        (double)stats.resident_bytes / (1 << 20), (double)segments / (double)stats.records,
        (unsigned long long)lab_count(&d->lab, MOOR_C_ARENA_FULL));
    assert_int_equal(lab_count(&d->lab, MOOR_C_ARENA_FULL), 0);
    /* How full can the arena get as it is now, in blocks of 256 KiB? */
    void *block[4096];
    uint32_t n = 0;
    while (n < 4096 && (block[n] = moor_arena_alloc(d->lab.records->arena, 256 << 10)))
        n++;
    double full = (double)atomic_load(&d->lab.records->arena->live) / (768.0 * (1 << 20));
    while (n)
        moor_arena_free(d->lab.records->arena, block[--n]);
    print_message("then it takes blocks of 256 KiB until %.1f%% of the arena are in use\n", 100 * full);
    assert_true(full > 0.85);
    lab_assert_empty(&d->lab);
    lab_close(&d->lab);
    free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_of_a_million_tokens),
        cmocka_unit_test(S1_17_a_day_of_churn),
        cmocka_unit_test(S2_7_a_million_live_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
