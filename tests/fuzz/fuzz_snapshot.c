/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a snapshot's file (allocator/restore.c). The first byte says whether the checksums are made right before: without that
 * nothing gets past them. A file that is refused leaves the store new; one that loads gives a store that can be read, saved and emptied.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "allocator/error.h"
#include "allocator/records.h"
#include "allocator/sessions.h"
#include "allocator/snapfile.h"
#include "allocator/snapshot.h"
#include "allocator/trace.h"
#include "driver.h"

enum { LAYERS = 2, TOP_K = 2, SEEDS = 4, LARGEST = 1 << 20 };

static char dir[32], path[64];
static const int32_t layer_ids[LAYERS] = {0, 1};
static moor_records *records; /* a new store */

static moor_records *new_store(void)
{
    moor_records_config config = {.arena_bytes = 4u << 20,
                                  .layers = LAYERS,
                                  .top_k = TOP_K,
                                  .num_experts = 8,
                                  .model_layers = LAYERS,
                                  .layer_ids = layer_ids,
                                  .max_step_tokens = 64,
                                  .kv_blocks = 8,
                                  .kv_block_size = 4};
    moor_records *store;
    MUST(moor_records_create(&config, &store));
    return store;
}

static void make_dir(void)
{
    if (dir[0])
        return;
    snprintf(dir, sizeof(dir), "%s/moor-fuzz-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(dir))
        abort();
    snprintf(path, sizeof(path), "%s/store-0.moor", dir);
    records = new_store();
}

static void write_file(const uint8_t *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        abort();
    close(fd);
}

/* ---- checksums that fit ---- */

/* Block by block, as far as sections blocks and rows go. */
static void fix_blocks(uint8_t *blocks, uint64_t length, const uint8_t *rows, uint64_t rows_length)
{
    uint64_t at = 0, row_bytes = LAYERS * TOP_K;
    while (length - at >= 16) {
        uint64_t bytes = moor_le32_load(blocks + at) * row_bytes, runs = moor_le32_load(blocks + at + 4);
        if (bytes > rows_length)
            return;
        moor_le64_store(blocks + at + 8, XXH3_64bits(rows, bytes));
        rows += bytes;
        rows_length -= bytes;
        if (runs * 12 > length - at - 16)
            return;
        at += 16 + runs * 12;
    }
}

static void fix_checksums(uint8_t *data, size_t size)
{
    if (size < MOOR_SNAP_HEADER)
        return;
    uint64_t sections = moor_le32_load(data + 12), table = moor_le64_load(data + 24);
    if (sections < MOOR_SNAP_KINDS && table <= size && size - table >= sections * MOOR_SNAP_ENTRY) {
        uint64_t offset[MOOR_SNAP_KINDS] = {0}, length[MOOR_SNAP_KINDS] = {0};
        for (uint64_t i = 0; i < sections; i++) {
            const uint8_t *entry = data + table + i * MOOR_SNAP_ENTRY;
            uint32_t kind = moor_le32_load(entry) % MOOR_SNAP_KINDS;
            uint64_t begin = moor_le64_load(entry + 8), n = moor_le64_load(entry + 16);
            if (begin > table || n > table - begin)
                continue;
            offset[kind] = begin;
            length[kind] = n;
        }
        fix_blocks(data + offset[MOOR_SNAP_BLOCKS], length[MOOR_SNAP_BLOCKS], data + offset[MOOR_SNAP_ROWS],
                   length[MOOR_SNAP_ROWS]);
        for (uint64_t i = 0; i < sections; i++) {
            uint8_t *entry = data + table + i * MOOR_SNAP_ENTRY;
            uint32_t kind = moor_le32_load(entry) % MOOR_SNAP_KINDS;
            if (kind != MOOR_SNAP_ROWS)
                moor_le64_store(entry + 24, XXH3_64bits(data + offset[kind], length[kind]));
        }
        moor_le64_store(data + 32, XXH3_64bits(data + table, sections * MOOR_SNAP_ENTRY));
    }
    moor_le64_store(data + 16, size);
    moor_le64_store(data + 56, XXH3_64bits(data, 56));
}

/* ---- seeds ---- */

static void record(moor_records *store, const char *id, uint64_t start, uint32_t rows, const int32_t *kv, uint32_t n_kv)
{
    static const uint8_t ids[64 * TOP_K] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 2};
    moor_step_request request = {
        .id = id, .id_len = (uint32_t)strlen(id), .count = rows, .start = start, .kv_blocks = kv, .n_kv_blocks = n_kv};
    moor_ids capture = {.data = ids, .dtype = MOOR_DTYPE_U8, .tokens = rows, .top_k = TOP_K};
    MUST(moor_records_step_begin(store, &request, 1, start + 1));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        MUST(moor_records_capture(store, layer, &capture));
    MUST(moor_records_step_commit(store, NULL, 0));
}

static void seal(moor_records *store, const char *id, uint64_t rows)
{
    MUST(moor_records_seal(store, moor_id_hash(id, strlen(id)), rows, 0));
}

static void label_of(void *user, uint64_t epoch, char text[MOOR_SNAP_LABEL_BYTES])
{
    (void)user;
    snprintf(text, MOOR_SNAP_LABEL_BYTES, "label %llu", (unsigned long long)epoch);
}

static void add_sessions(moor_records *store)
{
    static const int32_t tokens[] = {7, -1, 9};
    const char *keys[] = {"hello", "hello you", "hell", "hello you too"};
    moor_trace_in in = {.tokens = tokens, .n_tokens = 3, .length = 3, .create = 1};
    MUST(moor_records_find(store, "a", 1, &in.handle));
    for (uint32_t i = 0; i < 4; i++) {
        in.start = 3 * i / 2;
        MUST(moor_session_insert(store, 1, "s", 1, keys[i], (uint32_t)strlen(keys[i]), &in));
        in.handle = i % 2 ? in.handle : 0;
    }
    MUST(moor_session_release_key(store, "s", 1, "hello you", 9));
    MUST(moor_session_start(store, 1, "gone", 4, 0));
    MUST(moor_session_release(store, "gone", 4));
}

static void make_seed(size_t index)
{
    const int32_t kv[] = {1, 2, 3};
    moor_records *store = new_store();
    if (index >= 1) {
        record(store, "a", 0, 8, kv, 2);
        record(store, "a", 8, 3, kv, 3);
        seal(store, "a", 11);
    }
    if (index >= 2) {
        record(store, "b", 8, 2, kv, 2);
        MUST(moor_records_alias(store, "b", 1, "http", 4, 1));
        seal(store, "b", 13);
        record(store, "gone", 0, 1, NULL, 0);
        seal(store, "gone", 1);
        moor_handle handle = 0;
        MUST(moor_records_find(store, "gone", 4, &handle));
        MUST(moor_records_event(store, handle, MOOR_EVENT_DISCARD));
    }
    if (index >= 2)
        add_sessions(store);
    moor_save save = {.dir = dir, .deadline_ns = UINT64_MAX, .epoch = 9, .label_of = index >= 2 ? label_of : NULL};
    MUST(moor_records_save(store, &save, NULL));
    moor_records_destroy(store);
}

size_t fuzz_n_seeds(void)
{
    return SEEDS;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t room)
{
    static uint8_t made[SEEDS][8192];
    static size_t length[SEEDS];
    make_dir();
    if (!length[index]) {
        make_seed(index);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, made[index] + 1, sizeof(made[index]) - 1);
        if (n <= 0)
            abort();
        close(fd);
        made[index][0] = index != 3; /* the last one without help */
        length[index] = (size_t)n + 1;
    }
    size_t n = length[index] < room ? length[index] : room;
    memcpy(out, made[index], n);
    return n;
}

/* ---- the target ---- */

static void read_all(moor_records *store)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < store->slots.count; i++) {
        moor_record_slot *slot = moor_slots_at(&store->slots, i);
        moor_view *view = NULL;
        if (!slot->used)
            continue;
        MUST(moor_records_open_handle(store, 1, moor_slot_handle(slot), &view));
        for (uint32_t s = 0; s < view->n_segments; s++) {
            const moor_view_segment *segment = &view->segments[s];
            for (uint64_t b = 0; segment->present && b < segment->rows * store->row_bytes; b++)
                sum += store->arena->region.base[segment->offset + b];
        }
        moor_view_free(view);
    }
    if (sum == UINT64_MAX) /* never; but so the rows are read */
        abort();
    moor_records_disconnect(store, 1);
}

static void count_session(void *user, moor_hash128 hash, const moor_session *session)
{
    const moor_session **last = user;
    (void)hash;
    if (session)
        *last = session;
}

static void empty(moor_records *store)
{
    moor_records_stats stats;
    for (;;) { /* every session: its keys, then all of it */
        const moor_session *session = NULL;
        moor_trace_keys *keys = NULL;
        moor_sessions_each(store->sessions, count_session, &session);
        if (!session)
            break;
        char id[MOOR_SESSION_ID_MAX];
        uint32_t id_len = session->id_len;
        memcpy(id, session->id, id_len);
        MUST(moor_session_keys(store, id, id_len, &keys));
        moor_trace_free(keys);
        MUST(moor_session_release(store, id, id_len));
    }
    for (uint32_t i = 0; i < store->slots.count; i++) {
        const moor_record_slot *slot = moor_slots_at(&store->slots, i);
        if (!slot->used)
            continue;
        moor_handle handle = moor_slot_handle(slot);
        MUST(moor_records_claim(store, handle, MOOR_OWNER_NONE));
        MUST(moor_records_event(store, handle, MOOR_EVENT_DISCARD));
    }
    moor_records_stats_get(store, &stats);
    if (stats.records || stats.blocks || stats.live_bytes)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t file[LARGEST];
    make_dir();
    if (!size || size > LARGEST)
        return 0;
    memcpy(file, data + 1, size - 1);
    if (data[0] & 1)
        fix_checksums(file, size - 1);
    write_file(file, size - 1);
    moor_restore restore = {.dir = dir};
    moor_restored restored;
    if (moor_records_restore(records, &restore, &restored)) {
        moor_records_stats stats;
        moor_records_stats_get(records, &stats);
        if (stats.records || stats.blocks || stats.live_bytes || records->created || records->ids.groups ||
            records->sessions->table.used)
            abort();
        return 0;
    }
    read_all(records);
    moor_save save = {.dir = dir, .deadline_ns = UINT64_MAX};
    MUST(moor_records_save(records, &save, NULL)); /* what was loaded can be written */
    empty(records);
    moor_records_destroy(records);
    records = new_store();
    return 0;
}

__attribute__((destructor)) static void end(void)
{
    if (!dir[0])
        return;
    moor_records_destroy(records);
    unlink(path);
    rmdir(dir);
}
