/* SPDX-License-Identifier: Apache-2.0 */
/* ops.h — between the two files of operations: what the engine does (ops_engine.c) and what others do (ops.c). */
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

#endif
