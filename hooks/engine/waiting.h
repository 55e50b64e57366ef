/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waiting.h — a front end's event loop waits at the gate: requests in a line, pauses and updates for what they need.
 *
 * Who calls it: admission.c, with the GIL held, on the event loop's thread. What it owns: nothing; the lines are Python's
 * (moor/_waiting.py), one for each event loop, and what wakes them is libmoor's (gate_watch). Protected by the GIL.
 * However many wait in a loop, they are one descriptor, one timer and one look at a time; who comes first is looked for first, and
 * between a few of them the loop does whatever else it has to do.
 */
#ifndef MOOR_HOOKS_ENGINE_WAITING_H
#define MOOR_HOOKS_ENGINE_WAITING_H

#include "runtime.h"

/* What a look of one who waits answers. CLOSED: so it is for those behind, too. FULL: for them it may be otherwise. FAILED: a Python
 * error is set, and ends the wait. */
enum { MOOR_LOOK_FAILED = -1, MOOR_LOOK_CLOSED = 0, MOOR_LOOK_OVER = 1, MOOR_LOOK_FULL = 2 };
typedef int (*moor_look)(void *user);

/* Goes to the end of the running loop's line: what moor_jp callbacks answer. The awaitable ends once look() has answered OVER or FAILED;
 * look is called in turn when there is reason to, and at the deadline. *place is the caller's, who leaves before `user` goes. */
int moor_line_join(moor_jp_call *call, moor_look look, void *user, uint64_t deadline_ns, PyObject **place);
/* No look is called any more. NULL is nothing. */
void moor_line_leave(PyObject **place);
/* 1 when somebody waits in this process: who comes now stands behind him. */
int moor_line_is_there(void);

/* Waits until `what` (MOOR_GATE_FOR_DRAIN, _REOPEN) is worth another look, or the deadline: what moor_jp callbacks answer. */
int moor_await_gate(moor_jp_call *call, uint32_t what, uint64_t deadline_ns);

#endif
