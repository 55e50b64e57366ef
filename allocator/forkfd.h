/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forkfd.h — descriptors that a forked child must not keep: the ends of a store's connections. A child that inherited one
 * would keep the connection, and with it its leases, alive after the process that owns it was killed.
 *
 * Called by client/connection.c and plugin/server.c, from any thread. Owns a table of numbers, protected by a mutex that is
 * held across fork(); the child closes what it finds there.
 */
#ifndef MOOR_FORKFD_H
#define MOOR_FORKFD_H

#include "error.h"

/* From now on a forked child closes fd. On failure the fd is as it was. */
moor_status moor_forkfd_add(int fd);
/* Takes it off the table and closes it. Anything that was added is closed only by this, and only in the process that
 * added it: in a child the number may mean something else. */
void moor_forkfd_close(int fd);

#endif
