/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../allocator/heap.h"
#include "copy.h"
#include "ref.h"

enum { CALL_S = 5 };

/* ---- from the wire ---------------------------------------------------------------------------------------------- */

/* One view, its parts still on the wire. */
struct parts {
    moor_wire_view head;
    const unsigned char *segments, *versions, *id, *session;
};

static int take_parts(moor_wire_reader *reader, struct parts *out)
{
    if (!moor_wire_get(reader, &out->head, sizeof(out->head)))
        return 0;
    out->segments = moor_wire_take(reader, (size_t)out->head.n_segments * sizeof(moor_wire_segment));
    out->versions =
        out->segments ? moor_wire_take(reader, (size_t)out->head.n_versions * sizeof(moor_wire_version)) : NULL;
    out->id = out->versions ? moor_wire_take(reader, out->head.id_len) : NULL;
    out->session = out->id ? moor_wire_take(reader, out->head.session_len) : NULL;
    size_t text = (size_t)out->head.id_len + out->head.session_len;
    return out->session && moor_wire_take(reader, (8 - text % 8) % 8);
}

/* Segments: exactly rows 0…rows-1 in order, inside the arena and together no more than it has (what is copied of them is bounded by it),
 * missing ones adding up. NULL when all is well. */
static const char *fill_segments(moor_record *record, const struct parts *parts, moor_segment *segments)
{
    const moor_shape *shape = moor_connection_shape(record->connection);
    uint64_t next = 0, missing = 0, most = shape->arena_bytes / shape->row_bytes;
    for (uint32_t i = 0; i < parts->head.n_segments; i++) {
        moor_wire_segment wire;
        memcpy(&wire, parts->segments + i * sizeof(wire), sizeof(wire));
        if (wire.start != next || !wire.rows || wire.rows > parts->head.rows - next)
            return "segments that do not follow each other";
        next += wire.rows;
        segments[i] = (moor_segment){.start = wire.start, .rows = wire.rows, .present = wire.present != 0};
        if (!wire.present) {
            missing += wire.rows;
            continue;
        }
        if (wire.offset > shape->arena_bytes || wire.rows > (shape->arena_bytes - wire.offset) / shape->row_bytes)
            return "a segment outside of the arena";
        if (next - missing > most)
            return "more rows than its arena has";
        segments[i].data = shape->arena + wire.offset;
    }
    if (next != parts->head.rows || missing != parts->head.missing_rows)
        return "segments that do not add up";
    return NULL;
}

static const char *fill_versions(const struct parts *parts, moor_version_run *versions, char *labels)
{
    uint64_t next = 0;
    for (uint32_t i = 0; i < parts->head.n_versions; i++) {
        moor_wire_version wire;
        memcpy(&wire, parts->versions + i * sizeof(wire), sizeof(wire));
        if (wire.start < next || (i == 0 && wire.start) || wire.start >= parts->head.rows)
            return "versions out of order";
        next = wire.start + 1;
        wire.label[sizeof(wire.label) - 1] = 0;
        memcpy(labels, wire.label, sizeof(wire.label));
        versions[i] = (moor_version_run){.start = wire.start, .epoch = wire.epoch, .label = labels};
        labels += sizeof(wire.label);
    }
    return NULL;
}

static void fill_info(moor_record *record, const struct parts *parts)
{
    const moor_shape *shape = moor_connection_shape(record->connection);
    record->info = (moor_record_info){.size = sizeof(record->info),
                                      .version = 1,
                                      .handle = parts->head.handle,
                                      .rows = parts->head.rows,
                                      .missing_rows = parts->head.missing_rows,
                                      .owner = parts->head.owner,
                                      .layers = shape->layers,
                                      .model_layers = shape->model_layers,
                                      .top_k = shape->top_k,
                                      .num_experts = shape->num_experts,
                                      .dtype = shape->dtype,
                                      .layer_ids = shape->layer_ids,
                                      .n_segments = parts->head.n_segments,
                                      .n_versions = parts->head.n_versions,
                                      .reasons = parts->head.reasons,
                                      .store_index = shape->store_index,
                                      .dropped_rows = parts->head.dropped_rows};
}

static moor_status make_record(moor_connection *connection, const struct parts *parts, moor_record **out)
{
    size_t segments_size = parts->head.n_segments * sizeof(moor_segment),
           versions_size = parts->head.n_versions * sizeof(moor_version_run);
    size_t labels_size = (size_t)parts->head.n_versions * sizeof(((moor_wire_version *)0)->label);
    moor_record *record = moor_heap_raw(sizeof(*record) + segments_size + versions_size + labels_size +
                                        parts->head.id_len + parts->head.session_len + 2);
    if (!record)
        return moor_fail(MOOR_E_NOMEM, "no memory for a record of %u segments", parts->head.n_segments);
    moor_segment *segments = (moor_segment *)(void *)record->space;
    moor_version_run *versions = (moor_version_run *)(void *)(record->space + segments_size);
    char *labels = (char *)versions + versions_size, *id = labels + labels_size, *session = id + parts->head.id_len + 1;
    memset(record, 0, sizeof(*record));
    record->connection = connection;
    record->pid = getpid();
    record->index = parts->head.index;
    fill_info(record, parts);
    const char *wrong = fill_segments(record, parts, segments);
    if (!wrong)
        wrong = fill_versions(parts, versions, labels);
    if (wrong) {
        free(record);
        return moor_fail(MOOR_E_CORRUPT, "the store described a record with %s", wrong);
    }
    memcpy(id, parts->id, parts->head.id_len);
    id[parts->head.id_len] = 0;
    memcpy(session, parts->session, parts->head.session_len);
    session[parts->head.session_len] = 0;
    record->info.segments = segments;
    record->info.versions = versions;
    record->info.request_id = id;
    record->info.session_id = session;
    moor_connection_lease(connection);
    *out = record;
    return MOOR_OK;
}

moor_status moor_records_from_reply(moor_connection *connection, const void *payload, size_t size, moor_record ***out,
                                    uint32_t *n)
{
    moor_wire_reader reader = {payload, size};
    moor_wire_views head = {0};
    moor_record **records = NULL;
    uint32_t made = 0;
    moor_status status = MOOR_OK;
    if (!moor_wire_get(&reader, &head, sizeof(head)) || head.n > size / sizeof(moor_wire_view))
        status = moor_fail(MOOR_E_CORRUPT, "the store described %u records in %zu bytes", head.n, size);
    else if (!(records = moor_heap_alloc((head.n + (size_t)1) * sizeof(moor_record *))))
        status = moor_fail(MOOR_E_NOMEM, "no memory for %u records", head.n);
    for (uint32_t i = 0; i < head.n; i++) {
        struct parts parts;
        if (!take_parts(&reader, &parts)) {
            if (!status)
                status = moor_fail(MOOR_E_CORRUPT, "the store described a record that ends too early");
            break;
        }
        if (!status)
            status = make_record(connection, &parts, &records[made]);
        if (status)
            moor_connection_post_release(connection, parts.head.handle);
        else
            made++;
    }
    if (status) {
        moor_records_drop(records, made);
        return status;
    }
    *out = records;
    *n = made;
    return MOOR_OK;
}

/* Bytes of a reply, in memory or (fd >= 0) in a file, n in all. 0: not so many. */
static int fetch(const void *data, int fd, uint64_t n, uint64_t at, void *out, size_t size)
{
    if (at > n || size > n - at)
        return 0;
    if (fd >= 0)
        return pread(fd, out, size, (off_t)at) == (ssize_t)size;
    memcpy(out, (const unsigned char *)data + at, size);
    return 1;
}

void moor_records_refuse_reply(moor_connection *connection, uint16_t type, const void *data, int fd, uint64_t n)
{
    moor_wire_views views;
    moor_wire_trace trace;
    uint64_t at = 0;
    if (type == MOOR_WIRE_SESSION_EXPORT) {
        if (!fetch(data, fd, n, 0, &trace, sizeof(trace)) || trace.n_tokens > n)
            return;
        uint64_t tokens = trace.flags & MOOR_WIRE_TOKENS ? trace.n_tokens * sizeof(int32_t) : 0;
        at = sizeof(trace) + (uint64_t)trace.n_segments * sizeof(moor_wire_trace_segment) +
             (uint64_t)trace.n_parts * sizeof(moor_wire_trace_part) + (tokens + 7) / 8 * 8;
    } else if (type != MOOR_WIRE_OPEN && type != MOOR_WIRE_OPEN_ALL && type != MOOR_WIRE_OPEN_HANDLE) {
        return;
    }
    if (!fetch(data, fd, n, at, &views, sizeof(views)))
        return;
    at += sizeof(views);
    for (uint32_t i = 0; i < views.n; i++) {
        moor_wire_view view;
        if (!fetch(data, fd, n, at, &view, sizeof(view)))
            return;
        moor_connection_post_release(connection, view.handle);
        uint64_t text = (uint64_t)view.id_len + view.session_len;
        at += sizeof(view) + (uint64_t)view.n_segments * sizeof(moor_wire_segment) +
              (uint64_t)view.n_versions * sizeof(moor_wire_version) + (text + 7) / 8 * 8;
    }
}

uint32_t moor_record_alias_index(const moor_record *record)
{
    return record->index;
}

void moor_record_make_private(moor_record *record)
{
    for (uint32_t i = 0; i < record->n_parts; i++)
        moor_record_make_private(record->parts[i]);
    if (record->connection && !record->private)
        moor_connection_make_private(record->connection);
    record->private = 1;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Rows of parts are memory of the process that reads them. */
static int readable(const moor_record *record)
{
    if (record->connection && !record->private)
        return moor_connection_reads(record->connection);
    return record->parts || record->pid == getpid();
}

static moor_status check(const moor_record *record, const char *what)
{
    if (!record)
        return moor_fail(MOOR_E_INVALID, "%s: no record", what);
    if (!readable(record))
        return moor_fail(MOOR_E_FORKED, "%s: the record of request %s was opened by process %d for itself alone", what,
                         record->info.request_id, (int)record->pid);
    return MOOR_OK;
}

/* For what changes a record: a child has its rows, and none of the parent's connections. */
static moor_status check_ours(const moor_record *record, const char *what)
{
    moor_status status = check(record, what);
    if (!status && record->pid != getpid())
        return moor_fail(
            MOOR_E_FORKED,
            "%s: the record of request %s was opened by the parent process %d; a child reads and releases it", what,
            record->info.request_id, (int)record->pid);
    return status;
}

moor_status moor_record_home(const moor_record *record, const moor_shape **shape, uint64_t *handle)
{
    moor_status status = check_ours(record, "session_insert");
    if (!status && !record->connection)
        status = moor_fail(MOOR_E_UNSUPPORTED,
                           "session_insert: request %s was recorded by %u pipeline stages, a session is in one store",
                           record->info.request_id, record->n_parts);
    if (status)
        return status;
    *shape = moor_connection_shape(record->connection);
    *handle = record->info.handle;
    return MOOR_OK;
}

moor_status moor_record_get_info(const moor_record *record, moor_record_info *out)
{
    moor_status status = check(record, "record_info");
    if (status)
        return status;
    if (!out || out->size < 2 * sizeof(uint32_t))
        return moor_fail(MOOR_E_INVALID, "record_info: out is NULL or its size is not set");
    uint32_t size = out->size;
    memcpy(out, &record->info, size < sizeof(*out) ? size : sizeof(*out));
    out->size = size;
    return MOOR_OK;
}

static moor_status check_copy(const moor_record *record, uint64_t start, uint64_t stop, uint32_t columns,
                              uint32_t dst_dtype, const void *dst, size_t dst_bytes)
{
    const moor_record_info *info = &record->info;
    size_t element = moor_copy_dtype_bytes(dst_dtype);
    if (start > stop || stop > info->rows)
        return moor_fail(MOOR_E_RANGE, "request %s: rows %llu to %llu of %llu", info->request_id,
                         (unsigned long long)start, (unsigned long long)stop, (unsigned long long)info->rows);
    if (!element || !moor_copy_dtype_holds(dst_dtype, info->num_experts))
        return moor_fail(MOOR_E_INVALID, "request %s: dtype %u cannot hold the ids of %u experts", info->request_id,
                         dst_dtype, info->num_experts);
    unsigned __int128 need = (unsigned __int128)(stop - start) * columns * info->top_k * element;
    if (need > dst_bytes || (need && !dst))
        return moor_fail(MOOR_E_INVALID,
                         "request %s: %llu rows of %u layers, top %u, need %llu bytes, the buffer has %zu",
                         info->request_id, (unsigned long long)(stop - start), columns, info->top_k,
                         (unsigned long long)need, dst ? dst_bytes : 0);
    return MOOR_OK;
}

/* The part of a segment inside [start, stop). 0 when there is none. */
static int overlap(const moor_segment *segment, uint64_t start, uint64_t stop, uint64_t *from, uint64_t *to)
{
    *from = segment->start > start ? segment->start : start;
    *to = segment->start + segment->rows < stop ? segment->start + segment->rows : stop;
    return *from < *to;
}

static moor_status check_present(const moor_record *record, uint64_t start, uint64_t stop)
{
    uint64_t from, to;
    for (uint32_t i = 0; i < record->info.n_segments; i++)
        if (!record->info.segments[i].present && overlap(&record->info.segments[i], start, stop, &from, &to))
            return moor_fail(MOOR_E_INCOMPLETE,
                             "request %s: rows %llu to %llu are missing (%llu of %llu rows, reasons 0x%x)",
                             record->info.request_id, (unsigned long long)from, (unsigned long long)to,
                             (unsigned long long)record->info.missing_rows, (unsigned long long)record->info.rows,
                             record->info.reasons);
    return MOOR_OK;
}

/* Rows of MoE columns to rows of all model layers, whose dense ones are 0 already. */
static void scatter(const moor_record_info *info, unsigned char *dst, uint32_t dst_dtype, const unsigned char *src,
                    uint64_t rows)
{
    size_t layer_bytes = info->top_k * moor_copy_dtype_bytes(dst_dtype),
           src_layer_bytes = info->top_k * moor_copy_dtype_bytes(info->dtype);
    for (uint64_t row = 0; row < rows; row++) {
        for (uint32_t column = 0; column < info->layers; column++)
            moor_copy_ids(dst + (size_t)info->layer_ids[column] * layer_bytes, dst_dtype,
                          src + column * src_layer_bytes, info->dtype, info->top_k);
        dst += info->model_layers * layer_bytes;
        src += info->layers * src_layer_bytes;
    }
}

moor_status moor_record_copy(const moor_record *record, uint64_t start, uint64_t stop, int model_layout,
                             uint32_t dst_dtype, void *dst, size_t dst_bytes, uint8_t *mask)
{
    moor_status status = check(record, "record_copy");
    if (status)
        return status;
    const moor_record_info *info = &record->info;
    uint32_t columns = model_layout ? info->model_layers : info->layers;
    status = check_copy(record, start, stop, columns, dst_dtype, dst, dst_bytes);
    if (!status && !mask)
        status = check_present(record, start, stop);
    if (status)
        return status;
    size_t dst_row = (size_t)columns * info->top_k * moor_copy_dtype_bytes(dst_dtype);
    size_t src_row = (size_t)info->layers * info->top_k * moor_copy_dtype_bytes(info->dtype);
    for (uint32_t i = 0; i < info->n_segments; i++) {
        const moor_segment *segment = &info->segments[i];
        uint64_t from, to;
        if (!overlap(segment, start, stop, &from, &to))
            continue;
        unsigned char *to_row = (unsigned char *)dst + (from - start) * dst_row;
        if (!segment->present || columns != info->layers)
            memset(to_row, 0, (to - from) * dst_row);
        if (mask)
            memset(mask + (from - start), segment->present != 0, to - from);
        if (!segment->present)
            continue;
        const unsigned char *from_row = (const unsigned char *)segment->data + (from - segment->start) * src_row;
        if (columns != info->layers)
            scatter(info, to_row, dst_dtype, from_row, to - from);
        else
            moor_copy_ids(to_row, dst_dtype, from_row, info->dtype, (to - from) * info->layers * info->top_k);
    }
    return MOOR_OK;
}

void moor_record_narrow_to(moor_record *record, uint64_t start, uint64_t stop)
{
    moor_record_info *info = &record->info;
    moor_segment *segments = (moor_segment *)(uintptr_t)info->segments;
    moor_version_run *versions = (moor_version_run *)(uintptr_t)info->versions;
    size_t row = (size_t)info->layers * info->top_k * moor_copy_dtype_bytes(info->dtype);
    uint32_t n_segments = 0, n_versions = 0;
    uint64_t from, to;
    info->missing_rows = 0;
    for (uint32_t i = 0; i < info->n_segments; i++) {
        moor_segment s = segments[i];
        if (!overlap(&s, start, stop, &from, &to))
            continue;
        if (s.present)
            s.data = (const unsigned char *)s.data + (from - s.start) * row;
        else
            info->missing_rows += to - from;
        s.start = from - start;
        s.rows = to - from;
        segments[n_segments++] = s;
    }
    for (uint32_t i = 0; i < info->n_versions && versions[i].start < stop; i++) {
        moor_version_run run = versions[i];
        if ((i + 1 < info->n_versions ? versions[i + 1].start : info->rows) <= start)
            continue;
        run.start = run.start > start ? run.start - start : 0;
        versions[n_versions++] = run;
    }
    info->n_segments = n_segments;
    info->n_versions = n_versions;
    info->reasons = info->missing_rows ? info->reasons : 0;
    info->rows = stop - start;
    info->first_row += start;
}

/* The part of one store: its record, and the rows of the whole. */
static void put_ref(const moor_record *part, const moor_record_info *rows, moor_ref *ref, moor_ref_text *out)
{
    const moor_shape *shape = moor_connection_shape(part->connection);
    snprintf(ref->instance, sizeof(ref->instance), "%s", shape->instance);
    ref->store_index = shape->store_index;
    ref->nonce = shape->nonce;
    ref->handle = part->info.handle;
    ref->dtype = part->info.dtype;
    ref->layers = part->info.layers;
    ref->top_k = part->info.top_k;
    ref->start = rows->first_row;
    ref->rows = rows->rows;
    moor_ref_put(out, ref);
}

moor_status moor_record_ref(const moor_record *record, char *buf, size_t size)
{
    moor_ref ref = {.host = ""};
    moor_ref_text out = {buf, size, 0};
    moor_status status = check(record, "record_ref");
    if (status)
        return status;
    gethostname(ref.host, sizeof(ref.host) - 1);
    for (uint32_t i = 0; i < record->n_parts; i++)
        put_ref(record->parts[i], &record->info, &ref, &out);
    if (!record->n_parts)
        put_ref(record, &record->info, &ref, &out);
    return moor_ref_end(&out, "record_ref");
}

/* ---- ownership -------------------------------------------------------------------------------------------------- */

/* Every stage is told, also when one of them refuses: what could be freed is. */
static moor_status call_by_handle(moor_record *record, uint16_t type, uint32_t value)
{
    moor_status first = MOOR_OK;
    for (uint32_t i = 0; i < record->n_parts; i++) {
        moor_status of_part = call_by_handle(record->parts[i], type, value);
        first = first ? first : of_part;
    }
    if (record->n_parts)
        return first;
    moor_wire_handle message = {.handle = record->info.handle, .value = value};
    void *payload = NULL;
    size_t n;
    moor_status status = moor_connection_call(record->connection, type, &message, sizeof(message), NULL, 0,
                                              moor_now_ns() + CALL_S * 1000000000ull, &payload, &n);
    free(payload);
    return status;
}

moor_status moor_record_event(moor_record *record, uint32_t event)
{
    moor_status status = check_ours(record, "record_event");
    return status ? status : call_by_handle(record, MOOR_WIRE_EVENT, event);
}

moor_status moor_record_claim(moor_record *record, uint32_t owner)
{
    moor_status status = check_ours(record, "record_claim");
    return status ? status : call_by_handle(record, MOOR_WIRE_CLAIM, owner);
}

void moor_record_release(moor_record *record)
{
    if (!record || !readable(record))
        return;
    if (record->connection && record->private) {
        moor_connection_post_release(record->connection, record->info.handle);
        moor_connection_release(record->connection);
    } else if (record->connection) {
        moor_connection_unlease(record->connection, record->info.handle);
    }
    for (uint32_t i = 0; i < record->n_parts; i++)
        moor_record_release(record->parts[i]);
    free(record->rows);
    free(record);
}

void moor_records_drop(moor_record **records, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        moor_record_release(records[i]);
    free(records);
}
