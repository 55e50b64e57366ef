/* SPDX-License-Identifier: Apache-2.0 */
#include "stage.h"

#include <string.h>

#include "heap.h"
#include "stage_x86.h"

/* An odd number of cache lines: the layers of a row do not share a few sets of the cache. */
static size_t layer_bytes(const moor_stage *stage, uint32_t rows)
{
    size_t lines = ((size_t)rows * stage->bytes + LINE - 1) / LINE;
    return (lines | 1) * LINE;
}

moor_status moor_stage_open(moor_stage *stage, uint32_t layers, uint32_t bytes)
{
    stage->layers = layers;
    stage->bytes = bytes;
    stage->ids = moor_heap_alloc(layers * layer_bytes(stage, MOOR_STAGE_ROWS));
    stage->row = moor_heap_alloc(MOOR_STAGE_ROWS * sizeof(*stage->row));
    stage->spans = moor_heap_alloc(MOOR_STAGE_ROWS * sizeof(*stage->spans));
    if (!stage->ids || !stage->row || !stage->spans)
        return moor_fail(MOOR_E_NOMEM, "no memory to stage %d rows of %u layers", MOOR_STAGE_ROWS, layers);
    return MOOR_OK;
}

void moor_stage_close(moor_stage *stage)
{
    moor_heap_free(stage->ids);
    moor_heap_free(stage->row);
    moor_heap_free(stage->spans);
    memset(stage, 0, sizeof(*stage));
}

void moor_stage_begin(moor_stage *stage)
{
    stage->rows = stage->n_spans = 0;
}

int moor_stage_add(moor_stage *stage, uint32_t token, uint32_t n, uint8_t *rows, size_t row_bytes)
{
    if (n > MOOR_STAGE_RUN || n > MOOR_STAGE_ROWS - stage->rows)
        return 0;
    moor_span *last = stage->n_spans ? &stage->spans[stage->n_spans - 1] : NULL;
    if (last && last->token + last->n == token)
        last->n += n;
    else
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): allocated when the object was opened */
        stage->spans[stage->n_spans++] = (moor_span){stage->ids + (size_t)stage->rows * stage->bytes, token, n};
    for (uint32_t i = 0; i < n; i++)
        stage->row[stage->rows++] = rows + i * row_bytes;
    return 1;
}

uint64_t moor_stage_narrow(const moor_stage *stage, uint32_t column, moor_narrow_fn narrow, moor_narrow job)
{
    /* Side by side in the source as in the stage, the ids of a span are one long row. */
    int compact = job.token_bytes == (ptrdiff_t)job.k * job.k_bytes;
    uint32_t k = job.k;
    uint64_t most = 0;
    job.row_bytes = stage->bytes;
    job.column = column * layer_bytes(stage, stage->rows);
    job.n_spans = 1;
    for (uint32_t s = 0; s < stage->n_spans; s++) {
        moor_span span = stage->spans[s];
        if (compact) {
            job.k = span.n * k;
            span.n = 1;
        }
        job.spans = &span;
        uint64_t largest = narrow(&job);
        most = largest > most ? largest : most;
    }
    return most;
}

/* A constant number of bytes is a plain move. */
static inline void write_row(const moor_stage *stage, uint32_t r, size_t distance, size_t bytes)
{
    const uint8_t *from = stage->ids + r * bytes;
    uint8_t *to = stage->row[r];
    for (uint32_t l = 0; l < stage->layers; l++, from += distance, to += bytes)
        memcpy(to, from, bytes);
}

void moor_stage_write(const moor_stage *stage)
{
    size_t row_bytes = (size_t)stage->layers * stage->bytes, distance = layer_bytes(stage, stage->rows);
    stream_fn stream = stream_pick(stage->bytes);
    if (stream) {
        stream(stage, distance);
        return;
    }
    for (uint32_t r = 0; r < stage->rows; r++) {
        for (size_t at = 0; r + AHEAD < stage->rows && at < row_bytes; at += LINE)
            __builtin_prefetch(stage->row[r + AHEAD] + at, 1);
        if (stage->bytes == 8)
            write_row(stage, r, distance, 8);
        else if (stage->bytes == 4)
            write_row(stage, r, distance, 4);
        else
            write_row(stage, r, distance, stage->bytes);
    }
}
