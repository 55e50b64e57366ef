/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as what a consumer sends to a store (plugin/peer.c): the first byte says how the rest is cut into pieces. Behind
 * it is a real record store with three records. Whatever came, afterwards no lease is left, and the store still opens a record.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/wire.h"
#include "driver.h"
#include "plugin/config.h"
#include "plugin/peer.h"
#include "plugin/process.h"

enum { LAYERS = 2, TOP_K = 2, SEEDS = 10, MANY_GONE = 10000 };

static moor_process *process;
static moor_store *store;
static moor_peer_home home;
static const int32_t layer_ids[LAYERS] = {0, 1};
static moor_handle first_handle;
static char dir[] = "/tmp/moor-fuzz-XXXXXX";

static void make_record(const char *id, int sealed)
{
    static const uint8_t ids[5 * TOP_K] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 2};
    moor_step_request request = {.id = id, .id_len = (uint32_t)strlen(id), .count = 5};
    moor_ids capture = {.data = ids, .dtype = MOOR_DTYPE_U8, .tokens = 5, .top_k = TOP_K};
    MUST(moor_step_begin(store, &request, 1));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        MUST(moor_capture(store, layer, &capture, NULL));
    MUST(moor_step_commit(store, NULL, 0));
    if (sealed)
        MUST(moor_records_seal(store->records, moor_id_hash(id, (uint32_t)strlen(id)), 5, 0));
}

static void make_records(void)
{
    moor_store_args store_args = MOOR_STORE_ARGS_INIT;
    store_args.layers = LAYERS;
    store_args.top_k = TOP_K;
    store_args.num_experts = 8;
    store_args.layer_ids = layer_ids;
    store_args.model_layers = LAYERS;
    store_args.max_step_tokens = 64;
    store_args.arena_bytes = 8u << 20;
    MUST(moor_recorder_create(process, &store_args, &store));
    home = (moor_peer_home){store, 1, LAYERS, TOP_K, 8, LAYERS, layer_ids, NULL};
    make_record("a", 1);
    make_record("b", 1);
    make_record("c", 0);
}

static void make_store(void)
{
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    if (!mkdtemp(dir) || setenv("MOOR_DIR", dir, 1))
        abort();
    unsetenv("MOOR_INSTANCE");
    unsetenv("MOOR_CONFIG");
    moor_config *config;
    MUST(moor_config_parse("{\"log\":\"error\"}", 15, &config));
    MUST(moor_process_join(config, &args, &process));
    moor_config_free(config);
    make_records();
}

/* Inputs may discard records; then they are made anew. */
static void renew_records(void)
{
    if (moor_records_find(store->records, "a", 1, &first_handle))
        make_record("a", 1);
    moor_handle handle;
    if (moor_records_find(store->records, "b", 1, &handle))
        make_record("b", 1);
}

static void put(uint8_t **at, const void *data, size_t n)
{
    memcpy(*at, data, n);
    *at += n;
}

static void message(uint8_t **at, uint16_t type, const void *payload, size_t n, const char *id)
{
    moor_wire_header header = {.length = (uint32_t)(sizeof(header) + n + strlen(id)), .type = type, .tag = type};
    put(at, &header, sizeof(header));
    put(at, payload, n);
    put(at, id, strlen(id));
}

/* A request about session "s" with two tokens, in `pieces` messages. */
static void about_session(uint8_t **at, uint16_t type, moor_wire_session head, const char *key, unsigned pieces)
{
    uint8_t body[256], *end = body;
    const int32_t tokens[2] = {1, 2};
    head.id_len = 1;
    head.key_len = (uint32_t)strlen(key);
    head.n_tokens = head.flags & MOOR_WIRE_TOKENS ? 2 : 0;
    put(&end, &head, sizeof(head));
    put(&end, tokens, head.n_tokens * sizeof(int32_t));
    put(&end, "s", 1);
    put(&end, key, strlen(key));
    size_t n = (size_t)(end - body), part = n / pieces;
    for (unsigned i = 0; i < pieces; i++) {
        size_t from = i * part, to = i + 1 < pieces ? from + part : n;
        moor_wire_header header = {.length = (uint32_t)(sizeof(header) + to - from),
                                   .type = type,
                                   .flags = i + 1 < pieces ? MOOR_WIRE_MORE : 0,
                                   .tag = type};
        put(at, &header, sizeof(header));
        put(at, body + from, to - from);
    }
}

static void session_seed(uint8_t **at, size_t index)
{
    moor_wire_session insert = {.handle = first_handle,
                                .start = UINT64_MAX,
                                .length = UINT64_MAX,
                                .flags = MOOR_WIRE_TOKENS | MOOR_WIRE_CREATE},
                      plain = {.handle = 0}, kept = {.flags = MOOR_WIRE_KEEP}, key = {.flags = MOOR_WIRE_ONE_KEY},
                      tokens = {.flags = MOOR_WIRE_TOKENS};
    about_session(at, MOOR_WIRE_SESSION_START, index == 9 ? kept : plain, "", 1);
    about_session(at, MOOR_WIRE_SESSION_INSERT, insert, "k", index == 7 ? 3 : 1);
    insert.handle = 0;
    about_session(at, MOOR_WIRE_SESSION_INSERT, insert, "kl", 1);
    about_session(at, MOOR_WIRE_SESSION_STATE, plain, "", 1);
    about_session(at, MOOR_WIRE_SESSION_SEARCH, plain, "kl and more", index == 7 ? 2 : 1);
    about_session(at, MOOR_WIRE_SESSION_KEYS, plain, "", 1);
    about_session(at, MOOR_WIRE_SESSION_EXPORT, plain, index == 8 ? "k" : "kl", 1);
    if (index == 8)
        about_session(at, MOOR_WIRE_SESSION_ROLLBACK, tokens, "kl", 1);
    about_session(at, MOOR_WIRE_SESSION_RELEASE, key, "kl", 1);
    if (index != 9)
        about_session(at, MOOR_WIRE_SESSION_RELEASE, plain, "", 1);
}

size_t fuzz_n_seeds(void)
{
    return SEEDS;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t room)
{
    uint8_t *at = out;
    moor_wire_hello hello = {MOOR_WIRE_MAGIC, MOOR_WIRE_VERSION, 1, 0};
    moor_wire_open open = {0, 5, index == 3 ? MOOR_OPEN_PREFIX : 0, 1}, waits = {1000000, 0, 0, 1};
    moor_wire_truncate cut = {5, 5, 1, 0};
    if (room < 2048)
        return 0;
    if (!store)
        make_store();
    renew_records();
    moor_wire_handle handle = {first_handle, 2, 0};
    *at++ = (uint8_t)(index * 37);
    message(&at, MOOR_WIRE_HELLO, &hello, sizeof(hello), "");
    if (index == 1 || index == 4)
        message(&at, MOOR_WIRE_OPEN, &open, sizeof(open), "a");
    if (index == 2)
        message(&at, MOOR_WIRE_OPEN_ALL, &waits, sizeof(waits), "z");
    if (index == 3)
        message(&at, MOOR_WIRE_OPEN, &open, sizeof(open), "c");
    if (index == 4)
        message(&at, MOOR_WIRE_RELEASE, &handle, sizeof(handle), "");
    if (index == 4 || index == 5) {
        message(&at, MOOR_WIRE_OPEN_HANDLE, &handle, sizeof(handle), "");
        message(&at, MOOR_WIRE_TRUNCATE, &cut, sizeof(cut), "b");
        message(&at, MOOR_WIRE_CLAIM, &handle, sizeof(handle), "");
    }
    if (index == 5)
        message(&at, MOOR_WIRE_EVENT, &handle, sizeof(handle), "");
    if (index >= 6)
        session_seed(&at, index);
    message(&at, MOOR_WIRE_STATS, "", 0, "");
    return (size_t)(at - out);
}

/* Takes replies off the queue as a slow reader would. */
static void take_replies(moor_peer *peer, size_t part)
{
    moor_peer_reply *reply;
    while ((reply = moor_peer_first(peer))) {
        moor_wire_header header;
        if (reply->length < sizeof(header))
            abort();
        memcpy(&header, reply->data, sizeof(header));
        if (header.length != reply->length || header.length > MOOR_WIRE_LIMIT || !(header.flags & MOOR_WIRE_REPLY))
            abort();
        size_t left = reply->length - reply->sent;
        moor_peer_sent(peer, part < left ? part : left);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t client;
    moor_peer *peer;
    moor_records_stats stats;
    if (!store)
        make_store();
    if (!size)
        return 0;
    size_t part = 1 + data[0];
    MUST(moor_peer_create(&home, ++client, &peer));
    uint64_t now = 1000;
    for (size_t at = 1; at < size; at += part, now += 1000000) {
        if (moor_peer_input(peer, data + at, size - at < part ? size - at : part, now))
            break;
        if (data[0] & 1)
            take_replies(peer, part);
        moor_peer_retry(peer, now, data[0] & 2);
    }
    moor_peer_retry(peer, UINT64_MAX, 0);
    if (moor_peer_waiting(peer))
        abort();
    take_replies(peer, part);
    moor_peer_destroy(peer);
    moor_records_stats_get(store->records, &stats);
    if (stats.leases || stats.clients)
        abort();
    if (stats.sessions || stats.sessions_gone > MANY_GONE) { /* kept ones, and what is left of others: begin anew */
        moor_recorder_destroy(store);
        make_records();
    }
    renew_records();
    return 0;
}

__attribute__((destructor)) static void end(void)
{
    if (!process || process->pid != getpid())
        return;
    moor_recorder_destroy(store);
    moor_process_leave(process);
    rmdir(dir);
}
