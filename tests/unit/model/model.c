/* SPDX-License-Identifier: Apache-2.0 */
#include "model_parts.h"

#include <stdlib.h>
#include <string.h>

enum { LATE_STEPS = 8 }; /* store.h: steps that were under way when the seal came */

int m_open(model *m)
{
    m_row *rows = calloc((size_t)M_RECORDS * M_ROWS, sizeof(*rows));
    for (uint32_t i = 0; rows && i < M_RECORDS; i++)
        m->record[i].row = rows + (size_t)i * M_ROWS;
    return rows != NULL;
}

void m_close(model *m)
{
    free(m->record[0].row);
}

uint32_t m_leases(const m_record *record)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i <= M_CLIENTS; i++)
        n += record->held[i];
    return n;
}

uint64_t m_missing(const m_record *record)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < record->end; i++)
        n += !record->row[i].seed;
    return n;
}

m_record *m_by_handle(model *m, moor_handle handle)
{
    for (uint32_t i = 0; i < M_RECORDS; i++)
        if (m->record[i].used && m->record[i].handle == handle)
            return &m->record[i];
    return NULL;
}

m_record *m_newest(model *m, uint32_t name, int unsealed)
{
    m_record *found = NULL;
    for (uint32_t i = 0; i < M_RECORDS; i++) {
        m_record *r = &m->record[i];
        if (r->used && r->name == name && (!unsealed || !r->sealed) && (!found || r->number > found->number))
            found = r;
    }
    return found;
}

m_record *m_by_name(model *m, uint32_t name)
{
    return m_newest(m, name, 0);
}

m_record *m_create(model *m, uint32_t name)
{
    for (uint32_t i = 0; i < M_RECORDS; i++) {
        m_record *r = &m->record[i];
        if (r->used)
            continue;
        m_row *row = r->row;
        memset(r, 0, sizeof(*r));
        r->row = row;
        r->used = r->dirty = 1;
        r->name = name;
        r->number = ++m->created;
        r->owner = MOOR_OWNER_ROLLOUT;
        r->session = M_NONE;
        r->ids[r->n_ids++] = name;
        for (int a = 0; a < M_ALIASES; a++)
            r->alias[a] = -1;
        m->count[MOOR_C_REQUESTS]++;
        return r;
    }
    m->table_full = 1;
    return NULL;
}

/* S2: memory goes when the owner let go, the request is over, and nobody reads. */
void m_give_up_if_done(m_record *r)
{
    if (r->used && r->dead && r->sealed && !r->in_step && !m_leases(r))
        r->used = 0;
}

void m_append(m_record *r, m_row row)
{
    if (r->end < M_ROWS)
        r->row[r->end++] = row;
    r->dirty = 1;
}

void m_append_missing(m_record *r, uint64_t n, uint32_t reasons)
{
    for (uint64_t i = 0; i < n; i++)
        m_append(r, (m_row){.reasons = reasons});
}

void m_touch(model *m, m_record *r)
{
    r->kept = r->owner != MOOR_OWNER_TRACE_STORE;
    r->touched = ++m->touches;
    r->kept_rows = r->end - m_missing(r);
}

/* ---- seals ---- */

/* S1.2: within one token and layer the ids are distinct. */
static void validate(m_record *r)
{
    for (uint64_t i = 0; i < r->end; i++)
        if (r->row[i].seed && r->row[i].bad)
            r->row[i] = (m_row){.reasons = MOOR_REASON_VALIDATION};
}

void m_finalise(model *m, m_record *r, uint64_t rows, uint32_t flags)
{
    uint64_t target = rows;
    if (flags & MOOR_SEAL_COMMITTED)
        target = r->lost_until > r->accepted ? r->lost_until : r->accepted;
    if (r->end > target)
        r->end = target;
    while (r->end < target && r->end < M_ROWS) {
        uint32_t why = r->end < r->lost_until ? r->lost_reasons : 0;
        m_append_missing(r, 1, why | (flags & MOOR_SEAL_COMMITTED ? 0 : MOOR_REASON_SHORT));
    }
    r->accepted = target;
    r->told = r->told < target ? r->told : target;
    r->sealed = r->dirty = 1;
    r->pending = 0;
    if (m->validate)
        validate(r);
    m_event event = {.n_ids = r->n_ids, .flags = flags, .rows = r->end, .missing = m_missing(r)};
    memcpy(event.ids, r->ids, sizeof(event.ids));
    for (uint64_t i = 0; i < r->end; i++) {
        if (!r->row[i].seed)
            continue;
        event.first = event.first ? event.first : r->row[i].epoch;
        event.last = r->row[i].epoch;
    }
    if (m->n_events < M_EVENTS)
        m->event[m->n_events++] = event;
    m->count[MOOR_C_SEALED]++;
    m->count[MOOR_C_INCOMPLETE] += event.missing != 0;
    m->count[MOOR_C_ROWS_MISSING] += event.missing;
    if (!r->dead)
        m_touch(m, r);
    m_give_up_if_done(r);
}

void m_add_alias(m_record *r, uint32_t alias, uint32_t index)
{
    uint32_t id = alias == M_ALIASES - 1 ? 0 : M_NAMES + alias; /* the last alias is the core id of name 0 */
    if (id == r->name)
        return;
    if (r->alias[alias] < 0 && !r->sealed)
        r->ids[r->n_ids++] = id;
    r->alias[alias] = (int32_t)index;
    r->dirty = 1;
}

moor_status m_seal_now(model *m, uint32_t name, uint32_t alias, uint64_t rows, uint32_t flags)
{
    m_record *r = m_newest(m, name, 1);
    int known = m_newest(m, name, 0) != NULL;
    if (!r || r->pending) {
        m->seals_repeated += known;
        m->seals_unknown += !known;
        if (!known && m->n_events < M_EVENTS) {
            m_event event = {.n_ids = alias < M_ALIASES ? 2 : 1, .flags = flags};
            event.ids[0] = name;
            event.ids[1] = alias == M_ALIASES - 1 ? 0 : M_NAMES + alias;
            m->event[m->n_events++] = event;
        }
        return known ? MOOR_OK : MOOR_E_NOT_FOUND;
    }
    if (alias < M_ALIASES)
        m_add_alias(r, alias, 0);
    if (!r->in_step) {
        m_finalise(m, r, rows, flags);
        return MOOR_OK;
    }
    r->pending = r->dirty = 1;
    r->pending_rows = rows;
    r->pending_flags = flags;
    return MOOR_OK;
}

void m_push(model *m, uint32_t name, uint32_t alias, uint64_t rows, uint32_t flags)
{
    m->ring[m->n_ring++] = (m_seal){name, alias, flags, rows};
}

uint32_t m_drain(model *m)
{
    uint32_t n = m->n_ring;
    for (uint32_t i = 0; i < n; i++)
        m_seal_now(m, m->ring[i].name, m->ring[i].alias, m->ring[i].rows, m->ring[i].flags);
    m->n_ring = 0;
    return n;
}

void m_finished(model *m, uint32_t name)
{
    m_drain(m);
    m_record *r = m_newest(m, name, 0);
    if (!r)
        return;
    r->noticed = 1;
    if (!r->sealed)
        m_seal_now(m, name, M_ALIASES, 0, MOOR_SEAL_COMMITTED);
}

/* ---- steps ---- */

static void lose(m_record *r, uint64_t until, uint32_t reason)
{
    if (r->lost_until <= r->end) /* what was lost before was delivered since, or is in the record */
        r->lost_reasons = 0;
    if (until > r->lost_until)
        r->lost_until = until;
    r->lost_reasons |= reason;
    r->dirty = 1;
}

static void end_entry(model *m, m_record *r)
{
    r->in_step = 0;
    if (r->pending)
        m_finalise(m, r, r->pending_rows, r->pending_flags);
    else
        m_give_up_if_done(r);
}

/* What the slots of the tokens hold is unknown. */
static void forget_kv(model *m, const m_request *q)
{
    for (uint64_t at = q->start; m->kv_size && at < q->start + q->count && at / m->kv_size < q->n_kv; at++) {
        int32_t id = q->kv[at / m->kv_size];
        if ((uint32_t)id < M_KV_BLOCKS && m->kv[id].n > at % m->kv_size)
            m->kv[id].n = (uint32_t)(at % m->kv_size);
    }
}

static void give_up_step(model *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        m_entry *e = &m->entry[i];
        if (!e->record)
            continue;
        lose(e->record, e->request.start + e->request.count - e->request.spec, MOOR_REASON_STEP_FAILED);
        forget_kv(m, &e->request);
        end_entry(m, e->record);
    }
    m->open = 0;
    m->count[MOOR_C_CAPTURE_ERRORS] += m->errors;
    m->errors = 0;
    m->count[MOOR_C_STEPS_FAILED]++;
}

/* S1.11: the start says how many of the rows that nobody has decided were accepted; a start before them: none. */
static void decide(model *m, m_record *r, uint64_t start)
{
    uint64_t keep = start < r->accepted ? r->accepted : start;
    if (keep < r->end) {
        m->count[MOOR_C_ROWS_REJECTED] += r->end - keep;
        r->end = keep;
    }
    m->count[MOOR_C_ROWS] += r->end - r->accepted;
    r->accepted = r->end;
}

static const m_row *kv_row(const model *m, const m_request *q, uint64_t position)
{
    uint64_t number = position / m->kv_size;
    if (number >= q->n_kv || (uint32_t)q->kv[number] >= M_KV_BLOCKS)
        return NULL;
    const m_kv *kv = &m->kv[q->kv[number]];
    return position % m->kv_size < kv->n ? &kv->slot[position % m->kv_size] : NULL;
}

/* S1.15: rows before the start come from the KV index or are missing. */
static void supply(model *m, m_entry *e)
{
    m_record *r = e->record;
    const m_request *q = &e->request;
    int known = m->kv_size && q->n_kv && !(q->flags & MOOR_STEP_PREFIX_UNPROVEN), holes = 0;
    if (r->end < r->lost_until)
        m_append_missing(r, (q->start < r->lost_until ? q->start : r->lost_until) - r->end, r->lost_reasons);
    e->gap_from = e->gap_to = r->end;
    while (r->end < q->start && r->end < M_ROWS) {
        const m_row *row = known ? kv_row(m, q, r->end) : NULL;
        holes |= !row;
        m->count[MOOR_C_ROWS_PREFIX] += row != NULL;
        m_append(r, row ? *row : (m_row){.reasons = MOOR_REASON_PREFIX_UNKNOWN});
    }
    if (known && holes)
        e->gap_to = q->start;
    r->accepted = r->told = r->end;
}

static int late(const model *m, const m_record *r, uint64_t start)
{
    return r->sealed && !r->noticed && r->end && start >= r->end && r->last_step &&
           m->step - r->last_step <= LATE_STEPS;
}

static moor_status begin_one(model *m, m_entry *e)
{
    const m_request *q = &e->request;
    m_record *r = m_newest(m, q->name, 0);
    if (!r || (r->sealed && !late(m, r, q->start)))
        r = m_create(m, q->name);
    if (!r)
        return MOOR_OK;
    if (r->in_step)
        return MOOR_E_INVALID;
    if (r->sealed || r->dead) {
        m->count[MOOR_C_ROWS_DROPPED] += q->count;
        return MOOR_OK;
    }
    e->record = r;
    r->dirty = 1;
    r->last_step = m->step;
    decide(m, r, q->start);
    if (q->start > r->end)
        supply(m, e);
    uint64_t known = r->accepted > q->start ? r->accepted - q->start : 0;
    e->skip = known < q->count ? (uint32_t)known : q->count;
    r->in_step = 1;
    return MOOR_OK;
}

moor_status m_begin(model *m, const m_request *requests, uint32_t n, uint64_t epoch)
{
    uint64_t tokens = 0;
    moor_status status = MOOR_OK;
    if (m->open)
        give_up_step(m);
    for (uint32_t i = 0; i < n; i++)
        tokens += requests[i].count;
    if (tokens > m->max_tokens)
        status = MOOR_E_RANGE;
    for (uint32_t i = 0; i < n && !status; i++)
        if (requests[i].name >= M_NAMES || requests[i].spec > requests[i].count)
            status = MOOR_E_INVALID;
    if (status) {
        m->count[MOOR_C_STEPS_FAILED]++;
        return status;
    }
    m->step++;
    m->epoch = epoch;
    m->tokens = tokens;
    m->n = m->n_captured = 0;
    memset(m->captured, 0, sizeof(m->captured));
    for (uint32_t i = 0; i < n && !status; i++) {
        m_entry *e = &m->entry[i];
        e->record = NULL;
        e->request = requests[i];
        e->skip = e->lost = 0;
        e->gap_from = e->gap_to = requests[i].start;
        if (requests[i].count)
            memcpy(e->rows, requests[i].rows, requests[i].count * sizeof(m_row));
        m->n = i + 1;
        status = begin_one(m, e);
        if (!e->record && !status)
            forget_kv(m, &requests[i]);
    }
    m->open = 1;
    if (status)
        give_up_step(m);
    return status;
}

moor_status m_capture(model *m, uint32_t column)
{
    if (!m->open || column >= m->layers || m->captured[column]) {
        m->errors++;
        return column >= m->layers && m->open ? MOOR_E_RANGE : MOOR_E_STATE;
    }
    m->captured[column] = 1;
    m->n_captured++;
    return MOOR_OK;
}

void m_capture_bad(model *m, uint32_t column, int refused_again)
{
    m->errors++;
    if (!m->open || column >= m->layers || (m->captured[column] && !refused_again))
        return; /* a second capture says nothing against the first one */
    m->n_captured -= m->captured[column] == 1;
    m->captured[column] = 2;
}

/* What the KV blocks hold after the step: the tokens that it ran, as far as they are accepted and have a row that was computed with the
 * weights that the KV has. Slots that it did not write keep what they had; a slot behind an unknown one is unknown. */
static void tell_kv(model *m, const m_entry *e, uint64_t known_before)
{
    m_record *r = e->record;
    const m_request *q = &e->request;
    uint64_t from = r->told < q->start ? r->told : q->start;
    uint64_t end = q->start + q->count < r->accepted ? q->start + q->count : r->accepted;
    for (uint64_t at = from / m->kv_size * m->kv_size; at < end; at += m->kv_size) {
        if (at / m->kv_size >= q->n_kv)
            break;
        int32_t id = q->kv[at / m->kv_size];
        if ((uint32_t)id >= M_KV_BLOCKS)
            continue;
        m_kv *kv = &m->kv[id];
        uint64_t row = from > at ? from : at;
        if (kv->n < row - at)
            continue;
        kv->n = (uint32_t)(row - at);
        for (; row < end && row < at + m->kv_size && r->row[row].seed; row++) {
            if (row >= q->start && row < known_before && (r->row[row].foreign || r->row[row].epoch != m->epoch))
                break;
            kv->slot[kv->n++] = r->row[row];
        }
    }
    r->told = r->accepted;
}

static void commit_one(model *m, m_entry *e, const uint32_t *accepted)
{
    m_record *r = e->record;
    const m_request *q = &e->request;
    uint32_t kept = accepted ? *accepted : q->count, decided = accepted ? *accepted : q->count - q->spec;
    uint64_t known = r->accepted;
    int whole = m->n_captured == m->layers;
    r->dropped += e->skip;
    m->count[MOOR_C_ROWS_DROPPED] += e->skip;
    m->count[MOOR_C_ROWS_REJECTED] += q->count - kept;
    for (uint32_t i = e->skip; i < kept; i++) {
        m_row row = e->rows[i];
        if (!whole)
            row = (m_row){.reasons = MOOR_REASON_LAYER_MISSING}; /* S1.4 */
        else if (i >= q->count - e->lost)
            row = (m_row){.reasons = MOOR_REASON_ARENA_FULL};
        m_append(r, row);
    }
    if (decided > e->skip) {
        r->accepted += decided - e->skip;
        m->count[MOOR_C_ROWS] += decided - e->skip;
    }
    if (m->kv_size && q->n_kv)
        tell_kv(m, e, known);
    r->dirty = 1;
}

/* S1.16: a prefix that a request of the same step computed. */
static void look_again(model *m, m_entry *e)
{
    for (uint64_t at = e->gap_from; at < e->gap_to; at++) {
        const m_row *row = kv_row(m, &e->request, at);
        if (!row || e->record->row[at].seed)
            continue;
        e->record->row[at] = *row;
        m->count[MOOR_C_ROWS_PREFIX]++;
    }
}

moor_status m_commit(model *m, const uint32_t *accepted, uint32_t n)
{
    if (!m->open)
        return MOOR_E_STATE;
    if (accepted && n != m->n)
        return MOOR_E_INVALID;
    for (uint32_t i = 0; accepted && i < n; i++)
        if (accepted[i] > m->entry[i].request.count)
            return MOOR_E_INVALID;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->entry[i].record)
            commit_one(m, &m->entry[i], accepted ? &accepted[i] : NULL);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->entry[i].record)
            look_again(m, &m->entry[i]);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->entry[i].record)
            end_entry(m, m->entry[i].record);
    m->open = 0;
    m->count[MOOR_C_CAPTURE_ERRORS] += m->errors;
    m->errors = 0;
    m->count[MOOR_C_STEPS]++;
    m->count[MOOR_C_STEPS_NEVER_FIRED] += m->tokens && !m->n_captured;
    return MOOR_OK;
}

void m_abandon(model *m)
{
    if (m->open)
        give_up_step(m);
}

void m_handed_out(model *m, const int32_t *blocks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if ((uint32_t)blocks[i] < M_KV_BLOCKS)
            m->kv[blocks[i]].n = 0;
}

void m_kv_reset(model *m)
{
    for (uint32_t i = 0; i < M_KV_BLOCKS; i++)
        m->kv[i].n = 0;
}
