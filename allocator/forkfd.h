/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forkfd.h — sockets that a forked child must not keep: the server's. In a child that outlives the server one that listens would go
 * on taking connections that nobody serves, and one that was accepted would hide the server's death from its client.
 *
 * Called by plugin/address.c and plugin/server.c, from any thread. Owns a table of numbers, protected by a mutex that is
 * held across fork(); the child closes what it finds there. A socket is made under it, so that no fork sees one that is not in the table.
 */
#ifndef MOOR_FORKFD_H
#define MOOR_FORKFD_H

/* A new Unix stream socket, or the next connection of one that listens and does not block. Neither blocks. -1 with errno. */
int moor_forkfd_socket(void);
int moor_forkfd_accept(int listen_fd);
/* Takes it off the table and closes it. What was made here is closed only by this, and only in the process that made it: in a
 * child the number may mean something else. */
void moor_forkfd_close(int fd);

#endif
