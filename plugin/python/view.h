/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.h: a piece of memory that Python sees through the buffer protocol, and what becomes of it with and without numpy.
 *
 * Called by record*.c. A View keeps `owner` (the data of a record, and with it the lease) alive, or owns its memory. The
 * memoryviews and arrays made from a View keep the View alive: a lease ends with the last of them.
 */
#ifndef MOOR_PYTHON_VIEW_H
#define MOOR_PYTHON_VIEW_H

#include "consumer.h"
#include "rows.h"

/* A read-only View of [rows][layers][top_k] of dtype at data; keeps owner. New reference, or NULL. */
PyObject *moor_py_view(PyObject *owner, const void *data, uint64_t rows, uint32_t layers, uint32_t top_k,
                       const moor_dtype *dtype);
/* numpy array (read-only, same memory) when numpy can be imported, else memoryview. Steals view, which may be NULL (an
 * error is pending). */
PyObject *moor_py_view_array(PyObject *view);

/* A new array, numpy's or a memoryview of own memory, for the caller to fill: writable, C-contiguous.
 * format "?" for masks. *data: its memory. New reference, or NULL. */
PyObject *moor_py_array_new(int ndim, const uint64_t *shape, const char *dtype_name, const char *format,
                            size_t itemsize, void **data);

/* A dtype argument: None (→ fallback), a name, numpy's or torch's dtype objects. NULL with moor.Invalid. */
const moor_dtype *moor_py_dtype(PyObject *arg, const moor_dtype *fallback);

#endif
