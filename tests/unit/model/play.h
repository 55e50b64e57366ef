/* SPDX-License-Identifier: Apache-2.0 */
/*
 * play.h — a string of bytes as a sequence of operations on a store and on the model of it, compared after each one.
 *
 * Any string is a valid sequence, so the same function serves the model test (random strings) and the fuzzer (tests/fuzz/fuzz_model.c).
 * To add an operation: a function in ops*.c, and a line in the table of that kind; a new kind, or another weight, means that the kept
 * sequences of tests/fuzz/corpus-model are other sequences.
 */
#ifndef MOOR_TEST_PLAY_H
#define MOOR_TEST_PLAY_H

#include "check.h"

enum { PLAY_VIEWS = 12, PLAY_HANDLES = 16 };

typedef struct play_view {
    moor_view *view;
    m_record *record; /* the model's, while it is the same life */
    uint64_t number;
    uint32_t client;
    m_row *rows; /* as they were when it was opened */
} play_view;

typedef struct play {
    lab *l;
    model *saved;                            /* what the snapshot in `dir` has; NULL: none was written */
    uint32_t saved_blocks;                   /* that its records have rows in */
    moor_handle saved_handles[PLAY_HANDLES]; /* handles that were given by then */
    char dir[32];
    const uint8_t *data;
    size_t n, at;
    uint64_t ops;
    int trace, full; /* full: everything is compared after each operation */
    play_view view[PLAY_VIEWS];
    moor_handle old[PLAY_HANDLES]; /* handles that were given once */
    uint32_t n_old;
    uint32_t fault; /* armed for the next operation */
    uint32_t spec_settled[M_BATCH];
} play;

uint32_t play_take(play *p, uint32_t below); /* from the string; 0 when it is used up */
int play_step(play *p);                      /* one operation; 0: store and model agree */
/* A new store and a model of it, of the same shape and in the same world. NULL: no memory. */
lab *play_lab(const lab *like);
void play_lab_free(lab *l);
/* Views that are kept, without closing them. client UINT32_MAX: of all. */
void play_forget_views(play *p, uint32_t client);
int play_empty(lab *l); /* All is released: nothing may be left (S2.7). */

/* Plays the string. Returns the operations made; *failed: 1 when store and model differ, and `why` says where. used: bytes up to then. */
uint64_t play_bytes(const uint8_t *data, size_t n, int trace, int *failed, char why[512], size_t *used);

#endif
