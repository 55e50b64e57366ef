/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.h — what a consumer sees of a record: a snapshot of its segments, with a lease.
 *
 * The open functions are in store.h; called by the store server. A view is one malloc'ed piece that belongs to the caller; it stays as
 * it is while the record goes on, and its row memory stays while the lease does.
 */
#ifndef MOOR_VIEW_H
#define MOOR_VIEW_H

#include "records.h"

/* A view of rows 0…rows-1, without a lease. NULL: no memory. Under the lock. */
moor_view *moor_view_make(const moor_records *records, const moor_record_slot *record, uint64_t rows);
/* The same with a lease of the client. Under the lock. moor_view_close takes that back. */
moor_status moor_view_open(moor_records *records, uint64_t client, moor_record_slot *record, uint32_t index,
                           uint64_t rows, moor_view **out);
void moor_view_close(moor_records *records, uint64_t client, moor_handle handle);

#endif
