/* SPDX-License-Identifier: Apache-2.0 */
#include "play.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "allocator/error.h"
#include "allocator/heap.h"
#include "allocator/sessions.h"

uint32_t play_take(play *p, uint32_t below)
{
    uint32_t byte = p->at < p->n ? p->data[p->at++] : 0;
    return below ? byte % below : 0;
}

/* Shapes of stores: small rows in room enough; rows of 512 bytes, so that blocks grow; the same in an arena that is soon full; and one
 * that validates, with three-slot KV blocks. */
static const struct shape {
    uint32_t layers, k, experts, kv_size, validate;
    uint64_t arena, keep_bytes;
} shapes[] = {
    {2, 4, 64, 4, 0, 4 << 20, 0},    {16, 16, 512, 4, 0, 4 << 20, 60 * 512}, {16, 16, 512, 4, 0, 512 << 10, 0},
    {3, 2, 256, 3, 1, 4 << 20, 400}, {2, 4, 64, 1, 1, 4 << 20, 0},           {5, 3, 512, 0, 0, 2 << 20, 2000},
};

static const struct shape *shape_of(lab *l)
{
    const struct shape *shape = &shapes[l->shape];
    l->w.layers = l->m.layers = shape->layers;
    l->w.k = shape->k;
    l->w.experts = l->m.num_experts = shape->experts;
    l->w.kv_size = l->m.kv_size = shape->kv_size;
    l->w.bad_rows = l->m.validate = shape->validate;
    l->m.keep_bytes = shape->keep_bytes;
    l->m.max_tokens = M_TOKENS;
    l->m.row_bytes = shape->layers * shape->k * (shape->experts > 256 ? 2 : 1);
    return shape;
}

static int open_store(lab *l)
{
    static int32_t layer_ids[64];
    const struct shape *shape = shape_of(l);
    for (int32_t i = 0; i < 64; i++)
        layer_ids[i] = 3 + 2 * i;
    l->ring = calloc(1, sizeof(*l->ring));
    moor_records_config config = {.arena_bytes = shape->arena,
                                  .layers = shape->layers,
                                  .top_k = shape->k,
                                  .num_experts = shape->experts,
                                  .model_layers = 150,
                                  .layer_ids = layer_ids,
                                  .max_step_tokens = M_TOKENS,
                                  .kv_blocks = shape->kv_size ? M_KV_BLOCKS : 0,
                                  .kv_block_size = shape->kv_size,
                                  .validate_at_seal = shape->validate,
                                  .keep_s = 10000,
                                  .keep_bytes = shape->keep_bytes,
                                  .seals = l->ring,
                                  .counters = l->counter,
                                  .sealed = check_on_sealed,
                                  .user = l};
    return m_open(&l->m) && l->ring && moor_records_create(&config, &l->s) == MOOR_OK;
}

void play_lab_free(lab *l)
{
    if (!l)
        return;
    moor_records_destroy(l->s);
    m_close(&l->m);
    free(l->ring);
    free(l);
}

lab *play_lab(const lab *like)
{
    lab *l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    l->shape = like->shape;
    l->w = like->w;
    if (open_store(l))
        return l;
    play_lab_free(l);
    return NULL;
}

static int open_lab(play *p)
{
    lab *l = p->l = calloc(1, sizeof(*l));
    if (!l)
        return 0;
    moor_log_configure(NULL, -1); /* validation finds much */
    l->shape = play_take(p, sizeof(shapes) / sizeof(shapes[0]));
    uint32_t scale = play_take(p, 2) ? 20 : 4, block = shapes[l->shape].kv_size;
    for (uint32_t i = 0; i < W_GROUPS; i++)
        l->w.group_prompt[i] = 1 + play_take(p, 10) * scale / 4 * (i < 3 ? 4 : 1);
    if (block) /* one that ends with a block */
        l->w.group_prompt[1] = (1 + l->w.group_prompt[1] / block) * block;
    w_open(&l->w);
    return open_store(l);
}

void play_forget_views(play *p, uint32_t client)
{
    for (uint32_t i = 0; i < PLAY_VIEWS; i++) {
        play_view *v = &p->view[i];
        if (!v->view || (client != UINT32_MAX && v->client != client))
            continue;
        moor_view_free(v->view);
        free(v->rows);
        memset(v, 0, sizeof(*v));
    }
}

/* Too many records for the model: the oldest are given up. */
static int make_room(play *p)
{
    lab *l = p->l;
    uint32_t n = 0;
    for (uint32_t i = 0; i < M_RECORDS; i++)
        n += l->m.record[i].used;
    if (n < M_RECORDS - 2 * M_BATCH)
        return 0;
    for (uint32_t i = 0; i < M_SESSIONS; i++)
        if (m_session_release(&l->m, &l->m.session[i]) != moor_session_release(l->s, check_session_id(i), 2))
            return check_fail(l, "giving a session up: store and model differ");
    for (uint32_t i = 0; i < M_RECORDS; i++) {
        m_record *r = &l->m.record[i];
        if (!r->used || r->in_step)
            continue;
        moor_handle handle = r->handle;
        if (!r->sealed) {
            m_seal_now(&l->m, r->name, M_ALIASES, 0, MOOR_SEAL_COMMITTED);
            moor_records_seal(l->s, check_hash(r->name), 0, MOOR_SEAL_COMMITTED);
        }
        if (m_claim(&l->m, handle, MOOR_OWNER_NONE) != moor_records_claim(l->s, handle, MOOR_OWNER_NONE) ||
            m_policy_event(&l->m, handle, MOOR_EVENT_RESET) != moor_records_event(l->s, handle, MOOR_EVENT_RESET))
            return check_fail(l, "giving a record up: store and model differ");
    }
    for (uint32_t i = 1; i <= M_CLIENTS; i++) {
        m_disconnect(&l->m, i);
        moor_records_disconnect(l->s, i);
        play_forget_views(p, i);
    }
    return check_all(l);
}

static void end_sessions(lab *l)
{
    for (uint32_t i = 0; i < M_SESSIONS; i++)
        moor_session_release(l->s, check_session_id(i), 2);
}

int play_empty(lab *l)
{
    moor_records_step_abandon(l->s);
    moor_records_drain(l->s);
    end_sessions(l);
    for (uint32_t i = 0; i < M_RECORDS; i++)
        for (m_record *r = &l->m.record[i]; r->used && r->held[0]; r->held[0]--)
            moor_records_unlease(l->s, r->handle);
    for (uint32_t i = 1; i <= M_CLIENTS; i++)
        moor_records_disconnect(l->s, i);
    for (uint32_t i = 0; i < M_NAMES; i++)
        while (moor_records_seal(l->s, check_hash(i), 0, MOOR_SEAL_COMMITTED) == MOOR_OK &&
               l->s->seals_repeated == l->m.seals_repeated) {
        }
    for (uint32_t i = 0; i < l->s->slots.count; i++) {
        const moor_record_slot *slot = moor_slots_at(&l->s->slots, i);
        moor_handle handle = moor_slot_handle(slot);
        if (!slot->used)
            continue;
        while (!slot->sealed)
            moor_records_seal(l->s, slot->hash, 0, MOOR_SEAL_COMMITTED);
        moor_records_claim(l->s, handle, MOOR_OWNER_NONE);
        moor_records_event(l->s, handle, MOOR_EVENT_DISCARD);
    }
    moor_records_kv_reset(l->s);
    moor_records_stats stats;
    moor_records_stats_get(l->s, &stats);
    if (stats.records || stats.sealed || stats.leases || stats.clients || stats.blocks || stats.live_bytes ||
        stats.kv_entries || stats.sessions || stats.session_keys)
        return check_fail(l,
                          "at the end: %llu records, %llu sealed, %llu leases, %llu clients, %llu blocks, %llu bytes, "
                          "%llu sessions, %llu keys",
                          (unsigned long long)stats.records, (unsigned long long)stats.sealed,
                          (unsigned long long)stats.leases, (unsigned long long)stats.clients,
                          (unsigned long long)stats.blocks, (unsigned long long)stats.live_bytes,
                          (unsigned long long)stats.sessions, (unsigned long long)stats.session_keys);
    return 0;
}

static int end(play *p)
{
    for (uint32_t i = 0; i < PLAY_VIEWS; i++) {
        if (!p->view[i].view || p->view[i].client)
            continue;
        moor_records_unlease(p->l->s, p->view[i].view->handle);
        p->view[i].record->held[0]--;
    }
    play_forget_views(p, UINT32_MAX);
    return play_empty(p->l);
}

static void close_play(play *p)
{
    static const char *const names[] = {"/store-0.moor", "/.store-0.moor.tmp", ""};
    for (int i = 0; p->dir[0] && i < 3; i++) {
        char path[64];
        snprintf(path, sizeof(path), "%s%s", p->dir, names[i]);
        (void)remove(path);
    }
    moor_fault_arm(0);
    play_lab_free(p->l);
    if (p->saved)
        m_close(p->saved);
    free(p->saved);
    free(p);
}

uint64_t play_bytes(const uint8_t *data, size_t n, int trace, int *failed, char why[512], size_t *used)
{
    play *p = calloc(1, sizeof(*p));
    int bad = 0;
    *failed = 0;
    *used = 0;
    if (!p)
        return 0;
    p->data = data;
    p->n = n;
    p->trace = trace;
    if (open_lab(p)) {
        while (!bad && p->at < n && !p->l->m.table_full) {
            p->l->whole = p->ops % 16 == 15;
            bad = play_step(p) || check_all(p->l) || ((p->l->whole || trace) && check_audit(p->l)) || make_room(p);
            p->ops++;
        }
        p->l->whole = 1;
        bad = bad || check_all(p->l) || check_audit(p->l) || end(p);
        play_forget_views(p, UINT32_MAX);
    }
    uint64_t ops = p->ops;
    if (p->l)
        memcpy(why, p->l->why, sizeof(p->l->why));
    *used = p->at;
    *failed = bad;
    close_play(p);
    return ops;
}
