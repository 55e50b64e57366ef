/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_reply.h — the payloads of a store's replies. Called by plugin/peer.c, on the server thread. Pure functions of what
 * they are given: they append to a buffer, and own and lock nothing.
 */
#ifndef MOOR_PEER_REPLY_H
#define MOOR_PEER_REPLY_H

#include "../client/wire.h"
#include "peer.h"

void moor_peer_put_welcome(moor_wire_buffer *payload, const moor_peer_home *home);
void moor_peer_put_views(moor_wire_buffer *payload, moor_view *const *views, uint32_t n, moor_state *state);
/* A JSON object. */
void moor_peer_put_stats(moor_wire_buffer *payload, const moor_store *store);

#endif
