/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.h — the worker's side of a weight update and of a resume, the same for every engine: the cleanup window, in
 * which light mode keeps one empty_cache per phase, and the barrier before the KV cache.
 *
 * Who calls it: the adapters' worker callbacks, with the GIL held. What it owns: the phase that cleanup calls belong to.
 */
#ifndef MOOR_HOOKS_ENGINE_WINDOW_H
#define MOOR_HOOKS_ENGINE_WINDOW_H

#include "runtime.h"

/* A weight change, reported before it begins (rows of a step that runs meanwhile are already suspect) and after it. */
int moor_window_touched(uint32_t kind, const char *what);
/* Enters a phase (MOOR_PHASE_*); in light mode with its one empty_cache, and the full cleanup where that freed too little
 * (SEMANTICS 6.3). `leave` does nothing outside. */
void moor_window_enter(uint32_t phase);
void moor_window_leave(void);
int moor_window_inside(void);
/* `before` of gc.collect and of torch's empty_cache: counted in a window; in light mode left out. */
int moor_window_gc_before(moor_jp_call *call);
int moor_window_empty_cache_before(moor_jp_call *call);

/* The KV cache is about to come back on `device` (a torch.device; NULL or a CPU's: "cpu:0"): its cleanup phase, then the
 * barrier of all ranks and holders. What a `before` answers. */
int moor_window_resume(PyObject *device, uint32_t rank, uint32_t world, uint32_t replica);

#endif
