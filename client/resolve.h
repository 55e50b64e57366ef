/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve.h — opens a record by its ref (record.h, moor_record_ref), attaching by itself. Called by hosts through the ABI.
 * Owns a cache of clients, one an instance, protected by a mutex that is not held while attaching or calling; a client whose
 * server is gone is replaced. A forked child starts with an empty cache.
 */
#ifndef MOOR_RESOLVE_H
#define MOOR_RESOLVE_H

#include <moor/moor.h>

#include "../allocator/error.h"

typedef struct moor_ref {
    char host[256], instance[64];
    uint32_t store_index, nonce, dtype, layers, top_k;
    uint64_t handle, rows;
} moor_ref;

/* MOOR_E_INVALID with the text when it is none. */
moor_status moor_ref_parse(const char *ref, size_t ref_len, moor_ref *out);
moor_status moor_resolve(const char *ref, size_t ref_len, double timeout, moor_record **out);

#endif
