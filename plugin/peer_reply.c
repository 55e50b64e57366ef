/* SPDX-License-Identifier: Apache-2.0 */
#include "peer_reply.h"

#include <stdio.h>
#include <string.h>

#include "../hooks/weights.h"

void moor_peer_put_welcome(moor_wire_buffer *payload, const moor_peer_home *home)
{
    const moor_store *store = home->store;
    moor_wire_welcome welcome = {.version = MOOR_WIRE_VERSION,
                                 .store_index = store->store_index,
                                 .layers = home->layers,
                                 .top_k = home->top_k,
                                 .num_experts = home->num_experts,
                                 .model_layers = home->model_layers,
                                 .dtype = moor_records_dtype(store->records),
                                 .row_bytes = moor_records_row_bytes(store->records),
                                 .arena_bytes = moor_records_arena_bytes(store->records),
                                 .nonce = home->nonce,
                                 .stages = store->stages};
    moor_wire_put(payload, &welcome, sizeof(welcome));
    moor_wire_put(payload, home->layer_ids, home->layers * sizeof(int32_t));
}

static void put_view(moor_wire_buffer *payload, const moor_view *view, moor_state *state)
{
    moor_wire_view head = {.handle = view->handle,
                           .rows = view->rows,
                           .missing_rows = view->missing_rows,
                           .dropped_rows = view->dropped_rows,
                           .owner = view->owner,
                           .reasons = view->reasons,
                           .index = view->index,
                           .n_segments = view->n_segments,
                           .n_versions = view->n_versions,
                           .id_len = view->id_len,
                           .session_len = view->session_len};
    moor_wire_put(payload, &head, sizeof(head));
    for (uint32_t i = 0; i < view->n_segments; i++) {
        const moor_view_segment *segment = &view->segments[i];
        moor_wire_segment wire = {segment->start, segment->rows, segment->offset, segment->present, segment->reasons};
        moor_wire_put(payload, &wire, sizeof(wire));
    }
    for (uint32_t i = 0; i < view->n_versions; i++) {
        moor_wire_version wire = {.start = view->versions[i].start, .epoch = view->versions[i].epoch};
        moor_weights_label_of(state, wire.epoch, wire.label, sizeof(wire.label));
        moor_wire_put(payload, &wire, sizeof(wire));
    }
    moor_wire_put(payload, view->id, view->id_len);
    moor_wire_put(payload, view->session, view->session_len);
    moor_wire_pad(payload);
}

void moor_peer_put_views(moor_wire_buffer *payload, moor_view *const *views, uint32_t n, moor_state *state)
{
    moor_wire_views head = {.n = n};
    moor_wire_put(payload, &head, sizeof(head));
    for (uint32_t i = 0; i < n; i++)
        put_view(payload, views[i], state);
}

void moor_peer_put_stats(moor_wire_buffer *payload, const moor_store *store)
{
    moor_records_stats stats;
    char text[1024];
    moor_records_stats_get(store->records, &stats);
#define FIELD(name) "\"" #name "\":%llu,"
#define VALUE(name) (unsigned long long)stats.name
    int n = snprintf(text, sizeof(text),
                     "{\"store\":%u," FIELD(records) FIELD(sealed) FIELD(leases) FIELD(clients) FIELD(blocks)
                         FIELD(live_bytes) FIELD(arena_bytes) FIELD(resident_bytes) FIELD(kv_entries)
                             FIELD(seals_unknown) FIELD(seals_repeated) FIELD(seals_torn) FIELD(arena_full)
                                 FIELD(sessions) FIELD(sessions_gone) FIELD(session_keys) "\"clients_leases\":%llu}",
                     store->store_index, VALUE(records), VALUE(sealed), VALUE(leases), VALUE(clients), VALUE(blocks),
                     VALUE(live_bytes), VALUE(arena_bytes), VALUE(resident_bytes), VALUE(kv_entries),
                     VALUE(seals_unknown), VALUE(seals_repeated), VALUE(seals_torn), VALUE(arena_full), VALUE(sessions),
                     VALUE(sessions_gone), VALUE(session_keys), VALUE(clients_leases));
#undef FIELD
#undef VALUE
    moor_wire_put(payload, text, (size_t)n);
}
