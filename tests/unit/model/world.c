/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include <string.h>

void w_open(world *w)
{
    w->epoch = 1;
    w->n_queue = M_KV_BLOCKS;
    for (uint32_t i = 0; i < M_KV_BLOCKS; i++) {
        w->queue[i] = i;
        w->block[i].group = -1;
    }
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7FB5D329728EA185u;
    x ^= x >> 27;
    x *= 0x81DADEF4BC2DD44Du;
    return x ^ (x >> 33);
}

m_row w_row(const world *w, const w_request *q, uint64_t position)
{
    int prompt = position < q->prompt;
    uint64_t who = prompt ? q->group : q->uid, draw = prompt ? 0 : q->draws[position];
    uint64_t seed =
        1ull << 63 | (uint64_t)!prompt << 62 | who << 40 | draw << 32 | position << 16 | (w->epoch & 0xFFFF);
    return (m_row){.seed = seed, .epoch = w->epoch, .bad = w->bad_rows && mix(seed) % 13 == 0};
}

void w_ids(const world *w, m_row row, uint32_t layer, int32_t *ids)
{
    uint64_t h = mix(row.seed + layer * 0x9E3779B97F4A7C15u);
    uint32_t at = (uint32_t)h,
             stride = 1 + (uint32_t)(h >> 61); /* experts are a power of two: k of them are distinct */
    for (uint32_t i = 0; i < w->k; i++)
        ids[i] = (int32_t)((at + i * stride * 2 + i) & (w->experts - 1));
    if (row.bad && !layer)
        ids[w->k - 1] = ids[0];
}

static void make_bytes(const world *w, m_row row, uint8_t *bytes)
{
    int32_t ids[64];
    for (uint32_t layer = 0; layer < w->layers; layer++) {
        w_ids(w, row, layer, ids);
        for (uint32_t i = 0; i < w->k; i++) {
            *bytes++ = (uint8_t)ids[i];
            if (w->experts > 256)
                *bytes++ = (uint8_t)(ids[i] >> 8);
        }
    }
}

/* Most of a sequence's time goes here, again and again with the same rows: what they look like is kept. */
int w_is(const world *w, m_row row, const uint8_t *bytes)
{
    static struct known {
        uint64_t seed;
        uint32_t layers, k, experts, bad;
        uint8_t bytes[W_ROW_BYTES];
    } known[2048];
    struct known *at = &known[mix(row.seed) % 2048];
    if (at->seed != row.seed || at->layers != w->layers || at->k != w->k || at->experts != w->experts ||
        at->bad != row.bad) {
        *at = (struct known){.seed = row.seed, .layers = w->layers, .k = w->k, .experts = w->experts, .bad = row.bad};
        make_bytes(w, row, at->bytes);
    }
    return memcmp(at->bytes, bytes, (size_t)w->layers * w->k * (w->experts > 256 ? 2 : 1)) == 0;
}

/* ---- KV blocks ---- */

static int take_block(world *w, int32_t *out)
{
    if (!w->n_queue || w->n_handed_out == sizeof(w->handed_out) / sizeof(w->handed_out[0]))
        return 0;
    uint32_t id = w->queue[0];
    memmove(w->queue, w->queue + 1, --w->n_queue * sizeof(w->queue[0]));
    w->block[id] = (w_block){1, -1, -1};
    w->handed_out[w->n_handed_out++] = (int32_t)id;
    memset(w->truth[id], 0, sizeof(w->truth[id]));
    *out = (int32_t)id;
    return 1;
}

static void leave_block(world *w, int32_t id)
{
    if (--w->block[id].users == 0)
        w->queue[w->n_queue++] = (uint32_t)id;
}

static void share_block(world *w, int32_t id)
{
    if (w->block[id].users++)
        return;
    for (uint32_t i = 0; i < w->n_queue; i++) {
        if (w->queue[i] != (uint32_t)id)
            continue;
        memmove(w->queue + i, w->queue + i + 1, (--w->n_queue - i) * sizeof(w->queue[0]));
        return;
    }
}

static int32_t cached_block(const world *w, uint32_t group, uint32_t number)
{
    for (int32_t i = 0; i < M_KV_BLOCKS; i++)
        if (w->block[i].group == (int32_t)group && w->block[i].number == (int32_t)number)
            return i;
    return -1;
}

/* A request without blocks takes what the cache has of its prompt. The last token of a prompt is always computed; when all of the prompt is
 * cached this writes into a block that others use (the same token again). */
static void take_cached(world *w, w_request *q)
{
    for (uint32_t number = 0; w->kv_size && (number + 1) * w->kv_size <= q->prompt; number++) {
        int32_t id = cached_block(w, q->group, number);
        if (id < 0)
            break;
        share_block(w, id);
        q->kv[q->n_kv++] = id;
    }
    q->done = (uint64_t)q->n_kv * w->kv_size;
    if (q->done == q->prompt)
        q->done--;
}

w_request *w_admit(world *w, uint32_t name, uint32_t group, uint32_t sampled)
{
    w_request *q = NULL;
    for (uint32_t i = 0; i < W_REQUESTS; i++) {
        if (w->request[i].state && w->request[i].name == name)
            return NULL;
        if (!w->request[i].state)
            q = &w->request[i];
    }
    if (!q)
        return NULL;
    memset(q, 0, sizeof(*q));
    q->state = 1;
    q->name = name;
    q->uid = ++w->uids;
    q->group = group;
    q->prompt = w->group_prompt[group];
    q->most = q->prompt + sampled;
    take_cached(w, q);
    return q;
}

/* ---- a step ---- */

void w_new_step(world *w)
{
    w->n = 0;
}

int w_schedule(world *w, w_request *q, uint32_t tokens, uint32_t spec)
{
    uint32_t used = 0, drafts = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        used += w->step[i].count;
        if (w->who[i] == (uint32_t)(q - w->request))
            return 0;
    }
    if (q->state == 1 && !q->n_kv && !q->done)
        take_cached(w, q);
    uint64_t left = 1 + spec;
    if (q->done < q->prompt)
        left = q->prompt - q->done < tokens ? q->prompt - q->done : tokens;
    else if (q->done < q->computed) /* after a preemption: what was sampled is known */
        left = q->computed - q->done < tokens ? q->computed - q->done : tokens;
    else
        drafts = 1;
    if (w->n == M_BATCH || !left || used + left > M_TOKENS || q->done + left > q->most)
        return 0;
    while (w->kv_size && (uint64_t)q->n_kv * w->kv_size < q->done + left) {
        if (q->n_kv == M_REQUEST_KV || !take_block(w, &q->kv[q->n_kv]))
            return 0;
        q->n_kv++;
    }
    m_request *s = &w->step[w->n];
    *s = (m_request){.name = q->name,
                     .start = q->done,
                     .count = (uint32_t)left,
                     .spec = drafts ? (uint32_t)(left - 1) : 0,
                     .n_kv = q->n_kv,
                     .rows = w->rows[w->n]};
    memcpy(s->kv, q->kv, q->n_kv * sizeof(q->kv[0]));
    for (uint32_t i = 0; i < left; i++)
        w->rows[w->n][i] = w_row(w, q, q->done + i);
    /* As vLLM does: a full block of a prompt can be hit by the next request of this very step. */
    for (uint32_t b = 0; w->kv_size && b < q->n_kv && (b + 1) * w->kv_size <= q->prompt; b++) {
        if ((uint64_t)(b + 1) * w->kv_size <= q->done + left && cached_block(w, q->group, b) < 0)
            w->block[q->kv[b]] = (w_block){w->block[q->kv[b]].users, (int32_t)q->group, (int32_t)b};
    }
    w->who[w->n++] = (uint32_t)(q - w->request);
    return 1;
}

void w_execute(world *w)
{
    memcpy(w->was, w->truth, sizeof(w->was));
    for (uint32_t i = 0; i < w->n; i++) {
        const m_request *s = &w->step[i];
        for (uint32_t t = 0; w->kv_size && t < s->count; t++) {
            uint64_t at = s->start + t;
            m_row *slot = &w->truth[s->kv[at / w->kv_size]][at % w->kv_size];
            w->before[i][t] = *slot;
            *slot = w->rows[i][t];
        }
    }
}

/* A slot that had a token keeps it; see world.h. */
void w_unwrite(world *w)
{
    for (uint32_t i = w->n; i--;) {
        const m_request *s = &w->step[i];
        for (uint32_t t = s->count; w->kv_size && t--;) {
            uint64_t at = s->start + t;
            if (w->before[i][t].seed)
                w->truth[s->kv[at / w->kv_size]][at % w->kv_size] = w->before[i][t];
        }
    }
}

int w_late(world *w, w_request *q)
{
    if (q->state != 2 || w->n == M_BATCH || q->done + 1 >= M_ROWS)
        return 0;
    m_request *s = &w->step[w->n];
    *s = (m_request){.name = q->name, .start = q->done, .rows = w->rows[w->n]};
    w->who[w->n++] = (uint32_t)(q - w->request);
    q->state = 0;
    return 1;
}

void w_settle(world *w, const uint32_t *accepted)
{
    for (uint32_t i = 0; i < w->n; i++) {
        w_request *q = &w->request[w->who[i]];
        if (q->state != 1 || q->done != w->step[i].start)
            continue; /* preempted or ended meanwhile */
        for (uint64_t at = q->done + accepted[i]; at < q->done + w->step[i].count; at++)
            q->draws[at]++;
        q->done += accepted[i];
        if (q->done > q->computed)
            q->computed = q->done;
    }
    w->n = 0;
}

void w_forget(world *w)
{
    w->n = 0;
}

void w_preempt(world *w, w_request *q)
{
    for (uint32_t i = q->n_kv; i--;)
        leave_block(w, q->kv[i]);
    q->n_kv = 0;
    q->done = 0;
}

void w_end(world *w, w_request *q)
{
    uint64_t done = q->done;
    w_preempt(w, q);
    q->done = done;
    q->state = 2;
}

void w_kv_reset(world *w)
{
    for (uint32_t i = 0; i < M_KV_BLOCKS; i++)
        w->block[i].group = w->block[i].number = -1;
}
