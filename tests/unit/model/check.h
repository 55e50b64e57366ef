/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.h — a store, the model, and the engine between them; and what must agree between store and model after each operation.
 *
 * The check looks inside the store (records.h), without changing it. It tells the model what is physical: rows without room, and after
 * an operation in which an allocation failed or the arena was full, which of the rows that should be there are not.
 */
#ifndef MOOR_TEST_CHECK_H
#define MOOR_TEST_CHECK_H

#include "allocator/records.h"
#include "world.h"

typedef struct lab {
    world w;
    model m;
    moor_records *s;
    moor_state_seal_ring *ring;
    _Atomic uint64_t counter[MOOR_COUNTERS_MAX];
    m_event event[M_EVENTS];
    uint32_t n_events;
    uint64_t refused; /* arena->refused before the operation */
    uint32_t rough;   /* an allocation failed in this operation */
    uint32_t whole;   /* compare all records, not only those that the operation touched */
    uint32_t shape;   /* of the store: play.c */
    char why[512];
} lab;

#define AGREE(store, model, what, ...)                                                                                 \
    do {                                                                                                               \
        if ((uint64_t)(store) != (uint64_t)(model))                                                                    \
            return check_fail(l, what ": store %llu, model %llu", __VA_ARGS__, (unsigned long long)(store),            \
                              (unsigned long long)(model));                                                            \
    } while (0)

const char *check_id(uint32_t id); /* of a name, or M_NAMES + alias */
moor_hash128 check_hash(uint32_t id);
/* 0: store and model agree; else lab->why says where not. */
int check_all(lab *l);
/* References, blocks and bytes add up. */
int check_audit(lab *l);
/* Tries, what their keys stand for, and whose the records are (check_sessions.c). */
int check_sessions(lab *l);
const char *check_session_id(uint32_t session);
/* The blocks that live records have rows in. */
uint32_t check_blocks(const moor_records *s);
int check_view(lab *l, const moor_view *view, const m_record *record, uint64_t rows, uint32_t id);
int check_fail(lab *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
void check_on_sealed(void *user, const moor_sealed_event *event);

#endif
