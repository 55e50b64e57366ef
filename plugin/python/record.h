/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h: moor.Record, and the data behind it.
 *
 * A Record is what the user holds: attributes, which stay readable after release(), and one reference to its Data. Data
 * owns the memory of the rows: the lease of an opened record, the buffers of an unpickled one, or the Data of the two
 * records that were concatenated. Views, and so memoryviews and arrays, refer to the Data, never to the Record: the
 * lease ends when the Record has let go and the last view is gone.
 *
 * record.c makes them and gives the attributes; record_read.c reads rows; record_pickle.c pickles and concatenates.
 * Called by store.c. Data is immutable once made, so rows may be copied without the GIL as long as a reference is held.
 */
#ifndef MOOR_PYTHON_RECORD_H
#define MOOR_PYTHON_RECORD_H

#include "consumer.h"
#include "rows.h"

typedef struct moor_py_data {
    PyObject_HEAD
    moor_rows rows;
    moor_record *record; /* the lease, or NULL */
    PyObject *keeps;     /* what must outlive it: the Store of the lease, a tuple of Data; may be NULL */
    Py_buffer *buffers;  /* of an unpickled record, [n_buffers] */
    uint32_t n_buffers;
    void *memory; /* what rows.segments and rows.layer_ids point into, when no lease owns them */
} moor_py_data;

typedef struct moor_py_record {
    PyObject_HEAD
    moor_py_data *data; /* NULL after release() */
    moor_rows rows;     /* the numbers only: no pointer in it is valid */
    uint64_t handle, dropped, first_row;
    uint32_t owner, reasons, store_index;
    PyObject *request_id, *session_id, *layer_ids, *missing, *versions, *labels;
    PyObject *weakrefs;
} moor_py_record;

/* A Record of a lease just opened, which it takes, also when it fails. store: kept alive with it, or NULL. */
PyObject *moor_py_record_opened(moor_record *record, PyObject *store);
/* A Record of data, described by info. Takes the reference to data, also when it fails. */
PyObject *moor_py_record_of(moor_py_data *data, const moor_record_info *info);
/* Empty Data, or NULL. */
moor_py_data *moor_py_data_new(void);
/* Fills data->rows from info, whose segments and layer_ids must live as long as data. 0, or -1 with an error. */
int moor_py_data_set(moor_py_data *data, const moor_record_info *info);
/* The object as a Record, or NULL with TypeError. */
moor_py_record *moor_py_record_check(PyObject *object);
/* Its data (borrowed), or NULL with moor.Closed. */
moor_py_data *moor_py_record_data(moor_py_record *record);
/* The lease, or NULL with an error: released, or a copy. */
moor_record *moor_py_record_lease(moor_py_record *record);
/* [(start, stop), …] of the missing ranges that meet [start, stop). */
PyObject *moor_py_missing(const moor_rows *rows, uint64_t start, uint64_t stop);
/* A new Record whose rows from…to-1 are those of each part, zero-copy; parts follow each other from row 0 on. It is the last one's by
 * name. n > 0. NULL with an error. */
typedef struct moor_py_part {
    moor_py_record *record;
    uint64_t from, to;
} moor_py_part;
PyObject *moor_py_record_join(const moor_py_part *parts, uint32_t n);
/* Reads owner (it may have been claimed) again. */
void moor_py_record_refresh(moor_py_record *record);

/* "rollout", … for MOOR_OWNER_*; and back: -1 with an error. */
const char *moor_py_owner_name(uint32_t owner);
int moor_py_owner(PyObject *arg);

/* Methods and getters of the other two files; `moor_py_record_methods` lists them. */
PyObject *moor_py_record_segments(PyObject *self, PyObject *unused);
PyObject *moor_py_record_array(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *moor_py_record_tensor(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *moor_py_record_copy_into(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *moor_py_record_mask(PyObject *self, void *unused);
PyObject *moor_py_record_reduce(PyObject *self, PyObject *protocol);
PyObject *moor_py_rebuild(PyObject *module, PyObject *args);
PyObject *moor_py_concat(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *moor_py_pad_rows(PyObject *module, PyObject *args, PyObject *kwargs);

#endif
