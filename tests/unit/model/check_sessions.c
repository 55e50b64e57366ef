/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <string.h>

#include "allocator/sessions.h"

const char *check_session_id(uint32_t session)
{
    static const char *const ids[] = {"s0", "s1", "s2", "s3"};
    return ids[session];
}

static int value_agrees(lab *l, const char *id, const m_node *want, const moor_trace_value *value)
{
    AGREE(value->start, want->start, "session %s, a key of %u bytes: start", id, want->length);
    AGREE(value->length, want->n, "session %s, a key of %u bytes: length", id, want->length);
    if (want->n)
        AGREE(value->room != 0, want->has_tokens, "session %s, a key of %u bytes: tokens", id, want->length);
    if (want->n && want->has_tokens && memcmp(value->tokens, want->token, want->n * sizeof(int32_t)) != 0)
        return check_fail(l, "session %s, a key of %u bytes: other tokens", id, want->length);
    AGREE(value->record ? moor_slot_handle(value->record) : 0,
          want->record == M_NONE ? 0 : l->m.record[want->record].handle, "session %s, a key of %u bytes: record", id,
          want->length);
    return 0;
}

/* All nodes of the trace tree, those without a value too: S3.1, S3.2. */
static int keys_agree(lab *l, const char *id, const m_session *s, const moor_session *session)
{
    int32_t order[M_NODES];
    uint32_t n = m_keys(s, 0, order), at = 0;
    for (const moor_trie_node *node = moor_trie_next(&session->trie, NULL); node;
         node = moor_trie_next(&session->trie, node), at++) {
        char key[M_KEY];
        if (at == n || node->end > M_KEY)
            return check_fail(l, "session %s has a key of %u bytes too many", id, node->end);
        const m_node *want = &s->node[order[at]];
        moor_trie_tail(node, 0, key);
        AGREE(node->end, want->length, "session %s, key %u: bytes", id, at);
        if (memcmp(key, want->key, want->length) != 0)
            return check_fail(l, "session %s, key %u: \"%.*s\", not \"%.*s\"", id, at, (int)node->end, key,
                              (int)want->length, want->key);
        AGREE(node->parent ? node->parent->end : UINT32_MAX,
              want->parent == M_NONE ? UINT32_MAX : s->node[want->parent].length, "session %s, key %u: parent", id, at);
        AGREE(node->value != NULL, want->valued, "session %s, key %u: a value", id, at);
        if (node->value && value_agrees(l, id, want, node->value))
            return 1;
    }
    AGREE(at, n, "session %s: nodes", id);
    AGREE(session->trie.keys, m_values(s), "session %s: keys", id);
    return 0;
}

static uint32_t values_of(const m_session *s, int32_t record)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < M_NODES; i++)
        n += s->node[i].used && s->node[i].valued && s->node[i].record == record;
    return n;
}

/* The session's records, in the order in which it took them. */
static int records_agree(lab *l, const char *id, const m_session *s, const moor_session *session)
{
    const moor_record_slot *slot = session->first;
    for (uint64_t last = 0;; slot = slot->session_next) {
        int32_t next = M_NONE;
        uint32_t places = 0;
        for (int32_t i = 0; i < M_RECORDS; i++) {
            const m_record *r = &l->m.record[i];
            if (r->used && r->session == s - l->m.session && r->taken > last &&
                (next == M_NONE || r->taken < l->m.record[next].taken))
                next = i;
        }
        if (next == M_NONE || !slot)
            return slot || next != M_NONE ? check_fail(l, "session %s: one record too %s", id, slot ? "many" : "few")
                                          : 0;
        last = l->m.record[next].taken;
        AGREE(moor_slot_handle(slot), l->m.record[next].handle, "session %s: its record", id);
        if (slot->session != session)
            return check_fail(l, "session %s: its record %s is another's", id, slot->id);
        for (const moor_trace_value *value = slot->places; value; value = value->next)
            places++;
        AGREE(places, values_of(s, next), "session %s: keys of record %s", id, slot->id);
    }
}

int check_sessions(lab *l)
{
    for (uint32_t i = 0; i < M_SESSIONS; i++) {
        m_session *s = &l->m.session[i];
        const char *id = check_session_id(i);
        uint32_t state;
        uint64_t values;
        if (!s->dirty && !l->whole && !l->rough)
            continue;
        s->dirty = 0;
        moor_session_state(l->s, id, 2, &state, &values);
        AGREE(state, s->state, "session %s: state", id);
        AGREE(values, s->state == MOOR_SESSION_LIVE ? m_values(s) : 0, "session %s: values", id);
        moor_session *session = NULL;
        if (state == MOOR_SESSION_LIVE && moor_session_get(l->s->sessions, id, 2, &session))
            return check_fail(l, "session %s is not there", id);
        if (session && (keys_agree(l, id, s, session) || records_agree(l, id, s, session)))
            return 1;
    }
    return 0;
}
