/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.h — where a store is reached: its socket file in the instance's directory, and, for when somebody has removed that, a name
 * in the abstract namespace (allocator/dirs.h). Called by plugin/server.c: made and closed by whoever opens the store, tended by the server's
 * thread with its keep policy. Owns both sockets and the file; no lock.
 *
 * Files that are in use can go all the same: `rm -rf` of the runtime directory when its user logs out, a cleaner that goes by age. Who is
 * attached goes on over the connections that there are, or over the second name. Nothing puts the directory back: the locks that say who
 * lives lie in a file that has no name any more, and a second one would say that nobody does.
 */
#ifndef MOOR_ADDRESS_H
#define MOOR_ADDRESS_H

#include "../allocator/dirs.h"
#include "../hooks/process.h"

typedef struct moor_address {
    const moor_process *process;
    uint32_t store_index;
    int fd, spare_fd; /* listening; spare_fd -1: the namespace has no place for us */
    int said;         /* that files are gone */
    uint64_t touch_ns;
    char path[MOOR_SOCKET_PATH_MAX + 1];
} moor_address;

/* MOOR_E_EXISTS: a live process serves this store. */
moor_status moor_address_open(moor_address *address, const moor_process *process, uint32_t store_index);
void moor_address_close(moor_address *address);

enum { MOOR_ADDRESS_TOUCH_S = 3600 };

/* A second's duty: says once that files are gone, puts the socket's back where the others are there, keeps all of them young. */
void moor_address_tend(moor_address *address, uint64_t now_ns);

#endif
