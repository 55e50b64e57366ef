/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader.h: stands as a spec's loader until its module has been executed, so that the installer sees the module right then.
 *
 * Called by finder.c (a watched module was found) and jp_install.c (one that waits to be executed). A module is known by its
 * spec; of its loader nothing is asked but what importlib asks. The stand-in gives every attribute of the loader (its
 * __class__ too) but exec_module and load_module; when one of them is called it puts the loader back into the spec and the
 * module first. So nothing of anybody else's is changed, loaders may be shared, have no name, take no attributes, be
 * classes or wrap others, and what the module itself sees is as without us.
 *
 * A loader may put the execution off (importlib.util.LazyLoader: until the first access to an attribute). The spec's loader
 * of that time is then watched again.
 *
 * Owns nothing. GIL.
 */
#ifndef MOOR_HOOKS_ENGINE_LOADER_H
#define MOOR_HOOKS_ENGINE_LOADER_H

#include "joinpoint.h"

/* 0, or -1 with an error: before the first watch. Again: no-op. */
int moor_loader_init(void);
/* Watch the execution of this spec's module. Never fails: without memory the module is found at a later import. */
void moor_loader_watch(PyObject *spec);
/* Does the module wait for its first access to be executed?  Runs no code of its. */
bool moor_loader_is_deferred(PyObject *module);
/* New reference to the module's own attribute, NULL without an error; does not execute a deferred module. */
PyObject *moor_loader_own(PyObject *module, const char *name);

#endif
