/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as what stores answer to a consumer (client/): the input says which stores there are, what the consumer does, and what each of
 * its requests is answered with (reply_store.h, reply_answer.c). Whatever came, what a record shows lies in the arena that was mapped and is
 * read to the last byte, and afterwards nothing is left: no memory, no descriptor.
 */
#include <dirent.h>
#include <string.h>
#include <unistd.h>

#include "client/client.h"
#include "client/copy.h"
#include "client/ref.h"
#include "client/resolve.h"
#include "client/save.h"
#include "client/session.h"
#include "driver.h"
#include "reply_store.h"

enum { OPS = 19, MADE = 9, MOST_OPS = 8, KINDS = 5, COPY_MOST = 1 << 18, FDS_LEFT = 40, FDS_EVERY = 512, HELD = 2 };

static moor_client *client;
static moor_record *held[HELD]; /* records that are kept for a while */
static volatile unsigned sum;

/* ---- reading what there is -------------------------------------------------------------------------------------- */

static void require(int is_so)
{
    if (!is_so)
        abort();
}

static void touch(const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum += ((const volatile uint8_t *)data)[i];
}

static void read_segments(const moor_record *record, const moor_record_info *info)
{
    const moor_shape *shape = record->connection ? moor_connection_shape(record->connection) : NULL;
    uint64_t next = 0, missing = 0, row = (uint64_t)info->layers * info->top_k * info->dtype;
    for (uint32_t i = 0; i < info->n_segments; i++) {
        const moor_segment *s = &info->segments[i];
        const uint8_t *data = s->data;
        require(s->start == next && s->rows && s->rows <= info->rows - next && (data != NULL) == (s->present != 0));
        next += s->rows;
        missing += s->present ? 0 : s->rows;
        if (!s->present)
            continue;
        if (shape)
            require(data >= shape->arena && (size_t)(data - shape->arena) <= shape->arena_bytes &&
                    s->rows <= (shape->arena_bytes - (size_t)(data - shape->arena)) / row);
        touch(data, s->rows * row);
    }
    require(next == info->rows && missing == info->missing_rows);
    require(!shape || next - missing <= shape->arena_bytes / row);
}

static void read_info(const moor_record *record, moor_record_info *info)
{
    uint64_t next = 0;
    MUST(moor_record_get_info(record, info));
    touch(info->request_id, strlen(info->request_id) + 1);
    touch(info->session_id, strlen(info->session_id) + 1);
    for (uint32_t i = 0; i < info->n_versions; i++, next++) {
        require(info->versions[i].start >= next && info->versions[i].start < info->rows &&
                strlen(info->versions[i].label) < 64);
        next = info->versions[i].start;
    }
    for (uint32_t i = 0; i < info->layers; i++)
        require(info->layer_ids[i] >= 0 && (uint32_t)info->layer_ids[i] < info->model_layers &&
                (!i || info->layer_ids[i] > info->layer_ids[i - 1]));
}

/* A part of it in some dtype and layout, into memory of just the size. */
static void copy_some(const moor_record *record, const moor_record_info *info)
{
    uint8_t how = reply_next();
    uint32_t dtype = (info->dtype + how) % 7;
    uint64_t row = (uint64_t)(how & 16 ? info->model_layers : info->layers) * info->top_k, start = 0, rows = info->rows;
    row = row < COPY_MOST / 8 ? row * moor_copy_dtype_bytes(dtype) : COPY_MOST + 1;
    if (how & 32 && info->rows)
        start = reply_next() % info->rows;
    rows = row && rows - start > COPY_MOST / row ? COPY_MOST / row : rows - start;
    rows = rows > COPY_MOST ? COPY_MOST : rows;
    uint8_t *dst = malloc(rows * row > 0 ? rows * row : 1), *mask = how & 64 ? NULL : malloc(rows > 0 ? rows : 1);
    if (!moor_record_copy(record, start, start + rows, how & 16, dtype, dst, rows * row, mask)) {
        touch(dst, rows * row);
        touch(mask, mask ? rows : 0);
    }
    free(dst);
    free(mask);
}

/* A joined record's row is, column by column, what its parts have. */
static void compare_parts(const moor_record *record, const moor_record_info *info)
{
    size_t column = (size_t)info->top_k * info->dtype, row = info->layers * column;
    for (uint32_t i = 0; i < info->n_segments; i++) {
        const moor_segment *s = &info->segments[i];
        for (uint32_t p = 0; s->present && p < record->n_parts; p++) {
            const moor_record_info *part = &record->parts[p]->info;
            size_t bytes = part->layers * column;
            uint8_t *rows = malloc(s->rows * bytes);
            MUST(moor_record_copy(record->parts[p], s->start, s->start + s->rows, 0, part->dtype, rows, s->rows * bytes,
                                  NULL));
            for (uint32_t c = 0, at = 0; c < part->layers; c++) {
                while (info->layer_ids[at] != part->layer_ids[c])
                    at++;
                for (uint64_t r = 0; r < s->rows; r++)
                    require(!memcmp((const uint8_t *)s->data + r * row + at * column, rows + r * bytes + c * column,
                                    column));
            }
            free(rows);
        }
    }
}

static void read_record(moor_record *record)
{
    moor_record_info info = MOOR_RECORD_INFO_INIT;
    char ref[512], part[sizeof(ref)];
    read_info(record, &info);
    read_segments(record, &info);
    copy_some(record, &info);
    for (uint32_t i = 0; i < record->n_parts; i++)
        read_record(record->parts[i]);
    if (record->n_parts)
        compare_parts(record, &info);
    uint8_t how = moor_record_ref(record, ref, sizeof(ref)) ? 0 : reply_next();
    moor_record *again;
    if (how & 32 && !moor_ref_part(ref, strlen(ref), how >> 6, reply_next() % 4, part, sizeof(part)))
        memcpy(ref, part, sizeof(ref));
    if (how & 2)
        ref[reply_next() % strlen(ref)] ^= how >> 2 & 7;
    if (how & 1 && !moor_resolve(ref, strlen(ref), 0, &again))
        moor_record_release(again);
}

/* Reads it and keeps it in place of an older one, or lets it go. */
static void take_record(moor_record *record)
{
    int place = reply_next() % (HELD + 1);
    read_record(record);
    if (place == HELD) {
        moor_record_release(record);
        return;
    }
    moor_record_release(held[place]);
    held[place] = record;
}

static void take_exported(moor_exported *trace)
{
    uint64_t row = 0, token = 0;
    for (uint32_t i = 0; i < trace->n_parts; i++) {
        const moor_trace_rows *part = &trace->parts[i];
        require(part->start == row && part->stop > row && part->stop <= part->record->info.rows);
        row = part->stop;
        take_record(part->record);
    }
    for (uint32_t i = 0; i < trace->n_keys; i++, token += trace->keys[i - 1].length)
        require(trace->keys[i].start == token && trace->keys[i].key_len <= 3);
    require(row == trace->rows && token == trace->n_tokens);
    if (trace->tokens)
        touch(trace->tokens, trace->n_tokens * sizeof(int32_t));
    moor_client_session_free(trace);
}

static void take_keys(moor_key_list *list)
{
    uint64_t at = 0, before = 0;
    for (uint64_t i = 0; i < list->n; i++) {
        uint32_t lengths[2];
        require(list->data_size - at >= sizeof(lengths));
        memcpy(lengths, list->data + at, sizeof(lengths));
        require(lengths[0] <= before && lengths[1] <= list->data_size - at - sizeof(lengths));
        touch(list->data + at, sizeof(lengths) + lengths[1]);
        at += sizeof(lengths) + lengths[1];
        before = (uint64_t)lengths[0] + lengths[1];
    }
    require(at == list->data_size);
    moor_client_session_free(list);
}

static void take_found(moor_found_key *found)
{
    if (!found)
        return;
    require(found->key_len && found->key_len <= 3);
    touch(found->tokens, found->n_tokens * sizeof(int32_t));
    touch(found->request_id, strlen(found->request_id) + 1);
    moor_client_session_free(found);
}

/* ---- what a consumer does --------------------------------------------------------------------------------------- */

static void resolve_raw(void)
{
    uint8_t n = reply_next();
    size_t length = n < reply_input.left ? n : reply_input.left;
    char *text = malloc(length + 1); /* just as long */
    moor_wire_get(&reply_input, text, length);
    moor_ref ref;
    if (!moor_ref_parse(text, length, &ref)) {
        touch(ref.host, strlen(ref.host) + 1);
        touch(ref.instance, strlen(ref.instance) + 1);
        require(ref.store_index < MOOR_CLIENT_STORES && ref.start + ref.rows >= ref.start);
    }
    moor_record *record;
    if (!moor_resolve(text, length, 0, &record))
        take_record(record);
    free(text);
}

static void open_one(uint8_t op)
{
    moor_record *record, **records;
    uint32_t n;
    if (op == 0 && !moor_open(client, "a", 1, reply_next() & 1 ? 0.0003 : 0, 0, 0, &record))
        take_record(record);
    if (op == 2 && !moor_client_open_handle(client, reply_next() & 1, REPLY_NONCE, 1, &record))
        take_record(record);
    if (op == 1 && !moor_open_all(client, "a", 1, 0, &records, &n)) {
        require(n > 0);
        for (uint32_t i = 0; i < n; i++)
            take_record(records[i]);
        moor_records_free(records, n);
    }
}

static void insert(void)
{
    static const int32_t tokens[2] = {1, 2};
    uint8_t how = reply_next();
    moor_segment_args args = MOOR_SEGMENT_ARGS_INIT;
    args.record = how & 1 ? NULL : held[how >> 1 & 1];
    args.tokens = how & 4 ? NULL : tokens;
    args.n_tokens = how & 4 ? 0 : 2;
    moor_client_session_insert(client, "s", 1, "key", 3, &args);
}

static void use_session(uint8_t op)
{
    static const int32_t tokens[2] = {1, 2};
    moor_found_key *found;
    moor_key_list *keys;
    moor_exported *trace;
    uint64_t kept;
    uint32_t key_left;
    if (op == 5)
        moor_client_session_start(client, "s", 1, 0);
    if (op == 6)
        insert();
    if (op == 7 && !moor_client_session_search(client, "s", 1, "key", 3, &found))
        take_found(found);
    if (op == 8 && !moor_client_session_keys(client, "s", 1, &keys))
        take_keys(keys);
    if (op == 9 && !moor_client_session_export(client, "s", 1, "key", 3, &trace))
        take_exported(trace);
    if (op == 10 && !moor_client_session_rollback(client, "s", 1, "key", 3, tokens, 2, 0, &kept, &key_left))
        require(key_left <= 3);
    if (op == 11)
        moor_client_session_release_key(client, "s", 1, "key", 3);
    if (op == 12)
        moor_client_session_release(client, "s", 1);
}

static void use_rest(uint8_t op)
{
    char *json;
    moor_record *record = held[reply_next() & 1];
    if (op == 3)
        moor_client_truncate(client, "a", 1, 2);
    if (op == 4)
        moor_client_truncate_within(client, "a", 1, 2, 1);
    if (op == 13 && !moor_client_store_stats(client, &json)) {
        touch(json, strlen(json) + 1);
        free(json);
    }
    if (op == 14)
        moor_client_save(client, "/tmp", 0.001);
    if (op == 15)
        resolve_raw();
    if (op == 16 && record)
        moor_record_event(record, 0);
    if (op == 17 && record)
        moor_record_claim(record, 0);
    if (op == 18 && record)
        read_record(record);
}

static void run(void)
{
    uint8_t how = reply_next();
    moor_located where = {.name = ""};
    snprintf(where.name, sizeof(where.name), "%s", how & 1 ? "two" : "one");
    snprintf(where.dir, sizeof(where.dir), "%s", reply_store_dir(how & 1));
    reply_shape_begin();
    if (moor_client_make(&where, how & 128 ? 0.002 : 0.05, &client))
        return;
    for (int i = 0; i < MOST_OPS && (!i || reply_input.left); i++) {
        uint8_t op = reply_next() % OPS;
        open_one(op);
        if (op >= 5 && op <= 12)
            use_session(op);
        else if (op > 2)
            use_rest(op);
    }
    for (int i = 0; i < HELD; i++) {
        moor_record_release(held[i]);
        held[i] = NULL;
    }
    moor_detach(client);
}

/* ---- the target ------------------------------------------------------------------------------------------------- */

/* What each op is answered by good stores, by the shape of the instance: one store, two replicas, stages in three ways; then with a damage in the
 * answer, and with a message that is shorter than its header;
 * last, answers that are not true. Whatever is read behind that is zero. */
size_t fuzz_n_seeds(void)
{
    return (size_t)OPS * KINDS * 3 + MADE;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t room)
{
    static const uint8_t shapes[KINDS][3] = {{0, 0x00, 0}, {0, 0x54, 1}, {1, 0x15, 0}, {1, 0x96, 2}, {1, 0x4A, 8}};
    static const uint8_t more[2][11] = {{0, 1, 0, 0x0F, 2, 0x13, 0, 1, 0, 4, 14}, {0x10, 16, 0xF8}};
    static const uint8_t made[MADE][16] = {
        {0, 0x54, 1, 1, 12, 1},                          /* a layer twice */
        {0, 0, 0, 32, 1, 0, 0, 0, 0, 0x78},              /* rows behind the end of a small arena */
        {1, 2, 1, 0, 4, 3, 2, 7, 2, 3, 2},               /* a stage with another top_k */
        {0, 0, 0, 0, 0, 0, 1, 0, 0, 22, 16},             /* a segment behind the arena's end */
        {0, 0, 0, 0, 0, 0, 1, 0, 0, 18, 1},              /* a first segment that is not at row 0 */
        {0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 26, 1},           /* a version of rows behind the last */
        {0, 0, 0, 0, 8, 1, 1, 0x10, 4, 1},               /* a first key that shares a byte */
        {0, 0, 0, 0, 7, 1, 0, 6, 4},                     /* a key longer than the text it was found in */
        {0, 0, 0, 0, 9, 1, 0x14, 0, 0, 0, 128 + 21 + 1}, /* a trace of a token more than its keys have */
    };
    static const char ref[] = "moor1:host:one:0.00001234:0000000000000001:u8:1x1x1@0";
    size_t shape = index % KINDS, op = index / KINDS % OPS, how = index / KINDS / OPS, n = 3 + 1 + shapes[shape][0];
    if (room < 80)
        return 0;
    memset(out, 0, 80);
    if (how > 2) {
        memcpy(out, made[index % MADE], sizeof(made[0]));
        return 80;
    }
    memcpy(out, shapes[shape], 3);
    out[n++] = (uint8_t)op;
    if (how)
        memcpy(out + n, more[how - 1], sizeof(more[0]));
    if (op == 15) {
        out[n + 1] = sizeof(ref) - 1;
        memcpy(out + n + 2, ref, sizeof(ref) - 1);
    }
    return 80;
}

static void count_fds(void)
{
    static int first;
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        n++;
    closedir(dir);
    first = first ? first : n;
    require(n <= first + FDS_LEFT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned inputs;
    if (!inputs++) {
        reply_store_make();
        reply_answer_arenas();
    }
    reply_input = (moor_wire_reader){data, size};
    reply_store_begin();
    run();
    reply_store_end();
    if (inputs % FDS_EVERY == 1)
        count_fds();
    return 0;
}
