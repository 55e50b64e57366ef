/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.h — from a router's tensor of expert ids to moor_api.capture.
 *
 * A Capture is a small callable bound to one MoE layer's column: given to the engine's router in eager mode
 * (capture(topk_ids)), or called by the custom op of moor/_torch.py when the model is compiled. Who calls it: the engine's
 * step thread during a forward pass, with the GIL held. What it owns: nothing of the tensor; the ids are read before the
 * call returns.
 *
 * A step is announced by the adapter (moor_capture_expect) and begun at its first capture, when the engine's batch is
 * final: the adapter's `begin` then reads the batch map and calls step_begin. A capture without an announced step (profile
 * runs, warm-up, graph capture) is ignored.
 */
#ifndef MOOR_HOOKS_ENGINE_CAPTURE_H
#define MOOR_HOOKS_ENGINE_CAPTURE_H

#include "runtime.h"

enum { MOOR_STEP_NONE = 0, MOOR_STEP_EXPECTED = 1, MOOR_STEP_OPEN = 2, MOOR_STEP_SKIPPED = 3 };

typedef int (*moor_step_begin_fn)(void *user); /* 0, or -1 with a Python error: the step is not recorded */

/* Announce a step; `begin` runs at the first capture, or from moor_capture_settle when no layer captures. */
void moor_capture_expect(moor_step_begin_fn begin, void *user);
/* Begin the announced step now if no capture did. Returns the state: OPEN when step_begin succeeded. */
int moor_capture_settle(void);
/* The step is over (committed or abandoned by the adapter). */
void moor_capture_done(void);
int moor_capture_state(void);

/* jp: the manual join point that counts captures; called once by the adapter before it binds. */
void moor_capture_attach(const moor_jp *jp);
/* New reference to a callable capture(topk_ids) for column `column`. */
PyObject *moor_capture_callable(uint32_t column);
/* New reference to a callable for a compiled model: moor/_torch.py's custom op bound to the column; with a kernel's `method`, what stands in
 * for that and captures first. */
PyObject *moor_capture_compiled(uint32_t column, PyObject *method);
/* Capture `tensor` into `column`; what both callables and wrappers around bypasses (old CPU MoE kernels) end in. Never
 * raises in open mode. 0, or -1 with a Python error (strict). */
int moor_capture_tensor(uint32_t column, PyObject *tensor);
/* Adds _moor.capture(column, tensor), which moor/_torch.py calls, to the module. 0, or -1 with an error. */
int moor_py_capture_init(PyObject *module);

#endif
