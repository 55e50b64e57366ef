/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.h: the Python module moor._moor.  Limited API 3.11; imports no symbol that CPython 3.10 lacks.
 *
 * module.c starts it (refuses what it cannot serve), offers the loading functions and then lets each part add its own:
 * a part is a file of plugin/python with one function `int moor_py_X_init(PyObject *module)`, listed in module.c.
 * Owns the pointer to the C ABI.  GIL.
 */
#ifndef MOOR_PLUGIN_PYTHON_MODULE_H
#define MOOR_PLUGIN_PYTHON_MODULE_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>
#include <moor/moor.h>

/* The C ABI; never NULL once the module has been imported. */
const moor_api *moor_py_api(void);

PyMODINIT_FUNC PyInit__moor(void);

#endif
