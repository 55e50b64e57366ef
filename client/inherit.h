/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inherit.h — what a forked child has of a connection: the leases of the records that were open, and nothing else.
 *
 * A store ends leases with their connection, and a connection ends with its last descriptor, in whatever process that is. So the child of
 * a fork keeps the descriptor of each connection over which records are open, touches it in no other way, and closes it with the last of
 * them; killed, the kernel does it. In the parent such a connection is *handed on*: no lease of it ends by itself any more, new
 * records are opened over another one, and it is closed with the last record, too. All other descriptors are closed in the child, which
 * would keep the connection, and with it sessions, alive after its owner was killed. None of this costs fork() a system call or an answer.
 *
 * Called by connection.c. A node lies in its connection and is listed as long as that lives; the list has a mutex, which is held across fork().
 */
#ifndef MOOR_INHERIT_H
#define MOOR_INHERIT_H

#include <stdatomic.h>
#include <sys/types.h>

#include "../allocator/error.h"

typedef struct moor_inherit {
    struct moor_inherit *next, **place;
    _Atomic int fd;          /* the socket; -1: none */
    _Atomic pid_t reader;    /* the process in which the leases hold: who opened, or a child that has them too */
    _Atomic uint32_t leases; /* records that are open over it, and that a child would have too */
    _Atomic int handed_on;
    int at_fork; /* between prepare and child: it is */
} moor_inherit;

moor_status moor_inherit_begin(moor_inherit *node); /* zeroed */
/* A new unconnected Unix socket becomes its descriptor; -1 with errno. No fork sees it without its node. */
int moor_inherit_socket(moor_inherit *node);
void moor_inherit_close(moor_inherit *node); /* the descriptor, in the process that calls */
void moor_inherit_end(moor_inherit *node);   /* that, and the node */

/* 1 when the leases that were taken over it hold in this process. */
int moor_inherit_reads(const moor_inherit *node);

#endif
