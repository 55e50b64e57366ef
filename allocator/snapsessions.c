/* SPDX-License-Identifier: Apache-2.0 */
#include "snapsessions.h"

#include <string.h>

#include "error.h"
#include "heap.h"
#include "sessions.h"

/* ---- writing ---- */

static uint32_t put_records(moor_snapbytes *out, const moor_session *session)
{
    uint32_t n = 0;
    for (const moor_record_slot *record = session->first; record; record = record->session_next, n++) {
        moor_snapbytes_u64(out, moor_slot_handle(record));
        moor_snapbytes_u32(out, record->parked_in_session);
    }
    return n;
}

static void put_value(moor_snapbytes *out, const moor_trace_value *value)
{
    uint32_t n = value->room ? (uint32_t)value->length : 0;
    moor_snapbytes_u64(out, value->start);
    moor_snapbytes_u64(out, value->length);
    moor_snapbytes_u64(out, value->record ? moor_slot_handle(value->record) : 0);
    moor_snapbytes_u32(out, n);
    uint8_t *at = n ? moor_snapbytes_room(out, (size_t)n * 4) : NULL;
    for (uint32_t i = 0; at && i < n; i++)
        moor_le32_store(at + 4 * (size_t)i, (uint32_t)value->tokens[i]);
}

static uint32_t put_keys(moor_snapbytes *out, const moor_session *session)
{
    const moor_trie *trie = &session->trie;
    uint32_t n = 0;
    for (const moor_trie_node *node = moor_trie_next(trie, NULL); node; node = moor_trie_next(trie, node)) {
        uint32_t shared = node->parent ? node->parent->end : 0;
        if (!node->parent && !node->value)
            continue; /* "" is always there */
        moor_snapbytes_u32(out, shared);
        moor_snapbytes_u32(out, node->end - shared);
        uint8_t *more = moor_snapbytes_room(out, node->end - shared);
        if (more)
            moor_trie_tail(node, shared, (char *)more);
        moor_snapbytes_u32(out, node->value != NULL);
        if (node->value)
            put_value(out, node->value);
        n++;
    }
    return n;
}

typedef struct putting {
    moor_snapbytes *out;
    uint32_t n;
} putting;

static void put_session(void *user, moor_hash128 hash, const moor_session *session)
{
    putting *p = user;
    moor_snapbytes *out = p->out;
    p->n++;
    moor_snapbytes_u64(out, hash.lo);
    moor_snapbytes_u64(out, hash.hi);
    moor_snapbytes_u32(out, session != NULL);
    if (!session)
        return;
    moor_snapbytes_u32(out, session->id_len);
    size_t counts = out->used;
    moor_snapbytes_u32(out, 0);
    moor_snapbytes_u32(out, 0);
    moor_snapbytes_put(out, session->id, session->id_len);
    uint32_t records = put_records(out, session), keys = put_keys(out, session);
    if (out->failed)
        return;
    moor_le32_store(out->data + counts, records);
    moor_le32_store(out->data + counts + 4, keys);
}

void moor_snapsessions_put(moor_snapbytes *out, const moor_records *records)
{
    putting p = {out, 0};
    size_t count = out->used;
    moor_snapbytes_u32(out, 0);
    moor_sessions_each(records->sessions, put_session, &p);
    if (!out->failed)
        moor_le32_store(out->data + count, p.n);
}

/* ---- reading ---- */

/* Stands in for "no value" until all keys are there: a key without one has keys below it, which come later. */
static moor_trace_value nothing;

typedef struct reading {
    moor_restore_plan *plan;
    moor_snapreader *reader;
    moor_session *session;
    char *key; /* the key before */
    uint32_t key_len, key_room;
} reading;

static moor_record_slot *record_of(const reading *r, uint64_t handle)
{
    uint32_t index = (uint32_t)handle;
    if (index >= r->plan->n_slots || (uint32_t)(handle >> 32) != r->plan->generations[index])
        return NULL;
    moor_record_slot *slot = moor_slots_at(&r->plan->records->slots, index);
    return slot->used ? slot : NULL;
}

static moor_status read_owned(const reading *r)
{
    uint64_t handle = moor_snapreader_u64(r->reader, "a handle of a session's record");
    uint32_t parked = moor_snapreader_u32(r->reader, "whether a record is parked");
    if (r->reader->status)
        return r->reader->status;
    moor_record_slot *slot = record_of(r, handle);
    if (!slot || slot->session || slot->owner != MOOR_OWNER_TRACE_STORE || parked > 1)
        return moor_snapreader_wrong(r->reader, 12, "session %.100s: handle %#llx is %s", r->session->id,
                                     (unsigned long long)handle,
                                     !slot           ? "no record"
                                     : slot->session ? "another session's too"
                                     : parked > 1    ? "neither parked nor not"
                                                     : "a record of another owner");
    moor_session_restore_record(r->session, slot, (int)parked);
    return MOOR_OK;
}

static moor_status next_key(reading *r)
{
    uint32_t shared = moor_snapreader_u32(r->reader, "the length of a shared key");
    uint32_t more = moor_snapreader_u32(r->reader, "the length of a key");
    const uint8_t *text = moor_snapreader_take(r->reader, more, "a key");
    if (!text)
        return r->reader->status;
    if (shared > r->key_len || more > UINT32_MAX - shared)
        return moor_snapreader_wrong(r->reader, (size_t)more + 8, "a key shares %u bytes with one of %u", shared,
                                     r->key_len);
    uint32_t length = shared + more;
    if (length > r->key_room || !r->key) {
        uint32_t room = length < UINT32_MAX / 2 ? length * 2 + 64 : UINT32_MAX;
        char *grown = moor_heap_realloc(r->key, room);
        if (!grown)
            return moor_fail(MOOR_E_NOMEM, "snapshot %s: no memory for a key of %u bytes", r->reader->path, length);
        r->key = grown;
        r->key_room = room;
    }
    if (more)
        memcpy(r->key + shared, text, more);
    r->key_len = length;
    return MOOR_OK;
}

static moor_status read_value(const reading *r)
{
    moor_snapreader *reader = r->reader;
    uint64_t start = moor_snapreader_u64(reader, "a segment's start");
    uint64_t length = moor_snapreader_u64(reader, "a segment's length");
    uint64_t handle = moor_snapreader_u64(reader, "a segment's record");
    uint32_t n = moor_snapreader_u32(reader, "a segment's number of tokens");
    const uint8_t *tokens = moor_snapreader_take(reader, (uint64_t)n * 4, "a segment's tokens");
    if (!tokens)
        return reader->status;
    moor_record_slot *slot = handle ? record_of(r, handle) : NULL;
    size_t back = (size_t)n * 4 + 28;
    if (handle && (!slot || slot->session != r->session))
        return moor_snapreader_wrong(reader, back, "session %.100s: a key's record %#llx is not the session's",
                                     r->session->id, (unsigned long long)handle);
    if ((n && n != length) || start > INT64_MAX || length > INT64_MAX - start)
        return moor_snapreader_wrong(reader, back, "session %.100s: a segment of %llu tokens from %llu on, %u are here",
                                     r->session->id, (unsigned long long)length, (unsigned long long)start, n);
    moor_trace_value *value = moor_heap_alloc(sizeof(*value) + (size_t)n * sizeof(int32_t));
    if (!value)
        return moor_fail(MOOR_E_NOMEM, "snapshot %s: no memory for a segment of %u tokens", reader->path, n);
    *value = (moor_trace_value){.record = slot, .start = start, .length = length, .room = n};
    for (uint32_t i = 0; i < n; i++)
        value->tokens[i] = (int32_t)moor_le32_load(tokens + 4 * (size_t)i);
    moor_status status = moor_session_restore_value(r->plan->records->sessions, r->session, r->key, r->key_len, value);
    if (status == MOOR_E_EXISTS)
        return moor_snapreader_wrong(reader, back, "session %.100s: a key of %u bytes is there twice", r->session->id,
                                     r->key_len);
    return status;
}

static moor_status read_key(reading *r)
{
    moor_status status = next_key(r);
    if (status)
        return status;
    uint32_t valued = moor_snapreader_u32(r->reader, "whether a key has a value");
    if (r->reader->status)
        return r->reader->status;
    if (valued > 1)
        return moor_snapreader_wrong(r->reader, 4, "a key has a value: %u is neither 0 nor 1", valued);
    if (valued)
        return read_value(r);
    void *old = NULL;
    moor_trie_node *node;
    status = moor_trie_insert(&r->session->trie, r->key, r->key_len, &nothing, &node, &old);
    if (!status && old) {
        node->value = old;
        status = moor_snapreader_wrong(r->reader, 4, "session %.100s: a key of %u bytes is there twice", r->session->id,
                                       r->key_len);
    }
    return status;
}

/* Takes the stand-ins out again; also after a failure, when nobody may meet one. */
static void drop_stand_ins(moor_trie *trie)
{
    moor_trie_node *node = moor_trie_next(trie, NULL), *next;
    for (; node; node = next) {
        next =
            moor_trie_next(trie, node); /* what goes with `node` are parents of it that have nothing else below them */
        if (node->value == &nothing)
            moor_trie_release(trie, node);
    }
}

static moor_status read_live(reading *r, moor_hash128 hash)
{
    moor_snapreader *reader = r->reader;
    uint32_t id_len = moor_snapreader_u32(reader, "the length of a session's id");
    uint32_t n_records = moor_snapreader_u32(reader, "the number of a session's records");
    uint32_t n_keys = moor_snapreader_u32(reader, "the number of a session's keys");
    const uint8_t *id = moor_snapreader_take(reader, id_len, "a session's id");
    if (!id)
        return reader->status;
    if (!id_len || id_len > MOOR_SESSION_ID_MAX || !moor_hash_equal(moor_id_hash((const char *)id, id_len), hash))
        return moor_snapreader_wrong(reader, id_len, "a session's id of %u bytes that does not fit its hash", id_len);
    moor_status status = moor_session_restore(r->plan->records->sessions, hash, (const char *)id, id_len, &r->session);
    if (status == MOOR_E_EXISTS)
        return moor_snapreader_wrong(reader, id_len, "session %.100s is there twice", (const char *)id);
    for (uint32_t i = 0; i < n_records && !status; i++)
        status = read_owned(r);
    r->key_len = 0;
    for (uint32_t i = 0; i < n_keys && !status; i++)
        status = read_key(r);
    if (r->session)
        drop_stand_ins(&r->session->trie);
    return status;
}

moor_status moor_snapsessions_read(moor_restore_plan *plan)
{
    moor_snapreader *reader = &plan->reader[MOOR_SNAP_SESSIONS];
    reading r = {.plan = plan, .reader = reader};
    if (!plan->source.section[MOOR_SNAP_SESSIONS].offset)
        return MOOR_OK;
    uint32_t n = moor_snapreader_u32(reader, "the number of sessions");
    moor_status status = reader->status;
    for (uint32_t i = 0; i < n && !status; i++) {
        moor_hash128 hash = {moor_snapreader_u64(reader, "a session's hash"), 0};
        hash.hi = moor_snapreader_u64(reader, "a session's hash");
        uint32_t lives = moor_snapreader_u32(reader, "whether a session lives");
        r.session = NULL;
        if (reader->status)
            status = reader->status;
        else if (lives > 1)
            status = moor_snapreader_wrong(reader, 4, "a session lives: %u is neither 0 nor 1", lives);
        else if (lives)
            status = read_live(&r, hash);
        else if ((status = moor_session_restore(plan->records->sessions, hash, NULL, 0, NULL)) == MOOR_E_EXISTS)
            status = moor_snapreader_wrong(reader, 20, "session %u of %u is there twice", i, n);
    }
    moor_heap_free(r.key);
    return status ? status : moor_snapreader_end(reader);
}
