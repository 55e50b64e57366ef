/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve.h — opens the rows that a ref (ref.h) names, attaching by itself. Called by hosts through the ABI.
 * Owns a cache of clients, one an instance, protected by a mutex that is not held while attaching or calling; a client whose
 * server is gone is replaced. A forked child starts with an empty cache.
 */
#ifndef MOOR_RESOLVE_H
#define MOOR_RESOLVE_H

#include <moor/moor.h>

#include "../allocator/error.h"

moor_status moor_resolve(const char *ref, size_t ref_len, double timeout, moor_record **out);

#endif
