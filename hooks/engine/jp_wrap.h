/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jp_wrap.h: the objects that take the place of an engine's callables.
 * Called by jp_install.c and joinpoint.h's moor_jp_wrap*; the async shims in moor/_shims.py call back into the
 * activation object made here.  Owns the three heap types (made once, never freed).  GIL.
 *
 * `Wrapper` is a callable that binds like a function; around a coroutine or async generator function it is not put into
 * the class itself but given to a shim, which takes one `Activation` from it per call.
 */
#ifndef MOOR_HOOKS_ENGINE_JP_WRAP_H
#define MOOR_HOOKS_ENGINE_JP_WRAP_H

#include "jp_state.h"

/* Makes the types and imports the shims.  0, or -1 with an error. */
int moor_jp_wrap_init(void);

/* A new callable that runs state's callbacks around `original` (not a static/class method object).  `method`: the first
 * argument is self.  `binds`: it has `original`'s way of binding to an instance.  New reference, NULL with an error. */
PyObject *moor_jp_wrap_callable(moor_jp_state *state, PyObject *original, bool method, bool binds);

/* Is `object` a wrapper of this state, possibly below wrappers of other join points? */
bool moor_jp_is_wrapped(const moor_jp_state *state, PyObject *object);

#endif
