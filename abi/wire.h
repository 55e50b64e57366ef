/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h — what travels over a store's socket, store-<n>.sock. Private to libmoor: both ends check the version in the
 * first message, and a mismatch is MOOR_E_VERSION with both numbers.
 *
 * A message is a header and a payload, together at most MOOR_WIRE_LIMIT bytes; everything is little-endian and naturally
 * aligned. The client sends requests with a tag of its choice; each but RELEASE gets exactly one reply with the same type
 * and tag, in any order (an open waits on the server's side). A reply's status is a moor_status; when it is not MOOR_OK, the payload is
 * the error's text. A reply too large for a message carries MOOR_WIRE_IN_FD: its payload is a moor_wire_large, and the real
 * one lies in a memfd that comes with the message (SCM_RIGHTS). Nothing is believed before its length was checked; a
 * malformed message ends that connection and nothing else. The end of a connection ends its leases.
 */
#ifndef MOOR_WIRE_H
#define MOOR_WIRE_H

#include <stdint.h>

#define MOOR_WIRE_MAGIC 0x31575F4Du /* "M_W1" */
#define MOOR_WIRE_VERSION 1u

enum { MOOR_WIRE_LIMIT = 65536 };

enum {
    MOOR_WIRE_HELLO =
        1, /* moor_wire_hello → moor_wire_welcome, i32 layer_ids[layers]; the arena's descriptor comes along */
    MOOR_WIRE_OPEN = 2,        /* moor_wire_open, id → moor_wire_views with n = 1 */
    MOOR_WIRE_OPEN_ALL = 3,    /* moor_wire_open, id → moor_wire_views */
    MOOR_WIRE_OPEN_HANDLE = 4, /* moor_wire_handle → moor_wire_views with n = 1 */
    MOOR_WIRE_RELEASE = 5,     /* moor_wire_handle; no reply */
    MOOR_WIRE_EVENT = 6,       /* moor_wire_handle, value = MOOR_EVENT_* → empty */
    MOOR_WIRE_CLAIM = 7,       /* moor_wire_handle, value = MOOR_OWNER_* → empty */
    MOOR_WIRE_TRUNCATE = 8,    /* moor_wire_truncate, id → empty */
    MOOR_WIRE_STATS = 9,       /* empty → JSON text */
    /* All of these: moor_wire_session, i32 tokens[n_tokens], id, key. */
    MOOR_WIRE_SESSION_START = 10,  /* → empty */
    MOOR_WIRE_SESSION_STATE = 11,  /* → moor_wire_session_state */
    MOOR_WIRE_SESSION_INSERT = 12, /* → empty */
    MOOR_WIRE_SESSION_SEARCH = 13, /* → empty, or moor_wire_found, tokens, request id */
    MOOR_WIRE_SESSION_KEYS = 14,   /* → moor_wire_keys, `size` bytes of keys */
    MOOR_WIRE_SESSION_EXPORT =
        15, /* → moor_wire_trace, trace_segments, trace_parts, tokens, zeros up to a multiple of 8,
                                         then moor_wire_views with a view per part */
    MOOR_WIRE_SESSION_RELEASE = 16,  /* → empty */
    MOOR_WIRE_SESSION_ROLLBACK = 17, /* start = the fewest tokens that may be left → moor_wire_rollback */
    MOOR_WIRE_SAVE = 18 /* moor_wire_open (timeout_ns), directory → empty, once the snapshot is on the disk */
};
/* Header flags. MORE, in requests about sessions only: the payload goes on in the next message, of the same type and tag; no other
 * message comes between. Such a request has at most MOOR_WIRE_REQUEST_LIMIT bytes. */
enum { MOOR_WIRE_REPLY = 1, MOOR_WIRE_IN_FD = 2, MOOR_WIRE_MORE = 4 };
enum { MOOR_WIRE_REQUEST_LIMIT = 64 << 20 };

typedef struct moor_wire_header {
    uint32_t length; /* of the whole message, header included */
    uint16_t type, flags;
    uint32_t tag;
    int32_t status; /* of a reply; 0 in a request */
} moor_wire_header;

typedef struct moor_wire_hello { /* the first 8 bytes never change */
    uint32_t magic, version;
    uint32_t pid, reserved;
} moor_wire_hello;

typedef struct moor_wire_welcome {
    uint32_t version, store_index;
    uint32_t layers, top_k, num_experts, model_layers, dtype, row_bytes;
    uint64_t arena_bytes;
    uint32_t nonce;  /* random, of this store's life; part of every ref */
    uint32_t stages; /* of the pipeline that this store is one of; it is number store_index % stages */
} moor_wire_welcome;

typedef struct moor_wire_open {
    uint64_t timeout_ns, rows;
    uint32_t flags, id_len;
} moor_wire_open;

typedef struct moor_wire_truncate {
    uint64_t rows, min_rows;
    uint32_t id_len, reserved;
} moor_wire_truncate;

typedef struct moor_wire_handle {
    uint64_t handle;
    uint32_t value, reserved;
} moor_wire_handle;

typedef struct moor_wire_views {
    uint32_t n, reserved;
} moor_wire_views;

/* Followed by segments, versions, the id and the session id (each without NUL), and zeros up to a multiple of 8. */
typedef struct moor_wire_view {
    uint64_t handle, rows, missing_rows, dropped_rows;
    uint32_t owner, reasons, index, n_segments, n_versions, id_len, session_len, reserved;
} moor_wire_view;

typedef struct moor_wire_segment {
    uint64_t start, rows, offset; /* offset of the first row in the arena */
    uint32_t present, reasons;
} moor_wire_segment;

typedef struct moor_wire_version {
    uint64_t start, epoch;
    char label[64]; /* NUL terminated */
} moor_wire_version;

enum {                       /* flags of moor_wire_session, moor_wire_found and moor_wire_trace */
       MOOR_WIRE_TOKENS = 1, /* they are known */
       MOOR_WIRE_CREATE = 2, /* INSERT: starts a session of an id that was never used */
       MOOR_WIRE_KEEP = 4,   /* START: outlives the connection */
       MOOR_WIRE_ONE_KEY = 8 /* RELEASE: the key, not the session */
};

typedef struct moor_wire_session {
    uint64_t handle; /* 0: no record */
    uint64_t start, length;
    uint32_t id_len, key_len, n_tokens, flags;
} moor_wire_session;

typedef struct moor_wire_session_state {
    uint64_t values;
    uint32_t state, reserved; /* 0 never used, 1 live, 2 released */
} moor_wire_session_state;

typedef struct moor_wire_found {
    uint64_t handle, start, length;
    uint32_t key_len, n_tokens, request_len, flags;
} moor_wire_found;

/* Keys in order, each with what it shares with the one before it: u32 shared, u32 more, `more` bytes. */
typedef struct moor_wire_keys {
    uint64_t n, size;
} moor_wire_keys;

typedef struct moor_wire_trace {
    uint64_t n_tokens, rows;
    uint32_t n_segments, n_parts, flags, reserved;
} moor_wire_trace;

typedef struct moor_wire_trace_segment {
    uint64_t start, length, handle;
    uint32_t key_len, reserved;
} moor_wire_trace_segment;

typedef struct moor_wire_trace_part { /* rows from…to-1 are those of the view at the same place */
    uint64_t from, to;
} moor_wire_trace_part;

typedef struct moor_wire_rollback {
    uint64_t kept;
    uint32_t key_len, reserved;
} moor_wire_rollback;

typedef struct moor_wire_large {
    uint64_t length;
} moor_wire_large;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian and is read by memcpy");
_Static_assert(sizeof(moor_wire_header) == 16 && sizeof(moor_wire_hello) == 16 && sizeof(moor_wire_welcome) == 48 &&
                   sizeof(moor_wire_open) == 24 && sizeof(moor_wire_handle) == 16 && sizeof(moor_wire_views) == 8 &&
                   sizeof(moor_wire_view) == 64 && sizeof(moor_wire_segment) == 32 && sizeof(moor_wire_version) == 80 &&
                   sizeof(moor_wire_large) == 8 && sizeof(moor_wire_truncate) == 24 &&
                   sizeof(moor_wire_session) == 40 && sizeof(moor_wire_session_state) == 16 &&
                   sizeof(moor_wire_found) == 40 && sizeof(moor_wire_keys) == 16 && sizeof(moor_wire_trace) == 32 &&
                   sizeof(moor_wire_trace_segment) == 32 && sizeof(moor_wire_trace_part) == 16 &&
                   sizeof(moor_wire_rollback) == 16,
               "sizes on the wire");

#endif
