/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots (S2.6): what a store at rest is, once it was saved and restored. */
#include "model_parts.h"

#include <string.h>

#include "allocator/sessions.h"

moor_status m_save(model *m)
{
    m_drain(m);
    if (m->open)
        return MOOR_E_STATE;
    for (uint32_t i = 0; i < M_RECORDS; i++)
        if (m->record[i].used && !m->record[i].sealed)
            return MOOR_E_STATE;
    return MOOR_OK;
}

/* Nobody leases it, nothing of a step or of the KV cache is known; no worker is left that could take notice of its end. */
static void restore_record(m_record *to)
{
    memset(to->held, 0, sizeof(to->held));
    to->used = to->used && !to->dead;
    to->accepted = to->told = to->end;
    to->noticed = to->dirty = 1;
    to->last_step = to->lost_until = to->lost_reasons = 0;
    to->kept_rows = to->end - m_missing(to); /* the keep policy meets them in the order that they had */
}

void m_restore(model *to, const model *from)
{
    m_row *rows = to->record[0].row;
    memcpy(to, from, sizeof(*to));
    for (uint32_t i = 0; i < M_RECORDS; i++) {
        m_record *r = &to->record[i];
        r->row = rows + (size_t)i * M_ROWS;
        if (r->used)
            memcpy(r->row, from->record[i].row, r->end * sizeof(*r->row));
        restore_record(r);
    }
    for (uint32_t i = 0; i < M_SESSIONS; i++) {
        to->session[i].client = 0; /* whoever started it is gone: it outlives every client */
        to->session[i].dirty = 1;
    }
    m_kv_reset(to);
    memset(to->count, 0, sizeof(to->count));
    to->step = to->open = to->n = to->n_ring = to->n_events = 0;
    to->errors = to->seals_unknown = to->seals_repeated = 0;
}
