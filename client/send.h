/* SPDX-License-Identifier: Apache-2.0 */
/* send.h — a request's way over the socket: its frames, and waiting until there is room. Called by connection.c; owns nothing. */
#ifndef MOOR_SEND_H
#define MOOR_SEND_H

#include <stddef.h>

#include "wire.h"

enum { MOOR_SEND_PIECE = MOOR_WIRE_LIMIT - sizeof(moor_wire_header) }; /* payload of one message */

/* How far it came. GONE: the other side is (and may have said why before it went); STUCK: in the middle, or at the deadline; UNSENT: the caller
 * was interrupted before a byte of it; NO_MEMORY: nor was there any for it. */
enum moor_sent { MOOR_SENT, MOOR_UNSENT, MOOR_STUCK, MOOR_GONE, MOOR_NO_MEMORY };

enum moor_sent moor_send_request(int fd, const moor_wire_header *header, const void *head, size_t head_n,
                                 const void *tail, size_t tail_n, uint64_t deadline_ns);
/* One poll. 0: nothing until the deadline. */
int moor_send_wait(int fd, short events, uint64_t deadline_ns);

#endif
