/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h — reading and writing the messages of abi/wire.h: bounds-checked pieces, growing buffers, frames. Called by both
 * ends (client/connection.c, plugin/peer.c). Makes no system call but moor_wire_large_*, owns only what it returns, no lock.
 */
#ifndef MOOR_CLIENT_WIRE_H
#define MOOR_CLIENT_WIRE_H

#include <stddef.h>

#include "../abi/wire.h"
#include "../allocator/error.h"

typedef struct moor_wire_reader {
    const unsigned char *at;
    size_t left;
} moor_wire_reader;

/* The next n bytes, or NULL when there are fewer. */
const void *moor_wire_take(moor_wire_reader *reader, size_t n);
/* Copies the next n bytes; 0 when there are fewer. */
int moor_wire_get(moor_wire_reader *reader, void *out, size_t n);

typedef struct moor_wire_buffer {
    unsigned char *data;
    size_t used, room;
    int failed; /* no memory: everything after it is a no-op */
} moor_wire_buffer;

void moor_wire_put(moor_wire_buffer *buffer, const void *data, size_t n);
void moor_wire_pad(moor_wire_buffer *buffer); /* zeros up to a multiple of 8 */
void moor_wire_buffer_free(moor_wire_buffer *buffer);

/* Looks at the first n bytes of a stream. 1: a whole message, *header filled; 0: more bytes are needed; -1: malformed. */
int moor_wire_frame(const void *data, size_t n, moor_wire_header *header);

/* A memfd with the payload of a large reply, and its contents on the other side (malloc'ed; checked against a bound). */
moor_status moor_wire_large_make(const void *data, size_t n, int *fd);
moor_status moor_wire_large_read(int fd, uint64_t length, void **out);

#endif
