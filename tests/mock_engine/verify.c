/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.c — the consumer's process: opens records by id and checks every row, missing range and version against what the
 * script says must be there. It has seen nothing of the run: rows are recomputed from the script (ids.h). It is also the
 * one that holds leases, and is killed with them.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ids.h"
#include "mock.h"
#include "wire.h"

enum { MAX_HELD = 64, MAX_GENERATIONS = 64 };

typedef struct consumer {
    mk_context *context;
    const moor_api *api;
    const mk_engine *engine;
    moor_client *client;
    uint64_t epoch[MAX_GENERATIONS]; /* [generation] the weight epoch that stands for it, from the front end */
    uint32_t n_generations;
    struct {
        const char *id;
        moor_record *record;
        const mk_command *expect; /* the line that opened it */
    } held[MAX_HELD];
    uint32_t n_held;
    uint64_t rows_checked;
    moor_status status;
    char text[1024];
} consumer;

__attribute__((format(printf, 2, 3))) static void wrong(consumer *v, const char *format, ...)
{
    va_list args;
    if (v->status)
        return;
    v->status = MOOR_E_CORRUPT;
    va_start(args, format);
    vsnprintf(v->text, sizeof v->text, format, args);
    va_end(args);
}

static uint64_t generation_of(consumer *v, uint64_t epoch)
{
    for (uint32_t g = v->n_generations; g-- > 1;)
        if (v->epoch[g] == epoch)
            return g;
    wrong(v, "weight epoch %llu: nobody installed it", (unsigned long long)epoch);
    return 0;
}

static uint32_t stored_id(const moor_record_info *info, const void *row, uint32_t i)
{
    return info->dtype == MOOR_DTYPE_U8 ? ((const uint8_t *)row)[i] : ((const uint16_t *)row)[i];
}

static const moor_version_run *version_at(const moor_record_info *info, uint64_t row)
{
    const moor_version_run *found = NULL;
    for (uint32_t i = 0; i < info->n_versions && info->versions[i].start <= row; i++)
        found = &info->versions[i];
    return found;
}

static void check_row(consumer *v, const moor_record_info *info, const mk_tokens *tokens, uint64_t row,
                      const void *data)
{
    const mk_engine *e = v->engine;
    const moor_version_run *version = version_at(info, row);
    uint32_t expected[256];
    if (!version) {
        wrong(v, "%s: row %llu has no version", info->request_id, (unsigned long long)row);
        return;
    }
    uint64_t generation = generation_of(v, version->epoch);
    for (uint32_t layer = 0; layer < e->layers && !v->status; layer++) {
        mk_experts(e, mk_token(tokens, row), row, layer, generation, expected);
        for (uint32_t k = 0; k < e->top_k; k++) {
            uint32_t got = stored_id(info, data, layer * e->top_k + k);
            if (got != expected[k]) {
                wrong(v, "%s: row %llu layer %u k %u generation %llu: expert %u, must be %u", info->request_id,
                      (unsigned long long)row, layer, k, (unsigned long long)generation, got, expected[k]);
                return;
            }
        }
    }
    v->rows_checked++;
}

static size_t append(char *text, size_t len, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static size_t append(char *text, size_t len, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + len, len < size ? size - len : 0, format, args);
    va_end(args);
    return len + (n > 0 ? (size_t)n : 0);
}

/* Segments must tile rows 0…rows-1; "a-b,c-d" of the missing ones is compared with the script's. */
static void check_segments(consumer *v, const moor_record_info *info, const mk_tokens *tokens, const char *missing)
{
    const size_t row_bytes = (size_t)info->layers * info->top_k * (info->dtype == MOOR_DTYPE_U8 ? 1 : 2);
    char text[512] = "";
    size_t len = 0;
    uint64_t next = 0, gone = 0, hole = UINT64_MAX;
    for (uint32_t i = 0; i <= info->n_segments; i++) {
        const moor_segment *s = i < info->n_segments ? &info->segments[i] : NULL;
        if (s && s->start != next)
            wrong(v, "%s: segment %u starts at %llu, not %llu", info->request_id, i, (unsigned long long)s->start,
                  (unsigned long long)next);
        if (s && !s->present && hole == UINT64_MAX)
            hole = s->start;
        if ((!s || s->present) && hole != UINT64_MAX) {
            len = append(text, len, sizeof text, "%s%llu-%llu", len ? "," : "", (unsigned long long)hole,
                         (unsigned long long)next - 1);
            hole = UINT64_MAX;
        }
        if (!s)
            break;
        next += s->rows;
        gone += s->present ? 0 : s->rows;
        for (uint64_t r = 0; s->present && r < s->rows && !v->status; r++)
            check_row(v, info, tokens, s->start + r, (const uint8_t *)s->data + r * row_bytes);
    }
    if (next != info->rows || gone != info->missing_rows)
        wrong(v, "%s: segments add up to %llu rows, %llu missing; the record says %llu and %llu", info->request_id,
              (unsigned long long)next, (unsigned long long)gone, (unsigned long long)info->rows,
              (unsigned long long)info->missing_rows);
    if (!strcmp(missing, "*") && !gone)
        wrong(v, "%s: no row is missing", info->request_id);
    if (strcmp(missing, "*") && strcmp(text, missing))
        wrong(v, "%s: missing rows are '%s' (reasons %u), must be '%s'", info->request_id, text, info->reasons,
              missing);
}

static void check_versions(consumer *v, const moor_record_info *info, const char *expected)
{
    char text[512] = "";
    size_t len = 0;
    for (uint32_t i = 0; i < info->n_versions; i++)
        if (info->versions[i].epoch) /* 0: rows of unknown origin, which are missing */
            len = append(text, len, sizeof text, "%s%llu:%llu", len ? "," : "",
                         (unsigned long long)info->versions[i].start,
                         (unsigned long long)generation_of(v, info->versions[i].epoch));
    if (strcmp(expected, "*") && strcmp(text, expected))
        wrong(v, "%s: versions are '%s', must be '%s'", info->request_id, text, expected);
}

static uint64_t number_at(const void *data, uint32_t dtype, size_t i)
{
    switch (dtype) {
    case MOOR_DTYPE_U8:
        return ((const uint8_t *)data)[i];
    case MOOR_DTYPE_U16:
    case MOOR_DTYPE_I16:
        return ((const uint16_t *)data)[i];
    case MOOR_DTYPE_I32:
        return ((const uint32_t *)data)[i];
    default:
        return ((const uint64_t *)data)[i];
    }
}

/* record_copy in one layout and type agrees with the segments; dense layers read 0, missing rows 0 with mask 0. */
static void check_copy(consumer *v, const moor_record *record, const moor_record_info *info, int model, uint32_t dtype)
{
    static const uint32_t size[] = {0, 1, 2, 2, 4, 8};
    uint32_t columns = model ? info->model_layers : info->layers;
    size_t row_ids = (size_t)columns * info->top_k, bytes = row_ids * size[dtype] * info->rows;
    void *copy = mk_alloc(bytes);
    uint8_t *mask = mk_alloc(info->rows);
    if (v->api->record_copy(record, 0, info->rows, model, dtype, copy, bytes, mask))
        wrong(v, "%s: record_copy: %s", info->request_id, v->api->last_error());
    if (info->missing_rows &&
        v->api->record_copy(record, 0, info->rows, model, dtype, copy, bytes, NULL) != MOOR_E_INCOMPLETE)
        wrong(v, "%s: record_copy without a mask reads an incomplete record", info->request_id);
    for (uint32_t i = 0; i < info->n_segments && !v->status; i++) {
        const moor_segment *s = &info->segments[i];
        for (uint64_t r = 0; r < s->rows && !v->status; r++) {
            uint64_t row = s->start + r;
            if (mask[row] != s->present)
                wrong(v, "%s: mask of row %llu is %u, must be %u", info->request_id, (unsigned long long)row, mask[row],
                      s->present);
            for (uint32_t c = 0, column = 0; c < columns; c++) {
                int moe = !model || (column < info->layers && info->layer_ids[column] == (int32_t)c);
                for (uint32_t k = 0; k < info->top_k; k++) {
                    uint64_t expected =
                        !s->present || !moe
                            ? 0
                            : stored_id(info, s->data, (uint32_t)((r * info->layers + column) * info->top_k + k));
                    uint64_t got = number_at(copy, dtype, row * row_ids + (size_t)c * info->top_k + k);
                    if (got != expected)
                        wrong(v, "%s: copied row %llu column %u k %u is %llu, must be %llu", info->request_id,
                              (unsigned long long)row, c, k, (unsigned long long)got, (unsigned long long)expected);
                }
                column += (uint32_t)moe;
            }
        }
    }
    free(mask);
    free(copy);
}

static void check_info(consumer *v, const moor_record_info *info, const mk_command *expect)
{
    const mk_engine *e = v->engine;
    if (info->layers != e->layers || info->top_k != e->top_k || info->num_experts != e->experts ||
        info->model_layers != e->model_layers || info->dtype != (e->experts <= 256 ? MOOR_DTYPE_U8 : MOOR_DTYPE_U16))
        wrong(v, "%s: shape %u layers of %u, top %u of %u, dtype %u", info->request_id, info->layers,
              info->model_layers, info->top_k, info->num_experts, info->dtype);
    for (uint32_t i = 0; i < e->layers && !v->status; i++)
        if (info->layer_ids[i] != e->layer_ids[i])
            wrong(v, "%s: column %u is layer %d", info->request_id, i, info->layer_ids[i]);
    const struct {
        const char *key;
        uint64_t got;
    } numbers[] = {{"rows", info->rows},
                   {"dropped", info->dropped_rows},
                   {"reasons", info->reasons},
                   {"owner", info->owner},
                   {"store", info->store_index}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        uint64_t must = mk_arg_number(expect, numbers[i].key, numbers[i].got);
        if (must != numbers[i].got)
            wrong(v, "%s: %s is %llu, must be %llu", info->request_id, numbers[i].key,
                  (unsigned long long)numbers[i].got, (unsigned long long)must);
    }
}

static void check_record(consumer *v, const moor_record *record, const mk_request_spec *spec, uint32_t sibling,
                         const mk_command *expect)
{
    moor_record_info info = MOOR_RECORD_INFO_INIT;
    if (v->api->record_info(record, &info)) {
        wrong(v, "record_info: %s", v->api->last_error());
        return;
    }
    char id[MK_ID_BYTES];
    mk_core_id(spec, sibling, id);
    if (strcmp(id, info.request_id))
        wrong(v, "opened %s, got %s", id, info.request_id);
    mk_tokens tokens = mk_sibling_tokens(spec, sibling);
    check_info(v, &info, expect);
    check_segments(v, &info, &tokens, mk_arg_text(expect, "missing", ""));
    check_versions(v, &info, mk_arg_text(expect, "versions", info.missing_rows < info.rows ? "0:1" : ""));
    for (uint32_t dtype = MOOR_DTYPE_U8; dtype <= MOOR_DTYPE_I64 && !v->status; dtype++) {
        if ((dtype == MOOR_DTYPE_U8 && info.num_experts > 256) || (dtype == MOOR_DTYPE_I16 && info.num_experts > 32768))
            continue; /* does not hold the ids */
        check_copy(v, record, &info, 0, dtype);
        check_copy(v, record, &info, 1, dtype);
    }
}

static void id_of(const mk_command *expect, const mk_request_spec *spec, uint32_t sibling, char out[MK_ID_BYTES])
{
    const char *by = mk_arg_text(expect, "by", "external");
    if (!strcmp(by, "core"))
        mk_core_id(spec, sibling, out);
    else if (!strcmp(by, "http"))
        snprintf(out, MK_ID_BYTES, "%s", spec->id);
    else
        mk_external_id(spec, sibling, out);
}

/* What a call must return, and the words its error must hold. Returns 1 when the call succeeded and was meant to. */
static int check_status(consumer *v, moor_status got, const mk_command *expect, const char *what)
{
    moor_status must = mk_status_parse(v->api, mk_arg_text(expect, "open", "ok"));
    const char *error = got ? v->api->last_error() : "";
    if (got != must) {
        wrong(v, "%s: %s %s, must be %s", what, v->api->status_name(got), error, v->api->status_name(must));
        return 0;
    }
    char words[256];
    snprintf(words, sizeof words, "%s", mk_arg_text(expect, "text", ""));
    for (char *save, *word = strtok_r(words, ",", &save); word; word = strtok_r(NULL, ",", &save))
        if (!strstr(error, word))
            wrong(v, "%s: the error '%s' does not name '%s'", what, error, word);
    return got == MOOR_OK;
}

/* All siblings by the HTTP id, in index order; `shared=P`: their first P rows lie at the same place. */
static void expect_all(consumer *v, const mk_command *expect, const mk_request_spec *spec)
{
    moor_record **records;
    uint32_t n;
    moor_status status = v->api->open_all(v->client, spec->id, (uint32_t)strlen(spec->id),
                                          mk_arg_real(expect, "timeout", 5), &records, &n);
    if (!check_status(v, status, expect, spec->id))
        return;
    if (n != spec->siblings)
        wrong(v, "%s: %u records, must be %u", spec->id, n, spec->siblings);
    const void *prompt = NULL;
    for (uint32_t i = 0; i < n; i++) {
        moor_record_info info = MOOR_RECORD_INFO_INIT;
        if (!v->status)
            check_record(v, records[i], spec, i, expect);
        if (!v->status && !v->api->record_info(records[i], &info) && mk_arg_number(expect, "shared", 0)) {
            if (prompt && info.segments[0].data != prompt)
                wrong(v, "%s: the prompt's rows are stored more than once", info.request_id);
            if (info.segments[0].rows < mk_arg_number(expect, "shared", 0))
                wrong(v, "%s: its first segment has %llu rows", info.request_id,
                      (unsigned long long)info.segments[0].rows);
            prompt = info.segments[0].data;
        }
        v->api->record_release(records[i]);
    }
    v->api->records_free(records, n);
}

static moor_record *open_one(consumer *v, const mk_command *expect, const mk_request_spec *spec, uint32_t sibling)
{
    char id[MK_ID_BYTES];
    moor_record *record = NULL;
    id_of(expect, spec, sibling, id);
    uint64_t prefix = mk_arg_number(expect, "prefix", 0);
    moor_status status = v->api->open(v->client, id, (uint32_t)strlen(id), mk_arg_real(expect, "timeout", 5),
                                      prefix ? MOOR_OPEN_PREFIX : 0, prefix, &record);
    return check_status(v, status, expect, id) ? record : NULL;
}

/* The short string that an engine's field may carry opens the same record. */
static void check_ref(consumer *v, const moor_record *record)
{
    char ref[512];
    moor_record *again;
    moor_record_info a = MOOR_RECORD_INFO_INIT, b = MOOR_RECORD_INFO_INIT;
    if (v->api->record_ref(record, ref, sizeof ref) || v->api->resolve(ref, strlen(ref), 5, &again)) {
        wrong(v, "ref: %s", v->api->last_error());
        return;
    }
    if (v->api->record_info(record, &a) || v->api->record_info(again, &b) || a.handle != b.handle || a.rows != b.rows ||
        strcmp(a.request_id, b.request_id))
        wrong(v, "%s opens %s", ref, b.request_id ? b.request_id : "nothing");
    v->api->record_release(again);
}

static void expect_record(consumer *v, const mk_command *expect)
{
    const mk_command *add = mk_script_add(&v->context->script, expect->word, expect->line);
    mk_request_spec spec;
    if (!add)
        mk_script_fail(expect, "%s was never added", expect->word);
    mk_request_parse(add, &spec);
    if (mk_arg_number(expect, "all", 0)) {
        expect_all(v, expect, &spec);
        return;
    }
    uint32_t sibling = (uint32_t)mk_arg_number(expect, "sibling", 0);
    moor_record *record = open_one(v, expect, &spec, sibling);
    if (!record)
        return;
    if (!v->status)
        check_record(v, record, &spec, sibling, expect);
    if (!v->status && mk_arg_number(expect, "ref", 0))
        check_ref(v, record);
    v->api->record_release(record);
}

static void lease(consumer *v, const mk_command *command)
{
    mk_request_spec spec;
    mk_request_parse(mk_script_add(&v->context->script, command->word, command->line), &spec);
    if (v->n_held == MAX_HELD)
        mk_script_fail(command, "more than %d leases", MAX_HELD);
    moor_record *record = open_one(v, command, &spec, 0);
    if (!record)
        return;
    v->held[v->n_held].id = command->word;
    v->held[v->n_held].record = record;
    v->held[v->n_held++].expect = command;
}

/* release ID; event ID event=reset|discard|replaced|session; owner=1|2 claims; then what is held must still read right. */
static void with_held(consumer *v, uint32_t type, const mk_command *command)
{
    static const char *const events[] = {"", "reset", "discard", "replaced", "session"};
    uint32_t i = 0;
    while (i < v->n_held && strcmp(v->held[i].id, command->word))
        i++;
    if (i == v->n_held)
        mk_script_fail(command, "no lease of %s is held", command->word);
    moor_record *record = v->held[i].record;
    if (type == MK_RELEASE) {
        v->api->record_release(record);
        v->held[i] = v->held[--v->n_held];
        return;
    }
    uint32_t event = 1;
    const char *name = mk_arg_text(command, "event", NULL), *owner = mk_arg_text(command, "owner", NULL);
    while (name && event < 5 && strcmp(events[event], name))
        event++;
    if (owner)
        check_status(v, v->api->record_claim(record, (uint32_t)mk_arg_number(command, "owner", 0)), command,
                     "record_claim");
    if (name)
        check_status(v, v->api->record_event(record, event), command, "record_event");
    mk_request_spec spec;
    mk_request_parse(mk_script_add(&v->context->script, command->word, v->held[i].expect->line), &spec);
    if (!v->status)
        check_record(v, record, &spec, 0, v->held[i].expect);
}

static void client_gate(consumer *v, const mk_command *command)
{
    moor_gate_status status = MOOR_GATE_STATUS_INIT;
    moor_status got = v->api->client_gate(v->client, command->word, mk_arg_text(command, "label", NULL),
                                          mk_arg_real(command, "timeout", 5), &status);
    if (check_status(v, got, command, command->word) && status.state != mk_arg_number(command, "state", status.state))
        wrong(v, "client_gate %s: state %u", command->word, status.state);
}

/* An external arrival at a named barrier. */
static void meet(consumer *v, const mk_command *command)
{
    moor_barrier_result result = MOOR_BARRIER_RESULT_INIT;
    moor_status got = v->api->barrier_arrive(v->client, command->word, (uint32_t)mk_arg_number(command, "size", 1),
                                             (uint32_t)mk_arg_number(command, "rank", 0),
                                             mk_arg_real(command, "timeout", 5), &result);
    check_status(v, got, command, command->word);
}

static void handle(consumer *v, uint32_t type, mk_buffer *body)
{
    const mk_command *command = mk_script_line(&v->context->script, mk_get_u32(body));
    v->n_generations = mk_get_u32(body);
    if (v->n_generations > MAX_GENERATIONS)
        mk_die("more than %d weight generations", MAX_GENERATIONS);
    mk_get(body, v->epoch, v->n_generations * sizeof *v->epoch);
    if (type == MK_EXPECT)
        expect_record(v, command);
    else if (type == MK_LEASE)
        lease(v, command);
    else if (type == MK_CLIENT_GATE)
        client_gate(v, command);
    else if (type == MK_MEET)
        meet(v, command);
    else
        with_held(v, type, command);
}

int mk_verify_main(mk_context *context)
{
    consumer v = {.context = context, .api = context->api, .engine = &context->script.engine};
    mk_buffer body = {0};
    uint32_t type;
    moor_status status = v.api->attach(context->instance, context->dir, 10, &v.client);
    mk_send_done(context->fd, status, status ? v.api->last_error() : "");
    while (!status && !mk_receive(context->fd, &type, &body)) {
        v.status = MOOR_OK;
        v.text[0] = 0;
        handle(&v, type, &body);
        if (mk_send_done(context->fd, v.status, v.text))
            break;
    }
    mk_say(context, "%llu rows checked", (unsigned long long)v.rows_checked);
    while (v.n_held)
        v.api->record_release(v.held[--v.n_held].record);
    if (v.client)
        v.api->detach(v.client);
    mk_buffer_clear(&body);
    return 0;
}
