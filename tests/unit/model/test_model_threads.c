/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One recorder and three threads that do everything else at once, at random: what holds under concurrency holds (S1, S2). A row says of
 * itself who computed it, at which position and with which weights, so that whoever sees one can judge it.
 * Meanwhile sessions grow, are cut and end, and the recorder saves the store when it is at rest: what such a snapshot restores is right as well.
 *   test_model_threads [OPERATIONS [SEED]]
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "allocator/error.h"
#include "allocator/snapshot.h"
#include "allocator/trace.h"
#include "check.h"

enum { LAYERS = 2, K = 8, THREADS = 4, OPERATIONS = 20000, HANDLES = 32 };

static world w; /* the recorder's */
static moor_records *records;
static moor_state_seal_ring *ring;
static _Atomic uint64_t counters[MOOR_COUNTERS_MAX], done, rows_seen, views_seen, traces_seen, saved;
static char dir[32];
static _Atomic(moor_handle) handles[HANDLES];
static _Atomic int failed;
static uint64_t operations = OPERATIONS, seed = 1;

static uint32_t pick(uint64_t *random, uint32_t below)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return (uint32_t)(*random >> 40) % below;
}

static void complain(const char *what, const char *id, uint64_t a, uint64_t b)
{
    if (!atomic_exchange(&failed, 1))
        fprintf(stderr, "%s: %s (%llu, %llu), seed %llu\n", id, what, (unsigned long long)a, (unsigned long long)b,
                (unsigned long long)seed);
}

/* Layer 0 is the seed itself, layer 1 follows from it. */
static void ids_of(m_row row, uint32_t layer, int32_t *ids)
{
    uint64_t word = layer ? row.seed * 0x9E3779B97F4A7C15u : row.seed;
    for (uint32_t i = 0; i < K; i++)
        ids[i] = (int32_t)(word >> (8 * i) & 0xFF);
}

static int check_row(const moor_view *view, const uint8_t *bytes, uint64_t at, uint64_t epoch)
{
    uint64_t word, second;
    memcpy(&word, bytes, 8);
    memcpy(&second, bytes + 8, 8);
    if (second != word * 0x9E3779B97F4A7C15u || !(word >> 63))
        complain("a row is torn", view->id, at, word);
    else if ((word >> 16 & 0xFFFF) != at)
        complain("a row of another position", view->id, at, word >> 16 & 0xFFFF);
    else if ((word & 0xFFFF) != epoch)
        complain("a row of another version", view->id, epoch, word & 0xFFFF);
    else
        return 0;
    return 1;
}

static void check_rows_in(const moor_records *store, const moor_view *view)
{
    uint64_t missing = 0;
    uint32_t version = 0;
    for (uint32_t i = 0; i < view->n_segments; i++) {
        const moor_view_segment *segment = &view->segments[i];
        missing += segment->present ? 0 : segment->rows;
        if (!segment->present && !segment->reasons)
            complain("missing without a reason", view->id, segment->start, segment->rows);
        for (uint64_t at = segment->start; segment->present && at < segment->start + segment->rows; at++) {
            while (version + 1 < view->n_versions && view->versions[version + 1].start <= at)
                version++;
            const uint8_t *bytes = store->arena->region.base + segment->offset + (at - segment->start) * LAYERS * K;
            if (check_row(view, bytes, at, view->versions[version].epoch))
                return;
        }
    }
    if (missing != view->missing_rows)
        complain("missing rows", view->id, missing, view->missing_rows);
    atomic_fetch_add(&rows_seen, view->rows - missing);
    atomic_fetch_add(&views_seen, 1);
}

static void check_rows(const moor_view *view)
{
    check_rows_in(records, view);
}

/* ---- the recorder ---- */

static void capture(void)
{
    static int32_t ids[M_TOKENS * K];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < w.n; i++)
            for (uint32_t t = 0; t < w.step[i].count; t++)
                ids_of(w.rows[i][t], layer, ids + (size_t)n++ * K);
        moor_ids call = {.data = ids, .dtype = MOOR_DTYPE_I32, .tokens = n, .top_k = K};
        if (moor_records_capture(records, layer, &call))
            complain(moor_last_error(), "capture", layer, n);
    }
}

static void step(uint64_t *random)
{
    moor_step_request list[M_BATCH];
    uint32_t accepted[M_BATCH], tokens = 1 + pick(random, 30), told = pick(random, 4) != 0;
    w_new_step(&w);
    for (uint32_t i = 0; i < W_REQUESTS; i++)
        if (w.request[i].state == 1 && pick(random, 8))
            (void)w_schedule(&w, &w.request[i], tokens, pick(random, 4));
    moor_records_kv_handed_out(records, w.handed_out, w.n_handed_out);
    w.n_handed_out = 0;
    for (uint32_t i = 0; i < w.n; i++) {
        const m_request *q = &w.step[i];
        list[i] = (moor_step_request){.id = check_id(q->name),
                                      .id_len = 2,
                                      .count = q->count,
                                      .start = q->start,
                                      .spec = q->spec,
                                      .kv_blocks = q->kv,
                                      .n_kv_blocks = q->n_kv};
        accepted[i] = q->count - pick(random, q->spec + 1);
    }
    if (moor_records_step_begin(records, list, w.n, w.epoch))
        complain(moor_last_error(), "step_begin", w.n, 0);
    w_execute(&w);
    capture();
    if (moor_records_step_commit(records, told ? accepted : NULL, w.n))
        complain(moor_last_error(), "step_commit", w.n, 0);
    w_settle(&w, accepted);
}

static void end(uint64_t *random, w_request *q)
{
    moor_hash128 none = {0, 0};
    uint64_t rows = q->done;
    uint32_t how = pick(random, 3);
    w_end(&w, q);
    q->state = 0;
    if (how == 0)
        (void)moor_records_seal(records, check_hash(q->name), rows, 0);
    if (how == 1)
        (void)moor_seal_push(ring, check_hash(q->name), none, rows, pick(random, 4) ? 0 : MOOR_SEAL_COMMITTED);
    (void)moor_records_finished(records, check_id(q->name), 2);
}

static moor_records *new_store(_Atomic uint64_t *counter);

/* Whatever was saved while others were at it, it is whole. */
static void restore_and_check(void)
{
    moor_records *store = new_store(NULL);
    moor_restore restore = {.dir = dir};
    if (!store || moor_records_restore(store, &restore, NULL)) {
        complain(moor_last_error(), "restore", 0, 0);
        moor_records_destroy(store);
        return;
    }
    for (uint32_t i = 0; i < store->slots.count; i++) {
        const moor_record_slot *slot = moor_slots_at(&store->slots, i);
        moor_view *view = NULL;
        if (!slot->used)
            continue;
        if (moor_records_open_handle(store, 1, moor_slot_handle(slot), &view))
            complain(moor_last_error(), "open of a restored record", i, 0);
        else
            check_rows_in(store, view);
        moor_view_free(view);
    }
    moor_records_destroy(store);
}

/* The engine rests; an alias of another thread may still make a record that is not sealed. */
static void save(void)
{
    moor_save how = {.dir = dir, .deadline_ns = UINT64_MAX, .epoch = w.epoch};
    for (uint32_t i = 0; i < W_REQUESTS; i++)
        if (w.request[i].state == 1) {
            w_end(&w, &w.request[i]);
            w.request[i].state = 0;
        }
    for (uint32_t name = 0; name < M_NAMES; name++)
        (void)moor_records_finished(records, check_id(name), 2);
    moor_status status = moor_records_save(records, &how, NULL);
    if (status && status != MOOR_E_STATE)
        complain(moor_last_error(), "save", 0, 0);
    if (status)
        return;
    atomic_fetch_add(&saved, 1);
    restore_and_check();
}

static void *record(void *argument)
{
    uint64_t random = seed * 77 + 5;
    (void)argument;
    while (atomic_fetch_add(&done, 1) < operations && !atomic_load(&failed)) {
        uint32_t what = pick(&random, 16);
        w_request *q = &w.request[pick(&random, W_REQUESTS)];
        if (what < 3)
            (void)w_admit(&w, pick(&random, M_NAMES), pick(&random, W_GROUPS), pick(&random, 30));
        else if (what == 3 && q->state == 1)
            end(&random, q);
        else if (what == 4 && q->state == 1)
            w_preempt(&w, q);
        else if (what == 5 && !pick(&random, 4))
            w.epoch++;
        else if (what == 6 && !pick(&random, 8)) {
            w_kv_reset(&w);
            (void)moor_records_kv_reset(records);
        } else if (what == 7 && !pick(&random, 16))
            save();
        else
            step(&random);
    }
    return NULL;
}

/* ---- the others ---- */

static void look(uint64_t *random, uint64_t client)
{
    moor_view *view = NULL;
    uint32_t id = pick(random, M_NAMES + M_ALIASES);
    moor_handle handle = atomic_load(&handles[pick(random, HANDLES)]);
    moor_status status =
        pick(random, 3) ? moor_records_open(records, client, check_id(id), 2, pick(random, 2), pick(random, 20), &view)
                        : moor_records_open_handle(records, client, handle, &view);
    if (status) {
        if (view || (status != MOOR_E_NOT_FOUND && status != MOOR_E_TIMEOUT && status != MOOR_E_AMBIGUOUS &&
                     status != MOOR_E_STALE && status != MOOR_E_INVALID))
            complain(moor_last_error(), "open", (uint64_t)-status, id);
        return;
    }
    handle = view->handle;
    atomic_store(&handles[pick(random, HANDLES)], handle);
    if (pick(random, 3) == 0)
        (void)moor_records_event(records, handle, 1 + pick(random, 4)); /* while it is read */
    check_rows(view);
    sched_yield();
    check_rows(view);
    moor_view_free(view);
    if (pick(random, 8) == 0)
        (void)moor_records_disconnect(records, client);
    else if (moor_records_close(records, client, handle))
        complain(moor_last_error(), "close", client, handle);
}

static void look_at_all(uint64_t *random, uint64_t client)
{
    moor_view **views = NULL;
    uint32_t n = 0;
    if (moor_records_open_all(records, client, check_id(pick(random, M_NAMES + M_ALIASES)), 2, &views, &n))
        return;
    for (uint32_t i = 0; i < n; i++)
        check_rows(views[i]);
    moor_views_free(views, n);
    (void)moor_records_disconnect(records, client);
}

/* Segments with tokens or without, on records that may be somebody else's. */
static void insert(uint64_t *random, uint64_t client, const char *id, const char *key, uint32_t length)
{
    int32_t tokens[16];
    moor_trace_in in = {.handle = pick(random, 6) ? atomic_load(&handles[pick(random, HANDLES)]) : 0,
                        .start = pick(random, 4) ? MOOR_TRACE_BEHIND : 0,
                        .length = MOOR_TRACE_ROWS,
                        .create = 1};
    if (!in.handle || pick(random, 2)) {
        in.tokens = tokens;
        in.n_tokens = 1 + pick(random, 15);
    }
    for (uint32_t i = 0; i < in.n_tokens; i++)
        tokens[i] = (int32_t)i;
    if (in.handle && pick(random, 2))
        (void)moor_records_find(records, check_id(pick(random, M_NAMES)), 2, &in.handle);
    moor_status status =
        moor_session_insert(records, pick(random, 4) ? MOOR_CLIENT_NONE : client, id, 2, key, length, &in);
    if (status && status != MOOR_E_GONE && status != MOOR_E_STALE && status != MOOR_E_STATE && status != MOOR_E_RANGE &&
        status != MOOR_E_INVALID)
        complain(moor_last_error(), "insert", (uint64_t)-status, in.handle);
}

static void export(uint64_t *random, uint64_t client, const char *id, const char *key, uint32_t length)
{
    moor_trace *trace = NULL;
    uint64_t at = 0;
    moor_status status = moor_session_export(records, client, id, 2, key, length, &trace);
    if (status) {
        if (status != MOOR_E_GONE && status != MOOR_E_NOT_FOUND && status != MOOR_E_INCOMPLETE)
            complain(moor_last_error(), "export", (uint64_t)-status, 0);
        return;
    }
    for (uint32_t i = 0; i < trace->n_parts; at = trace->parts[i++].to) {
        if (trace->parts[i].from != at || trace->parts[i].to > trace->parts[i].view->rows)
            complain("parts of a trace have a hole", id, at, trace->parts[i].from);
        check_rows(trace->parts[i].view);
    }
    if (at != trace->rows || at > trace->n_tokens || (at && at + 1 < trace->n_tokens))
        complain("a trace is short of rows", id, at, trace->n_tokens);
    atomic_fetch_add(&traces_seen, 1);
    moor_trace_close(records, client, trace);
    for (uint32_t i = 0; i < trace->n_parts; i++)
        moor_view_free(trace->parts[i].view);
    moor_trace_free(trace);
    (void)random;
}

/* Sessions that all threads use, under keys that begin alike. */
static void trace(uint64_t *random, uint64_t client)
{
    static const char letters[] = "aaabaab";
    const char *id = check_session_id(pick(random, M_SESSIONS)), *key = letters + pick(random, 4);
    uint32_t length = pick(random, 4), what = pick(random, 32);
    int32_t tokens[32];
    moor_trace_keys *keys = NULL;
    moor_trace_found *found = NULL;
    moor_rollback done_to;
    if (what < 12)
        insert(random, client, id, key, length);
    else if (what < 18)
        export(random, client, id, key, length);
    else if (what < 21 && !moor_session_search(records, id, 2, key, length, &found))
        moor_trace_free(found);
    else if (what < 23 && !moor_session_keys(records, id, 2, &keys))
        moor_trace_free(keys);
    else if (what == 24)
        (void)moor_session_release_key(records, id, 2, key, length);
    else if (what == 25 && !pick(random, 4))
        (void)moor_session_release(records, id, 2);
    else if (what < 28) {
        for (uint32_t i = 0; i < 32; i++)
            tokens[i] = (int32_t)(i % 16);
        (void)moor_session_rollback(records, id, 2, key, length, tokens, pick(random, 32), 0, &done_to);
    } else
        (void)moor_session_start(records, client, id, 2, what != 28);
}

static void *use(void *argument)
{
    uint64_t client = (uint64_t)(uintptr_t)argument, random = seed * 991 + client;
    while (atomic_fetch_add(&done, 1) < operations && !atomic_load(&failed)) {
        moor_handle handle = atomic_load(&handles[pick(&random, HANDLES)]);
        uint32_t name = pick(&random, M_NAMES), alias = M_NAMES + pick(&random, M_ALIASES - 1),
                 what = pick(&random, 24);
        if (what > 17)
            trace(&random, client);
        else if (what < 6)
            look(&random, client);
        else if (what == 6)
            look_at_all(&random, client);
        else if (what == 7)
            (void)moor_records_event(records, handle, 1 + pick(&random, 4));
        else if (what == 8)
            (void)moor_records_claim(records, handle, pick(&random, 3));
        else if (what == 9)
            (void)moor_records_alias(records, check_id(name), 2, check_id(alias), 2, pick(&random, 3));
        else if (what == 10)
            (void)moor_records_expire(records, moor_now_ns() + (pick(&random, 4) ? 0 : 100000000000000u));
        else if (what == 11)
            (void)moor_records_drain(records);
        else if (what == 12 && !moor_records_find(records, check_id(name), 2, &handle))
            atomic_store(&handles[pick(&random, HANDLES)], handle);
        else if (what > 12 && moor_records_lease(records, handle) == MOOR_OK) {
            sched_yield();
            if (moor_records_unlease(records, handle))
                complain(moor_last_error(), "unlease", handle, 0);
        }
    }
    return NULL;
}

static int is_empty(void)
{
    (void)moor_records_step_abandon(records);
    (void)moor_records_drain(records);
    for (uint32_t i = 0; i < M_SESSIONS; i++)
        (void)moor_session_release(records, check_session_id(i), 2);
    for (uint32_t i = 0; i < records->slots.count; i++) {
        const moor_record_slot *slot = moor_slots_at(&records->slots, i);
        moor_handle handle = moor_slot_handle(slot);
        for (int tries = 0; slot->used && !slot->sealed && tries < 3; tries++)
            (void)moor_records_seal(records, slot->hash, 0, MOOR_SEAL_COMMITTED);
        if (slot->used) {
            (void)moor_records_claim(records, handle, MOOR_OWNER_NONE);
            (void)moor_records_event(records, handle, MOOR_EVENT_DISCARD);
        }
    }
    (void)moor_records_kv_reset(records);
    moor_records_stats stats;
    moor_records_stats_get(records, &stats);
    if (stats.records || stats.leases || stats.clients || stats.blocks || stats.live_bytes || stats.kv_entries)
        complain("records or blocks are left at the end", "store", stats.records, stats.blocks);
    return !atomic_load(&failed);
}

static moor_records *new_store(_Atomic uint64_t *counter)
{
    static const int32_t layer_ids[LAYERS] = {3, 7};
    moor_records *store = NULL;
    moor_records_config config = {.arena_bytes = 8 << 20,
                                  .layers = LAYERS,
                                  .top_k = K,
                                  .num_experts = 256,
                                  .model_layers = 10,
                                  .layer_ids = layer_ids,
                                  .max_step_tokens = M_TOKENS,
                                  .kv_blocks = M_KV_BLOCKS,
                                  .kv_block_size = 4,
                                  .keep_s = 10000,
                                  .keep_bytes = 64 << 10,
                                  .seals = counter ? ring : NULL,
                                  .counters = counter};
    return moor_records_create(&config, &store) ? NULL : store;
}

static int make_dir(void)
{
    snprintf(dir, sizeof(dir), "%s/moor-model-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    return mkdtemp(dir) != NULL;
}

static void remove_dir(void)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/store-0.moor", dir);
    (void)unlink(path);
    (void)rmdir(dir);
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    operations = argc > 1 ? strtoull(argv[1], NULL, 10) : OPERATIONS;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    w.kv_size = 4;
    w_open(&w);
    for (uint32_t i = 0; i < W_GROUPS; i++)
        w.group_prompt[i] = 4 + 5 * i;
    ring = calloc(1, sizeof(*ring));
    records = new_store(counters);
    if (!ring || !records || !make_dir())
        return 1;
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, i ? use : record, (void *)i))
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    save(); /* nobody else is there: it is saved and restored once, whatever the threads met */
    if (!atomic_load(&saved))
        complain(moor_last_error(), "nothing was ever saved", 0, 0);
    int ok = is_empty();
    printf("%llu operations by %d threads, %llu views of %llu present rows, %llu traces, %llu snapshots: %s\n",
           (unsigned long long)operations, THREADS, (unsigned long long)atomic_load(&views_seen),
           (unsigned long long)atomic_load(&rows_seen), (unsigned long long)atomic_load(&traces_seen),
           (unsigned long long)atomic_load(&saved), ok ? "all right" : "wrong");
    remove_dir();
    moor_records_destroy(records);
    free(ring);
    return !ok;
}
