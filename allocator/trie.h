/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trie.h — the trace trie of one session (SEMANTICS 3): text keys to values, a compressed prefix tree whose edges are never split.
 *
 * Called by sessions.c under its lock. Owns nodes and text; values are the caller's pointers, and NULL is no value.
 *
 * Two trees over the same nodes. The *trace tree* is what SEMANTICS 3 speaks of: a key's parent is the longest key, with or without a
 * value, that was a proper prefix of it when it came; children are in the order they came, and nobody is ever moved to another
 * parent. So "ab" that comes after "abc" is its sibling. (The same as walking down the longest fitting edge at each node and adding
 * what is left as a new edge: docs/decisions.md.) The *index* is an ordinary radix tree over all keys. It splits, has nodes of its own, and is
 * what is walked: one pass over the text, whatever the shape, and a table by first byte where there are several ways on. On the way
 * down to a text it meets each key that is a prefix of it, shortest first. A text that begins with the last key used is compared with it in
 * one go and walked from there.
 *
 * Nothing here recurses. Costs: insert, find, search, release of a key: its length and the nodes on its path; a walk over all keys:
 * the length of their edges.
 */
#ifndef MOOR_TRIE_H
#define MOOR_TRIE_H

#include <moor/moor.h>

#include "textpool.h"

typedef struct moor_trie_node moor_trie_node;
struct moor_trie_node {
    /* In the index. */
    moor_trie_node *up;
    union {
        moor_trie_node *one; /* room 0: the only kid */
        struct moor_trie_kids *table;
    } kids;
    const uint8_t *text; /* of the edge that leads here from `up` */
    moor_text_piece *piece;
    uint32_t length, end; /* of that edge; of the whole key */
    /* The last `run` bytes of the key lie one behind the other where `text` ends; the rest of it is that of `base`. */
    uint32_t run;
    moor_trie_node *base;
    uint16_t n_kids, room;
    uint8_t is_key; /* in the trace tree as well */
    /* In the trace tree. */
    moor_trie_node *parent, *first, *last, *next, *previous;
    void *value;
};

typedef struct moor_trie {
    moor_trie_node root; /* the key "" */
    moor_textpool text;
    struct moor_trie_slab *slabs;
    moor_trie_node *free;
    moor_trie_node *finger; /* the last key that was inserted or found: a conversation's next turn begins with it */
    uint64_t keys, nodes, bytes; /* keys: those with a value; bytes: of nodes and tables (text: text.bytes) */
} moor_trie;

void moor_trie_init(moor_trie *trie);
/* Sets the key's value. *old: the one it had, or NULL. *at (may be NULL): its node, which stays until it is released. MOOR_E_NOMEM:
 * nothing changed. */
moor_status moor_trie_insert(moor_trie *trie, const char *key, uint32_t length, void *value, moor_trie_node **at,
                             void **old);
/* The node of a key that has a value, or NULL. */
moor_trie_node *moor_trie_find(moor_trie *trie, const char *key, uint32_t length);
/* The longest key with a value that text begins with; never "". NULL: none. */
moor_trie_node *moor_trie_search(moor_trie *trie, const char *text, uint32_t length);
/* The longest key, with or without a value, that is a proper prefix of `key`: where an insert of it would hang (where it hangs, if it is
 * there). */
moor_trie_node *moor_trie_above(moor_trie *trie, const char *key, uint32_t length);
/* Takes the node's value and returns it; a node without value and children goes, and so do those above it that are then empty. */
void *moor_trie_release(moor_trie *trie, moor_trie_node *node);
/* Hands every value to `release`, children before their parent, siblings in the order they came. The trie is empty then, and usable. */
void moor_trie_release_all(moor_trie *trie, void (*release)(void *user, void *value), void *user);

/* Depth first, siblings in the order they came, nodes without a value included: the one after `node` (NULL: the first, the root). */
moor_trie_node *moor_trie_next(const moor_trie *trie, const moor_trie_node *node);
/* The same without what lies below `node`; NULL: none. */
moor_trie_node *moor_trie_behind(const moor_trie_node *node);
/* The last end - from bytes of the node's key. */
void moor_trie_tail(const moor_trie_node *node, uint32_t from, char *out);

#endif
