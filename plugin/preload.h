/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preload.h: how libmoor, loaded by LD_PRELOAD, gets into a Python process.
 *
 * Who calls it.  The dynamic loader, once, through the constructor of preload.c; nobody else.  This header exists for the
 * unit tests, which link the parts.
 *
 * What it does.  Every child of a preloaded command is preloaded as well: shells, compilers, make, Ray's launchers.  In a
 * process without PySys_AddAuditHook the constructor looks that name up and is done: no file, no thread, no output, nothing
 * kept.  In a Python (static or shared libpython; this runs before Py_Initialize) it adds one audit hook.  At the first
 * import event of an engine's package the hook imports the package `moor` that lies beside the library and calls
 * moor._moor.bootstrap(); from then on it answers at once.
 *
 * The package is found by dladdr and imported by an explicit spec for exactly that folder: sys.path is not touched, nothing
 * else can be picked up from the folder around it, and a `moor` that was imported already (pip install) is used as it is.
 *
 * Limits.  A host that dlopens libpython later has no such name yet when the constructor runs: there, and in a Python
 * that is already running when libmoor is loaded (import moor), the constructor does nothing; the entry points serve it.
 * glibc splits LD_PRELOAD at spaces and colons, so a library path with either cannot be preloaded (`moor run` refuses).
 * A free-threaded build is refused with one line on stderr.  MOOR_DISABLE=1: nothing at all.
 *
 * Fork.  The hook and what it did are inherited by a forked child, which is right: its modules are inherited as well.
 *
 * What it owns.  One static struct of function pointers and a state; protected by the GIL (audit hooks run with it).
 */
#ifndef MOOR_PLUGIN_PRELOAD_H
#define MOOR_PLUGIN_PRELOAD_H

#include <stdbool.h>

/* Is this the name of an engine's package or of a module in one? */
bool moor_preload_is_engine(const char *module);
/* MOOR_DISABLE is set, and not to "0". */
bool moor_preload_disabled(void);

#endif
