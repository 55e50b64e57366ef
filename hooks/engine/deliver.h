/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deliver.h — a record in the engine's own field: an array in the engine's layout (native) or a reference (ref).
 *
 * Called by the adapters' front end callbacks with the GIL held; the store is asked with the GIL released.
 */
#ifndef MOOR_HOOKS_ENGINE_DELIVER_H
#define MOOR_HOOKS_ENGINE_DELIVER_H

#include "runtime.h"

typedef struct moor_delivery {
    const char *id; /* the engine core's id */
    Py_ssize_t id_len;
    uint64_t start, rows; /* rows start…rows-1 are wanted */
    double timeout;       /* for rows that are still being committed */
    uint32_t dtype;       /* MOOR_DTYPE_* of the engine's field; 0: as the rows are stored, u8 or u16 */
} moor_delivery;

/* 1 when a response's field is Moor's to fill: for who asked for it, in the engine's own way, or with record.always for everybody. */
int moor_deliver_wanted(int asked);
/* record.deliver as configured: what goes into the field. moor_deliver_array or moor_deliver_ref. */
PyObject *moor_deliver_field(const moor_delivery *delivery);
/* record.deliver = native: numpy array [rows - start, model layers, top_k], dense layers 0 (the layout of the engines'
 * fields). New reference, or NULL with a Python error: missing rows are an error, never zeros. */
PyObject *moor_deliver_array(const moor_delivery *delivery);
/* record.deliver = ref: "moor1:…" str, of MOOR_REF_BYTES at most with its end: 64 pipeline stages. */
enum { MOOR_REF_BYTES = 8192 };
PyObject *moor_deliver_ref(const moor_delivery *delivery);

/* In an event loop nothing may wait for a store, which can be slow, hung or gone. There a note takes the field's place, and the join point of
 * the asynchronous generator by which the response leaves awaits what it stands for: a thread delivers. */

/* encode: an array as the text of its base64. New reference. */
PyObject *moor_deliver_later(const moor_delivery *delivery, int encode);
/* For an item callback to return: settles the notes of what the item has, an object with a "routed_experts" (an attribute or a dict's key)
 * or a list of such. A field that cannot be delivered is None, or no key. */
int moor_deliver_settle(moor_jp_call *call, PyObject *one_or_list);

#endif
