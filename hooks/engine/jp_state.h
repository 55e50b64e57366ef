/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jp_state.h: what the files of the installer share: the mutable side of a join point, and of one wrapped place.
 * Private to joinpoint.c, jp_call.c, jp_wrap.c, jp_install.c, finder.c.  All of it is protected by the GIL, except
 * fired_nogil, which is atomic.
 */
#ifndef MOOR_HOOKS_ENGINE_JP_STATE_H
#define MOOR_HOOKS_ENGINE_JP_STATE_H

#include "joinpoint.h"

/* A class whose attribute was wrapped: where overrides are looked for. */
typedef struct moor_jp_owner {
    PyObject *type; /* strong: the class lives as long as its module anyway */
    char *attr;
    struct moor_jp_owner *next;
} moor_jp_owner;

struct moor_jp_state {
    const moor_jp *jp;
    const moor_engine *engine;
    moor_jp_state *fires_with;           /* resolved name, or NULL */
    PyObject *names[MOOR_JP_MAX_PARAMS]; /* jp->params, interned */
    moor_jp_owner *owners;
    const char *resolved;              /* a target's string, or `note` */
    char *note, *reason;               /* owned */
    int best;                          /* index of the best resolved target; MOOR_JP_MAX_TARGETS = none */
    int16_t index[MOOR_JP_MAX_PARAMS]; /* where the first original that names jp->params[i] has it, or -1 */
    uint32_t sites, rebound;
    uint64_t fired, errors;
    uint64_t fired_nogil; /* atomic */
    bool seen;            /* a target's module has been imported */
    bool logged;
};

struct moor_jp_site {
    moor_jp_state *state;
    PyObject *wrapper;                 /* the object that embeds this; identity only */
    PyObject *original;                /* strong */
    int16_t index[MOOR_JP_MAX_PARAMS]; /* position of jp->params[i], or -1: keyword only */
    bool method;                       /* args[0] is self */
};

/* joinpoint.c */
moor_jp_state *moor_jp_state_of(const moor_jp *jp);
/* All states in order; NULL past the end. */
moor_jp_state *moor_jp_state_at(size_t i);
void moor_jp_log(const char *level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The pending Python error as "Type: text" in buf; clears it. */
void moor_jp_error_text(char *buf, size_t size);
/* A failed callback: as moor_jp_failed. */
int moor_jp_state_failed(moor_jp_state *state, const char *what);
/* Count one activation. */
void moor_jp_count(moor_jp_state *state);
void moor_jp_set_reason(moor_jp_state *state, const char *format, ...) __attribute__((format(printf, 2, 3)));
void moor_jp_reset_counts(void); /* in a forked child */

#endif
