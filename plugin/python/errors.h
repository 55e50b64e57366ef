/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errors.h: a moor_status becomes a Python exception.
 *
 * Called by every file of the API. Owns the exception classes: moor.Error and one subclass for each MOOR_E_*, where it
 * helps also a subclass of the builtin that means the same (moor.Timeout is a TimeoutError). The class attribute `status` is the code.
 */
#ifndef MOOR_PYTHON_ERRORS_H
#define MOOR_PYTHON_ERRORS_H

#include "consumer.h"

/* Raises the class of status with libmoor's text of this thread. Always returns NULL. The GIL may have been released
 * since the failing call: the text is the thread's own. An exception that is there already (a signal's) stays, with the text as a note. */
PyObject *moor_py_raise(moor_status status);
/* The same with an own sentence (PyUnicode_FromFormat's formats). */
PyObject *moor_py_raise_text(moor_status status, const char *format, ...);
/* Sets an attribute (stolen; NULL: an error is pending) on the exception just raised. */
void moor_py_raised_with(const char *name, PyObject *value);

#endif
