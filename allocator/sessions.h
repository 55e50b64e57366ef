/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sessions.h — sessions by id: a trace trie each, the records that it owns, and what is left of those that were released.
 *
 * Called by the store server (plugin/peer_session.c), any thread. Owns sessions, their tries and values; records belong to the store, and a
 * session's are its own in the sense of policy.h (owner trace_store). `lock` of moor_sessions protects all of it; it comes before the store's lock,
 * which is only taken for what records change, so that a step never waits for text to be compared. Reading functions that give more
 * than a number give one malloc'ed piece, freed with moor_trace_free.
 *
 * A session lives from its start (explicit, or its first insert) to its release, or to the end of the client that started it unless it
 * is to be kept. Then its id is GONE, for the store's life, until it is started explicitly. Nothing that reads makes one.
 */
#ifndef MOOR_SESSIONS_H
#define MOOR_SESSIONS_H

#include <pthread.h>

#include "sessiontable.h"
#include "store.h"
#include "trie.h"

struct moor_record_slot;
typedef struct moor_session moor_session;

/* What a key stands for: tokens start…start+length-1 of the trace, and the rows of `record` at these positions. */
typedef struct moor_trace_value {
    moor_session *session;
    moor_trie_node *node;
    struct moor_record_slot *record;          /* NULL: none */
    struct moor_trace_value *next, *previous; /* among the values that hold this record */
    uint64_t start, length;
    uint64_t room; /* tokens allocated; 0: tokens are not known */
    int32_t tokens[];
} moor_trace_value;

struct moor_session {
    moor_trie trie;
    struct moor_record_slot *first, *last; /* records that it owns, parked ones included */
    struct moor_session_owner *owner;      /* the client whose end is its end; NULL: it outlives it */
    moor_session *next, *previous;         /* of that owner */
    moor_hash128 hash;
    uint32_t id_len;
    char id[];
};

typedef struct moor_sessions {
    pthread_mutex_t lock;
    moor_session_table table;          /* released ids, too */
    struct moor_session_owner *owners; /* uthash by client */
    uint64_t live, gone, values;
} moor_sessions;

moor_status moor_sessions_open(moor_records *records);
void moor_sessions_close(moor_records *records); /* records live on, without a session */

/* ---- life ---- */

enum { MOOR_SESSION_ID_MAX = 1024 };
enum { MOOR_SESSION_NEVER = 0, MOOR_SESSION_LIVE = 1, MOOR_SESSION_GONE = 2 };

/* Starts a session, a released one anew; one that lives is left as it is. keep: it outlives `client`. */
moor_status moor_session_start(moor_records *records, uint64_t client, const char *id, uint32_t id_len, int keep);
/* MOOR_SESSION_*, and how many keys have a value. */
void moor_session_state(moor_records *records, const char *id, uint32_t id_len, uint32_t *state, uint64_t *values);
/* Frees everything of it, children before parents, each record once. A released one: MOOR_OK, nothing to do. */
moor_status moor_session_release(moor_records *records, const char *id, uint32_t id_len);
/* Releases the sessions that end with this client; returns how many. */
uint32_t moor_sessions_disconnect(moor_records *records, uint64_t client);

/* ---- values ---- */

#define MOOR_TRACE_BEHIND UINT64_MAX /* start: where the nearest key above ends */
#define MOOR_TRACE_ROWS UINT64_MAX   /* length: that of the tokens, or the record's rows from start on */

typedef struct moor_trace_in {
    moor_handle handle; /* 0: no record */
    uint64_t start, length;
    const int32_t *tokens; /* of this segment; NULL: not known */
    uint32_t n_tokens;
    int create; /* an id that was never used is started, for `client` */
} moor_trace_in;

/* The key's value is this one; of the one it had, only the record stays, until the session is released. The record must be sealed and no
 * other session's; it becomes trace_store's. MOOR_E_RANGE: the record is short of the segment by more than its last token. */
moor_status moor_session_insert(moor_records *records, uint64_t client, const char *id, uint32_t id_len,
                                const char *key, uint32_t key_len, const moor_trace_in *in);
/* Releases one key; its record is freed unless another key holds it. No such key: MOOR_OK. */
moor_status moor_session_release_key(moor_records *records, const char *id, uint32_t id_len, const char *key,
                                     uint32_t key_len);

/* ---- snapshots (snapsessions.c); under the sessions' lock and the store's ---- */

/* Every id that ever was a session's, in no order. session NULL: released. */
void moor_sessions_each(const moor_sessions *sessions,
                        void (*visit)(void *user, moor_hash128 hash, const moor_session *session), void *user);
/* A session that outlives every client; id NULL: a released one. MOOR_E_EXISTS: its hash is there. */
moor_status moor_session_restore(moor_sessions *sessions, moor_hash128 hash, const char *id, uint32_t id_len,
                                 moor_session **out);
/* The record is the session's from now on; parked: also without a key. */
void moor_session_restore_record(moor_session *session, struct moor_record_slot *record, int parked);
/* The value is the key's, and one of its record's places. It is taken over, also on failure. MOOR_E_EXISTS: the key has one. */
moor_status moor_session_restore_value(moor_sessions *sessions, moor_session *session, const char *key,
                                       uint32_t key_len, moor_trace_value *value);
/* As if there had never been one; records are left without a session. */
void moor_sessions_forget(moor_sessions *sessions);

/* ---- inside ---- */

/* The live session, or MOOR_E_NOT_FOUND, MOOR_E_GONE. Under the sessions' lock. */
moor_status moor_session_get(moor_sessions *sessions, const char *id, uint32_t id_len, moor_session **out);
/* The value is no trie's any more: frees it, and its record if that was its last place. Under the sessions' lock, not the store's. */
void moor_session_drop(moor_records *records, moor_trace_value *value);

#endif
