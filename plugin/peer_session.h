/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_session.h — a consumer's requests about sessions: read from the wire, done by the store, answered.
 *
 * Called by plugin/peer.c on the server thread. Owns nothing between calls, no lock of its own. Lengths that do not add up are
 * MOOR_E_CORRUPT and end the connection; everything else is the store's answer.
 */
#ifndef MOOR_PEER_SESSION_H
#define MOOR_PEER_SESSION_H

#include "../allocator/trace.h"
#include "../client/wire.h"
#include "peer.h"

static inline int moor_peer_is_session(uint16_t type)
{
    return type >= MOOR_WIRE_SESSION_START && type <= MOOR_WIRE_SESSION_ROLLBACK;
}

/* Does one request. The reply's payload is appended; *trace: what was exported, whose leases are the client's and end with
 * moor_trace_close if the reply cannot be sent (NULL otherwise). */
moor_status moor_peer_session(const moor_peer_home *home, uint64_t client, uint16_t type, moor_wire_reader *reader,
                              moor_wire_buffer *payload, moor_trace **trace);
void moor_peer_trace_free(moor_trace *trace); /* with its views */

#endif
