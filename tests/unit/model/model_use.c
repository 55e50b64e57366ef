/* SPDX-License-Identifier: Apache-2.0 */
/* What others do with records: deliver and cut rows, look up, lease, release. */
#include <string.h>

#include "model_parts.h"

/* ---- from outside ---- */

/* The id means another record from now on; one that was freed while its request ran is over. */
static void supersede(model *m, m_record *r)
{
    if (!r || r->sealed || r->pending)
        return;
    if (!r->in_step) {
        m_finalise(m, r, 0, MOOR_SEAL_COMMITTED);
        return;
    }
    r->pending = r->dirty = 1;
    r->pending_rows = 0;
    r->pending_flags = MOOR_SEAL_COMMITTED;
}

void m_alias(model *m, uint32_t name, uint32_t alias, uint32_t index)
{
    m_record *r = m_newest(m, name, 0), *before = r;
    if (!r || r->dead) {
        r = m_create(m, name);
        supersede(m, before);
    }
    if (r)
        m_add_alias(r, alias, index);
}

moor_status m_fill(model *m, uint32_t name, uint64_t start, const m_row *rows, uint64_t n)
{
    m_record *r = m_newest(m, name, 0);
    uint64_t end = start + n, holes = 0;
    if (r && !r->dead && r->in_step)
        return MOOR_E_STATE;
    uint64_t history = r && !r->dead ? r->accepted : 0;
    if (start > history + 1)
        return MOOR_E_RANGE;
    for (uint64_t i = start; r && i < end && i < history; i++)
        holes += !r->row[i].seed;
    if (r && end + 1 < history && !holes)
        return MOOR_E_RANGE; /* S1.8 */
    if (!r || r->dead) {
        m_record *before = r;
        r = m_create(m, name);
        supersede(m, before);
    }
    if (!r)
        return MOOR_E_NOMEM;
    r->dropped += history > start ? (end < history ? end : history) - start - holes : 0;
    r->dirty = 1;
    if (end <= history && !holes)
        return MOOR_OK;
    r->end = r->accepted;
    m_append_missing(r, start > r->end ? 1 : 0, MOOR_REASON_PREFIX_UNKNOWN);
    for (uint64_t i = start; i < end; i++) {
        if (i >= r->end)
            m_append(r, rows[i - start]);
        else if (!r->row[i].seed)
            r->row[i] = rows[i - start]; /* first accepted wins */
    }
    r->accepted = r->told = r->end;
    m->count[MOOR_C_ROWS] += r->end - history;
    if (r->kept)
        m_touch(m, r);
    return MOOR_OK;
}

moor_status m_truncate(model *m, uint32_t id, uint64_t rows, uint64_t least)
{
    m_record *r;
    moor_status status = m_find(m, id, &r);
    if (status)
        return status;
    if (r->in_step)
        return MOOR_E_STATE;
    if (rows < least || rows > r->accepted)
        return MOOR_E_RANGE;
    status = m_may_cut(m, r, rows);
    if (status)
        return status;
    m_cut_values(m, r, rows);
    r->end = r->accepted = rows;
    r->told = r->told < rows ? r->told : rows;
    r->lost_until = r->lost_until < rows ? r->lost_until : rows;
    r->dirty = 1;
    if (r->kept)
        m_touch(m, r);
    return MOOR_OK;
}

/* ---- looking up ---- */

uint32_t m_look_up(model *m, uint32_t id, m_record **out, uint32_t *index)
{
    uint32_t n = 0, at[M_RECORDS];
    id = id == M_NAMES + M_ALIASES - 1 ? 0 : id;
    for (uint32_t i = 0; i < M_RECORDS; i++) {
        m_record *r = &m->record[i];
        int32_t as = -1;
        if (!r->used || r->dead)
            continue;
        if (id >= M_NAMES)
            as = r->alias[id - M_NAMES];
        else if (r->name == id)
            as = 0;
        else if (id == 0)
            as = r->alias[M_ALIASES - 1];
        if (as < 0)
            continue;
        uint32_t k = n++;
        for (; k && (at[k - 1] > (uint32_t)as || (at[k - 1] == (uint32_t)as && out[k - 1]->number > r->number)); k--) {
            out[k] = out[k - 1];
            at[k] = at[k - 1];
        }
        out[k] = r;
        at[k] = (uint32_t)as;
    }
    if (index)
        memcpy(index, at, n * sizeof(*at));
    return n;
}

moor_status m_find(model *m, uint32_t id, m_record **out)
{
    m_record *found[M_RECORDS];
    m_drain(m);
    uint32_t n = m_look_up(m, id, found, NULL);
    *out = n ? found[0] : NULL;
    return n > 1 ? MOOR_E_AMBIGUOUS : n ? MOOR_OK : MOOR_E_NOT_FOUND;
}

/* What the engine delivers to: the newest that has the id from the core. */
static moor_status m_newest_own(model *m, uint32_t id, m_record **out)
{
    m_record *found[M_RECORDS], *newest = NULL;
    uint32_t n = m_look_up(m, id, found, NULL);
    id = id == M_NAMES + M_ALIASES - 1 ? 0 : id; /* the last alias is the first name */
    for (uint32_t i = 0; i < n; i++)
        if (id < M_NAMES && found[i]->name == id && (!newest || newest->number < found[i]->number))
            newest = found[i];
    *out = newest;
    return newest ? MOOR_OK : MOOR_E_AMBIGUOUS;
}

moor_status m_open_one(model *m, uint32_t id, uint32_t flags, uint64_t rows, m_record **out, uint64_t *shown)
{
    int prefix = flags & MOOR_OPEN_PREFIX;
    moor_status status = m_find(m, id, out);
    if (status == MOOR_E_AMBIGUOUS && prefix)
        status = m_newest_own(m, id, out);
    if (status)
        return status;
    m_record *r = *out;
    /* Speculative rows are nobody's to see. */
    if (!r->sealed && (!prefix || r->accepted < rows))
        return MOOR_E_TIMEOUT;
    *shown = prefix && rows < r->accepted ? rows : r->accepted;
    return MOOR_OK;
}

moor_status m_open_all(model *m, uint32_t id, m_record **out, uint32_t *n)
{
    m_drain(m);
    *n = m_look_up(m, id, out, NULL);
    if (!*n)
        return MOOR_E_NOT_FOUND;
    for (uint32_t i = 0; i < *n; i++)
        if (!out[i]->sealed)
            return MOOR_E_TIMEOUT;
    return MOOR_OK;
}

moor_status m_open_handle(model *m, moor_handle handle, m_record **out)
{
    m_drain(m);
    m_record *r = m_by_handle(m, handle);
    if (!r || r->dead)
        return MOOR_E_STALE;
    *out = r;
    return r->sealed ? MOOR_OK : MOOR_E_TIMEOUT;
}

/* ---- ownership ---- */

void m_lease(model *m, m_record *r, uint32_t client, int opened)
{
    if (!r->held[client]++)
        r->held_since[client] = ++m->leases;
    r->dirty = 1;
    r->opened |= opened != 0;
    m->count[MOOR_C_OPENS] += opened != 0;
}

void m_unlease(model *m, m_record *r, uint32_t client)
{
    r->held[client]--;
    r->dirty = 1;
    if (client && r->kept && !m_leases(r))
        m_touch(m, r);
    m_give_up_if_done(r);
}

uint32_t m_disconnect(model *m, uint32_t client)
{
    m_sessions_disconnect(m, client);
    for (uint32_t n = 0;; n++) { /* the last one taken first, which shows in the order of expiry */
        m_record *last = NULL;
        for (uint32_t i = 0; i < M_RECORDS; i++) {
            m_record *r = &m->record[i];
            if (r->used && r->held[client] && (!last || r->held_since[client] > last->held_since[client]))
                last = r;
        }
        if (!last)
            return n;
        m_unlease(m, last, client);
    }
}

void m_release_owner(model *m, m_record *r)
{
    r->dead = r->dirty = 1;
    r->kept = 0;
    m->count[MOOR_C_FREED]++;
    m_give_up_if_done(r);
}

moor_status m_claim(model *m, moor_handle handle, uint32_t owner)
{
    m_record *r = m_by_handle(m, handle);
    if (owner > MOOR_OWNER_TRACE_STORE)
        return MOOR_E_INVALID;
    if (!r || r->dead)
        return MOOR_E_STALE;
    if (r->session != M_NONE && owner != MOOR_OWNER_TRACE_STORE)
        return MOOR_E_STATE;
    r->owner = owner;
    r->dirty = 1;
    if (r->sealed)
        m_touch(m, r);
    return MOOR_OK;
}

/* The table of SEMANTICS 2. */
moor_status m_policy_event(model *m, moor_handle handle, uint32_t event)
{
    m_record *r = m_by_handle(m, handle);
    if (event < MOOR_EVENT_RESET || event > MOOR_EVENT_SESSION_RELEASED)
        return MOOR_E_INVALID;
    if (!r || r->dead)
        return MOOR_E_STALE;
    if (r->session != M_NONE && event == MOOR_EVENT_SESSION_RELEASED)
        return MOOR_E_STATE; /* its session was not */
    r->dirty = 1;
    int of_session = r->owner == MOOR_OWNER_TRACE_STORE;
    if (event == MOOR_EVENT_SESSION_RELEASED ? of_session : !of_session)
        m_release_owner(m, r);
    else if (of_session)
        r->detached = 1;
    return MOOR_OK;
}

uint32_t m_expire(model *m, int all)
{
    uint32_t freed = 0;
    for (;;) {
        uint64_t kept = 0;
        m_record *oldest = NULL;
        for (uint32_t i = 0; i < M_RECORDS; i++) {
            m_record *r = &m->record[i];
            if (!r->used || !r->kept)
                continue;
            kept += r->kept_rows * m->row_bytes;
            if (!m_leases(r) && (!oldest || r->touched < oldest->touched))
                oldest = r;
        }
        if (!oldest || (!all && (!m->keep_bytes || kept <= m->keep_bytes)))
            return freed;
        m->count[MOOR_C_EXPIRED] += !oldest->opened;
        m_release_owner(m, oldest);
        freed++;
    }
}
