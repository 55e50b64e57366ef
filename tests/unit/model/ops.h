/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h — between the files of operations: what the engine does (ops_engine.c), what others do (ops.c), sessions (ops_sessions.c), and
 * snapshots (ops_snapshot.c).
 */
#ifndef MOOR_TEST_OPS_H
#define MOOR_TEST_OPS_H

#include "play.h"

#define SAY(...)                                                                                                       \
    do {                                                                                                               \
        if (p->trace)                                                                                                  \
            fprintf(stderr, __VA_ARGS__);                                                                              \
    } while (0)

/* 0: the statuses are the same. */
int same(play *p, moor_status got, moor_status want, const char *what);
/* With a failed allocation the store may say NOMEM; then the model must not have done it. */
int without_memory(moor_status got);
/* Something was refused: what is physical is taken over now, before the operation goes on. */
int take_over_now(play *p);

m_record *any_record(play *p); /* NULL: there is none */
/* A handle of now, of once, or of never. */
moor_handle any_handle(play *p, int *never);
/* Keeps a view with what it must go on saying while its lease lasts. */
int keep_view(play *p, moor_view *view, m_record *r, uint32_t client);

int op_begin(play *p);
int op_capture(play *p);
int op_capture_bad(play *p);
int op_commit(play *p);
int op_step(play *p);
int op_abandon(play *p);
int op_begin_bad(play *p);
int op_admit(play *p);
int op_preempt(play *p);
int op_epoch(play *p);
int op_kv_reset(play *p);
int op_end(play *p);
int op_seal(play *p);
int op_drain(play *p);
int op_finished(play *p);
int op_alias(play *p);
int op_session(play *p);
int op_snapshot(play *p);

#endif
