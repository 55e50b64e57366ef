/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jp_call.h: one activation of a join point: running the callbacks around the original.
 * Called by jp_wrap.c: moor_jp_run for plain callables, the steps one by one for the async shims.
 * Owns the references that a moor_jp_call took through its setters.  GIL.
 */
#ifndef MOOR_HOOKS_ENGINE_JP_CALL_H
#define MOOR_HOOKS_ENGINE_JP_CALL_H

#include "jp_state.h"

/* Fills site->index from the original's signature. */
void moor_jp_site_index(moor_jp_site *site);
/* Fills `call` for these arguments (borrowed). */
void moor_jp_call_init(moor_jp_call *call, moor_jp_site *site, PyObject *args, PyObject *kwargs);
/* Takes references to what the call borrowed so far: an async activation outlives its caller's frame. */
void moor_jp_call_keep(moor_jp_call *call);
/* Drops every reference that the call owns. */
void moor_jp_call_clear(moor_jp_call *call);

/* Run one callback and apply the policy for failures.  MOOR_JP_OK, MOOR_JP_DONE (before), MOOR_JP_AWAIT, or MOOR_JP_RAISE with
 * the error set.  `what` names it in messages. */
int moor_jp_step(moor_jp_call *call, moor_jp_callback callback, const char *what);
/* The same where nothing can be awaited: AWAIT is a failure. */
int moor_jp_step_plain(moor_jp_call *call, moor_jp_callback callback, const char *what);
/* Runs `error` for the pending Python error; on return an error is pending: the same or its replacement. */
void moor_jp_step_error(moor_jp_call *call);
void moor_jp_step_finish(moor_jp_call *call);

/* The whole of a plain call.  New reference, or NULL with an error. */
PyObject *moor_jp_run(moor_jp_site *site, PyObject *args, PyObject *kwargs);

#endif
