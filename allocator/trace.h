/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h — reading a session's trie, and cutting what it holds (SEMANTICS 3.3, 1.9, 1.10).
 *
 * Called by the store server (plugin/peer_session.c) and by fill.c for truncations, any thread. Takes the sessions' lock, and below it the
 * store's. What it gives is a copy of its own, one allocation each, freed with moor_trace_free.
 */
#ifndef MOOR_TRACE_H
#define MOOR_TRACE_H

#include "sessions.h"

typedef struct moor_trace_found { /* the longest key with a value that a text begins with */
    uint32_t key_len, n_tokens, request_len, has_tokens;
    uint64_t start, length;
    moor_handle handle; /* 0: no record */
    const int32_t *tokens;
    const char *request; /* the record's core id, "" without one */
} moor_trace_found;

/* Keys depth first, in the order of their insertion, each with what it shares with the one before: n times u32 shared, u32 more, then `more` bytes. */
typedef struct moor_trace_keys {
    uint64_t n, size;
    const uint8_t *data;
} moor_trace_keys;

/* Rows from…to-1 of the trace are rows from…to-1 of this record. */
typedef struct moor_trace_part {
    moor_view *view; /* leased */
    uint64_t from, to;
} moor_trace_part;

typedef struct moor_trace_segment {
    uint64_t start, length;
    uint32_t key_len, reserved;
    moor_handle handle;
} moor_trace_segment;

/* A trace from the root to a key: tokens 0…n_tokens-1, and rows 0…rows-1; the last token may have none. */
typedef struct moor_trace {
    uint32_t n_parts, n_segments;
    uint64_t n_tokens, rows;
    int has_tokens; /* every segment brought its own */
    moor_trace_part *parts;
    moor_trace_segment *segments;
    int32_t *tokens;
} moor_trace;

/* *out NULL: no key fits. */
moor_status moor_session_search(moor_records *records, const char *id, uint32_t id_len, const char *text,
                                uint32_t text_len, moor_trace_found **out);
moor_status moor_session_keys(moor_records *records, const char *id, uint32_t id_len, moor_trace_keys **out);
/* Leases each record for `client`. MOOR_E_INCOMPLETE names the hole: tokens that no segment has, rows that no record has. */
moor_status moor_session_export(moor_records *records, uint64_t client, const char *id, uint32_t id_len,
                                const char *key, uint32_t key_len, moor_trace **out);
void moor_trace_free(void *anything); /* of the above; not the leases */
/* Ends the leases of an export that reached nobody. */
void moor_trace_close(moor_records *records, uint64_t client, const moor_trace *trace);

typedef struct moor_rollback {
    uint64_t kept;    /* tokens that the trace still has */
    uint32_t key_len; /* of the key that it ends at now; 0: nothing is left */
    uint32_t reserved;
} moor_rollback;

/* A new turn's tokens against those of the trace down to `key`: from the first difference on, tokens and rows go, and segments that
 * begin there or later go with their keys. MOOR_E_RANGE: the difference is before min_tokens; MOOR_E_STATE: other keys hang on what
 * would go. Nothing has changed then. */
moor_status moor_session_rollback(moor_records *records, const char *id, uint32_t id_len, const char *key,
                                  uint32_t key_len, const int32_t *tokens, uint64_t n_tokens, uint64_t min_tokens,
                                  moor_rollback *out);

/* For moor_records_truncate: whether the record's values allow a cut to `rows`, and that cut of their tokens. Both locks are held. */
moor_status moor_trace_may_cut(struct moor_record_slot *record, uint64_t rows);
void moor_trace_cut(struct moor_record_slot *record, uint64_t rows, uint64_t rows_before);

#endif
