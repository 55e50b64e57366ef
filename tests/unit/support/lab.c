/* SPDX-License-Identifier: Apache-2.0 */
#include "lab.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void on_sealed(void *user, const moor_sealed_event *event)
{
    lab_store *lab = user;
    pthread_mutex_lock(
        &lab->events_lock); /* whoever sealed calls, without the store's lock: a test may have many threads */
    lab->sealed_events++;
    lab->last_event = *event;
    for (uint32_t i = 0; i < event->n_ids && i < 8; i++)
        lab->last_ids[i] = event->ids[i];
    pthread_mutex_unlock(&lab->events_lock);
}

void lab_defaults(lab_store *lab)
{
    memset(lab, 0, sizeof(*lab));
    pthread_mutex_init(&lab->events_lock, NULL);
    lab->ring = calloc(1, sizeof(*lab->ring));
    for (int i = 0; i < 64; i++)
        lab->layer_ids[i] = 3 + 2 * i;
    lab->epoch = 1;
    lab->skip_layer = -1;
    lab->config = (moor_records_config){.arena_bytes = 16 << 20,
                                        .layers = LAB_LAYERS,
                                        .top_k = LAB_K,
                                        .num_experts = LAB_EXPERTS,
                                        .model_layers = 2 * LAB_LAYERS + 3,
                                        .layer_ids = lab->layer_ids,
                                        .max_step_tokens = LAB_MAX_STEP,
                                        .kv_blocks = 256,
                                        .kv_block_size = LAB_BLOCK,
                                        .seals = lab->ring,
                                        .counters = lab->counters,
                                        .sealed = on_sealed,
                                        .user = lab};
}

void lab_open_with(lab_store *lab)
{
    assert_non_null(lab->ring);
    lab->source = calloc((size_t)lab->config.max_step_tokens * lab->config.top_k, sizeof(*lab->source));
    assert_status(moor_records_create(&lab->config, &lab->records), MOOR_OK);
    int fd = -1;
    assert_status(moor_records_arena_fd(lab->records, &fd), MOOR_OK);
    lab->arena = mmap(NULL, moor_records_arena_bytes(lab->records), PROT_READ, MAP_SHARED, fd, 0);
    assert_true(lab->arena != MAP_FAILED);
    close(fd);
}

void lab_open(lab_store *lab)
{
    lab_defaults(lab);
    lab_open_with(lab);
}

void lab_close(lab_store *lab)
{
    munmap((void *)(uintptr_t)lab->arena, moor_records_arena_bytes(lab->records));
    moor_records_destroy(lab->records);
    free(lab->source);
    free(lab->ring);
}

void lab_assert_empty(lab_store *lab)
{
    moor_records_kv_reset(lab->records);
    for (uint32_t i = 0; i < lab->records->slots.count; i++) {
        moor_record_slot *slot = moor_slots_at(&lab->records->slots, i);
        if (!slot->used)
            continue;
        if (!slot->sealed)
            moor_records_seal(lab->records, slot->hash, 0, MOOR_SEAL_COMMITTED);
        moor_handle handle = moor_slot_handle(slot);
        moor_records_claim(lab->records, handle, MOOR_OWNER_NONE);
        moor_records_event(lab->records, handle, MOOR_EVENT_DISCARD);
    }
    moor_records_stats stats = lab_stats(lab);
    assert_int_equal(stats.records, 0);
    assert_int_equal(stats.blocks, 0);
    assert_int_equal(stats.live_bytes, 0);
    assert_int_equal(stats.kv_entries, 0);
}

uint32_t lab_id(const lab_store *lab, const char *id, uint64_t position, uint32_t layer, uint32_t k, uint64_t epoch)
{
    uint64_t seed = epoch * 1000003u + position * 7919u + layer * 104729u;
    for (const char *p = id; *p; p++)
        seed = seed * 131 + (unsigned char)*p;
    seed ^= seed >> 17;
    /* k distinct ids: an arithmetic walk through the experts. */
    return (uint32_t)((seed + (uint64_t)k * (1 + 2 * (seed % 5))) % lab->config.num_experts);
}

moor_status lab_begin(lab_store *lab, const lab_request *requests, uint32_t n)
{
    moor_step_request list[64];
    assert_true(n <= 64);
    for (uint32_t i = 0; i < n; i++)
        list[i] = (moor_step_request){.id = requests[i].id,
                                      .id_len = (uint32_t)strlen(requests[i].id),
                                      .count = requests[i].count,
                                      .start = requests[i].start,
                                      .spec = requests[i].spec,
                                      .kv_blocks = requests[i].kv,
                                      .n_kv_blocks = requests[i].n_kv,
                                      .rows_hint = requests[i].hint,
                                      .flags = requests[i].flags};
    return moor_records_step_begin(lab->records, list, n, lab->epoch);
}

void lab_capture(lab_store *lab, const lab_request *requests, uint32_t n)
{
    for (uint32_t layer = 0; layer < lab->config.layers; layer++) {
        uint32_t token = 0;
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t t = 0; t < requests[i].count; t++, token++) {
                for (uint32_t k = 0; k < lab->config.top_k; k++)
                    lab->source[token * lab->config.top_k + k] =
                        (int32_t)lab_id(lab, requests[i].id, requests[i].start + t, layer, k, lab->epoch);
            }
        }
        if ((int)layer == lab->skip_layer)
            continue;
        moor_ids ids = {.data = lab->source, .dtype = MOOR_DTYPE_I32, .tokens = token, .top_k = lab->config.top_k};
        assert_status(moor_records_capture(lab->records, layer, &ids), MOOR_OK);
    }
}

void lab_step(lab_store *lab, const lab_request *requests, uint32_t n)
{
    assert_status(lab_begin(lab, requests, n), MOOR_OK);
    lab_capture(lab, requests, n);
    assert_status(moor_records_step_commit(lab->records, NULL, 0), MOOR_OK);
}

void lab_one(lab_store *lab, const char *id, uint64_t start, uint32_t count)
{
    lab_request request = {.id = id, .start = start, .count = count};
    lab_step(lab, &request, 1);
}

moor_status lab_seal(lab_store *lab, const char *id, uint64_t rows)
{
    return moor_records_seal(lab->records, moor_id_hash(id, strlen(id)), rows, 0);
}

void lab_run(lab_store *lab, const char *id, uint32_t prompt, uint32_t sampled)
{
    lab_one(lab, id, 0, prompt);
    for (uint32_t i = 1; i < sampled; i++)
        lab_one(lab, id, prompt + i - 1, 1);
    assert_status(lab_seal(lab, id, prompt + (sampled ? sampled - 1 : 0)), MOOR_OK);
}

moor_view *lab_view(lab_store *lab, const char *id)
{
    moor_view *view = NULL;
    assert_status(moor_records_open(lab->records, 1, id, (uint32_t)strlen(id), 0, 0, &view), MOOR_OK);
    uint64_t at = 0;
    for (uint32_t i = 0; i < view->n_segments; i++) {
        assert_int_equal(view->segments[i].start, at);
        assert_true(view->segments[i].rows > 0);
        at += view->segments[i].rows;
    }
    assert_int_equal(at, view->rows);
    return view;
}

void lab_unview(lab_store *lab, moor_view *view)
{
    assert_status(moor_records_close(lab->records, 1, view->handle), MOOR_OK);
    moor_view_free(view);
}

const uint8_t *lab_row(lab_store *lab, const moor_view *view, uint64_t row)
{
    for (uint32_t i = 0; i < view->n_segments; i++) {
        const moor_view_segment *segment = &view->segments[i];
        if (row >= segment->start && row < segment->start + segment->rows)
            return segment->present
                       ? lab->arena + segment->offset + (row - segment->start) * moor_records_row_bytes(lab->records)
                       : NULL;
    }
    fail_msg("row %llu of %llu", (unsigned long long)row, (unsigned long long)view->rows);
    return NULL;
}

void lab_assert_rows(lab_store *lab, const moor_view *view, const char *id, uint64_t from, uint64_t to, uint64_t epoch)
{
    int wide = moor_records_dtype(lab->records) == MOOR_DTYPE_U16;
    assert_true(to <= view->rows);
    for (uint64_t row = from; row < to; row++) {
        const uint8_t *data = lab_row(lab, view, row);
        if (!data)
            fail_msg("row %llu of %s is missing", (unsigned long long)row, id);
        for (uint32_t i = 0; i < lab->config.layers * lab->config.top_k; i++) {
            uint32_t want = lab_id(lab, id, row, i / lab->config.top_k, i % lab->config.top_k, epoch);
            uint32_t got = wide ? ((const uint16_t *)(const void *)data)[i] : data[i];
            if (got != want)
                fail_msg("request %s row %llu place %u: %u, not %u", id, (unsigned long long)row, i, got, want);
        }
    }
}

void lab_assert_missing(const moor_view *view, uint64_t from, uint64_t to, uint32_t reasons)
{
    for (uint32_t i = 0; i < view->n_segments; i++) {
        const moor_view_segment *segment = &view->segments[i];
        uint64_t end = segment->start + segment->rows;
        if (end <= from || segment->start >= to)
            continue;
        if (segment->present || segment->reasons != reasons)
            fail_msg("rows %llu to %llu: present %u, reasons %u, not %u", (unsigned long long)segment->start,
                     (unsigned long long)end, segment->present, segment->reasons, reasons);
    }
}

uint64_t lab_count(const lab_store *lab, enum moor_counter counter)
{
    return atomic_load(&lab->counters[counter]);
}

moor_records_stats lab_stats(lab_store *lab)
{
    moor_records_stats stats;
    moor_records_stats_get(lab->records, &stats);
    return stats;
}
