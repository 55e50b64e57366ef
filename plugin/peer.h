/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h — one consumer's connection as the store's server sees it: bytes in, replies out, opens that wait. No sockets
 * here (plugin/server.c has them), so that the fuzzer drives exactly the code that a stranger's bytes reach.
 *
 * Called by the server thread only; no lock. Owns the input buffer, the queue of replies (and the descriptors that go with
 * them) and the waiting opens. Its leases in the store are held under the id `client` and end with moor_peer_destroy.
 */
#ifndef MOOR_PEER_H
#define MOOR_PEER_H

#include "../abi/wire.h"
#include "../hooks/record.h"
#include "saver.h"

typedef struct moor_peer moor_peer;

/* What all connections of a store have in common; the store's owner keeps it while there are any. */
typedef struct moor_peer_home {
    moor_store *store;
    uint32_t nonce; /* of the store's life */
    uint32_t layers, top_k, num_experts, model_layers;
    const int32_t *layer_ids; /* [layers] */
    moor_saver *saver;        /* NULL: snapshots are not to be had here */
} moor_peer_home;

typedef struct moor_peer_reply {
    struct moor_peer_reply *next;
    int fd; /* -1: none; sent with the first byte, then closed by the queue */
    uint32_t length, sent;
    unsigned char data[];
} moor_peer_reply;

enum {
    MOOR_PEER_MAX_WAITING = 4096, /* opens that wait, of one connection; more → MOOR_E_FULL */
    MOOR_PEER_MAX_QUEUED =
        1 << 20 /* bytes of replies not yet taken; beyond it the server stops reading from this client */
};

/* client: a number that no other connection of the store's life has; not MOOR_CLIENT_NONE. */
moor_status moor_peer_create(const moor_peer_home *home, uint64_t client, moor_peer **out);
void moor_peer_destroy(moor_peer *peer);

/* Takes n bytes of the stream. Anything but MOOR_OK: the connection must be closed once the queued replies are sent. */
moor_status moor_peer_input(moor_peer *peer, const void *data, size_t n, uint64_t now_ns);
/* 1: a request waits for memory for its answer. Until it is taken (an input of no bytes tries again) no more should be read. */
int moor_peer_starved(const moor_peer *peer);
int moor_peer_greeted(const moor_peer *peer); /* the first message was a good HELLO */

/* Opens that wait. retry answers those that can be answered now or whose deadline passed; `all` 0 looks at deadlines only. */
uint32_t moor_peer_waiting(const moor_peer *peer);
uint64_t moor_peer_next_deadline(const moor_peer *peer); /* UINT64_MAX when none waits */
void moor_peer_retry(moor_peer *peer, uint64_t now_ns, int all);

/* Whose leases these are. */
uint64_t moor_peer_client(const moor_peer *peer);
/* The snapshot that this client asked for is there, or not. */
void moor_peer_saved(moor_peer *peer, const moor_saved *saved);

/* The queue: its first reply (NULL when empty), and taking n bytes of it off. */
moor_peer_reply *moor_peer_first(moor_peer *peer);
void moor_peer_sent(moor_peer *peer, size_t n);
size_t moor_peer_queued(const moor_peer *peer);
/* Queues an error with which the connection ends, before any request: who may not connect is told why. */
void moor_peer_refuse(moor_peer *peer, moor_status status, const char *text);

#endif
