/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 3.1–3.3: the trace trie by itself, against examples, against a trie that is too simple to be wrong, and at its limits. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "allocator/error.h"
#include "allocator/heap.h"
#include "allocator/trie.h"

static char log_text[1 << 16];
static size_t log_used;

static void log_add(const char *text)
{
    log_used += (size_t)snprintf(log_text + log_used, sizeof(log_text) - log_used, "%s%s", log_used ? "," : "", text);
}

static void log_value(void *user, void *value)
{
    (void)user;
    log_add(value);
}

/* Keys in order, by the front-coded walk that the store sends them with. */
static const char *keys(const moor_trie *trie)
{
    static char buffer[4096];
    log_used = 0;
    log_text[0] = 0;
    for (moor_trie_node *node = moor_trie_next(trie, NULL); node; node = moor_trie_next(trie, node)) {
        uint32_t from = node->parent ? node->parent->end : 0;
        moor_trie_tail(node, from, buffer + from);
        buffer[node->end] = 0;
        if (node->value)
            log_add(node->end ? buffer : "\"\"");
    }
    return log_text;
}

static const char *put(moor_trie *trie, const char *key)
{
    void *old = NULL;
    assert_int_equal(
        moor_trie_insert(trie, key, (uint32_t)strlen(key), (void *)(uintptr_t)(*key ? key : "\"\""), NULL, &old),
        MOOR_OK);
    return old;
}

static const char *drop(moor_trie *trie, const char *key)
{
    moor_trie_node *node = moor_trie_find(trie, key, (uint32_t)strlen(key));
    return node ? moor_trie_release(trie, node) : NULL;
}

static const char *search(moor_trie *trie, const char *text)
{
    moor_trie_node *node = moor_trie_search(trie, text, (uint32_t)strlen(text));
    return node ? node->value : NULL;
}

static const char *release_all(moor_trie *trie)
{
    log_used = 0;
    log_text[0] = 0;
    moor_trie_release_all(trie, log_value, NULL);
    assert_int_equal(trie->keys, 0);
    assert_int_equal(trie->nodes, 0);
    assert_int_equal(trie->bytes, 0);
    assert_int_equal(trie->text.bytes, 0);
    return log_text;
}

static void S3_2_the_example(void **state)
{
    (void)state;
    moor_trie trie;
    moor_trie_init(&trie);
    const char *all[] = {"", "z", "a", "ab", "abc", "ax"};
    for (int i = 0; i < 6; i++)
        assert_null(put(&trie, all[i]));
    assert_string_equal(keys(&trie), "\"\",z,a,ab,abc,ax");
    assert_string_equal(drop(&trie, "ab"), "ab");
    assert_string_equal(keys(&trie), "\"\",z,a,abc,ax");
    uint64_t nodes = trie.nodes;
    assert_string_equal(drop(&trie, "abc"), "abc");
    assert_int_equal(trie.nodes, nodes - 2); /* the empty "b" node went, too */
    assert_string_equal(keys(&trie), "\"\",z,a,ax");
    assert_null(drop(&trie, "abc"));
    assert_null(drop(&trie, "nothing"));
    assert_string_equal(release_all(&trie), "z,ax,a,\"\"");
    assert_string_equal(release_all(&trie), "");
    assert_string_equal(keys(&trie), "");
    assert_null(put(&trie, "again"));
    assert_string_equal(keys(&trie), "again");
    release_all(&trie);
}

static void S3_2_the_empty_key_is_no_result(void **state)
{
    (void)state;
    moor_trie trie;
    moor_trie_init(&trie);
    put(&trie, "");
    assert_null(search(&trie, ""));
    assert_null(search(&trie, "a"));
    put(&trie, "a");
    assert_null(search(&trie, ""));
    assert_string_equal(search(&trie, "ab"), "a");
    assert_string_equal(drop(&trie, ""), "\"\"");
    assert_string_equal(keys(&trie), "a");
    release_all(&trie);
}

static void S3_edges_are_never_split(void **state)
{
    (void)state;
    moor_trie trie;
    moor_trie_init(&trie);
    put(&trie, "hello world");
    put(&trie, "hello there"); /* shares text, no node */
    put(&trie, "hello");       /* shorter than an edge: a sibling, behind it */
    put(&trie, "hello world!");
    put(&trie, "hello you");
    assert_string_equal(keys(&trie), "hello world,hello world!,hello there,hello,hello you");
    moor_trie_node *world = moor_trie_find(&trie, "hello world", 11), *hello = moor_trie_find(&trie, "hello", 5);
    assert_ptr_equal(world->parent, &trie.root);
    assert_ptr_equal(moor_trie_above(&trie, "hello world", 11), &trie.root); /* as it came, not as it would come now */
    assert_ptr_equal(moor_trie_above(&trie, "hello moon", 10), hello);
    assert_ptr_equal(moor_trie_above(&trie, "hello", 5), &trie.root);
    assert_ptr_equal(moor_trie_above(&trie, "", 0), &trie.root);
    assert_ptr_equal(moor_trie_behind(world), moor_trie_find(&trie, "hello there", 11)); /* not what is below it */
    assert_null(moor_trie_behind(hello));
    assert_string_equal(release_all(&trie), "hello world!,hello world,hello there,hello you,hello");
}

/* A node without a value does not hide a shorter key that another branch holds. */
static void S3_3_search_finds_the_longest_key_with_a_value(void **state)
{
    (void)state;
    moor_trie trie;
    moor_trie_init(&trie);
    put(&trie, "abcd");
    put(&trie, "abcdX");
    put(&trie, "ab");
    put(&trie, "abc");
    assert_string_equal(search(&trie, "abcdY"), "abcd");
    drop(&trie, "abcd");
    assert_string_equal(search(&trie, "abcdY"), "abc");
    assert_string_equal(search(&trie, "abcdXY"), "abcdX");
    assert_string_equal(search(&trie, "abx"), "ab");
    assert_null(search(&trie, "a"));
    assert_null(search(&trie, "b"));
    release_all(&trie);
}

static void overwriting_gives_the_old_value_back(void **state)
{
    (void)state;
    moor_trie trie;
    moor_trie_init(&trie);
    char key[] = "key";
    assert_null(put(&trie, "key"));
    assert_null(put(&trie, "other"));
    assert_string_equal(put(&trie, key), "key");
    assert_string_equal(keys(&trie), "key,other"); /* its place stays */
    assert_int_equal(trie.keys, 2);
    release_all(&trie);
}

/* ---- against the walk down the longest fitting edge -------------------------------------------------------------- */

typedef struct naive {
    struct naive *parent, *first, *next;
    char edge[16], key[16];
    const char *value;
} naive;

static naive *naive_edge(naive *node, const char *text)
{
    naive *best = NULL;
    for (naive *child = node->first; child; child = child->next)
        if (strncmp(text, child->edge, strlen(child->edge)) == 0 && (!best || strlen(child->edge) > strlen(best->edge)))
            best = child;
    return best;
}

static naive *naive_find(naive *root, const char *key, int make)
{
    naive *node = root;
    const char *rest = key;
    while (*rest) {
        naive *child = naive_edge(node, rest);
        if (!child && !make)
            return NULL;
        if (!child) {
            child = calloc(1, sizeof(*child));
            child->parent = node;
            strcpy(child->edge, rest);
            strcpy(child->key, key);
            naive **end = &node->first;
            while (*end)
                end = &(*end)->next;
            *end = child;
        }
        rest += strlen(child->edge);
        node = child;
    }
    return node;
}

static void naive_prune(naive *node)
{
    while (node->parent && !node->value && !node->first) {
        naive *parent = node->parent, **at = &parent->first;
        while (*at != node)
            at = &(*at)->next;
        *at = node->next;
        free(node);
        node = parent;
    }
}

static void naive_keys(const naive *node)
{
    if (node->value)
        log_add(*node->key ? node->key : "\"\"");
    for (const naive *child = node->first; child; child = child->next)
        naive_keys(child);
}

static void naive_longest(const naive *node, const char *text, const char **best)
{
    if (node->value && *node->key && strncmp(text, node->key, strlen(node->key)) == 0 &&
        (!*best || strlen(node->key) > strlen(*best)))
        *best = node->key;
    for (const naive *child = node->first; child; child = child->next)
        naive_longest(child, text, best);
}

static void naive_release(naive *node)
{
    while (node->first) {
        naive *child = node->first;
        naive_release(child);
        node->first = child->next;
        free(child);
    }
    if (node->value)
        log_add(node->value);
    node->value = NULL;
}

static const char *random_key(unsigned *seed)
{
    static char key[12];
    int n = rand_r(seed) % 9;
    for (int i = 0; i < n; i++)
        key[i] = (char)('a' + (rand_r(seed) >> 4) % 2);
    key[n] = 0;
    return key;
}

static char all_keys[512][12]; /* every word of up to 8 of two letters, so that values outlive the call */

static const char *kept(const char *key)
{
    unsigned at = 1;
    for (const char *c = key; *c; c++)
        at = at * 2 + (*c == 'b');
    strcpy(all_keys[at], key);
    return all_keys[at];
}

static void compare(moor_trie *trie, naive *root, unsigned *seed)
{
    char mine[4096];
    snprintf(mine, sizeof(mine), "%s", keys(trie));
    log_used = 0;
    log_text[0] = 0;
    naive_keys(root);
    assert_string_equal(mine, log_text);
    for (int i = 0; i < 3; i++) {
        const char *text = random_key(seed), *want = NULL, *got = search(trie, text);
        naive_longest(root, text, &want);
        assert_true(!want == !got);
        if (want)
            assert_string_equal(got, want);
    }
}

/* The greedy walk of SEMANTICS 3, edge by edge, and the radix index give the same keys in the same order at every step, and the same
 * order of release; that proves what docs/decisions.md says of the parent of a key. */
static void S3_a_radix_index_gives_the_tree_of_the_greedy_walk(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 300; seed++) {
        unsigned random = seed;
        moor_trie trie;
        naive root = {.parent = NULL};
        moor_trie_init(&trie);
        for (int step = 0; step < 80; step++) {
            const char *key = kept(random_key(&random));
            int insert = rand_r(&random) % 10 < 6;
            naive *node = naive_find(&root, key, insert);
            if (insert) {
                void *old = NULL;
                assert_int_equal(
                    moor_trie_insert(&trie, key, (uint32_t)strlen(key), (void *)(uintptr_t)key, NULL, &old), MOOR_OK);
                assert_true(!old == !node->value);
                node->value = key;
            } else {
                const char *mine = drop(&trie, key);
                assert_true(!mine == (!node || !node->value));
                if (node) {
                    node->value = NULL;
                    naive_prune(node);
                }
            }
            compare(&trie, &root, &random);
        }
        char order[4096];
        snprintf(order, sizeof(order), "%s", release_all(&trie));
        log_used = 0;
        log_text[0] = 0;
        naive_release(&root);
        assert_string_equal(order, log_text[0] ? log_text : "");
    }
}

/* ---- limits ----------------------------------------------------------------------------------------------------- */

enum { DEEP = 100000, STACK = 65536 };

typedef struct deep {
    uint32_t n;
    int ok;
    uint32_t seen;
} deep;

static void count_down(void *user, void *value)
{
    deep *d = user;
    d->ok &= (uintptr_t)value == d->seen--; /* the longest first: child before parent */
}

static void *deep_chain(void *user)
{
    deep *d = user;
    moor_trie trie;
    char *text = malloc(d->n + 1), *key = malloc(d->n + 1);
    void *old;
    moor_trie_init(&trie);
    memset(text, 'x', d->n + 1);
    d->ok = text && key;
    for (uint32_t i = 1; i <= d->n && d->ok; i++)
        d->ok = moor_trie_insert(&trie, text, i, (void *)(uintptr_t)i, NULL, &old) == MOOR_OK;
    uint32_t seen = 0;
    for (moor_trie_node *node = moor_trie_next(&trie, NULL); node; node = moor_trie_next(&trie, node)) {
        if (!node->value)
            continue;
        seen++;
        d->ok &= node->end == seen && (uintptr_t)node->value == seen && node->parent->end == seen - 1;
        moor_trie_tail(node, node->parent->end, key + node->parent->end);
    }
    d->ok &= seen == d->n && memcmp(key, text, d->n) == 0;
    d->ok &= moor_trie_search(&trie, text, d->n + 1) == moor_trie_find(&trie, text, d->n);
    d->ok &= moor_trie_behind(moor_trie_find(&trie, text, d->n)) == NULL;
    moor_trie_release(&trie, moor_trie_find(&trie, text, d->n));
    d->seen = d->n - 1;
    moor_trie_release_all(&trie, count_down, d);
    d->ok &= d->seen == 0;
    /* Only the last key has a value: its release takes all nodes with it. */
    for (uint32_t i = 1; i <= d->n && d->ok; i++)
        d->ok = moor_trie_insert(&trie, text, i, (void *)(uintptr_t)i, NULL, &old) == MOOR_OK;
    for (moor_trie_node *node = trie.root.first; node; node = node->first)
        if (node->end < d->n)
            node->value = NULL;
    trie.keys = 1;
    moor_trie_release(&trie, moor_trie_find(&trie, text, d->n));
    d->ok &= trie.nodes == 0 && trie.keys == 0;
    moor_trie_release_all(&trie, count_down, d);
    free(text);
    free(key);
    return NULL;
}

static void S3_1_chains_need_no_stack(void **state)
{
    (void)state;
    const uint32_t depths[] = {1600, DEEP};
    for (int i = 0; i < 2; i++) {
        deep d = {.n = depths[i]};
        pthread_t thread;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        assert_int_equal(pthread_attr_setstacksize(&attr, STACK), 0);
        assert_int_equal(pthread_create(&thread, &attr, deep_chain, &d), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        pthread_attr_destroy(&attr);
        assert_int_equal(d.ok, 1);
    }
}

static void nothing(void *user, void *value)
{
    (void)user;
    (void)value;
}

/* 50,000 children that begin alike, and 256 that do not. */
static void many_children_are_found_by_their_text(void **state)
{
    (void)state;
    enum { N = 50000 };
    moor_trie trie;
    char key[64];
    void *old;
    moor_trie_init(&trie);
    put(&trie, "<|im_start|>");
    for (uint32_t i = 0; i < N; i++) {
        int n = snprintf(key, sizeof(key), "<|im_start|>assistant\n%u%s", i * 7919u, i % 3 ? "." : "!");
        assert_int_equal(moor_trie_insert(&trie, key, (uint32_t)n, (void *)(uintptr_t)(i + 1), NULL, &old), MOOR_OK);
    }
    moor_trie_node *top = moor_trie_find(&trie, "<|im_start|>", 12);
    uint32_t seen = 0;
    for (moor_trie_node *node = top->first; node; node = node->next)
        assert_int_equal((uintptr_t)node->value, ++seen);
    assert_int_equal(seen, N);
    for (uint32_t i = 0; i < N; i++) {
        int n = snprintf(key, sizeof(key), "<|im_start|>assistant\n%u%s and so on", i * 7919u, i % 3 ? "." : "!");
        assert_int_equal((uintptr_t)moor_trie_search(&trie, key, (uint32_t)n)->value, i + 1);
    }
    for (int c = 255; c >= 0; c--) {
        key[0] = (char)c;
        if (c != '<')
            assert_int_equal(moor_trie_insert(&trie, key, 1, (void *)(uintptr_t)(c + 1), NULL, &old), MOOR_OK);
    }
    for (int c = 0; c < 256; c++) {
        key[0] = (char)c;
        if (c != '<')
            assert_int_equal((uintptr_t)moor_trie_release(&trie, moor_trie_find(&trie, key, 1)), c + 1);
    }
    assert_int_equal(trie.keys, N + 1);
    moor_trie_release_all(&trie, nothing, NULL);
}

static void a_turn_tried_again_and_again_takes_no_more_room(void **state)
{
    (void)state;
    moor_trie trie;
    void *old;
    char key[600];
    moor_trie_init(&trie);
    memset(key, 'k', sizeof(key));
    assert_int_equal(moor_trie_insert(&trie, key, 500, key, NULL, &old), MOOR_OK);
    uint64_t text = 0, nodes = 0;
    for (int i = 0; i < 20000; i++) {
        snprintf(key + 500, 100, "attempt %d %d", i % 2 ? i : -i, i * 31);
        uint32_t n = (uint32_t)strlen(key);
        assert_int_equal(moor_trie_insert(&trie, key, n, key, NULL, &old), MOOR_OK);
        if (i == 100) {
            text = trie.text.bytes;
            nodes = trie.bytes;
        }
        assert_ptr_equal(moor_trie_release(&trie, moor_trie_find(&trie, key, n)), key);
        assert_int_equal(trie.nodes, 1);
    }
    assert_int_equal(trie.text.bytes, text);
    assert_int_equal(trie.bytes, nodes);
    moor_trie_release_all(&trie, nothing, NULL);
}

static int faulty(uint64_t nth)
{
    moor_trie trie;
    moor_trie_init(&trie);
    unsigned seed = 5;
    char before[4096];
    moor_fault_arm(nth);
    for (int i = 0; i < 60; i++) {
        const char *key = kept(random_key(&seed));
        void *old = NULL;
        uint64_t nodes = trie.nodes, n = trie.keys;
        snprintf(before, sizeof(before), "%s", keys(&trie));
        moor_status status = moor_trie_insert(&trie, key, (uint32_t)strlen(key), (void *)(uintptr_t)key, NULL, &old);
        if (status) {
            assert_int_equal(status, MOOR_E_NOMEM);
            assert_int_equal(moor_fault_fired(), 1);
            assert_int_equal(trie.nodes, nodes);
            assert_int_equal(trie.keys, n);
            assert_string_equal(keys(&trie), before);
        } else {
            assert_ptr_equal(moor_trie_find(&trie, key, (uint32_t)strlen(key))->value, key);
        }
        if (i % 3 == 2)
            drop(&trie, kept(random_key(&seed)));
    }
    int fired = moor_fault_fired();
    moor_fault_arm(0);
    release_all(&trie);
    return fired;
}

static void a_failed_allocation_changes_nothing(void **state)
{
    (void)state;
    uint64_t nth = 1;
    while (faulty(nth))
        nth++;
    assert_true(nth > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S3_2_the_example),
        cmocka_unit_test(S3_2_the_empty_key_is_no_result),
        cmocka_unit_test(S3_edges_are_never_split),
        cmocka_unit_test(S3_3_search_finds_the_longest_key_with_a_value),
        cmocka_unit_test(overwriting_gives_the_old_value_back),
        cmocka_unit_test(S3_a_radix_index_gives_the_tree_of_the_greedy_walk),
        cmocka_unit_test(S3_1_chains_need_no_stack),
        cmocka_unit_test(many_children_are_found_by_their_text),
        cmocka_unit_test(a_turn_tried_again_and_again_takes_no_more_room),
        cmocka_unit_test(a_failed_allocation_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
