/* SPDX-License-Identifier: Apache-2.0 */
/* What a store answers: built as a good one would, then damaged as the input says. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/connection.h"
#include "driver.h"
#include "reply_input.h"

moor_wire_reader reply_input;
reply_shape reply_all;

static const char error_text[] = "the store says no";

/* ---- descriptors ------------------------------------------------------------------------------------------------ */

const int *reply_answer_arenas(void)
{
    static int fds[REPLY_FDS];
    static uint8_t rows[REPLY_ARENA];
    if (fds[0])
        return fds;
    for (size_t i = 0; i < sizeof(rows); i++)
        rows[i] = (uint8_t)(i * 7 + i / 251);
    for (int i = 0; i < 3; i++) {
        size_t size = i == 1 ? 4096 : sizeof(rows);
        fds[i] = memfd_create("moor-fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fds[i] < 0 || write(fds[i], rows, size) != (ssize_t)size ||
            (i < 2 && fcntl(fds[i], F_ADD_SEALS, F_SEAL_SHRINK)))
            abort();
    }
    fds[3] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fds;
}

/* ---- as a good store answers ------------------------------------------------------------------------------------ */

void reply_shape_begin(void)
{
    uint8_t a = reply_next(), b = reply_next();
    reply_all = (reply_shape){.stages = a & 3,
                              .layers = 1 + (a >> 2 & 3),
                              .top_k = 1 + (a >> 4 & 3),
                              .dtype = a & 64 ? MOOR_DTYPE_U16 : MOOR_DTYPE_U8,
                              .in_turns = a >> 7,
                              .the_same = b >> 3 & 1,
                              .num_experts = a & 64 ? 384 : 256};
    reply_all.model_layers = (reply_all.stages ? reply_all.stages : 1) * reply_all.layers + (b & 7);
}

static void build_welcome(uint32_t store, moor_wire_buffer *out)
{
    const reply_shape *s = &reply_all;
    uint32_t stages = s->stages ? s->stages : 1, stage = store % stages;
    moor_wire_welcome welcome = {.version = MOOR_WIRE_VERSION,
                                 .store_index = store,
                                 .layers = s->layers,
                                 .top_k = s->top_k,
                                 .num_experts = s->num_experts,
                                 .model_layers = s->model_layers,
                                 .dtype = s->dtype,
                                 .row_bytes = s->layers * s->top_k * s->dtype,
                                 .arena_bytes = REPLY_ARENA,
                                 .nonce = REPLY_NONCE,
                                 .stages = s->stages};
    moor_wire_put(out, &welcome, sizeof(welcome));
    for (uint32_t i = 0; i < s->layers; i++) {
        int32_t layer = (int32_t)(s->the_same ? i : s->in_turns ? i * stages + stage : stage * s->layers + i);
        moor_wire_put(out, &layer, sizeof(layer));
    }
}

/* One view of at least `least` rows; returns how many it has. */
static uint64_t build_view(moor_wire_buffer *out, uint64_t least, uint32_t index)
{
    uint8_t how = reply_next();
    const char *id = how & 16 ? "b" : "a";
    moor_wire_view view = {.handle = 1 + index,
                           .n_segments = 1 + (how & 3),
                           .n_versions = how >> 2 & 3,
                           .index = how & 128 ? 9 - index : index,
                           .id_len = 1,
                           .session_len = how & 32 ? 7 : 0,
                           .dropped_rows = how & 64 ? 2 : 0};
    moor_wire_segment segments[4] = {{0}};
    for (uint32_t i = 0; i < view.n_segments; i++) {
        uint8_t b = reply_next();
        segments[i] = (moor_wire_segment){.start = view.rows,
                                          .rows = 1 + (b & 7) + (i ? 0 : least),
                                          .offset = (uint64_t)(b >> 3 & 15) * 4096,
                                          .present = !(b & 128)};
        view.rows += segments[i].rows;
        view.missing_rows += b & 128 ? segments[i].rows : 0;
    }
    view.n_versions = view.n_versions < view.rows ? view.n_versions : (uint32_t)view.rows;
    moor_wire_put(out, &view, sizeof(view));
    moor_wire_put(out, segments, view.n_segments * sizeof(segments[0]));
    for (uint32_t i = 0; i < view.n_versions; i++) {
        moor_wire_version version = {.start = i, .epoch = reply_next() & 3, .label = "step"};
        moor_wire_put(out, &version, sizeof(version));
    }
    moor_wire_put(out, id, view.id_len);
    moor_wire_put(out, "session", view.session_len);
    moor_wire_pad(out);
    return view.rows;
}

static void build_views(moor_wire_buffer *out, uint32_t n)
{
    moor_wire_views head = {.n = n};
    moor_wire_put(out, &head, sizeof(head));
    for (uint32_t i = 0; i < n; i++)
        build_view(out, 0, i);
}

static void build_trace(moor_wire_buffer *out)
{
    uint8_t how = reply_next();
    uint64_t row = 0, left;
    moor_wire_trace trace = {
        .n_segments = 1 + (how & 3), .n_parts = how >> 2 & 3, .flags = how & 16 ? 0 : MOOR_WIRE_TOKENS};
    moor_wire_trace_part parts[4] = {{0}};
    moor_wire_trace_segment segments[4] = {{0}};
    moor_wire_buffer views = {0};
    moor_wire_views head = {.n = trace.n_parts};
    moor_wire_put(&views, &head, sizeof(head));
    for (uint32_t i = 0; i < trace.n_parts; i++) {
        parts[i].from = row;
        parts[i].to = row = build_view(&views, row + 1, i);
    }
    if (how & 64 && trace.n_parts) /* more than its record has */
        row = ++parts[trace.n_parts - 1].to;
    trace.rows = row;
    trace.n_tokens = left = row + (how & 32 ? 1 : 0);
    for (uint32_t i = 0; i < trace.n_segments; i++) {
        uint64_t length = i + 1 < trace.n_segments ? left / 2 : left;
        segments[i] =
            (moor_wire_trace_segment){.start = trace.n_tokens - left, .length = length, .handle = i, .key_len = 1};
        left -= length;
    }
    moor_wire_put(out, &trace, sizeof(trace));
    moor_wire_put(out, segments, trace.n_segments * sizeof(segments[0]));
    moor_wire_put(out, parts, trace.n_parts * sizeof(parts[0]));
    for (int32_t i = 0; trace.flags & MOOR_WIRE_TOKENS && (uint64_t)i < trace.n_tokens; i++)
        moor_wire_put(out, &i, sizeof(i));
    moor_wire_pad(out);
    moor_wire_put(out, views.data, views.used);
    moor_wire_buffer_free(&views);
}

static void build_keys(moor_wire_buffer *out)
{
    uint32_t shared = 0;
    moor_wire_keys head = {.n = reply_next() & 7};
    moor_wire_put(out, &head, sizeof(head));
    for (uint64_t i = 0; i < head.n; i++) {
        uint8_t b = reply_next();
        uint32_t lengths[2] = {shared ? (b & 15) % shared : 0, b >> 4 & 7};
        moor_wire_put(out, lengths, sizeof(lengths));
        moor_wire_put(out, "keyskeys", lengths[1]);
        shared = lengths[0] + lengths[1];
    }
    head.size = out->used - sizeof(head);
    memcpy(out->data, &head, sizeof(head));
}

static void build_found(moor_wire_buffer *out)
{
    uint8_t how = reply_next();
    static const int32_t tokens[8] = {5, 6, 7, 8, 9, 10, 11, 12};
    moor_wire_found found = {.handle = 1,
                             .length = how & 7,
                             .key_len = 1,
                             .n_tokens = how & 8 ? 0 : how & 7,
                             .request_len = how >> 4 & 7,
                             .flags = how & 8 ? 0 : MOOR_WIRE_TOKENS};
    if (how & 128)
        return; /* nothing was found */
    moor_wire_put(out, &found, sizeof(found));
    moor_wire_put(out, tokens, found.n_tokens * sizeof(tokens[0]));
    moor_wire_put(out, "request", found.request_len);
}

static void build(uint16_t type, uint32_t store, moor_wire_buffer *out)
{
    moor_wire_session_state state = {.state = 1};
    moor_wire_rollback rollback = {.kept = 3, .key_len = 1};
    switch (type) {
    case MOOR_WIRE_HELLO:
        build_welcome(store, out);
        break;
    case MOOR_WIRE_OPEN:
    case MOOR_WIRE_OPEN_HANDLE:
        build_views(out, 1);
        break;
    case MOOR_WIRE_OPEN_ALL:
        build_views(out, 1 + (reply_next() & 3));
        break;
    case MOOR_WIRE_STATS:
        moor_wire_put(out, "{\"records\":1}", 13);
        break;
    case MOOR_WIRE_SESSION_STATE:
        state.values = reply_next() & 1;
        state.state = state.values ? 1 : reply_next() & 3;
        moor_wire_put(out, &state, sizeof(state));
        break;
    case MOOR_WIRE_SESSION_SEARCH:
        build_found(out);
        break;
    case MOOR_WIRE_SESSION_KEYS:
        build_keys(out);
        break;
    case MOOR_WIRE_SESSION_EXPORT:
        build_trace(out);
        break;
    case MOOR_WIRE_SESSION_ROLLBACK:
        moor_wire_put(out, &rollback, sizeof(rollback));
        break;
    default:
        break;
    }
}

/* ---- damage ----------------------------------------------------------------------------------------------------- */

/* One field of 4 or 8 bytes gets a value that lengths like to be wrong by, or one that is off by a little. */
static void damage(moor_wire_buffer *body)
{
    static const int32_t interesting[] = {0,    1,     2,       3,         4,         8,         15,
                                          16,   17,    63,      64,        65,        -1,        -16,
                                          4096, 65535, 1 << 16, 0x3FFFFFF, 0x7FFFFFF, INT32_MAX, INT32_MIN};
    enum { N = sizeof(interesting) / sizeof(interesting[0]) };
    size_t at = reply_next() * 4u;
    uint8_t how = reply_next();
    uint64_t value;
    if (body->used < 8)
        return;
    at = at > body->used - 8 ? at % (body->used - 7) : at;
    memcpy(&value, body->data + at, sizeof(value));
    if (how < N)
        memcpy(body->data + at, &interesting[how], 4);
    else if (how < 2 * N)
        value = (uint64_t)(int64_t)interesting[how - N] << (how & 1 ? 0 : 29);
    else
        value += (uint64_t)(int64_t)(int8_t)(how - 128 - N);
    if (how >= N)
        memcpy(body->data + at, &value, sizeof(value));
}

/* The input's own bytes. */
static void put_raw(moor_wire_buffer *body)
{
    size_t n = reply_next();
    n = n < reply_input.left ? n : reply_input.left;
    moor_wire_put(body, moor_wire_take(&reply_input, n), n);
}

/* Moves the body into a memfd. */
static void into_fd(moor_wire_header *header, moor_wire_buffer *body, reply_answer *out)
{
    uint8_t how = reply_next();
    moor_wire_large large = {.length = body->used + (how & 1) - (how >> 1 & 1)};
    MUST(moor_wire_large_make(body->data, body->used, &out->made));
    header->flags |= MOOR_WIRE_IN_FD;
    if (how & 4)
        large.length = reply_next() & 1 ? REPLY_ARENA : 1ull << 40;
    if (!(how & 8))
        out->fds[out->n_fds++] = how & 16 ? reply_answer_arenas()[how >> 5 & 3] : out->made;
    moor_wire_buffer_free(body);
    moor_wire_put(body, &large, sizeof(large));
}

static void damage_header(moor_wire_header *header)
{
    uint8_t how = reply_next(), value = reply_next();
    if (how & 1)
        header->type = value;
    if (how & 2)
        header->tag += (uint32_t)(value - 1);
    if (how & 4)
        header->flags ^= value;
    if (how & 8)
        header->status = (int8_t)value;
    if (how & 16)
        header->length += (uint32_t)(int8_t)value;
    if (how & 32)
        header->length = value & 1 ? UINT32_MAX : (uint32_t)MOOR_WIRE_LIMIT + (value >> 1 & 1);
    if (how & 64)
        header->tag = 0;
}

/* What is in the message, by 3 bits of `how`; the body, with its descriptors. */
static void make_body(moor_wire_header *header, uint8_t how, uint32_t store, reply_answer *out, moor_wire_buffer *body)
{
    int kind = how & 7;
    uint16_t as = kind == 7 ? reply_next() % 20 : header->type; /* the answer to something else */
    if (kind == 3) {
        header->status = -(int32_t)(1 + reply_next() % 24);
        moor_wire_put(body, error_text, sizeof(error_text) - 1);
    } else if (kind == 2) {
        put_raw(body);
    } else {
        build(as, store, body);
    }
    for (int times = kind == 1 || kind == 6 ? 1 : kind == 4 ? 3 : 0; times--;)
        damage(body);
    if (header->type == MOOR_WIRE_HELLO || as == MOOR_WIRE_HELLO)
        out->fds[out->n_fds++] = reply_answer_arenas()[how & 32 ? reply_next() & 3 : 0];
    if (kind == 5 || kind == 6)
        into_fd(header, body, out);
}

void reply_answer_make(const moor_wire_header *request, uint32_t store, reply_answer *out)
{
    moor_wire_header header = {.type = request->type, .flags = MOOR_WIRE_REPLY, .tag = request->tag};
    moor_wire_buffer body = {0};
    uint8_t how = reply_next();
    *out = (reply_answer){.made = -1};
    make_body(&header, how, store, out, &body);
    if (how & 8) { /* less, or more than was meant; the header agrees */
        uint8_t by = reply_next();
        if (by & 128)
            body.used -= (size_t)(by & 127) < body.used ? (size_t)(by & 127) : body.used;
        else
            for (; by--;)
                moor_wire_put(&body, &by, 1);
    }
    header.length = (uint32_t)(sizeof(header) + body.used);
    if (how & 16)
        damage_header(&header);
    if (how & 32 && header.type != MOOR_WIRE_HELLO) /* one too many */
        out->fds[out->n_fds++] = reply_answer_arenas()[reply_next() & 3];
    moor_wire_put(&out->bytes, &header, sizeof(header));
    moor_wire_put(&out->bytes, body.data, body.used);
    moor_wire_buffer_free(&body);
    out->first = out->bytes.used;
    if (how & 64)
        out->first = 1 + reply_next() % out->bytes.used;
    if (how & 128) {
        uint8_t b = reply_next();
        out->hangs_up = b & 1;
        out->silent = (b & 6) == 6;
        if (b & 8) /* its last words are cut off */
            out->bytes.used = out->first;
        if (b & 16) /* and it says them twice */
            moor_wire_put(&out->bytes, &header, sizeof(header));
    }
    out->first = out->first < out->bytes.used ? out->first : out->bytes.used;
}
