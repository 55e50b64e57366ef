/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loading.h: how Moor gets into an engine's process once its Python module is there: bootstrap(), and what `moor check`
 * and the tests ask: joinpoints(), selftest(), rescan(), register(engine).
 *
 * bootstrap() is called by the preload's audit hook (plugin/preload.c), by the entry points (moor/plugin.py), or by both:
 * the second call finds the first.  Owns the list of engines.  GIL.
 */
#ifndef MOOR_PLUGIN_PYTHON_LOADING_H
#define MOOR_PLUGIN_PYTHON_LOADING_H

#include "module.h"

int moor_py_loading_init(PyObject *module);

#endif
