/* SPDX-License-Identifier: Apache-2.0 */
#include "trie.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "heap.h"

enum { FIRST_SLAB = 8, LAST_SLAB = 512, FIRST_ROOM = 4 };

typedef struct moor_trie_slab {
    struct moor_trie_slab *next;
    uint32_t count;
    moor_trie_node nodes[];
} moor_trie_slab;

/* The ways on from an index node: kid[i] begins with the byte that lies at the same place behind the pointers. */
typedef struct moor_trie_kids {
    moor_trie_node *kid[1];
} moor_trie_kids;

/* ---- memory ----------------------------------------------------------------------------------------------------- */

void moor_trie_init(moor_trie *trie)
{
    memset(trie, 0, sizeof(*trie));
    trie->root.is_key = 1;
}

static moor_trie_node *node_take(moor_trie *trie)
{
    if (!trie->free) {
        uint32_t count = trie->slabs ? trie->slabs->count * 2 : FIRST_SLAB;
        count = count > LAST_SLAB ? LAST_SLAB : count;
        size_t size = sizeof(moor_trie_slab) + count * sizeof(moor_trie_node);
        moor_trie_slab *slab = moor_heap_alloc(size);
        if (!slab)
            return NULL;
        slab->count = count;
        slab->next = trie->slabs;
        trie->slabs = slab;
        trie->bytes += size;
        for (uint32_t i = count; i--;) {
            slab->nodes[i].up = trie->free;
            trie->free = &slab->nodes[i];
        }
    }
    moor_trie_node *node = trie->free;
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the slab has nodes */
    trie->free = node->up;
    *node = (moor_trie_node){.up = NULL};
    trie->nodes++;
    return node;
}

static void node_give(moor_trie *trie, moor_trie_node *node)
{
    if (!node)
        return;
    node->up = trie->free;
    trie->free = node;
    trie->nodes--;
}

static size_t table_bytes(uint32_t room)
{
    return room * (sizeof(moor_trie_node *) + 1);
}

static uint8_t *table_first(const moor_trie_node *node)
{
    return (uint8_t *)&node->kids.table->kid[node->room];
}

/* Room for one more kid. 0: no memory. */
static int kids_room(moor_trie *trie, moor_trie_node *node)
{
    if (node->n_kids == 0 || node->n_kids < node->room)
        return 1;
    uint32_t room = node->room ? node->room * 4u : FIRST_ROOM;
    moor_trie_kids *table = moor_heap_alloc(table_bytes(room));
    if (!table)
        return 0;
    uint8_t *first = (uint8_t *)&table->kid[room];
    if (node->room) {
        memcpy(table, node->kids.table, node->n_kids * sizeof(moor_trie_node *));
        memcpy(first, table_first(node), node->n_kids);
        moor_heap_free(node->kids.table);
    } else {
        table->kid[0] = node->kids.one;
        first[0] = node->kids.one->text[0];
    }
    trie->bytes += table_bytes(room) - table_bytes(node->room);
    node->kids.table = table;
    node->room = (uint16_t)room;
    return 1;
}

/* ---- the index -------------------------------------------------------------------------------------------------- */

/* Where the kid that begins with `byte` is kept; NULL: there is none. */
static moor_trie_node **kid_place(moor_trie_node *node, uint8_t byte)
{
    if (!node->room)
        return node->n_kids && node->kids.one->text[0] == byte ? &node->kids.one : NULL;
    const uint8_t *first = table_first(node), *at = memchr(first, byte, node->n_kids);
    return at ? &node->kids.table->kid[at - first] : NULL;
}

/* There is room. */
static void kid_add(moor_trie_node *node, moor_trie_node *kid)
{
    kid->up = node;
    if (node->room) {
        table_first(node)[node->n_kids] = kid->text[0];
        node->kids.table->kid[node->n_kids] = kid;
    } else {
        node->kids.one = kid;
    }
    node->n_kids++;
}

static void kid_remove(moor_trie *trie, moor_trie_node *node, moor_trie_node *kid)
{
    uint32_t last = --node->n_kids;
    if (!node->room)
        return;
    uint8_t *first = table_first(node);
    moor_trie_node **place = node->kids.table->kid;
    uint32_t i = 0;
    while (place[i] != kid)
        i++;
    place[i] = place[last];
    first[i] = first[last];
    if (last <= 1) {
        moor_trie_node *one = place[0];
        trie->bytes -= table_bytes(node->room);
        moor_heap_free(node->kids.table);
        node->room = 0;
        node->kids.one = one;
    }
}

/* How many bytes are equal; fewer than n are known to be. */
static uint32_t mismatch(const uint8_t *a, const uint8_t *b, uint32_t n)
{
    uint32_t i = 0;
    for (; n - i >= 8; i += 8) {
        uint64_t x, y;
        memcpy(&x, a + i, 8);
        memcpy(&y, b + i, 8);
        if (x != y)
            return i + (uint32_t)__builtin_ctzll(x ^ y) / 8; /* little-endian, as the wire is */
    }
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* How far a text goes down. */
typedef struct path {
    moor_trie_node *node;   /* the last one it passes the end of */
    moor_trie_node *inside; /* the kid whose edge it ends or leaves in the middle of, or NULL */
    uint32_t part;          /* bytes of that edge that fit */
    moor_trie_node *key,
        *above; /* the last two keys passed, with or without a value; `above` is a proper prefix of the text */
    moor_trie_node *valued; /* the last key passed that has a value, "" excepted */
} path;

/* 1: the text begins with the node's key. */
static int begins_with(const uint8_t *text, uint32_t length, const moor_trie_node *node)
{
    if (length < node->end)
        return 0;
    for (; node->end; node = node->base)
        if (memcmp(node->text + node->length - node->run, text + node->end - node->run, node->run) != 0)
            return 0;
    return 1;
}

static path walk(moor_trie *trie, const uint8_t *text, uint32_t length)
{
    path p = {.node = &trie->root, .key = &trie->root, .above = &trie->root};
    if (trie->finger && begins_with(text, length, trie->finger))
        p = (path){.node = trie->finger, .key = trie->finger, .above = trie->finger, .valued = trie->finger};
    uint32_t at = p.node->end;
    while (at < length) {
        moor_trie_node **place = kid_place(p.node, text[at]);
        if (!place)
            break;
        moor_trie_node *kid = *place;
        uint32_t n = kid->length < length - at ? kid->length : length - at;
        int equal = memcmp(kid->text, text + at, n) == 0;
        if (!equal || n < kid->length) {
            p.inside = kid;
            p.part = equal ? n : mismatch(kid->text, text + at, n);
            break;
        }
        at += n;
        p.node = kid;
        if (!kid->is_key)
            continue;
        p.key = kid;
        if (at < length)
            p.above = kid;
        if (kid->value)
            p.valued = kid;
    }
    return p;
}

/* 1: the kid's text lies right behind its upper's. */
static int follows(const moor_trie_node *kid, const moor_trie_node *upper)
{
    return kid->piece == upper->piece && upper->text + upper->length == kid->text;
}

/* Cuts the edge that leads to `node` after its first `part` bytes; `upper`, new, ends there. */
static void split(moor_trie_node *node, uint32_t part, moor_trie_node *upper)
{
    *kid_place(node->up, node->text[0]) = upper;
    upper->up = node->up;
    upper->text = node->text;
    upper->piece = node->piece;
    moor_text_ref(node->piece);
    upper->length = part;
    upper->end = node->end - node->length + part;
    upper->run = node->run - node->length + part;
    upper->base = node->base;
    node->text += part;
    node->length -= part;
    kid_add(upper, node);
}

/* An index node without a key and with one way on is joined with it when their text is one piece, which it is unless the other way on
 * was there first. Then it stays until the last key below it goes. */
static void join(moor_trie *trie, moor_trie_node *node)
{
    if (node->is_key || node->n_kids != 1)
        return;
    moor_trie_node *kid = node->kids.one;
    if (!follows(kid, node))
        return;
    kid->text = node->text;
    kid->length += node->length;
    kid->up = node->up;
    *kid_place(node->up, kid->text[0]) = kid;
    moor_text_unref(&trie->text, node->piece, NULL, 0);
    node_give(trie, node);
}

/* The node is no key any more. */
static void leave_index(moor_trie *trie, moor_trie_node *node)
{
    node->is_key = 0;
    while (!node->n_kids && !node->is_key) {
        moor_trie_node *up = node->up;
        kid_remove(trie, up, node);
        moor_text_unref(&trie->text, node->piece, node->text, node->length);
        node_give(trie, node);
        node = up;
    }
    join(trie, node);
}

/* ---- the trace tree --------------------------------------------------------------------------------------------- */

static void hang(moor_trie_node *parent, moor_trie_node *node)
{
    node->is_key = 1;
    node->parent = parent;
    node->previous = parent->last;
    *(parent->last ? &parent->last->next : &parent->first) = node;
    parent->last = node;
}

static void unhang(moor_trie_node *node)
{
    *(node->previous ? &node->previous->next : &node->parent->first) = node->next;
    *(node->next ? &node->next->previous : &node->parent->last) = node->previous;
    node->parent = node->next = node->previous = NULL;
}

/* The node where the text ends in the index, made if need be. NULL: no memory, and nothing changed. */
static moor_trie_node *make(moor_trie *trie, const path *p, const uint8_t *text, uint32_t length)
{
    moor_trie_node *upper = NULL, *leaf = NULL;
    uint32_t passed = p->node->end + p->part;
    if (!p->inside && passed == length)
        return p->node;
    int ok = 1;
    if (p->inside)
        ok = (upper = node_take(trie)) != NULL;
    if (ok && passed < length)
        ok = (leaf = node_take(trie)) != NULL && moor_textpool_reserve(&trie->text, length - passed);
    if (ok && leaf && !upper)
        ok = kids_room(trie, p->node);
    if (ok && leaf && upper) { /* a table of two before there is one */
        upper->kids.table = moor_heap_alloc(table_bytes(FIRST_ROOM));
        upper->room = upper->kids.table ? FIRST_ROOM : 0;
        trie->bytes += table_bytes(upper->room);
        ok = upper->room != 0;
    }
    if (!ok) {
        node_give(trie, upper);
        node_give(trie, leaf);
        return NULL;
    }
    if (upper)
        split(p->inside, p->part, upper);
    if (!leaf)
        return upper;
    leaf->length = length - passed;
    leaf->end = length;
    leaf->text = moor_textpool_put(&trie->text, text + passed, leaf->length, &leaf->piece);
    moor_trie_node *up = upper ? upper : p->node;
    leaf->run = leaf->length + (follows(leaf, up) ? up->run : 0);
    leaf->base = follows(leaf, up) ? up->base : up;
    kid_add(up, leaf);
    return leaf;
}

moor_status moor_trie_insert(moor_trie *trie, const char *key, uint32_t length, void *value, moor_trie_node **at,
                             void **old)
{
    path p = walk(trie, (const uint8_t *)key, length);
    moor_trie_node *node = make(trie, &p, (const uint8_t *)key, length);
    if (!node)
        return moor_fail(MOOR_E_NOMEM, "no memory for a key of %u bytes", length);
    if (!node->is_key)
        hang(p.key, node); /* the longest key that it begins with, by then */
    *old = node->value;
    trie->keys += !node->value;
    node->value = value;
    if (length)
        trie->finger = node;
    if (at)
        *at = node;
    return MOOR_OK;
}

moor_trie_node *moor_trie_find(moor_trie *trie, const char *key, uint32_t length)
{
    path p = walk(trie, (const uint8_t *)key, length);
    int found = !p.inside && p.node->end == length && p.node->value;
    if (found && length)
        trie->finger = p.node;
    return found ? p.node : NULL;
}

moor_trie_node *moor_trie_search(moor_trie *trie, const char *text, uint32_t length)
{
    path p = walk(trie, (const uint8_t *)text, length);
    if (p.valued)
        trie->finger = p.valued;
    return p.valued;
}

moor_trie_node *moor_trie_above(moor_trie *trie, const char *key, uint32_t length)
{
    path p = walk(trie, (const uint8_t *)key, length);
    int there = !p.inside && p.node->end == length && p.node->is_key;
    return there && length ? p.node->parent : p.above;
}

void *moor_trie_release(moor_trie *trie, moor_trie_node *node)
{
    void *value = node->value;
    trie->keys -= value != NULL;
    node->value = NULL;
    if (trie->finger == node)
        trie->finger = NULL;
    while (node->parent && !node->value && !node->first) {
        moor_trie_node *parent = node->parent;
        unhang(node);
        leave_index(trie, node);
        node = parent;
    }
    return value;
}

void moor_trie_release_all(moor_trie *trie, void (*release)(void *user, void *value), void *user)
{
    moor_trie_node *node = &trie->root;
    for (;;) {
        while (node->first)
            node = node->first;
        if (node->value)
            release(user, node->value);
        moor_trie_node *parent = node->parent, *next = node->next;
        if (!parent)
            break;
        /* What is done is out of the way: `first` of the parent is what is next. */
        parent->first = next;
        node = parent;
    }
    if (trie->root.room)
        moor_heap_free(trie->root.kids.table);
    while (trie->slabs) {
        moor_trie_slab *next = trie->slabs->next;
        for (uint32_t i = 0; i < trie->slabs->count; i++) /* nodes of the index among them */
            if (trie->slabs->nodes[i].room)
                moor_heap_free(trie->slabs->nodes[i].kids.table);
        moor_heap_free(trie->slabs);
        trie->slabs = next;
    }
    moor_textpool_clear(&trie->text);
    moor_trie_init(trie);
}

/* ---- walks ------------------------------------------------------------------------------------------------------ */

moor_trie_node *moor_trie_next(const moor_trie *trie, const moor_trie_node *node)
{
    if (!node)
        return (moor_trie_node *)(uintptr_t)&trie->root;
    return node->first ? node->first : moor_trie_behind(node);
}

moor_trie_node *moor_trie_behind(const moor_trie_node *node)
{
    while (node && !node->next)
        node = node->parent;
    return node ? node->next : NULL;
}

void moor_trie_tail(const moor_trie_node *node, uint32_t from, char *out)
{
    for (uint32_t end = node->end; end > from; node = node->up) {
        uint32_t n = node->length < end - from ? node->length : end - from;
        memcpy(out + (end - from - n), node->text + (node->length - n), n);
        end -= n;
    }
}
