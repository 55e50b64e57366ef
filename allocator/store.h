/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h — the record store: what the worker that owns an arena keeps of its requests, and how others reach it.
 *
 * Three callers:
 *  - the recorder thread (hooks/record.c): moor_records_step_*, capture, kv_*, request_*. One thread at a time.
 *  - the store server (plugin/server.c): drain, open, lease, event, expire, wait. Any thread.
 *  - lease/unlease: any thread, lock-free.
 * Owns the region, the arena, all row blocks, records, ids and the KV-slot index. `lock` (one mutex) protects all metadata;
 * capture never takes it, step_begin/commit take it for microseconds; nothing is called out while it is held, and row memory
 * is given back to the kernel after it was let go.
 *
 * A request's rows: [0, accepted) are decided for ever (present or missing); [accepted, end) are speculative rows that a later
 * step's start or the seal decides; rows of the step in flight are nowhere but in the step.
 * A handle is generation:32 | index:32. Sealed = finalised exactly once. Memory of a record goes when it is dead
 * (its owner released it), sealed, not in a step, and no lease is left.
 */
#ifndef MOOR_STORE_H
#define MOOR_STORE_H

#include <stddef.h>
#include <stdint.h>

#include <moor/moor.h>

#include "../abi/state.h"
#include "idhash.h"

typedef struct moor_records moor_records;

/* What the store tells when a record is finalised, or when a seal came for a request that was never recorded here. Called on the thread that finalised it, without any lock held. */
typedef struct moor_sealed_event {
    const moor_hash128 *ids; /* [n_ids] hashes of the core id, then of the aliases in the order they came */
    uint32_t n_ids, flags;   /* flags: MOOR_SEAL_* */
    uint64_t rows, missing_rows;
    uint64_t epoch_first, epoch_last;
} moor_sealed_event;

typedef struct moor_records_config {
    uint64_t arena_bytes;
    uint32_t layers, top_k, num_experts, model_layers;
    const int32_t *layer_ids; /* copied */
    uint32_t max_step_tokens, max_requests;
    uint32_t kv_blocks, kv_block_size; /* 0, 0: no KV-slot index */
    uint32_t validate_at_seal, store_index;
    uint32_t stores;             /* of the instance, which a snapshot must fit; 0: not told */
    double keep_s;               /* ≤ 0: no limit in time */
    uint64_t keep_bytes;         /* 0: no limit in bytes */
    moor_state_seal_ring *seals; /* may be NULL */
    _Atomic uint64_t *counters;  /* [MOOR_COUNTERS_MAX], may be NULL: none counted */
    void (*sealed)(void *user, const moor_sealed_event *event); /* may be NULL */
    void *user;
} moor_records_config;

moor_status moor_records_create(const moor_records_config *config, moor_records **out);
void moor_records_destroy(moor_records *records); /* no other call may run; NULL is allowed */

/* ---- geometry, constant ---- */
uint32_t moor_records_row_bytes(const moor_records *records);
uint32_t moor_records_dtype(const moor_records *records);       /* MOOR_DTYPE_U8 or _U16 */
uint64_t moor_records_arena_bytes(const moor_records *records); /* size of the memfd, page-rounded */
/* A new read-only descriptor of the arena, MFD sealed, mode 0400: for SCM_RIGHTS. The caller closes it. */
moor_status moor_records_arena_fd(const moor_records *records, int *fd);

/* ---- recorder thread ---- */
/* `epoch`: the weight epoch whose weights this step runs with. An open step is abandoned first. */
moor_status moor_records_step_begin(moor_records *records, const moor_step_request *requests, uint32_t n,
                                    uint64_t epoch);
/* Rows of layer column `column` for all tokens of the step, in batch order. data points at the first local token. No lock, no
 * syscall, no allocation. MOOR_E_STATE without a step or for a column captured twice; MOOR_E_INVALID/MOOR_E_RANGE name the numbers; after
 * any error of a column its rows of this step are missing. */
moor_status moor_records_capture(moor_records *records, uint32_t column, const moor_ids *ids);
/* The caller found the column's ids unusable, for a reason that is its own (`status`, returned): its rows of this step are missing. */
moor_status moor_records_capture_failed(moor_records *records, uint32_t column, moor_status status);
uint32_t moor_records_dtype_bytes(uint32_t dtype);              /* of MOOR_DTYPE_*; 0: no such dtype */
uint32_t moor_records_step_tokens(const moor_records *records); /* of the open step; 0 without one */
moor_status moor_records_step_commit(moor_records *records, const uint32_t *accepted, uint32_t n);
moor_status moor_records_step_abandon(moor_records *records); /* no open step: MOOR_OK */
moor_status moor_records_kv_handed_out(moor_records *records, const int32_t *blocks, uint32_t n);
moor_status moor_records_kv_reset(moor_records *records);
/* The worker's notice; the fallback for a seal that was lost. An id that is not (or no longer) known: MOOR_OK, nothing to do. */
moor_status moor_records_finished(moor_records *records, const char *id, uint32_t id_len);

/* ---- any thread ---- */
/* Must follow the step that first names a reused id; an id that is not known yet gets its record here. */
moor_status moor_records_alias(moor_records *records, const char *id, uint32_t id_len, const char *alias,
                               uint32_t alias_len, uint32_t index);
moor_status moor_records_fill(moor_records *records, const char *id, uint32_t id_len, uint64_t start,
                              const moor_ids *ids, uint64_t rows, uint64_t epoch);
moor_status moor_records_truncate(moor_records *records, const char *id, uint32_t id_len, uint64_t rows,
                                  uint64_t min_rows);

/* Seals the newest unsealed record of the id; none → MOOR_E_NOT_FOUND (nothing remembered); sealed already → MOOR_OK, no-op. */
moor_status moor_records_seal(moor_records *records, moor_hash128 id, uint64_t rows_expected, uint32_t flags);
/* Takes everything published from the seal ring; returns how many seals it took. Cheap when there is none: two loads. */
uint32_t moor_records_drain(moor_records *records);
/* Producer side of the ring: lock-free, no syscall, any process. A full ring: MOOR_E_FULL and ring->lost. */
moor_status moor_seal_push(moor_state_seal_ring *ring, moor_hash128 id, moor_hash128 alias, uint64_t rows_expected,
                           uint32_t flags);

/* Lock-free. MOOR_E_STALE when the record was freed (also while its memory lives on for older leases). */
moor_status moor_records_lease(moor_records *records, moor_handle handle);
moor_status moor_records_unlease(moor_records *records, moor_handle handle);

moor_status moor_records_find(moor_records *records, const char *id, uint32_t id_len,
                              moor_handle *out); /* one, or AMBIGUOUS */
moor_status moor_records_claim(moor_records *records, moor_handle handle, uint32_t owner);
/* The policy function (policy.h) decides. A freed record: MOOR_E_STALE, nothing done. */
moor_status moor_records_event(moor_records *records, moor_handle handle, uint32_t event);

/* ---- server ---- */

typedef struct moor_view_segment {
    uint64_t start, rows;
    uint64_t offset;  /* of the first row in the arena; 0 when missing */
    uint32_t present; /* 0: missing */
    uint32_t reasons; /* MOOR_REASON_* of a missing range */
} moor_view_segment;

typedef struct moor_view_version {
    uint64_t start, epoch; /* epoch 0: rows whose origin is unknown (a missing prefix) */
} moor_view_version;

/* A record as it was when it was opened. One allocation, freed with moor_view_free. Holds one lease of `client`. */
typedef struct moor_view {
    moor_handle handle;
    uint64_t rows, missing_rows, dropped_rows;
    uint32_t owner, reasons, index /* alias index under the id asked for */, sealed;
    uint32_t n_segments, n_versions, id_len, session_len;
    const moor_view_segment *segments; /* together exactly rows 0…rows-1, in order */
    const moor_view_version *versions;
    const char *id, *session; /* the core's full id; its session's, "" when none; both NUL terminated */
} moor_view;

enum { MOOR_CLIENT_NONE = 0 }; /* leases that no client owns: the in-process ones */

/* Opens what `id` means, without waiting. MOOR_E_TIMEOUT: there, but not sealed yet (or, with MOOR_OPEN_PREFIX, fewer than
 * `rows` rows); MOOR_E_NOT_FOUND: no such id so far — a caller with time left waits on in both cases;
 * MOOR_E_AMBIGUOUS: the text lists the full ids in index order. Drains the ring first. */
moor_status moor_records_open(moor_records *records, uint64_t client, const char *id, uint32_t id_len, uint32_t flags,
                              uint64_t rows, moor_view **out);
/* All records of an id in index order; all of them must be sealed. *out: malloc'ed array, freed with moor_views_free. */
moor_status moor_records_open_all(moor_records *records, uint64_t client, const char *id, uint32_t id_len,
                                  moor_view ***out, uint32_t *n);
moor_status moor_records_open_handle(moor_records *records, uint64_t client, moor_handle handle, moor_view **out);
void moor_view_free(moor_view *view); /* the memory only, not the lease */
void moor_views_free(moor_view **views, uint32_t n);
/* Ends one lease that `client` holds. MOOR_E_STATE when it holds none of this handle. */
moor_status moor_records_close(moor_records *records, uint64_t client, moor_handle handle);
/* Ends every lease of the client and releases the sessions that end with it; returns how many leases. client must not be MOOR_CLIENT_NONE. */
uint32_t moor_records_disconnect(moor_records *records, uint64_t client);

/* Becomes readable when a record is sealed, created or gains rows, while somebody waits (`wait` +1/-1 around the wait; after +1
 * look once more before sleeping). Seals on the ring make no noise: while it waits, a server looks at the ring itself (drain)
 * every millisecond or so. Owned by the store; read it empty with moor_records_notified. */
int moor_records_notify_fd(const moor_records *records);
void moor_records_wait(moor_records *records, int delta);
void moor_records_notified(moor_records *records);

/* The keep policy: frees sealed records that nobody leases, no trace store owns, and that are older than keep_s since the
 * seal or last close, oldest first while they are more than keep_bytes; and lets the arena return idle memory. Now in
 * moor_now_ns() time. Returns how many records went. Call it every second or so from a thread that may make syscalls. */
uint32_t moor_records_expire(moor_records *records, uint64_t now_ns);

typedef struct moor_records_stats {
    uint64_t records, sealed, leases, clients; /* records: live ones, dead but leased ones included; leases: all */
    uint64_t blocks, live_bytes;               /* row blocks and what they take of the arena */
    uint64_t arena_bytes, resident_bytes;      /* size, and pages the memfd has now */
    uint64_t kv_entries;                       /* valid ones */
    uint64_t seals_unknown;                    /* seals for an id that was never recorded here */
    uint64_t seals_repeated;                   /* of a record that was sealed already */
    uint64_t seals_torn;                       /* ring entries whose producer died or lost its place */
    uint64_t arena_full, clients_leases;
    uint64_t sessions, sessions_gone, session_keys; /* gone: released ids, which are kept */
} moor_records_stats;
void moor_records_stats_get(moor_records *records, moor_records_stats *out);

#endif
