/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest.h: proves in this very process that each kind of wrapper fires, on callables made for it (moor/_selftest.py).
 * Called by `moor check` and the tests through _moor.selftest().  Owns a table of its own, which no report shows.  GIL.
 */
#ifndef MOOR_HOOKS_ENGINE_SELFTEST_H
#define MOOR_HOOKS_ENGINE_SELFTEST_H

#include "joinpoint.h"

extern const moor_engine moor_engine_selftest;

/* {kind: None, or what is wrong}; new reference, NULL with an error. */
PyObject *moor_jp_selftest(void);

#endif
