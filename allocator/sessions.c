/* SPDX-License-Identifier: Apache-2.0 */
#include "sessions.h"

#include <string.h>

#include "error.h"
#include "records.h"
#include "table.h"

typedef struct moor_session_owner {
    uint64_t client;
    moor_session *first;
    UT_hash_handle hh;
} moor_session_owner;

moor_status moor_sessions_open(moor_records *records)
{
    records->sessions = moor_heap_alloc(sizeof(*records->sessions));
    if (!records->sessions)
        return moor_fail(MOOR_E_NOMEM, "no memory for the table of sessions");
    pthread_mutex_init(&records->sessions->lock, NULL);
    return MOOR_OK;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

moor_status moor_session_get(moor_sessions *sessions, const char *id, uint32_t id_len, moor_session **out)
{
    const moor_session_slot *slot = moor_session_table_find(&sessions->table, moor_id_hash(id, id_len));
    if (!slot)
        return moor_fail(MOOR_E_NOT_FOUND, "no session %.*s", (int)id_len, id);
    if (!slot->session)
        return moor_fail(MOOR_E_GONE, "session %.*s was released; its id is used again only when it is started",
                         (int)id_len, id);
    *out = slot->session;
    return MOOR_OK;
}

static moor_session_owner *owner_for(moor_sessions *sessions, uint64_t client)
{
    moor_session_owner *owner = NULL;
    HASH_FIND(hh, sessions->owners, &client, sizeof(client), owner);
    if (owner)
        return owner;
    owner = moor_heap_alloc(sizeof(*owner));
    if (!owner)
        return NULL;
    owner->client = client;
    HASH_ADD(hh, sessions->owners, client, sizeof(owner->client), owner);
    if (!MOOR_TABLE_HAS(owner)) {
        moor_heap_free(owner);
        return NULL;
    }
    return owner;
}

static void leave_owner(moor_sessions *sessions, moor_session *session)
{
    moor_session_owner *owner = session->owner;
    if (!owner)
        return;
    *(session->previous ? &session->previous->next : &owner->first) = session->next;
    if (session->next)
        session->next->previous = session->previous;
    session->owner = NULL;
    if (owner->first)
        return;
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): uthash: what it takes for empty is not */
    HASH_DELETE(hh, sessions->owners, owner);
    moor_heap_free(owner);
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

/* *fresh: the id was never used. */
static moor_status start(moor_sessions *sessions, uint64_t client, const char *id, uint32_t id_len, moor_session **out,
                         int *fresh)
{
    moor_hash128 hash = moor_id_hash(id, id_len);
    moor_session_slot *slot = moor_session_table_find(&sessions->table, hash);
    moor_session *session = moor_heap_alloc(sizeof(*session) + id_len + 1);
    moor_session_owner *owner = session && client != MOOR_CLIENT_NONE ? owner_for(sessions, client) : NULL;
    *fresh = slot == NULL;
    if (session && !slot && (client == MOOR_CLIENT_NONE || owner))
        slot = moor_session_table_add(&sessions->table, hash);
    if (!session || !slot || (client != MOOR_CLIENT_NONE && !owner)) {
        if (owner && !owner->first) {
            HASH_DELETE(hh, sessions->owners, owner);
            moor_heap_free(owner);
        }
        moor_heap_free(session);
        return moor_fail(MOOR_E_NOMEM, "no memory for session %.*s", (int)id_len, id);
    }
    moor_trie_init(&session->trie);
    memcpy(session->id, id, id_len);
    session->id_len = id_len;
    session->hash = hash;
    slot->session = session;
    session->owner = owner;
    if (owner) {
        session->next = owner->first;
        if (owner->first)
            owner->first->previous = session;
        owner->first = session;
    }
    sessions->gone -= !*fresh;
    sessions->live++;
    *out = session;
    return MOOR_OK;
}

static void forget_value(void *user, void *value)
{
    (void)user;
    moor_heap_free(value);
}

/* It holds no record any more, or nobody asks. */
static void end(moor_sessions *sessions, moor_session *session)
{
    moor_trie_release_all(&session->trie, forget_value, NULL);
    leave_owner(sessions, session);
    moor_session_table_find(&sessions->table, session->hash)->session = NULL;
    sessions->live--;
    sessions->gone++;
    moor_heap_free(session);
}

/* It never was. */
static void undo_start(moor_sessions *sessions, moor_session *session)
{
    moor_hash128 hash = session->hash;
    end(sessions, session);
    moor_session_table_remove(&sessions->table, moor_session_table_find(&sessions->table, hash));
    sessions->gone--;
}

static moor_status check_id(const char *id, uint32_t id_len)
{
    if (!id || !id_len || id_len > MOOR_SESSION_ID_MAX)
        return moor_fail(MOOR_E_INVALID, "a session's id of %u bytes: 1 to %d are allowed", id ? id_len : 0,
                         MOOR_SESSION_ID_MAX);
    return MOOR_OK;
}

moor_status moor_session_start(moor_records *records, uint64_t client, const char *id, uint32_t id_len, int keep)
{
    moor_sessions *sessions = records->sessions;
    moor_session *session;
    int fresh;
    moor_status status = check_id(id, id_len);
    if (status)
        return status;
    pthread_mutex_lock(&sessions->lock);
    const moor_session_slot *slot = moor_session_table_find(&sessions->table, moor_id_hash(id, id_len));
    if (!slot || !slot->session)
        status = start(sessions, keep ? MOOR_CLIENT_NONE : client, id, id_len, &session, &fresh);
    pthread_mutex_unlock(&sessions->lock);
    return status;
}

void moor_session_state(moor_records *records, const char *id, uint32_t id_len, uint32_t *state, uint64_t *values)
{
    moor_sessions *sessions = records->sessions;
    pthread_mutex_lock(&sessions->lock);
    const moor_session_slot *slot = moor_session_table_find(&sessions->table, moor_id_hash(id, id_len));
    *state = !slot ? MOOR_SESSION_NEVER : slot->session ? MOOR_SESSION_LIVE : MOOR_SESSION_GONE;
    *values = slot && slot->session ? slot->session->trie.keys : 0;
    pthread_mutex_unlock(&sessions->lock);
}

/* ---- records of a session --------------------------------------------------------------------------------------- */

static void list_add(moor_session *session, moor_record_slot *record)
{
    record->session_next = NULL;
    record->session_previous = session->last;
    *(session->last ? &session->last->session_next : &session->first) = record;
    session->last = record;
}

static void list_remove(moor_session *session, moor_record_slot *record)
{
    *(record->session_previous ? &record->session_previous->session_next : &session->first) = record->session_next;
    *(record->session_next ? &record->session_next->session_previous : &session->last) = record->session_previous;
    record->session_next = record->session_previous = NULL;
}

/* Under the store's lock as well. */
static void free_record(moor_records *records, moor_record_slot *record)
{
    list_remove(record->session, record);
    record->session = NULL;
    (void)moor_record_apply(records, record, MOOR_EVENT_SESSION_RELEASED);
}

static void place_add(moor_trace_value *value)
{
    value->previous = NULL;
    value->next = value->record->places;
    if (value->next)
        value->next->previous = value;
    value->record->places = value;
}

static void place_remove(moor_trace_value *value)
{
    *(value->previous ? &value->previous->next : &value->record->places) = value->next;
    if (value->next)
        value->next->previous = value->previous;
}

void moor_session_drop(moor_records *records, moor_trace_value *value)
{
    moor_record_slot *record = value->record;
    if (record) {
        place_remove(value);
        if (!record->places && !record->parked_in_session) {
            moor_records_lock(records);
            free_record(records, record);
            moor_records_unlock(records);
        }
    }
    records->sessions->values--;
    moor_heap_free(value);
}

/* ---- release ---------------------------------------------------------------------------------------------------- */

typedef struct releasing {
    moor_records *records;
    moor_session *session;
} releasing;

/* A value goes. Its record, when that was its last place, moves behind the session's others: so they lie there in the order of release. */
static void release_value(void *user, void *in_trie)
{
    const releasing *r = user;
    moor_trace_value *value = in_trie;
    moor_record_slot *record = value->record;
    if (record) {
        place_remove(value);
        if (!record->places && !record->parked_in_session) {
            list_remove(r->session, record);
            list_add(r->session, record);
        }
    }
    r->records->sessions->values--;
    moor_heap_free(value);
}

static void release(moor_records *records, moor_session *session)
{
    releasing r = {records, session};
    moor_trie_release_all(&session->trie, release_value, &r);
    while (session->first) {
        moor_records_lock(records);
        for (int i = 0; i < MOOR_FREED_AT_ONCE && session->first; i++)
            free_record(records, session->first);
        moor_records_unlock(records);
    }
    end(records->sessions, session);
}

moor_status moor_session_release(moor_records *records, const char *id, uint32_t id_len)
{
    moor_sessions *sessions = records->sessions;
    moor_session *session;
    moor_status status = check_id(id, id_len);
    if (status)
        return status;
    pthread_mutex_lock(&sessions->lock);
    status = moor_session_get(sessions, id, id_len, &session);
    if (!status)
        release(records, session);
    pthread_mutex_unlock(&sessions->lock);
    return status == MOOR_E_GONE ? MOOR_OK : status;
}

moor_status moor_session_release_key(moor_records *records, const char *id, uint32_t id_len, const char *key,
                                     uint32_t key_len)
{
    moor_sessions *sessions = records->sessions;
    moor_session *session;
    pthread_mutex_lock(&sessions->lock);
    moor_status status = moor_session_get(sessions, id, id_len, &session);
    moor_trie_node *node = status ? NULL : moor_trie_find(&session->trie, key, key_len);
    if (node)
        moor_session_drop(records, moor_trie_release(&session->trie, node));
    pthread_mutex_unlock(&sessions->lock);
    return status;
}

uint32_t moor_sessions_disconnect(moor_records *records, uint64_t client)
{
    moor_sessions *sessions = records->sessions;
    uint32_t n = 0;
    pthread_mutex_lock(&sessions->lock);
    for (;;) {
        moor_session_owner *owner = NULL;
        HASH_FIND(hh, sessions->owners, &client, sizeof(client), owner);
        if (!owner)
            break;
        release(records, owner->first); /* the last one takes the owner along */
        n++;
    }
    pthread_mutex_unlock(&sessions->lock);
    return n;
}

void moor_sessions_forget(moor_sessions *sessions)
{
    sessions->values = 0;
    for (uint64_t i = 0; i < sessions->table.room; i++) {
        moor_session *session = sessions->table.slots[i].session;
        if (!session)
            continue;
        for (moor_record_slot *record = session->first; record; record = record->session_next) {
            record->session = NULL;
            record->places = NULL;
        }
        end(sessions, session);
    }
    moor_session_table_close(&sessions->table);
    sessions->gone = 0;
}

void moor_sessions_close(moor_records *records)
{
    moor_sessions *sessions = records->sessions;
    if (!sessions)
        return;
    moor_sessions_forget(sessions);
    pthread_mutex_destroy(&sessions->lock);
    moor_heap_free(sessions);
    records->sessions = NULL;
}

/* ---- insert ----------------------------------------------------------------------------------------------------- */

static moor_status check_insert(const char *id, uint32_t id_len, const char *key, const moor_trace_in *in)
{
    moor_status status = check_id(id, id_len);
    if (status)
        return status;
    if (!key || !in)
        return moor_fail(MOOR_E_INVALID, "session %.*s: insert without a key", (int)id_len, id);
    if (in->tokens && in->length != MOOR_TRACE_ROWS && in->length != in->n_tokens)
        return moor_fail(MOOR_E_INVALID, "session %.*s: a segment of length %llu with %u tokens", (int)id_len, id,
                         (unsigned long long)in->length, in->n_tokens);
    if (!in->handle && !in->tokens && in->length == MOOR_TRACE_ROWS)
        return moor_fail(MOOR_E_INVALID, "session %.*s: a segment needs a record, tokens or a length", (int)id_len, id);
    return MOOR_OK;
}

/* Where the key's segment begins when nobody said: where the nearest one above it ends. */
static uint64_t behind(moor_session *session, const char *key, uint32_t key_len)
{
    const moor_trie_node *node = key_len ? moor_trie_above(&session->trie, key, key_len) : NULL;
    while (node && !node->value)
        node = node->parent;
    const moor_trace_value *above = node ? node->value : NULL;
    return above ? above->start + above->length : 0;
}

/* The session takes the record of a new value. Under the store's lock. */
static moor_status take_record(moor_records *records, moor_session *session, moor_trace_value *value,
                               const moor_trace_in *in)
{
    moor_record_slot *record = NULL;
    moor_status status = moor_slots_get(&records->slots, in->handle, &record);
    if (status)
        return status;
    if (!record->sealed)
        return moor_fail(MOOR_E_STATE, "session %s: request %s is not sealed yet", session->id, record->id);
    if (record->session && record->session != session)
        return moor_fail(MOOR_E_STATE, "session %s: request %s belongs to session %s", session->id, record->id,
                         record->session->id);
    uint64_t rows = record->rows.end;
    if (value->length == MOOR_TRACE_ROWS)
        value->length = rows > value->start ? rows - value->start : 0;
    if (rows + 1 < value->start + value->length || value->start + value->length < value->start)
        return moor_fail(MOOR_E_RANGE,
                         "session %s: a segment of %llu tokens from %llu on, request %s has %llu rows: short by more "
                         "than the last sampled token",
                         session->id, (unsigned long long)value->length, (unsigned long long)value->start, record->id,
                         (unsigned long long)rows);
    record->owner = MOOR_OWNER_TRACE_STORE;
    if (!record->session) {
        record->session = session;
        list_add(session, record);
        moor_record_keep(records, record); /* its session decides when it goes */
    }
    value->record = record;
    return MOOR_OK;
}

static moor_trace_value *value_new(moor_session *session, const char *key, uint32_t key_len, const moor_trace_in *in)
{
    uint32_t n = in->tokens ? in->n_tokens : 0;
    moor_trace_value *value = moor_heap_alloc(sizeof(*value) + n * sizeof(int32_t));
    if (!value) {
        moor_fail(MOOR_E_NOMEM, "session %s: no memory for a segment of %u tokens", session->id, n);
        return NULL;
    }
    value->session = session;
    value->start = in->start == MOOR_TRACE_BEHIND ? behind(session, key, key_len) : in->start;
    value->length = in->tokens ? n : in->length;
    value->room = n;
    if (n)
        memcpy(value->tokens, in->tokens, n * sizeof(int32_t));
    return value;
}

/* Ends of segments are added up, and a snapshot is read back only when none of them can overflow. */
static moor_status check_end(const moor_trace_value *value)
{
    if (value->length == MOOR_TRACE_ROWS || (value->start <= INT64_MAX && value->length <= INT64_MAX - value->start))
        return MOOR_OK;
    return moor_fail(MOOR_E_RANGE, "session %s: a segment of %llu tokens from %llu on", value->session->id,
                     (unsigned long long)value->length, (unsigned long long)value->start);
}

static moor_status insert(moor_records *records, moor_session *session, const char *key, uint32_t key_len,
                          const moor_trace_in *in)
{
    void *old = NULL;
    moor_trace_value *value = value_new(session, key, key_len, in);
    if (!value)
        return MOOR_E_NOMEM;
    moor_status status = check_end(value);
    if (!status)
        status = moor_trie_insert(&session->trie, key, key_len, value, &value->node, &old);
    if (status) {
        moor_heap_free(value);
        return status;
    }
    if (in->handle) {
        moor_records_lock(records);
        status = take_record(records, session, value, in);
        moor_records_unlock(records);
    }
    if (status) { /* as it was */
        if (old)
            value->node->value = old;
        else
            moor_trie_release(&session->trie, value->node);
        moor_heap_free(value);
        return status;
    }
    if (value->record)
        place_add(value);
    records->sessions->values += !old;
    moor_trace_value *before = old;
    if (!before)
        return MOOR_OK;
    if (before->record) {
        place_remove(before);
        if (!before->record->places)
            before->record->parked_in_session = 1; /* all there is to parking: it stays in the session's list */
    }
    moor_heap_free(before);
    return MOOR_OK;
}

moor_status moor_session_insert(moor_records *records, uint64_t client, const char *id, uint32_t id_len,
                                const char *key, uint32_t key_len, const moor_trace_in *in)
{
    moor_sessions *sessions = records->sessions;
    moor_session *session = NULL;
    int fresh = 0;
    moor_status status = check_insert(id, id_len, key, in);
    if (status)
        return status;
    pthread_mutex_lock(&sessions->lock);
    status = moor_session_get(sessions, id, id_len, &session);
    if (status == MOOR_E_NOT_FOUND && in->create)
        status = start(sessions, client, id, id_len, &session, &fresh);
    if (!status) {
        status = insert(records, session, key, key_len, in);
        if (status && fresh)
            undo_start(sessions, session); /* nothing changed */
    }
    pthread_mutex_unlock(&sessions->lock);
    return status;
}

/* ---- snapshots -------------------------------------------------------------------------------------------------- */

void moor_sessions_each(const moor_sessions *sessions,
                        void (*visit)(void *user, moor_hash128 hash, const moor_session *session), void *user)
{
    for (uint64_t i = 0; i < sessions->table.room; i++) {
        const moor_session_slot *slot = &sessions->table.slots[i];
        if (!moor_hash_none(slot->hash))
            visit(user, slot->hash, slot->session);
    }
}

moor_status moor_session_restore(moor_sessions *sessions, moor_hash128 hash, const char *id, uint32_t id_len,
                                 moor_session **out)
{
    int fresh;
    if (moor_hash_none(hash)) /* no id has it, and a free place of the table does */
        return moor_fail(MOOR_E_CORRUPT, "a session whose hash is none");
    if (moor_session_table_find(&sessions->table, hash))
        return moor_fail(MOOR_E_EXISTS, "a session is there twice");
    if (id)
        return start(sessions, MOOR_CLIENT_NONE, id, id_len, out, &fresh);
    if (!moor_session_table_add(&sessions->table, hash))
        return moor_fail(MOOR_E_NOMEM, "no memory for a released session");
    sessions->gone++;
    return MOOR_OK;
}

void moor_session_restore_record(moor_session *session, moor_record_slot *record, int parked)
{
    record->session = session;
    record->parked_in_session = parked != 0;
    list_add(session, record);
}

moor_status moor_session_restore_value(moor_sessions *sessions, moor_session *session, const char *key,
                                       uint32_t key_len, moor_trace_value *value)
{
    void *old = NULL;
    value->session = session;
    moor_status status = moor_trie_insert(&session->trie, key, key_len, value, &value->node, &old);
    if (!status && old) {
        value->node->value = old;
        status = moor_fail(MOOR_E_EXISTS, "session %s: a key of %u bytes is there twice", session->id, key_len);
    }
    if (status) {
        moor_heap_free(value);
        return status;
    }
    if (value->record)
        place_add(value);
    sessions->values++;
    return MOOR_OK;
}
