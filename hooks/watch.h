/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.h — waiting at the gate in an event loop: a descriptor that becomes readable when another look is worth while.
 *
 * Called by hosts through moor_api (the adapters' event loops, any C host's), and by process_leave. Owns the watches of this process and
 * one thread, "moor-gate", which lives while there are any: it sleeps on the gate's futex as a blocked caller would, looks for the
 * dead while a drain or a reopen is watched, and tells each watch once for each change that its call has an answer to.
 * Ten thousand requests that wait are one watch a loop. The mutex `watcher` guards the list; under it there are loads and an eventfd's
 * write, nothing that waits. A forked child has no watch.
 */
#ifndef MOOR_WATCH_H
#define MOOR_WATCH_H

#include "member.h"

/* moor_api members; contracts in moor.h. */
moor_status moor_gate_watch(moor_process *process, uint32_t call, int *fd);
void moor_gate_unwatch(int fd);

/* The process leaves: its watches are told a last time and see nothing more. 1 when no thread looks at its state any longer; 0 when the
 * thread did not end in time: the state must stay mapped, and `process` in memory. */
int moor_watch_leave(moor_process *process);

#endif
