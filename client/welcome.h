/* SPDX-License-Identifier: Apache-2.0 */
/* welcome.h — a store's answer to a greeting: checked, its arena mapped. Called by connection.c. */
#ifndef MOOR_WELCOME_H
#define MOOR_WELCOME_H

#include "connection.h"
#include "wire.h"

/* fd: the arena's, or -1; closed. *layer_ids is malloc'ed, shape->arena a mapping; both are the caller's, also after a failure. */
moor_status moor_welcome_take(moor_wire_reader reader, int fd, moor_shape *shape, int32_t **layer_ids);

#endif
