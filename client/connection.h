/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection.h — one connection to one store: greeting, the mapped arena, and calls by any number of threads at a time.
 *
 * Called by client.c and record.c. A call registers itself under its tag, sends its message, and waits; one of the waiting
 * threads at a time is the reader and hands every reply to its call. The right to read and the right to write are
 * handed over under a mutex, but no lock is held during a socket call. Every call has a deadline; a store that does not keep
 * it has its connection given up: no further call is made over it, but the socket stays, because the leases of the records that were opened
 * over it hang on it. So has one that sends what it should not, or what this process has no descriptor for.
 * Counted: its owner, every user and every record hold it. The mapping lives as long as the object, and so does the socket until the
 * connection is found dead. A forked child has the leases of the records that were open (inherit.h); nothing else works there
 * (MOOR_E_FORKED), and nothing else is freed.
 */
#ifndef MOOR_CONNECTION_H
#define MOOR_CONNECTION_H

#include <stddef.h>
#include <sys/types.h>

#include "../abi/wire.h"
#include "../allocator/error.h"

enum { MOOR_CLIENT_STORES = 64 }; /* of an instance */

typedef struct moor_connection moor_connection;

typedef struct moor_shape { /* of a store's rows; layer_ids lives as long as the connection */
    uint32_t store_index, layers, top_k, num_experts, model_layers, dtype, row_bytes, nonce;
    uint32_t stages; /* of the pipeline that it is one of (stages.h); without one 1 */
    const int32_t *layer_ids;
    const unsigned char *arena; /* read-only mapping */
    uint64_t arena_bytes;
    char instance[64];
} moor_shape;

/* MOOR_E_CLOSED: nobody listens (the store's process is gone, or only about to come). MOOR_E_TIMEOUT: it did not answer; *out is a hung
 * connection, the caller's. */
moor_status moor_connection_open(const char *dir, const char *instance, uint32_t store_index, uint64_t deadline_ns,
                                 moor_connection **out);
/* The same for a store whose files were removed: by the name that it has without them (allocator/dirs.h). */
moor_status moor_connection_open_without_file(int dir_fd, const char *dir, const char *instance, uint32_t store_index,
                                              uint64_t deadline_ns, moor_connection **out);
void moor_connection_disown(moor_connection *connection); /* what open gave */
/* One that is handed on to a forked child is closed with its last user, whether or not its owner looks again. */
moor_connection *moor_connection_retain(moor_connection *connection);
void moor_connection_release(moor_connection *connection);
/* 1: nothing new shall be done over it. It is dead, or handed on (calls still work then, but a lease would not end by itself). */
int moor_connection_spent(moor_connection *connection);
int moor_connection_handed_on(const moor_connection *connection);
/* 1 when it was given up because the store did not answer in time. */
int moor_connection_hung(moor_connection *connection);
/* Of a hung one: 1 once something came from the store after all, or it is gone, so that it is worth another look. Does not wait. */
int moor_connection_stirs(moor_connection *connection);
/* Asks the socket whether the store has closed it, and makes it dead then. Does not wait. */
void moor_connection_look(moor_connection *connection);
pid_t moor_connection_pid(const moor_connection *connection);
const moor_shape *moor_connection_shape(const moor_connection *connection);

/* Sends one request (two parts, either may be empty; in several messages where it may be that large) and waits for its reply. On MOOR_OK the payload is malloc'ed and the
 * caller's. The store's own error is returned as it is, with its text. */
moor_status moor_connection_call(moor_connection *connection, uint16_t type, const void *head, size_t head_n,
                                 const void *tail, size_t tail_n, uint64_t deadline_ns, void **payload, size_t *n);
/* RELEASE: no reply. */
void moor_connection_post_release(moor_connection *connection, uint64_t handle);

/* A record that forked children have, too: a user from lease to unlease, which ends the lease at the store, in whichever process is the last. */
void moor_connection_lease(moor_connection *connection);
void moor_connection_unlease(moor_connection *connection, uint64_t handle);
void moor_connection_make_private(
    moor_connection *connection); /* the lease: no child shall have it; the record stays a user */
/* 1 when the leases hold in this process. */
int moor_connection_reads(const moor_connection *connection);

#endif
