/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lab.h — a record store and an engine that is simple enough to be right: used by the store's unit tests.
 *
 * The id of (request, position, layer, k) under an epoch follows from a formula, so that a test can say what any row must be.
 */
#ifndef MOOR_TEST_LAB_H
#define MOOR_TEST_LAB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "allocator/error.h"
#include "allocator/heap.h"
#include "allocator/records.h"
#include "allocator/seal.h"
#include "allocator/store.h"

enum { LAB_LAYERS = 6, LAB_K = 4, LAB_EXPERTS = 128, LAB_MAX_STEP = 8192, LAB_BLOCK = 4 };

typedef struct lab_store {
    moor_records *records;
    moor_records_config config;
    _Atomic uint64_t counters[MOOR_COUNTERS_MAX];
    moor_state_seal_ring *ring;
    int32_t layer_ids[64];
    uint64_t epoch;
    pthread_mutex_t events_lock; /* over the three below */
    int sealed_events;
    moor_sealed_event last_event; /* ids are gone */
    moor_hash128 last_ids[8];
    const uint8_t *arena; /* read-only mapping, as a consumer has it */
    int32_t *source;      /* [LAB_MAX_STEP][k] */
    int skip_layer;       /* -1: none */
} lab_store;

/* One request of a step. */
typedef struct lab_request {
    const char *id;
    uint64_t start;
    uint32_t count, spec;
    const int32_t *kv;
    uint32_t n_kv, flags, hint;
} lab_request;

void lab_open(lab_store *lab);      /* the sizes above, arena of 16 MiB, KV index of 256 blocks of LAB_BLOCK */
void lab_open_with(lab_store *lab); /* what lab->config says; lab_defaults first */
void lab_defaults(lab_store *lab);
void lab_close(lab_store *lab); /* asserts that nothing is left */
/* Frees every record and the index, and asserts that live bytes are 0. */
void lab_assert_empty(lab_store *lab);

uint32_t lab_id(const lab_store *lab, const char *id, uint64_t position, uint32_t layer, uint32_t k, uint64_t epoch);
moor_status lab_begin(lab_store *lab, const lab_request *requests, uint32_t n);
/* Captures all layers but skip_layer for the requests of the last begin. */
void lab_capture(lab_store *lab, const lab_request *requests, uint32_t n);
/* begin, capture, commit(NULL). */
void lab_step(lab_store *lab, const lab_request *requests, uint32_t n);
void lab_one(lab_store *lab, const char *id, uint64_t start, uint32_t count);
/* A prefill of p tokens and n decodes, then the seal with the right number of rows: p + max(n - 1, 0). */
void lab_run(lab_store *lab, const char *id, uint32_t prompt, uint32_t sampled);
moor_status lab_seal(lab_store *lab, const char *id, uint64_t rows);

/* Opens as client 1, fails the test when it cannot. */
moor_view *lab_view(lab_store *lab, const char *id);
void lab_unview(lab_store *lab, moor_view *view);
/* Rows from…to-1 of a view are present and what `id` computed at `epoch`. */
void lab_assert_rows(lab_store *lab, const moor_view *view, const char *id, uint64_t from, uint64_t to, uint64_t epoch);
void lab_assert_missing(const moor_view *view, uint64_t from, uint64_t to, uint32_t reasons);
const uint8_t *lab_row(lab_store *lab, const moor_view *view, uint64_t row); /* NULL: missing */
uint64_t lab_count(const lab_store *lab, enum moor_counter counter);
moor_records_stats lab_stats(lab_store *lab);

#define assert_status(call, want)                                                                                      \
    do {                                                                                                               \
        moor_status got_ = (call);                                                                                     \
        if (got_ != (want))                                                                                            \
            fail_msg("%s: %s (%s), not %s", #call, moor_status_name(got_), moor_last_error(), moor_status_name(want)); \
    } while (0)
#define assert_text(part)                                                                                              \
    do {                                                                                                               \
        if (!strstr(moor_last_error(), part))                                                                          \
            fail_msg("error text \"%s\" does not say \"%s\"", moor_last_error(), part);                                \
    } while (0)

#endif
