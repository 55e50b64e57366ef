/* SPDX-License-Identifier: Apache-2.0 */
#include "stages.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct column {
    int32_t layer;
    uint32_t part, column; /* of that part's rows */
} column;

/* The parts, and how far each was read. */
typedef struct reading {
    moor_record *const *parts;
    uint32_t n;
    uint64_t at, rows;
    uint32_t segment[MOOR_CLIENT_STORES], version[MOOR_CLIENT_STORES];
} reading;

/* Rows that are alike: all there, or all missing. */
typedef struct piece {
    uint64_t start, rows;
    uint32_t present, reasons;
    const moor_version_run *version; /* NULL: none is known */
} piece;

/* ---- rows ------------------------------------------------------------------------------------------------------- */

static reading read_from_start(moor_record *const *parts, uint32_t n)
{
    reading r = {.parts = parts, .n = n};
    for (uint32_t i = 0; i < n; i++)
        r.rows = parts[i]->info.rows > r.rows ? parts[i]->info.rows : r.rows;
    return r;
}

/* What one part says of the row that is read, and up to where. */
static const moor_version_run *read_part(reading *r, uint32_t i, piece *out, uint64_t *end)
{
    const moor_record_info *info = &r->parts[i]->info;
    if (r->at >= info->rows) {
        out->present = 0;
        out->reasons |= MOOR_REASON_SHORT;
        return NULL;
    }
    while (r->at >= info->segments[r->segment[i]].start + info->segments[r->segment[i]].rows)
        r->segment[i]++;
    while (r->version[i] + 1 < info->n_versions && r->at >= info->versions[r->version[i] + 1].start)
        r->version[i]++;
    const moor_segment *segment = &info->segments[r->segment[i]];
    out->present &= segment->present;
    *end = segment->start + segment->rows < *end ? segment->start + segment->rows : *end;
    if (r->version[i] + 1 < info->n_versions && info->versions[r->version[i] + 1].start < *end)
        *end = info->versions[r->version[i] + 1].start;
    return info->n_versions ? &info->versions[r->version[i]] : NULL;
}

/* The next piece; 0: there is none. */
static int next_piece(reading *r, piece *out)
{
    uint64_t end = r->rows;
    if (r->at == r->rows)
        return 0;
    *out = (piece){.start = r->at, .present = 1};
    for (uint32_t i = 0; i < r->n; i++) {
        const moor_version_run *version = read_part(r, i, out, &end);
        if (version && out->version && version->epoch != out->version->epoch) {
            out->present = 0;
            out->reasons |= MOOR_REASON_VERSIONS;
        }
        out->version = out->version ? out->version : version;
    }
    out->rows = end - r->at;
    r->at = end;
    return 1;
}

/* Columns that are neighbours in the joined row and of one part are so in the part's as well: both ascend. */
static void copy_rows(const reading *r, const column *columns, uint32_t n_columns, const piece *p, unsigned char *to)
{
    size_t column_bytes = (size_t)r->parts[0]->info.top_k * r->parts[0]->info.dtype; /* a dtype is its own width here */
    for (uint32_t first = 0, next; first < n_columns; first = next) {
        for (next = first + 1; next < n_columns && columns[next].part == columns[first].part;)
            next++;
        const moor_record_info *info = &r->parts[columns[first].part]->info;
        const moor_segment *segment = &info->segments[r->segment[columns[first].part]];
        size_t from_bytes = info->layers * column_bytes, to_bytes = n_columns * column_bytes;
        const unsigned char *from = (const unsigned char *)segment->data + (p->start - segment->start) * from_bytes +
                                    columns[first].column * column_bytes;
        for (uint64_t row = 0; row < p->rows; row++)
            memcpy(to + row * to_bytes + first * column_bytes, from + row * from_bytes, (next - first) * column_bytes);
    }
}

/* ---- one record ------------------------------------------------------------------------------------------------- */

static int by_layer(const void *a, const void *b)
{
    int32_t x = ((const column *)a)->layer, y = ((const column *)b)->layer;
    return (x > y) - (x < y);
}

static moor_status check_parts(moor_record *const *parts, uint32_t n)
{
    const moor_record_info *first = &parts[0]->info;
    for (uint32_t i = 1; i < n; i++) {
        const moor_record_info *info = &parts[i]->info;
        if (info->top_k != first->top_k || info->num_experts != first->num_experts || info->dtype != first->dtype ||
            info->model_layers != first->model_layers)
            return moor_fail(MOOR_E_CORRUPT,
                             "request %s: stores %u and %u are stages of two models: top %u of %u experts, %u layers; "
                             "top %u of %u, %u",
                             first->request_id, first->store_index, info->store_index, first->top_k, first->num_experts,
                             first->model_layers, info->top_k, info->num_experts, info->model_layers);
    }
    return MOOR_OK;
}

/* The columns of all parts in the model's order; malloc'ed. */
static moor_status order_columns(moor_record *const *parts, uint32_t n, column **out, uint32_t *n_columns)
{
    uint32_t total = 0, at = 0;
    for (uint32_t i = 0; i < n; i++)
        total += parts[i]->info.layers;
    column *columns = malloc(total * sizeof(*columns));
    if (!columns)
        return moor_fail(MOOR_E_NOMEM, "no memory for %u columns of %u stages", total, n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < parts[i]->info.layers; c++)
            columns[at++] = (column){parts[i]->info.layer_ids[c], i, c};
    qsort(columns, total, sizeof(*columns), by_layer);
    for (uint32_t c = 1; c < total; c++)
        if (columns[c].layer == columns[c - 1].layer) {
            moor_status status =
                moor_fail(MOOR_E_CORRUPT, "request %s: layer %d is in stores %u and %u", parts[0]->info.request_id,
                          columns[c].layer, parts[columns[c - 1].part]->info.store_index,
                          parts[columns[c].part]->info.store_index);
            free(columns);
            return status;
        }
    *out = columns;
    *n_columns = total;
    return MOOR_OK;
}

/* A record with room for what the parts may be cut into, and for the rows that are there; described, but for its rows. */
static moor_status make_record(moor_record *const *parts, uint32_t n, const column *columns, uint32_t n_columns,
                               moor_record **out)
{
    reading r = read_from_start(parts, n);
    uint64_t pieces = 0, present = 0;
    for (piece p; next_piece(&r, &p); pieces++)
        present += p.present ? p.rows : 0;
    size_t segments = pieces * sizeof(moor_segment), versions = pieces * sizeof(moor_version_run),
           refs = n * sizeof(*parts), row = (size_t)n_columns * parts[0]->info.top_k * parts[0]->info.dtype;
    moor_record *record = calloc(1, sizeof(*record) + segments + versions + refs + n_columns * sizeof(int32_t));
    void *rows = record ? malloc(present ? present * row : 1) : NULL;
    if (!rows) {
        free(record);
        return moor_fail(MOOR_E_NOMEM, "request %s: no memory for %llu rows of %u pipeline stages",
                         parts[0]->info.request_id, (unsigned long long)present, n);
    }
    record->pid = getpid();
    record->index = parts[0]->index;
    record->rows = rows;
    record->parts = (moor_record **)(void *)(record->space + segments + versions);
    record->n_parts = n;
    memcpy(record->parts, parts, refs);
    int32_t *layer_ids = (int32_t *)(void *)(record->space + segments + versions + refs);
    for (uint32_t c = 0; c < n_columns; c++)
        layer_ids[c] = columns[c].layer;
    record->info = parts[0]->info; /* names and labels are the first part's, which stays as long as this one */
    record->info.layer_ids = layer_ids;
    record->info.layers = n_columns;
    record->info.rows = r.rows;
    record->info.n_segments = record->info.n_versions = 0;
    record->info.segments = (const moor_segment *)(const void *)record->space;
    record->info.versions = (const moor_version_run *)(const void *)(record->space + segments);
    *out = record;
    return MOOR_OK;
}

static void fill_rows(moor_record *record, const column *columns)
{
    moor_record_info *info = &record->info;
    moor_segment *segments = (moor_segment *)(uintptr_t)info->segments;
    moor_version_run *versions = (moor_version_run *)(uintptr_t)info->versions;
    size_t row = (size_t)info->layers * info->top_k * info->dtype;
    unsigned char *to = record->rows;
    reading r = read_from_start(record->parts, record->n_parts);
    info->missing_rows = 0;
    for (uint32_t i = 0; i < record->n_parts; i++) {
        info->reasons |= record->parts[i]->info.reasons;
        if (record->parts[i]->info.dropped_rows > info->dropped_rows)
            info->dropped_rows = record->parts[i]->info.dropped_rows;
    }
    for (piece p; next_piece(&r, &p);) {
        moor_segment *last = info->n_segments ? &segments[info->n_segments - 1] : NULL;
        if (last && last->present == p.present)
            last->rows += p.rows;
        else
            segments[info->n_segments++] =
                (moor_segment){.data = p.present ? to : NULL, .start = p.start, .rows = p.rows, .present = p.present};
        if (p.version && (!info->n_versions || versions[info->n_versions - 1].epoch != p.version->epoch)) {
            versions[info->n_versions] = *p.version;
            versions[info->n_versions].start = info->n_versions ? p.start : 0;
            info->n_versions++;
        }
        info->reasons |= p.reasons;
        info->missing_rows += p.present ? 0 : p.rows;
        if (!p.present)
            continue;
        copy_rows(&r, columns, info->layers, &p, to);
        to += p.rows * row;
    }
}

static moor_status join(moor_record *const *parts, uint32_t n, moor_record **out)
{
    column *columns = NULL;
    uint32_t n_columns = 0;
    moor_status status = check_parts(parts, n);
    if (!status)
        status = order_columns(parts, n, &columns, &n_columns);
    if (!status)
        status = make_record(parts, n, columns, n_columns, out);
    if (!status)
        fill_rows(*out, columns);
    free(columns);
    return status;
}

/* ---- which belong together -------------------------------------------------------------------------------------- */

/* Parts of one record: the same request, in stages of one replica. */
static int belong_together(const moor_record *a, const moor_record *b)
{
    const moor_shape *x = moor_connection_shape(a->connection), *y = moor_connection_shape(b->connection);
    return x->stages == y->stages && moor_stages_replica(x) == moor_stages_replica(y) &&
           strcmp(a->info.request_id, b->info.request_id) == 0;
}

/* Joins the parts of records[0], in the order of their stages, and moves what is left behind it. */
static moor_status join_first(moor_record **records, uint32_t *n, uint32_t stages)
{
    moor_record *parts[MOOR_CLIENT_STORES] = {NULL}, *joined = NULL;
    uint32_t found = 0, missing = 0, left = 1;
    for (uint32_t i = 0; i < *n; i++) {
        if (!belong_together(records[0], records[i]))
            continue;
        moor_record **place = &parts[moor_stages_number(moor_connection_shape(records[i]->connection))];
        if (*place)
            return moor_fail(MOOR_E_CORRUPT, "request %s: store %u has it twice", records[i]->info.request_id,
                             records[i]->info.store_index);
        *place = records[i];
        found++;
    }
    while (missing < stages && parts[missing])
        missing++;
    if (found < stages)
        return moor_fail(MOOR_E_TIMEOUT, "request %s: pipeline stage %u of %u has no sealed record of it",
                         records[0]->info.request_id, missing, stages);
    moor_status status = join(parts, stages, &joined);
    if (status)
        return status;
    for (uint32_t i = 1; i < *n; i++)
        if (!belong_together(records[0], records[i]))
            records[left++] = records[i];
    records[0] = joined;
    *n = left;
    return MOOR_OK;
}

moor_status moor_stages_join(moor_record **records, uint32_t *n)
{
    moor_status status = MOOR_OK;
    for (uint32_t done = 0; !status && done < *n; done++) {
        uint32_t rest = *n - done, stages = moor_connection_shape(records[done]->connection)->stages;
        if (stages > 1)
            status = join_first(records + done, &rest, stages);
        *n = done + rest;
    }
    return status;
}
