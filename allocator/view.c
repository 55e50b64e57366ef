/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "heap.h"
#include "policy.h"
#include "seal.h"
#include "sessions.h"

/* Walks the weight versions of rows 0…rows-1; writes to `out` unless NULL. A missing range starts no version of its own, except
 * at row 0, whose version is unknown then. */
static uint32_t versions(const moor_record_slot *record, uint64_t rows, moor_view_version *out)
{
    uint32_t n = 0;
    uint64_t last = 0;
    for (uint32_t i = 0; i < record->rows.n && record->rows.piece[i].start < rows; i++) {
        const moor_piece *piece = &record->rows.piece[i];
        const moor_block *block = piece->block;
        if (!block) {
            if (n++ == 0) {
                if (out)
                    out[0] = (moor_view_version){0, 0};
            } else {
                n--;
            }
            continue;
        }
        uint64_t end = piece->start + piece->rows < rows ? piece->start + piece->rows : rows;
        uint32_t past = piece->first + (uint32_t)(end - piece->start);
        for (uint32_t r = 0; r < block->n_runs && block->runs[r].first < past; r++) {
            uint32_t until = r + 1 < block->n_runs ? block->runs[r + 1].first : UINT32_MAX;
            if (until <= piece->first || (n && block->runs[r].epoch == last))
                continue;
            uint32_t first = block->runs[r].first > piece->first ? block->runs[r].first : piece->first;
            last = block->runs[r].epoch;
            if (out)
                out[n] = (moor_view_version){piece->start + first - piece->first, last};
            n++;
        }
    }
    return n;
}

moor_view *moor_view_make(const moor_records *records, const moor_record_slot *record, uint64_t rows)
{
    uint32_t n = 0;
    while (n < record->rows.n && record->rows.piece[n].start < rows)
        n++;
    uint32_t n_versions = versions(record, rows, NULL);
    size_t segments = sizeof(moor_view), runs = segments + n * sizeof(moor_view_segment);
    size_t id = runs + n_versions * sizeof(moor_view_version);
    uint32_t session_len = record->session ? record->session->id_len : 0;
    char *memory = moor_heap_alloc(id + record->id_len + 1 + session_len + 1);
    if (!memory) {
        moor_fail(MOOR_E_NOMEM, "request %s: no memory for a view of %u segments", record->id, n);
        return NULL;
    }
    moor_view *view = (moor_view *)(void *)memory;
    moor_view_segment *segment = (moor_view_segment *)(void *)(memory + segments);
    versions(record, rows, (moor_view_version *)(void *)(memory + runs));
    memcpy(memory + id, record->id, record->id_len);
    char *session = memory + id + record->id_len + 1;
    if (session_len)
        memcpy(session, record->session->id, session_len);
    for (uint32_t i = 0; i < n; i++) {
        const moor_piece *piece = &record->rows.piece[i];
        uint64_t end = piece->start + piece->rows < rows ? piece->start + piece->rows : rows;
        segment[i] =
            (moor_view_segment){.start = piece->start, .rows = end - piece->start, .present = piece->block != NULL};
        if (piece->block) {
            segment[i].offset =
                moor_arena_offset(records->arena, moor_piece_data(piece, piece->start, records->row_bytes));
        } else {
            segment[i].reasons = piece->reasons;
            view->missing_rows += end - piece->start;
            view->reasons |= piece->reasons;
        }
    }
    view->handle = moor_slot_handle(record);
    view->rows = rows;
    view->dropped_rows = record->dropped;
    view->owner = record->owner;
    view->sealed = record->sealed;
    view->n_segments = n;
    view->n_versions = n_versions;
    view->id_len = record->id_len;
    view->segments = segment;
    view->versions = (moor_view_version *)(void *)(memory + runs);
    view->id = memory + id;
    view->session = session;
    view->session_len = session_len;
    return view;
}

void moor_view_free(moor_view *view)
{
    moor_heap_free(view);
}

void moor_views_free(moor_view **views, uint32_t n)
{
    for (uint32_t i = 0; views && i < n; i++)
        moor_view_free(views[i]);
    moor_heap_free(views);
}

/* ---- look-up ---- */

typedef struct match {
    moor_record_slot *record;
    uint32_t index;
} match;

/* Core ids have no index of their own; records of one index in the order of their creation. */
static int by_index(const void *a, const void *b)
{
    const match *x = a, *y = b;
    if (x->index != y->index)
        return x->index < y->index ? -1 : 1;
    return x->record->created < y->record->created ? -1 : x->record->created > y->record->created;
}

/* An id that means no live record: why, if that is remembered. */
static moor_status not_found(const moor_records *records, moor_hash128 hash, const char *id, uint32_t id_len)
{
    uint64_t when_ns;
    int expired;
    if (!moor_gone_find(&records->gone, hash, &expired, &when_ns))
        return moor_fail(MOOR_E_NOT_FOUND, "no record of request %.*s%s", (int)id_len, id,
                         records->gone.forgot ? ": never seen, or gone for too long to be remembered" : "");
    double ago = (double)(moor_now_ns() - when_ns) * 1e-9;
    if (!expired)
        return moor_fail(MOOR_E_NOT_FOUND, "no record of request %.*s any more: it was freed %.1f s ago", (int)id_len,
                         id, ago);
    return moor_fail(MOOR_E_NOT_FOUND,
                     "no record of request %.*s any more: the keep policy freed it %.1f s ago (record.keep_s is %g, "
                     "record.keep_bytes %llu)",
                     (int)id_len, id, ago, records->config.keep_s, (unsigned long long)records->config.keep_bytes);
}

/* The live records that an id means, in order. *out is freed with moor_heap_free. */
static moor_status look_up(const moor_records *records, const char *id, uint32_t id_len, match **out, uint32_t *count)
{
    uint32_t n = 0;
    moor_hash128 hash = moor_id_hash(id, id_len);
    moor_id_node *newest = moor_ids_find(&records->ids, hash);
    for (moor_id_node *node = newest; node; node = node->older)
        n += !moor_slot_dead(moor_slots_at(&records->slots, node->slot));
    if (!n)
        return not_found(records, hash, id, id_len);
    match *found = moor_heap_alloc(n * sizeof(*found));
    if (!found)
        return moor_fail(MOOR_E_NOMEM, "request %.*s: no memory for its %u records", (int)id_len, id, n);
    n = 0;
    for (moor_id_node *node = newest; node; node = node->older) {
        moor_record_slot *record = moor_slots_at(&records->slots, node->slot);
        if (!moor_slot_dead(record))
            found[n++] = (match){record, node->index};
    }
    qsort(found, n, sizeof(*found), by_index);
    *out = found;
    *count = n;
    return MOOR_OK;
}

static moor_status ambiguous(const char *id, uint32_t id_len, const match *found, uint32_t n)
{
    char text[512];
    size_t used = 0;
    for (uint32_t i = 0; i < n && used + 4 < sizeof(text); i++) {
        const moor_record_slot *record = found[i].record;
        int wrote = snprintf(text + used, sizeof(text) - used, "%s%s", i ? ", " : "", record->id);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return moor_fail(MOOR_E_AMBIGUOUS, "request %.*s means %u records: %s%s", (int)id_len, id, n, text,
                     used >= sizeof(text) ? "…" : "");
}

/* Of several the newest that has the id from the core: the engine delivers to the request that it answers, whoever had the id before. */
static const match *newest_own(const char *id, uint32_t id_len, const match *found, uint32_t n)
{
    const match *newest = NULL;
    for (const match *m = found; m < found + n; m++)
        if (m->record->id_len == id_len && !memcmp(m->record->id, id, id_len) &&
            (!newest || newest->record->created < m->record->created))
            newest = m;
    return newest;
}

static moor_status one_of(const moor_records *records, const char *id, uint32_t id_len, int newest, match *out)
{
    match *found;
    uint32_t n;
    moor_status status = look_up(records, id, id_len, &found, &n);
    if (status)
        return status;
    const match *one = n == 1 ? found : newest ? newest_own(id, id_len, found, n) : NULL;
    if (one)
        *out = *one;
    else
        status = ambiguous(id, id_len, found, n);
    moor_heap_free(found);
    return status;
}

moor_status moor_records_find(moor_records *records, const char *id, uint32_t id_len, moor_handle *out)
{
    match found;
    moor_records_lock(records);
    moor_seal_drain(records, moor_now_ns());
    moor_status status = one_of(records, id, id_len, 0, &found);
    if (!status)
        /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): set where the call says MOOR_OK */
        *out = moor_slot_handle(found.record);
    moor_records_unlock(records);
    return status;
}

/* ---- leases ---- */

moor_status moor_view_open(moor_records *records, uint64_t client, moor_record_slot *record, uint32_t index,
                           uint64_t rows, moor_view **out)
{
    /* What a reader of an unsealed record looks at may be cut later, when there is nobody to tell of a failure. */
    moor_status status = record->sealed ? MOOR_OK : moor_record_can_cut(record);
    if (status)
        return status;
    moor_view *view = moor_view_make(records, record, rows);
    if (!view)
        return MOOR_E_NOMEM;
    view->index = index;
    moor_handle handle = view->handle;
    if (client != MOOR_CLIENT_NONE)
        status = moor_clients_add(&records->clients, client, handle);
    if (!status) {
        status = moor_slots_lease(&records->slots, handle);
        if (status && client != MOOR_CLIENT_NONE)
            (void)moor_clients_remove(&records->clients, client, handle);
    }
    if (status) {
        moor_view_free(view);
        return status;
    }
    record->opened = 1;
    moor_records_count(records, MOOR_C_OPENS, 1);
    *out = view;
    return MOOR_OK;
}

static moor_status not_yet(const moor_record_slot *record, uint32_t flags, uint64_t rows)
{
    if (flags & MOOR_OPEN_PREFIX)
        return moor_fail(MOOR_E_TIMEOUT, "request %s: %llu rows so far, %llu wanted", record->id,
                         (unsigned long long)record->accepted, (unsigned long long)rows);
    return moor_fail(MOOR_E_TIMEOUT, "request %s is not sealed yet: %llu rows so far", record->id,
                     (unsigned long long)record->accepted);
}

moor_status moor_records_open(moor_records *records, uint64_t client, const char *id, uint32_t id_len, uint32_t flags,
                              uint64_t rows, moor_view **out)
{
    match found;
    moor_records_lock(records);
    moor_seal_drain(records, moor_now_ns());
    moor_status status = one_of(records, id, id_len, (flags & MOOR_OPEN_PREFIX) != 0, &found);
    if (!status) {
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): set where the call says MOOR_OK */
        uint64_t end = found.record->accepted; /* speculative rows may still be taken back: nobody sees them */
        int prefix = (flags & MOOR_OPEN_PREFIX) != 0;
        if (!found.record->sealed && (!prefix || end < rows))
            status = not_yet(found.record, flags, rows);
        else
            status = moor_view_open(records, client, found.record, found.index, prefix && rows < end ? rows : end, out);
    }
    moor_records_unlock(records);
    return status;
}

static void close_locked(moor_records *records, moor_handle handle)
{
    int last = 0;
    moor_record_slot *record = moor_slots_at(&records->slots, (uint32_t)handle);
    if (moor_slots_unlease(&records->slots, handle, &last))
        return;
    if (last)
        moor_record_try_reclaim(records, record);
    else if (record->expirable && !moor_slot_leases(record))
        moor_record_touch(records, record, moor_now_ns());
}

void moor_view_close(moor_records *records, uint64_t client, moor_handle handle)
{
    if (client != MOOR_CLIENT_NONE)
        (void)moor_clients_remove(&records->clients, client, handle);
    close_locked(records, handle);
}

moor_status moor_records_open_all(moor_records *records, uint64_t client, const char *id, uint32_t id_len,
                                  moor_view ***out, uint32_t *n)
{
    match *found = NULL;
    moor_view **views = NULL;
    uint32_t count = 0, made = 0;
    moor_records_lock(records);
    moor_seal_drain(records, moor_now_ns());
    moor_status status = look_up(records, id, id_len, &found, &count);
    for (uint32_t i = 0; !status && i < count; i++) {
        if (!found[i].record->sealed)
            status = not_yet(found[i].record, 0, 0);
    }
    if (!status) {
        views = moor_heap_alloc(count * sizeof(*views));
        if (!views)
            status = moor_fail(MOOR_E_NOMEM, "request %.*s: no memory for %u views", (int)id_len, id, count);
    }
    for (; !status && made < count; made += !status)
        status = moor_view_open(records, client, found[made].record, found[made].index, found[made].record->rows.end,
                                &views[made]);
    for (uint32_t i = 0; status && i < made; i++) {
        moor_view_close(records, client, views[i]->handle);
    }
    moor_records_unlock(records);
    moor_heap_free(found);
    if (status) {
        moor_views_free(views, made);
        return status;
    }
    *out = views;
    *n = count;
    return MOOR_OK;
}

moor_status moor_records_open_handle(moor_records *records, uint64_t client, moor_handle handle, moor_view **out)
{
    match found = {NULL, 0};
    moor_records_lock(records);
    moor_seal_drain(records, moor_now_ns());
    moor_status status = moor_slots_get(&records->slots, handle, &found.record);
    if (!status && !found.record->sealed)
        status = not_yet(found.record, 0, 0);
    if (!status)
        status = moor_view_open(records, client, found.record, found.index, found.record->rows.end, out);
    moor_records_unlock(records);
    return status;
}

moor_status moor_records_close(moor_records *records, uint64_t client, moor_handle handle)
{
    if (client == MOOR_CLIENT_NONE)
        return moor_records_unlease(records, handle);
    moor_records_lock(records);
    moor_status status = moor_clients_remove(&records->clients, client, handle);
    if (!status)
        close_locked(records, handle);
    moor_records_unlock(records);
    return status;
}

uint32_t moor_records_disconnect(moor_records *records, uint64_t client)
{
    uint32_t ended = 0;
    int more = 1;
    moor_handle handle;
    if (client == MOOR_CLIENT_NONE)
        return 0;
    moor_sessions_disconnect(records, client);
    while (more) {
        moor_records_lock(records);
        for (int i = 0; i < MOOR_FREED_AT_ONCE && (more = moor_clients_pop(&records->clients, client, &handle)); i++) {
            moor_record_slot *record = moor_slots_at(&records->slots, (uint32_t)handle);
            if (moor_policy_decide(record->owner, MOOR_EVENT_DISCONNECTED) == MOOR_ACTION_END_LEASES)
                close_locked(records, handle);
            ended++;
        }
        moor_records_unlock(records);
    }
    return ended;
}

moor_status moor_records_lease(moor_records *records, moor_handle handle)
{
    return moor_slots_lease(&records->slots, handle);
}

moor_status moor_records_unlease(moor_records *records, moor_handle handle)
{
    int last = 0;
    moor_status status = moor_slots_unlease(&records->slots, handle, &last);
    if (status || !last)
        return status;
    moor_records_lock(records);
    /* Somebody else may have reclaimed it meanwhile, and the slot may live another life: then this handle is not its own. */
    moor_record_slot *record = moor_slots_at(&records->slots, (uint32_t)handle);
    if (moor_slot_handle(record) == handle)
        moor_record_try_reclaim(records, record);
    moor_records_unlock(records);
    return MOOR_OK;
}
