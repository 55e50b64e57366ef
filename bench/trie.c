/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trie.c — bench_trie: sessions as the store's server works on them (allocator/sessions.h, trace.h): look-up of the session, its lock, the
 * trie, the result's copy. Without the socket, which the peers have not either. Writes JSON lines like moor-bench.
 *
 * A chain is one conversation: each key is the one before and `characters` more. `sessions` are 10,000 of 8 turns each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "allocator/error.h"
#include "allocator/trace.h"

enum { SESSIONS = 10000, TURNS = 8, REPETITIONS = 5, CASES = 5, OFTEN = 20 };

typedef struct samples {
    double value[REPETITIONS];
    int n;
} samples;

static moor_records *records;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* one thread that never waits: others on the machine do not count */
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void check(moor_status status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s\n", what, moor_last_error());
        exit(1);
    }
}

static void print(const char *work, const char *what, const samples *s)
{
    printf("{\"name\": \"trie, %s: %s\", \"what\": \"moor\", \"unit\": \"us\", \"values\": [", work, what);
    for (int i = 0; i < s->n; i++)
        printf("%s%.4f", i ? ", " : "", s->value[i]);
    printf("]}\n");
}

static void insert(const char *id, uint32_t id_len, const char *key, uint32_t key_len)
{
    moor_trace_in in = {.start = MOOR_TRACE_BEHIND, .length = 1, .create = 1};
    check(moor_session_insert(records, MOOR_CLIENT_NONE, id, id_len, key, key_len, &in), "insert");
}

static void search(const char *id, uint32_t id_len, const char *text, uint32_t length)
{
    moor_trace_found *found;
    check(moor_session_search(records, id, id_len, text, length, &found), "search");
    if (!found || found->key_len != length)
        exit(1);
    moor_trace_free(found);
}

static void keys(const char *id, uint32_t id_len, uint64_t n)
{
    moor_trace_keys *list;
    check(moor_session_keys(records, id, id_len, &list), "keys");
    if (list->n != n)
        exit(1);
    moor_trace_free(list);
}

/* A turn's text differs from the turn before. */
static char *conversation(uint32_t turns, uint32_t characters)
{
    char *text = malloc((size_t)turns * characters + 1), number[16];
    for (uint32_t i = 0; i < turns; i++) {
        memset(text + (size_t)i * characters, 't', characters);
        snprintf(number, sizeof(number), "%06u", i);
        memcpy(text + (size_t)i * characters, number, 6);
    }
    return text;
}

static void chain(uint32_t depth, uint32_t characters)
{
    static const char *const what[CASES] = {"insert all", "search the longest", "keys", "release a leaf",
                                            "release all"};
    samples s[CASES] = {{.n = 0}};
    char *text = conversation(depth, characters), work[64];
    for (int rep = 0; rep < REPETITIONS; rep++) {
        double t[CASES + 1];
        check(moor_session_start(records, MOOR_CLIENT_NONE, "chain", 5, 1), "start");
        t[0] = now_us();
        for (uint32_t i = 1; i <= depth; i++)
            insert("chain", 5, text, i * characters);
        t[1] = now_us();
        for (int i = 0; i < OFTEN; i++)
            search("chain", 5, text, depth * characters);
        t[2] = now_us();
        for (int i = 0; i < OFTEN; i++)
            keys("chain", 5, depth);
        t[3] = now_us();
        check(moor_session_release_key(records, "chain", 5, text, depth * characters), "release");
        t[4] = now_us();
        check(moor_session_release(records, "chain", 5), "release");
        t[5] = now_us();
        for (int i = 0; i < CASES; i++)
            s[i].value[s[i].n++] = (t[i + 1] - t[i]) / (i == 1 || i == 2 ? OFTEN : 1);
    }
    snprintf(work, sizeof(work), "chain of %u × %u characters", depth, characters);
    for (int i = 0; i < CASES; i++)
        print(work, what[i], &s[i]);
    free(text);
}

static void sessions(void)
{
    static const char *const what[4] = {"insert", "search", "keys", "release"};
    samples s[4] = {{.n = 0}};
    enum { CHARACTERS = 512 };
    char *text = conversation(TURNS, CHARACTERS), (*id)[16] = malloc(SESSIONS * sizeof(*id));
    for (int rep = 0; rep < REPETITIONS; rep++) {
        double t[5];
        for (uint32_t i = 0; i < SESSIONS; i++)
            snprintf(id[i], sizeof(*id), "%d-%08u", rep, i);
        uint32_t n = (uint32_t)strlen(id[0]);
        t[0] = now_us();
        for (uint32_t i = 0; i < SESSIONS; i++)
            for (uint32_t turn = 1; turn <= TURNS; turn++)
                insert(id[i], n, text, turn * CHARACTERS);
        t[1] = now_us();
        for (uint32_t i = 0; i < SESSIONS; i++)
            search(id[i], n, text, TURNS * CHARACTERS);
        t[2] = now_us();
        for (uint32_t i = 0; i < SESSIONS; i++)
            keys(id[i], n, TURNS);
        t[3] = now_us();
        for (uint32_t i = 0; i < SESSIONS; i++)
            check(moor_session_release(records, id[i], n), "release");
        t[4] = now_us();
        for (int i = 0; i < 4; i++)
            s[i].value[s[i].n++] = (t[i + 1] - t[i]) / (i == 0 ? SESSIONS * TURNS : SESSIONS);
    }
    for (int i = 0; i < 4; i++)
        print("10,000 sessions × 8 turns × 512 characters", what[i], &s[i]);
    free(id);
    free(text);
}

int main(void)
{
    static const int32_t layer = 0;
    const moor_records_config config = {.arena_bytes = 8u << 20,
                                        .layers = 1,
                                        .top_k = 1,
                                        .num_experts = 8,
                                        .model_layers = 1,
                                        .layer_ids = &layer,
                                        .max_step_tokens = 8};
    check(moor_records_create(&config, &records), "store");
    chain(100, 32);
    chain(1000, 32);
    chain(100, 1024);
    sessions();
    moor_records_destroy(records);
    return 0;
}
