/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jp_install.h: finds the attributes that a table names and puts wrappers in their place.
 * Called by joinpoint.c (a table was registered, a rescan) and finder.c (a module was executed).
 * Owns nothing but the references to classes in moor_jp_state.owners.  GIL.
 */
#ifndef MOOR_HOOKS_ENGINE_JP_INSTALL_H
#define MOOR_HOOKS_ENGINE_JP_INSTALL_H

#include "jp_state.h"

/* Everything that can be found now for this join point.  Logs, never fails. */
void moor_jp_install_state(moor_jp_state *state);
/* `module` has just been executed under this name: its own targets, overrides among its classes, and the targets whose
 * module was still being executed when they were last looked at. */
void moor_jp_module_executed(const char *name, PyObject *module);
/* Modules that were executed without our seeing it: looks for those whose join points still wait. Some microseconds. */
void moor_jp_catch_up(void);
/* Is this module named by a target of a registered table? */
bool moor_jp_is_target(const char *module);

#endif
