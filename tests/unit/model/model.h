/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h — what a record store must do, written a second time: a flat array of rows per record, a flat array of slots per KV block, a flat
 * array of keys per session, linear searches, no memory management, no locks. From SEMANTICS 1 to 3, not from allocator/.
 *
 * A row is known by its seed: who computed it, at which position, with which weights (world.h). The model cannot know what is
 * physical (where the arena is full, which allocation fails); check.c tells it those facts, and nothing else.
 */
#ifndef MOOR_TEST_MODEL_H
#define MOOR_TEST_MODEL_H

#include <stdint.h>

#include "abi/counters.h"
#include "allocator/store.h"

enum {
    M_NAMES = 10,   /* core ids "r0"… */
    M_ALIASES = 5,  /* "h0"…, the last one is also the core id "r0" */
    M_CLIENTS = 4,  /* 1…4; 0: leases that no client owns */
    M_ROWS = 768,   /* of one record at most */
    M_BATCH = 8,    /* requests of a step */
    M_TOKENS = 256, /* of a step */
    M_KV_BLOCKS = 96,
    M_KV_SIZE = 8, /* slots of a KV block at most */
    M_REQUEST_KV = M_KV_BLOCKS,
    M_RECORDS = 128,
    M_EVENTS = 64,
    M_SESSIONS = 4,
    M_NODES = 40,    /* of a session, "" among them */
    M_KEY = 24,      /* bytes of a key at most */
    M_SEGMENT = 256, /* tokens that a value brings at most */
    M_NONE = -1
};

typedef struct m_row {
    uint64_t seed, epoch; /* seed 0: missing */
    uint32_t reasons;
    uint8_t bad, foreign; /* an id is twice in a layer; it was delivered from outside */
} m_row;

typedef struct m_record {
    uint32_t used, name;
    uint64_t number; /* of its creation */
    moor_handle handle;
    uint64_t end, accepted, told; /* told: rows below were told to the KV index */
    uint32_t sealed, dead, in_step, pending, noticed, detached, opened, kept;
    uint32_t owner, pending_flags;
    uint64_t pending_rows, last_step, dropped, touched, kept_rows;
    uint64_t lost_until;
    uint32_t lost_reasons;
    uint32_t n_ids, ids[1 + M_ALIASES]; /* in the order they came, while not sealed: M_NAMES + alias, or name */
    int32_t alias[M_ALIASES];           /* its index, or -1 */
    uint32_t held[M_CLIENTS + 1];
    uint64_t held_since[M_CLIENTS + 1]; /* order of the first lease that is still held */
    int32_t session;                    /* whose it is, or M_NONE */
    uint32_t parked;                    /* a key held it and was overwritten: it stays until the session goes */
    uint64_t taken;                     /* order in which its session took it */
    uint32_t dirty;
    m_row *row; /* [M_ROWS] */
} m_record;

typedef struct m_node { /* a key of a session, with or without a value */
    uint32_t used, length;
    char key[M_KEY];
    int32_t parent; /* M_NONE: of "" */
    uint64_t came;  /* order in which keys came */
    /* Its value: tokens start…start+n-1 of a trace. */
    uint32_t valued, has_tokens;
    int32_t record; /* M_NONE: none */
    uint64_t start, n;
    int32_t token[M_SEGMENT];
} m_node;

typedef struct m_session {
    uint32_t state, client; /* MOOR_SESSION_*; client 0: it outlives every client */
    uint32_t dirty;
    m_node node[M_NODES]; /* [0]: "" */
} m_session;

typedef struct m_insert {
    moor_handle handle; /* 0: no record */
    uint64_t start, n;  /* MOOR_TRACE_BEHIND, MOOR_TRACE_ROWS */
    const int32_t *tokens;
    uint32_t n_tokens, create;
} m_insert;

typedef struct m_trace {
    uint32_t n; /* segments */
    const m_node *segment[M_NODES];
    uint64_t n_tokens, rows;
    uint32_t has_tokens;
    const m_record *of_row[M_ROWS]; /* whose row each one is */
} m_trace;

typedef struct m_kv {
    uint32_t n;
    m_row slot[M_KV_SIZE];
} m_kv;

typedef struct m_request {
    uint32_t name, count, spec, flags;
    uint64_t start;
    uint32_t n_kv;
    int32_t kv[M_REQUEST_KV];
    const m_row *rows; /* [count] what the tokens' rows are */
} m_request;

typedef struct m_entry {
    m_record *record;
    m_request request;
    uint32_t skip, lost; /* lost: last rows without room, a physical fact */
    uint64_t gap_from, gap_to;
    m_row rows[M_TOKENS];
} m_entry;

typedef struct m_event {
    uint32_t n_ids, ids[1 + M_ALIASES], flags; /* ids ≥ 1000: hashes unknown to the model */
    uint64_t rows, missing, first, last;
} m_event;

typedef struct m_seal {
    uint32_t name, alias, flags; /* alias M_ALIASES: none */
    uint64_t rows;
} m_seal;

typedef struct model {
    uint32_t layers, num_experts, row_bytes, validate, kv_size; /* kv_size 0: no index */
    uint32_t max_tokens;
    uint64_t keep_bytes;
    m_record record[M_RECORDS];
    m_kv kv[M_KV_BLOCKS];
    uint64_t created, touches, leases;
    uint32_t open, n, n_captured;
    uint64_t step, epoch, tokens;
    uint8_t captured[64];
    m_entry entry[M_BATCH];
    uint64_t errors;
    m_seal ring[64];
    uint32_t n_ring;
    uint64_t seals_unknown, seals_repeated;
    uint64_t count[MOOR_COUNTERS_COUNT];
    m_event event[M_EVENTS];
    uint32_t n_events;
    m_session session[M_SESSIONS];
    uint64_t came;
    uint32_t table_full; /* the model's own arrays are: the play ends */
} model;

int m_open(model *m); /* m is zeroed but for its configuration; 0: no memory */
void m_close(model *m);
uint32_t m_leases(const m_record *record);
uint64_t m_missing(const m_record *record);
m_record *m_by_handle(model *m, moor_handle handle); /* live or dead, not reclaimed; NULL */

m_record *m_by_name(model *m, uint32_t name); /* the newest one under the core id; NULL */

moor_status m_begin(model *m, const m_request *requests, uint32_t n, uint64_t epoch);
moor_status m_capture(model *m, uint32_t column); /* a good one */
void m_capture_bad(model *m, uint32_t column, int refused_again);
moor_status m_commit(model *m, const uint32_t *accepted, uint32_t n);
void m_abandon(model *m);
void m_handed_out(model *m, const int32_t *blocks, uint32_t n);
void m_kv_reset(model *m);
void m_finished(model *m, uint32_t name);
void m_alias(model *m, uint32_t name, uint32_t alias, uint32_t index);
moor_status m_fill(model *m, uint32_t name, uint64_t start, const m_row *rows, uint64_t n);
moor_status m_truncate(model *m, uint32_t id, uint64_t rows, uint64_t least);
moor_status m_seal_now(model *m, uint32_t name, uint32_t alias, uint64_t rows, uint32_t flags);
void m_push(model *m, uint32_t name, uint32_t alias, uint64_t rows, uint32_t flags);
uint32_t m_drain(model *m);
/* ids: a name, or M_NAMES + alias. Live records in order; returns how many. */
uint32_t m_look_up(model *m, uint32_t id, m_record **out, uint32_t *index);
moor_status m_find(model *m, uint32_t id, m_record **out);
/* What open says, without the lease. */
moor_status m_open_one(model *m, uint32_t id, uint32_t flags, uint64_t rows, m_record **out, uint64_t *shown);
moor_status m_open_all(model *m, uint32_t id, m_record **out, uint32_t *n);
moor_status m_open_handle(model *m, moor_handle handle, m_record **out);
void m_lease(model *m, m_record *record, uint32_t client, int opened);
void m_unlease(model *m, m_record *record, uint32_t client);
uint32_t m_disconnect(model *m, uint32_t client);
moor_status m_claim(model *m, moor_handle handle, uint32_t owner);
moor_status m_policy_event(model *m, moor_handle handle, uint32_t event);
uint32_t m_expire(model *m, int all);

/* ---- sessions (model_sessions.c); `s` is one of m->session ---- */
/* The nodes depth first, siblings in the order they came; parents before what hangs on them, or behind. Returns how many. */
uint32_t m_keys(const m_session *s, int children_first, int32_t order[M_NODES]);
uint32_t m_values(const m_session *s);
m_node *m_node_of(m_session *s, const char *key, uint32_t length); /* NULL: no such key, or without a value */
m_node *m_nearest(m_session *s, const char *key,
                  uint32_t length); /* whose value an insert of the key would follow; NULL */
void m_session_start(model *m, m_session *s, uint32_t client);
moor_status m_session_release(model *m, m_session *s);
void m_sessions_disconnect(model *m, uint32_t client);
moor_status m_session_insert(model *m, m_session *s, uint32_t client, const char *key, uint32_t length,
                             const m_insert *in);
moor_status m_session_release_key(model *m, m_session *s, const char *key, uint32_t length);
moor_status m_session_search(m_session *s, const char *text, uint32_t length, m_node **out);
moor_status m_session_export(const model *m, m_session *s, const char *key, uint32_t length, m_trace *out);
moor_status m_session_rollback(model *m, m_session *s, const char *key, uint32_t length, const int32_t *tokens,
                               uint64_t n_tokens, uint64_t least, uint64_t *kept, uint32_t *key_len);
/* What a cut of the record does to the values that hold it. */
moor_status m_may_cut(model *m, const m_record *r, uint64_t rows);
void m_cut_values(model *m, const m_record *r, uint64_t rows);

/* ---- snapshots (model_snapshot.c) ---- */
moor_status m_save(model *m); /* may it be saved now? */
/* `to` was opened: it becomes what a new store has that `from`, at rest, was saved from. */
void m_restore(model *to, const model *from);

#endif
