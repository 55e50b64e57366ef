/* SPDX-License-Identifier: Apache-2.0 */
/*
 * finder.h: the finder on sys.meta_path that lets the installer see each engine module right after it was executed,
 * before its importers bind names from it.
 *
 * Called by plugin/python/module.c (bootstrap).  It finds nothing itself: for a watched module it asks the finders behind
 * it, and has the spec's loader watched (loader.h).  A finder in front of it may find an engine's module without asking;
 * such a module is seen at the next import of anything, or by moor_jp_rescan().
 *
 * Owns the finder object and the list of engines.  GIL.
 */
#ifndef MOOR_HOOKS_ENGINE_FINDER_H
#define MOOR_HOOKS_ENGINE_FINDER_H

#include "joinpoint.h"

/* Watch for these engines (NULL-terminated, for the life of the process; NULL entries are skipped up to n).  Engines in use
 * already are registered at once.  Again: no-op.  0, or -1 with an error. */
int moor_finder_install(const moor_engine *const *engines, size_t n);
/* Is our finder on sys.meta_path? */
bool moor_finder_installed(void);

#endif
