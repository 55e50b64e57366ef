/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "allocator/sessions.h"

int check_fail(lab *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!l->why[0])
        vsnprintf(l->why, sizeof(l->why), format, args);
    va_end(args);
    return 1;
}

const char *check_id(uint32_t id)
{
    static const char *const ids[] = {"r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7",
                                      "r8", "r9", "h0", "h1", "h2", "h3", "r0"};
    return ids[id];
}

moor_hash128 check_hash(uint32_t id)
{
    return moor_id_hash(check_id(id), 2);
}

void check_on_sealed(void *user, const moor_sealed_event *event)
{
    lab *l = user;
    if (l->n_events == M_EVENTS)
        return;
    m_event *e = &l->event[l->n_events++];
    *e = (m_event){.n_ids = event->n_ids,
                   .flags = event->flags,
                   .rows = event->rows,
                   .missing = event->missing_rows,
                   .first = event->epoch_first,
                   .last = event->epoch_last};
    for (uint32_t i = 0; i < event->n_ids && i < 1 + M_ALIASES; i++)
        for (e->ids[i] = 0; e->ids[i] < M_NAMES + M_ALIASES - 1; e->ids[i]++)
            if (moor_hash_equal(event->ids[i], check_hash(e->ids[i])))
                break;
}

static int row_agrees(lab *l, const m_record *r, const moor_record_slot *slot, uint64_t at)
{
    const moor_piece *piece = &slot->rows.piece[moor_rows_at(&slot->rows, at)];
    m_row *want = &r->row[at];
    if (!piece->block) {
        if (l->rough) /* it could not be kept; but what is not there has a reason */
            *want = (m_row){.reasons = piece->reasons};
        if (want->seed)
            return check_fail(l, "record %s#%llu row %llu is missing (reasons %u)", slot->id,
                              (unsigned long long)r->number, (unsigned long long)at, piece->reasons);
        AGREE(piece->reasons, want->reasons, "record %s#%llu row %llu: reasons", slot->id,
              (unsigned long long)r->number, (unsigned long long)at);
        return piece->reasons ? 0 : check_fail(l, "record %s: a missing row without a reason", slot->id);
    }
    if (!want->seed || !w_is(&l->w, *want, moor_piece_data(piece, at, l->s->row_bytes)))
        return check_fail(l, "record %s#%llu row %llu is present and %s", slot->id, (unsigned long long)r->number,
                          (unsigned long long)at, want->seed ? "not what was computed" : "must be missing");
    AGREE(moor_block_epoch(piece->block, piece->first + (uint32_t)(at - piece->start)), want->epoch,
          "record %s#%llu row %llu: epoch", slot->id, (unsigned long long)r->number, (unsigned long long)at);
    return 0;
}

static int rows_agree(lab *l, m_record *r, const moor_record_slot *slot)
{
    uint64_t at = 0, missing = 0;
    if (l->rough && slot->rows.end < r->end)
        r->end = slot->rows.end;
    AGREE(slot->rows.end, r->end, "record %s#%llu: rows", slot->id, (unsigned long long)r->number);
    for (uint32_t i = 0; i < slot->rows.n; i++) {
        const moor_piece *piece = &slot->rows.piece[i];
        if (piece->start != at || !piece->rows)
            return check_fail(l, "record %s: segment %u of %llu rows at %llu, not at %llu", slot->id, i,
                              (unsigned long long)piece->rows, (unsigned long long)piece->start,
                              (unsigned long long)at);
        at += piece->rows;
        missing += piece->block ? 0 : piece->rows;
        if (piece->block && piece->first + piece->rows > piece->block->rows)
            return check_fail(l, "record %s: segment %u ends behind its block", slot->id, i);
    }
    AGREE(slot->rows.missing, missing, "record %s: missing rows", slot->id);
    AGREE(at, slot->rows.end, "record %s: end", slot->id);
    for (at = 0; at < r->end; at++)
        if (row_agrees(l, r, slot, at))
            return 1;
    return 0;
}

/* After an operation without memory: what follows from rows that are not there. */
static void take_over(m_record *r, const moor_record_slot *slot)
{
    r->accepted = slot->accepted;
    r->told = slot->kv_done;
    r->in_step = slot->in_step;
    r->dropped = slot->dropped;
    r->lost_until = slot->gap_until;
    r->lost_reasons = slot->gap_reasons;
    r->last_step = slot->last_step;
    if (r->kept)
        r->kept_rows = slot->rows.end - slot->rows.missing;
}

static int ids_agree(lab *l, m_record *r, const moor_record_slot *slot)
{
    int32_t alias[M_ALIASES];
    uint32_t cores = 0;
    memset(alias, 0xFF, sizeof(alias));
    for (const moor_id_node *node = slot->nodes; node; node = node->next_of_record) {
        moor_hash128 hash = moor_id_node_hash(node);
        AGREE(node->slot, slot->index, "record %s: slot of its id", slot->id);
        if (node->core) {
            cores++;
            continue;
        }
        for (uint32_t a = 0; a < M_ALIASES; a++)
            if (moor_hash_equal(hash, check_hash(M_NAMES + a)))
                alias[a] = (int32_t)node->index;
    }
    AGREE(cores, 1, "record %s: nodes of its core id", slot->id);
    for (uint32_t a = 0; a < M_ALIASES; a++) {
        if (l->rough && alias[a] < 0 && r->alias[a] >= 0) { /* there was no memory for it */
            uint32_t n = 0;
            for (uint32_t i = 0; i < r->n_ids; i++)
                if (r->ids[i] != (a == M_ALIASES - 1 ? 0 : M_NAMES + a) || !i)
                    r->ids[n++] = r->ids[i];
            r->n_ids = n;
            r->alias[a] = -1;
        }
        AGREE(alias[a], r->alias[a], "record %s: alias %s", slot->id, check_id(M_NAMES + a));
    }
    return 0;
}

static int record_agrees(lab *l, m_record *r)
{
    const moor_record_slot *slot = moor_slots_at(&l->s->slots, (uint32_t)r->handle);
    if (!slot || !slot->used || moor_slot_handle(slot) != r->handle)
        return check_fail(l, "record %s#%llu is gone from the store", check_id(r->name), (unsigned long long)r->number);
    if (!r->dirty && !l->whole && !l->rough)
        return 0;
    r->dirty = 0;
    if (slot->id_len != 2 || strcmp(slot->id, check_id(r->name)) != 0)
        return check_fail(l, "record #%llu is called %s, not %s", (unsigned long long)r->number, slot->id,
                          check_id(r->name));
    if (l->rough)
        take_over(r, slot);
#define FIELD(field, want) AGREE(slot->field, want, "record %s#%llu: " #field, slot->id, (unsigned long long)r->number)
    FIELD(created, r->number);
    FIELD(sealed, r->sealed);
    FIELD(in_step, r->in_step);
    FIELD(seal_pending, r->pending);
    FIELD(noticed, r->noticed);
    FIELD(detached, r->detached);
    FIELD(opened, r->opened);
    FIELD(owner, r->owner);
    FIELD(accepted, r->accepted);
    FIELD(dropped, r->dropped);
    FIELD(expirable, r->kept);
#undef FIELD
    AGREE(slot->session != NULL, r->session != M_NONE, "record %s#%llu: of a session", slot->id,
          (unsigned long long)r->number);
    if (slot->session)
        AGREE(slot->parked_in_session, r->parked, "record %s#%llu: parked", slot->id, (unsigned long long)r->number);
    AGREE(moor_slot_dead(slot), r->dead, "record %s#%llu: dead", slot->id, (unsigned long long)r->number);
    AGREE(moor_slot_leases(slot), m_leases(r), "record %s#%llu: leases", slot->id, (unsigned long long)r->number);
    return rows_agree(l, r, slot) || ids_agree(l, r, slot);
}

/* Gives new records of the model their handles; without memory one may not have come to be. */
static int bind(lab *l)
{
    for (uint32_t i = 0; i < M_RECORDS; i++) {
        m_record *r = &l->m.record[i];
        if (!r->used || r->handle)
            continue;
        const moor_record_slot *match = NULL;
        for (uint32_t s = 0; s < l->s->slots.count; s++) {
            const moor_record_slot *slot = moor_slots_at(&l->s->slots, s);
            if (!slot->used || m_by_handle(&l->m, moor_slot_handle(slot)))
                continue;
            if (l->rough ? !strcmp(slot->id, check_id(r->name)) : slot->created == r->number)
                match = slot;
        }
        if (!match && l->rough) {
            for (uint32_t e = 0; e < l->m.n; e++)
                if (l->m.entry[e].record == r)
                    l->m.entry[e].record = NULL;
            r->used = 0;
            continue;
        }
        if (!match)
            return check_fail(l, "record %s#%llu does not exist", check_id(r->name), (unsigned long long)r->number);
        r->handle = moor_slot_handle(match);
        r->number = match->created;
    }
    if (l->rough)
        l->m.created = l->s->created;
    AGREE(l->s->created, l->m.created, "records ever made%s", "");
    return 0;
}

static int kv_agrees(lab *l)
{
    uint64_t valid = 0;
    for (uint32_t i = 0; l->m.kv_size && i < M_KV_BLOCKS; i++) {
        const moor_kv_entry *entry = &l->s->kv.entry[i];
        m_kv *kv = &l->m.kv[i];
        uint32_t n = entry->rows[0] + entry->rows[1];
        /* An entry has two pieces at most; what lies in a third one is not known to it. */
        if (n < kv->n && (l->rough || (entry->rows[0] && entry->rows[1])))
            kv->n = n;
        AGREE(n, kv->n, "KV block %u: slots known", i);
        valid += n != 0;
        for (uint32_t s = 0; s < n; s++) {
            uint32_t part = s >= entry->rows[0], first = entry->first[part] + s - (part ? entry->rows[0] : 0);
            const uint8_t *bytes = entry->block[part]->data + (size_t)first * l->s->row_bytes;
            if (!w_is(&l->w, kv->slot[s], bytes))
                return check_fail(l, "KV block %u slot %u: another row", i, s);
            AGREE(moor_block_epoch(entry->block[part], first), kv->slot[s].epoch, "KV block %u slot %u: epoch", i, s);
        }
    }
    AGREE(l->s->kv.valid, valid, "KV entries%s", "");
    return 0;
}

static int events_agree(lab *l)
{
    if (l->rough) {
        l->n_events = l->m.n_events = 0;
        return 0;
    }
    AGREE(l->n_events, l->m.n_events, "sealed events%s", "");
    for (uint32_t i = 0; i < l->n_events; i++) {
        const m_event *got = &l->event[i], *want = &l->m.event[i];
        AGREE(got->n_ids, want->n_ids, "event %u: ids", i);
        for (uint32_t k = 0; k < got->n_ids; k++)
            AGREE(got->ids[k], want->ids[k] == M_NAMES + M_ALIASES - 1 ? 0 : want->ids[k], "event %u: id %u", i, k);
        AGREE(got->flags, want->flags, "event %u: flags", i);
        AGREE(got->rows, want->rows, "event %u: rows", i);
        AGREE(got->missing, want->missing, "event %u: missing rows", i);
        AGREE(got->first, want->first, "event %u: first epoch", i);
        AGREE(got->last, want->last, "event %u: last epoch", i);
    }
    l->n_events = l->m.n_events = 0;
    return 0;
}

static int counters_agree(lab *l)
{
    static const char *const names[] = {
#define X(id, name, help) #id,
        MOOR_COUNTERS(X)
#undef X
    };
    for (uint32_t i = 0; i < MOOR_COUNTERS_COUNT; i++) {
        if (l->rough || i == MOOR_C_ARENA_FULL)
            l->m.count[i] = l->counter[i];
        AGREE(l->counter[i], l->m.count[i], "counter %s", names[i]);
    }
    return 0;
}

static int sums_agree(lab *l)
{
    uint64_t records = 0, sealed = 0, leases = 0, clients = 0, owned = 0, kept = 0;
    for (uint32_t c = 1; c <= M_CLIENTS; c++) {
        uint64_t held = 0;
        for (uint32_t i = 0; i < M_RECORDS; i++)
            held += l->m.record[i].used ? l->m.record[i].held[c] : 0;
        clients += held != 0;
        owned += held;
    }
    for (uint32_t i = 0; i < M_RECORDS; i++) {
        const m_record *r = &l->m.record[i];
        if (!r->used)
            continue;
        records++;
        sealed += r->sealed;
        leases += m_leases(r);
        kept += r->kept ? r->kept_rows * l->m.row_bytes : 0;
    }
    moor_records_stats stats;
    moor_records_stats_get(l->s, &stats);
    AGREE(stats.records, records, "records%s", "");
    AGREE(stats.sealed, sealed, "sealed%s", "");
    AGREE(stats.leases, leases, "leases%s", "");
    AGREE(stats.clients, clients, "clients with leases%s", "");
    AGREE(stats.clients_leases, owned, "leases of clients%s", "");
    AGREE(stats.seals_unknown, l->m.seals_unknown, "seals of unknown requests%s", "");
    AGREE(stats.seals_repeated, l->m.seals_repeated, "seals of sealed requests%s", "");
    AGREE(stats.seals_torn, 0, "torn seals%s", "");
    uint64_t sessions = 0, gone = 0, values = 0;
    for (uint32_t i = 0; i < M_SESSIONS; i++) {
        sessions += l->m.session[i].state == MOOR_SESSION_LIVE;
        gone += l->m.session[i].state == MOOR_SESSION_GONE;
        values += l->m.session[i].state == MOOR_SESSION_LIVE ? m_values(&l->m.session[i]) : 0;
    }
    AGREE(stats.sessions, sessions, "sessions%s", "");
    AGREE(stats.sessions_gone, gone, "released sessions%s", "");
    AGREE(stats.session_keys, values, "keys of sessions%s", "");
    AGREE(l->s->kept_bytes, kept, "kept bytes%s", "");
    return 0;
}

int check_all(lab *l)
{
    if (bind(l))
        return 1;
    uint64_t live = 0;
    for (uint32_t i = 0; i < M_RECORDS; i++) {
        live += l->m.record[i].used;
        if (l->m.record[i].used && record_agrees(l, &l->m.record[i]))
            return 1;
    }
    AGREE(l->s->live, live, "live records%s", "");
    int bad = counters_agree(l) || events_agree(l) || (l->whole && sums_agree(l)) || kv_agrees(l) || check_sessions(l);
    l->rough = 0;
    return bad;
}

/* ---- the audit ---- */

typedef struct tally {
    moor_block *block;
    uint32_t refs, index_refs;
} tally;

enum { TALLIES = 4096 };

static tally *tally_of(tally *all, uint32_t *n, moor_block *block)
{
    for (uint32_t i = 0; i < *n; i++)
        if (all[i].block == block)
            return &all[i];
    if (*n == TALLIES)
        return &all[0];
    all[*n] = (tally){block, 0, 0};
    return &all[(*n)++];
}

static void add(tally *all, uint32_t *n, moor_block *block)
{
    if (block)
        tally_of(all, n, block)->refs++;
}

static uint32_t count_all(const moor_records *s, tally *all)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->slots.count; i++) {
        const moor_record_slot *slot = moor_slots_at(&s->slots, i);
        for (uint32_t p = 0; slot->used && p < slot->rows.n; p++)
            add(all, &n, slot->rows.piece[p].block);
        for (uint32_t p = 0; slot->used && p < slot->n_parked; p++)
            add(all, &n, slot->parked[p]);
        if (slot->used)
            add(all, &n, slot->tail);
    }
    for (uint32_t i = 0; s->kv.entry && i < s->kv.blocks; i++)
        for (uint32_t p = 0; p < MOOR_KV_PARTS; p++) {
            add(all, &n, s->kv.entry[i].block[p]);
            if (s->kv.entry[i].block[p])
                tally_of(all, &n, s->kv.entry[i].block[p])->index_refs++;
        }
    for (uint32_t i = 0; s->step.open && i < s->step.n; i++)
        for (uint32_t p = 0; s->step.entries[i].record && p < s->step.entries[i].n_pieces; p++)
            add(all, &n, s->step.pieces[s->step.entries[i].piece + p].block);
    return n;
}

int check_audit(lab *l)
{
    static _Thread_local tally all[TALLIES];
    uint32_t n = count_all(l->s, all);
    uint64_t bytes = 0;
    if (n == TALLIES)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        AGREE(all[i].block->refs, all[i].refs, "block %u: references", i);
        AGREE(all[i].block->index_refs, all[i].index_refs, "block %u: references of the index", i);
        bytes += moor_arena_usable(l->s->arena, all[i].block->data);
    }
    AGREE(l->s->blocks.live, n, "blocks%s", "");
    AGREE(atomic_load(&l->s->arena->live), bytes, "live bytes%s", "");
    return 0;
}

uint32_t check_blocks(const moor_records *s)
{
    static _Thread_local tally all[TALLIES];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->slots.count; i++) {
        const moor_record_slot *slot = moor_slots_at(&s->slots, i);
        for (uint32_t p = 0; slot->used && !moor_slot_dead(slot) && p < slot->rows.n; p++)
            add(all, &n, slot->rows.piece[p].block);
    }
    return n;
}

/* ---- views ---- */

static int versions_agree(lab *l, const moor_view *view, const m_record *r, uint64_t rows)
{
    uint32_t n = 0;
    uint64_t last = 0;
    for (uint64_t at = 0; at < rows; at++) {
        uint64_t epoch = r->row[at].seed ? r->row[at].epoch : 0;
        if (at && (!epoch || epoch == last))
            continue;
        if (n >= view->n_versions || view->versions[n].start != at || view->versions[n].epoch != epoch)
            return check_fail(l, "view of %s: version %u is not (%llu, %llu)", view->id, n, (unsigned long long)at,
                              (unsigned long long)epoch);
        n++;
        last = epoch;
    }
    AGREE(view->n_versions, n, "view of %s: versions", view->id);
    return 0;
}

int check_view(lab *l, const moor_view *view, const m_record *r, uint64_t rows, uint32_t id)
{
    uint64_t at = 0, missing = 0;
    uint32_t reasons = 0, index = 0;
    id = id == M_NAMES + M_ALIASES - 1 ? 0 : id;
    AGREE(view->rows, rows, "view of %s: rows", view->id);
    for (uint32_t i = 0; i < view->n_segments; i++) {
        const moor_view_segment *segment = &view->segments[i];
        AGREE(segment->start, at, "view of %s: segment %u", view->id, i);
        for (uint64_t row = at; row < at + segment->rows && row < rows; row++) {
            const uint8_t *bytes = l->s->arena->region.base + segment->offset + (row - at) * l->s->row_bytes;
            if (segment->present ? !r->row[row].seed || !w_is(&l->w, r->row[row], bytes) : r->row[row].seed != 0)
                return check_fail(l, "view of %s: row %llu", view->id, (unsigned long long)row);
            missing += !segment->present;
            reasons |= segment->present ? 0 : r->row[row].reasons;
        }
        at += segment->rows;
    }
    if (id < M_NAMES)
        index = r->name == id ? 0 : (uint32_t)r->alias[M_ALIASES - 1];
    else if (id < M_NAMES + M_ALIASES - 1)
        index = (uint32_t)r->alias[id - M_NAMES];
    AGREE(at, rows, "view of %s: rows in segments", view->id);
    AGREE(view->missing_rows, missing, "view of %s: missing rows", view->id);
    AGREE(view->reasons, reasons, "view of %s: reasons", view->id);
    AGREE(view->handle, r->handle, "view of %s: handle", view->id);
    AGREE(view->dropped_rows, r->dropped, "view of %s: dropped rows", view->id);
    AGREE(view->owner, r->owner, "view of %s: owner", view->id);
    AGREE(view->sealed, r->sealed, "view of %s: sealed", view->id);
    AGREE(view->index, index, "view of %s: index", view->id);
    if (strcmp(view->session, r->session == M_NONE ? "" : check_session_id((uint32_t)r->session)) != 0)
        return check_fail(l, "view of %s: it is session \"%s\"'s", view->id, view->session);
    return versions_agree(l, view, r, rows);
}
