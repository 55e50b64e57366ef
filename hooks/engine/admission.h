/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admission.h — the front end's side of the gate, the same for every engine: requests pass it, pauses and updates drive it.
 *
 * Who calls it: the adapters' front end callbacks, with the GIL held. What it owns: one admission per generate call, in
 * call->state. Protected by the GIL.
 * Every function is harmless while Moor is off. Policy is below the ABI; here is only what waits, and how.
 */
#ifndef MOOR_HOOKS_ENGINE_ADMISSION_H
#define MOOR_HOOKS_ENGINE_ADMISSION_H

#include "runtime.h"

int moor_gate_on(void);       /* gate.mode is observe or enforce */
int moor_gate_enforced(void); /* gate.mode is enforce */

/* A generate call (coroutine or async generator). before: waits without blocking the event loop; the others end it. id: a str (NULL, or
 * another object: no admission), the one by which moor_admission_sent names the request. */
int moor_admission_before(moor_jp_call *call, PyObject *id, uint32_t records);
/* The engine is given a part of the request (one sample of n), whose record will come. Who gives up earlier has none to wait for; in an
 * engine that does not say it, all are waited for. What is given under one id counts for each that has it then: more may be waited for
 * than comes, never less. */
void moor_admission_sent(PyObject *id);
int moor_admission_after(moor_jp_call *call);
/* From `item`: the request ended before anything ran, and no record will come. */
void moor_admission_no_record(moor_jp_call *call);
int moor_admission_error(moor_jp_call *call);
void moor_admission_finish(moor_jp_call *call);

/* flags as the ABI's gate_close: MOOR_GATE_KEPT, MOOR_GATE_OWN. 1 when the gate was open. Whichever front end of the server a call comes
 * to, it goes by these flags. */
int moor_gate_close(uint32_t flags);
int moor_gate_is(uint32_t flag);
void moor_gate_note(uint32_t set, uint32_t clear);
/* Waits for the requests in flight; observe looks once. `drain` is for coroutines, `drain_blocking` for a plain function
 * that does not run on the event loop. What moor_jp callbacks answer. */
int moor_gate_drain(moor_jp_call *call);
/* The same for requests that were ended already: what is still there after a second has not started, and is kept. */
int moor_gate_drain_or_keep(moor_jp_call *call);
int moor_gate_drain_blocking(void);
/* The update succeeded: its version is installed when the gate was closed for it, else only labelled. */
int moor_gate_installed(const char *label);
/* The same, where another process brackets the update and reports how it ended. */
int moor_gate_install(const char *label);
/* The update raised (call->exc): the version is unknown. */
int moor_gate_update_error(moor_jp_call *call);
int moor_gate_open(void);
/* The same for an engine that answers when its first rank is done: while another rank is still inside the update, the call waits. */
int moor_gate_open_settled(moor_jp_call *call);

#endif
