/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../abi/state.h"
#include "../allocator/dirs.h"
#include "memory.h"

struct moor_config {
    _Atomic uint32_t refs;
    moor_config_values values; /* instance, dir and record_restore point to strings of ours */
    int32_t across_hosts, transport;
    int arena_given, keep_bytes_given;
};

/* ---- the keys --------------------------------------------------------------------------------------------------- */

enum kind { KIND_NAME, KIND_PATH, KIND_BOOL, KIND_CHOICE, KIND_BYTES, KIND_SECONDS, KIND_U32 };

struct key {
    const char *group; /* NULL: top level */
    const char *name;
    enum kind kind;
    size_t offset;       /* in moor_config */
    const char *choices; /* "a|b|c", in the order of the enum's values */
    double min, max;
};

#define AT(member) offsetof(moor_config, values.member)
static const struct key keys[] = {
    {NULL, "instance", KIND_NAME, AT(instance), NULL, 0, 0},
    {NULL, "dir", KIND_PATH, AT(dir), NULL, 0, 0},
    {NULL, "on_error", KIND_CHOICE, AT(on_error), "open|strict", 0, 0},
    {NULL, "log", KIND_CHOICE, AT(log_level), "error|warn|info|debug", 0, 0},
    {"record", "enabled", KIND_BOOL, AT(record_enabled), NULL, 0, 0},
    {"record", "deliver", KIND_CHOICE, AT(deliver), "native|ref|none", 0, 0},
    {"record", "always", KIND_BOOL, AT(deliver_always), NULL, 0, 0},
    {"record", "arena_bytes", KIND_BYTES, AT(arena_bytes), NULL, 1 << 20, 0x1p46},
    {"record", "keep_s", KIND_SECONDS, AT(keep_s), NULL, 0, 1e9},
    {"record", "keep_bytes", KIND_BYTES, AT(keep_bytes), NULL, 0, 0x1p46},
    {"record", "validate", KIND_CHOICE, AT(validate_at_seal), "off|seal", 0, 0},
    {"record", "kv_index", KIND_BOOL, AT(kv_index), NULL, 0, 0},
    {"record", "restore", KIND_PATH, AT(record_restore), NULL, 0, 0},
    {"gate", "mode", KIND_CHOICE, AT(gate_mode), "off|observe|enforce", 0, 0},
    {"gate", "drain_timeout_s", KIND_SECONDS, AT(drain_timeout_s), NULL, 0, 1e6},
    {"barrier", "mode", KIND_CHOICE, AT(barrier_mode), "off|observe|enforce", 0, 0},
    {"barrier", "external", KIND_U32, AT(barrier_external), NULL, 0, MOOR_MAX_EXTERNAL},
    {"barrier", "timeout_s", KIND_SECONDS, AT(barrier_timeout_s), NULL, 0, 1e6},
    {"barrier", "spin_us", KIND_U32, AT(barrier_spin_us), NULL, 0, 1e6},
    {"barrier", "across_hosts", KIND_CHOICE, offsetof(moor_config, across_hosts), "none|nccl", 0, 0},
    {"cleanup", "mode", KIND_CHOICE, AT(cleanup_mode), "engine|light", 0, 0},
    {"cleanup", "escalate_free_bytes", KIND_BYTES, AT(escalate_free_bytes), NULL, 0, 0x1p46},
    {"weights", "bucket_bytes", KIND_BYTES, AT(bucket_bytes), NULL, 4096, 0x1p40},
    {"weights", "timeout_s", KIND_SECONDS, AT(weights_timeout_s), NULL, 0, 1e6},
    {"weights", "transport", KIND_CHOICE, offsetof(moor_config, transport), "auto|shm|cuda_ipc|vmm_fd", 0, 0},
};
#undef AT
enum { N_KEYS = sizeof(keys) / sizeof(keys[0]), MAX_KEY = 64 };

static const moor_config defaults = {
    .refs = 1,
    .values = {.size = sizeof(moor_config_values),
               .version = 1,
               .log_level = MOOR_LOG_INFO,
               .record_enabled = 1,
               .kv_index = 1,
               .keep_s = 3600,
               .gate_mode = MOOR_MODE_OBSERVE,
               .barrier_mode = MOOR_MODE_OBSERVE,
               .drain_timeout_s = 300,
               .barrier_timeout_s = 60,
               .barrier_spin_us = 50,
               .weights_timeout_s = 120,
               .bucket_bytes = 256u << 20},
};

static void key_path(const struct key *key, char path[MAX_KEY])
{
    snprintf(path, MAX_KEY, "%s%s%s", key->group ? key->group : "", key->group ? "." : "", key->name);
}

static int is_group(const char *name)
{
    for (size_t i = 0; i < N_KEYS; i++)
        if (keys[i].group && strcmp(keys[i].group, name) == 0)
            return 1;
    return 0;
}

static const struct key *key_find(const char *group, const char *name)
{
    for (size_t i = 0; i < N_KEYS; i++) {
        int same = group ? keys[i].group && strcmp(group, keys[i].group) == 0 : !keys[i].group;
        if (same && strcmp(name, keys[i].name) == 0)
            return &keys[i];
    }
    return NULL;
}

/* Levenshtein distance, of the first MAX_KEY - 1 bytes. */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned row[MAX_KEY];
    size_t na = strnlen(a, MAX_KEY - 1), nb = strnlen(b, MAX_KEY - 1);
    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

/* The known key (or group) nearest to group.name: by the whole path, or by the bare name for one in the wrong place. */
static void nearest_key(const char *group, const char *name, char nearest[MAX_KEY])
{
    char path[2 * MAX_KEY], candidate[MAX_KEY];
    unsigned best = UINT_MAX;
    snprintf(path, sizeof(path), "%.60s%s%.60s", group ? group : "", group ? "." : "", name);
    for (size_t i = 0; i < N_KEYS; i++) {
        key_path(&keys[i], candidate);
        unsigned distance = edit_distance(path, candidate), bare = edit_distance(name, keys[i].name) + 1;
        if (bare < distance)
            distance = bare;
        if (distance < best) {
            best = distance;
            memcpy(nearest, candidate, MAX_KEY);
        }
        if (!group && keys[i].group && (distance = edit_distance(name, keys[i].group)) < best) {
            best = distance;
            snprintf(nearest, MAX_KEY, "%s", keys[i].group);
        }
    }
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static const char *const kind_text[] = {
    [KIND_NAME] = "a string (an instance name: 1 to 48 letters, digits, '.', '_', '-')",
    [KIND_PATH] = "a string (an absolute path)",
    [KIND_BOOL] = "true or false",
    [KIND_BYTES] = "a number of bytes, or a string such as \"512MiB\"",
    [KIND_SECONDS] = "a number of seconds",
    [KIND_U32] = "a whole number",
};

static moor_status wrong(const struct key *key, const json_t *value, const char *source)
{
    char path[MAX_KEY], expected[160];
    key_path(key, path);
    if (key->kind == KIND_CHOICE)
        snprintf(expected, sizeof(expected), "one of %s", key->choices);
    else
        snprintf(expected, sizeof(expected), "%s", kind_text[key->kind]);
    char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    moor_status status = moor_fail(MOOR_E_CONFIG, "%s: \"%s\" is %.200s, expected %s", source, path,
                                   shown ? shown : "not printable", expected);
    free(shown);
    return status;
}

static moor_status out_of_range(const struct key *key, double value, const char *source)
{
    char path[MAX_KEY];
    key_path(key, path);
    return moor_fail(MOOR_E_CONFIG, "%s: \"%s\" is %.17g, allowed is %.17g to %.17g", source, path, value, key->min,
                     key->max);
}

/* Replaces ${NAME}s. *out is malloc'ed. */
static moor_status expand(const char *path, const char *text, const char *source, char **out)
{
    size_t used = 0, room = strlen(text) + 1;
    char *buffer = malloc(room);
    while (buffer && *text) {
        const char *piece = text, *end;
        size_t length;
        char name[128];
        if (text[0] == '$' && text[1] == '{') {
            end = strchr(text, '}');
            if (!end || end == text + 2 || (size_t)(end - text - 2) >= sizeof(name)) {
                free(buffer);
                return moor_fail(MOOR_E_CONFIG, "%s: \"%s\" has a malformed ${NAME} in \"%.200s\"", source, path, text);
            }
            snprintf(name, sizeof(name), "%.*s", (int)(end - text - 2), text + 2);
            piece = getenv(name);
            if (!piece) {
                free(buffer);
                return moor_fail(MOOR_E_CONFIG, "%s: \"%s\" uses ${%s}, which is not set in the environment", source,
                                 path, name);
            }
            length = strlen(piece);
            text = end + 1;
        } else {
            end = strstr(text + 1, "${");
            length = end ? (size_t)(end - text) : strlen(text);
            text += length;
        }
        char *grown = realloc(buffer, room + length);
        if (!grown) {
            free(buffer);
            buffer = NULL;
            break;
        }
        buffer = grown;
        room += length;
        memcpy(buffer + used, piece, length);
        used += length;
    }
    if (!buffer)
        return moor_fail(MOOR_E_NOMEM, "%s: no memory for \"%s\"", source, path);
    buffer[used] = 0;
    *out = buffer;
    return MOOR_OK;
}

/* "12", "1.5", and for sizes "64MiB", "2g"; the whole string or nothing. */
static int number_from_text(const char *text, int bytes, double *out)
{
    static const char units[] = "kmgt";
    char *end;
    if (!isdigit((unsigned char)text[0]) || (text[0] == '0' && tolower((unsigned char)text[1]) == 'x'))
        return 0;
    double value = strtod(text, &end);
    while (*end == ' ')
        end++;
    if (bytes && *end) {
        const char *unit = strchr(units, tolower((unsigned char)*end));
        if (unit) {
            value = ldexp(value, 10 * (int)(unit - units + 1));
            end++;
            if (tolower((unsigned char)*end) == 'i')
                end++;
        }
        if (tolower((unsigned char)*end) == 'b')
            end++;
    }
    if (*end || !isfinite(value))
        return 0;
    *out = value;
    return 1;
}

static int choice_index(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (int index = 0;; index++) {
        size_t n = strcspn(choices, "|");
        if (n == length && strncmp(choices, text, n) == 0)
            return index;
        if (!choices[n])
            return -1;
        choices += n + 1;
    }
}

static moor_status set_number(moor_config *config, const struct key *key, const json_t *value, const char *text,
                              const char *source)
{
    double number;
    void *at = (char *)config + key->offset;
    if (json_is_number(value))
        number = json_number_value(value);
    else if (!text || !number_from_text(text, key->kind == KIND_BYTES, &number))
        return wrong(key, value, source);
    if (!(number >= key->min && number <= key->max)) /* NaN too */
        return out_of_range(key, number, source);
    if (key->kind != KIND_SECONDS && number != (double)(uint64_t)number)
        return wrong(key, value, source);
    if (key->kind == KIND_SECONDS)
        *(double *)at = number;
    else if (key->kind == KIND_U32)
        *(uint32_t *)at = (uint32_t)number;
    else
        *(uint64_t *)at = (uint64_t)number;
    config->arena_given |= at == (void *)&config->values.arena_bytes;
    config->keep_bytes_given |= at == (void *)&config->values.keep_bytes;
    return MOOR_OK;
}

/* text: the expanded string, taken over when it is kept (*text is then NULL). */
static moor_status set_string(moor_config *config, const struct key *key, const json_t *value, char **text,
                              const char *source)
{
    char **at = (char **)((char *)config + key->offset);
    if (!*text || (key->kind == KIND_NAME ? !moor_dirs_name_ok(*text) : (*text)[0] != '/'))
        return wrong(key, value, source);
    free(*at);
    *at = *text;
    *text = NULL;
    return MOOR_OK;
}

static moor_status set_key(moor_config *config, const struct key *key, const json_t *value, const char *source)
{
    char path[MAX_KEY], *text = NULL;
    int index;
    moor_status status = MOOR_OK;
    key_path(key, path);
    if (json_is_string(value) && (status = expand(path, json_string_value(value), source, &text)))
        return status;
    switch (key->kind) {
    case KIND_NAME:
    case KIND_PATH:
        status = set_string(config, key, value, &text, source);
        break;
    case KIND_BOOL:
        if (json_is_boolean(value))
            *(int32_t *)((char *)config + key->offset) = json_is_true(value);
        else
            status = wrong(key, value, source);
        break;
    case KIND_CHOICE:
        index = text ? choice_index(key->choices, text) : -1;
        if (index >= 0)
            *(int32_t *)((char *)config + key->offset) = index;
        else
            status = wrong(key, value, source);
        break;
    default:
        status = set_number(config, key, value, text, source);
    }
    free(text);
    return status;
}

/* ---- text to values --------------------------------------------------------------------------------------------- */

static moor_status apply_object(moor_config *config, json_t *object, const char *group, const char *source)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        moor_status status;
        const struct key *key = key_find(group, name);
        if (key) {
            status = set_key(config, key, value, source);
        } else if (!group && is_group(name)) {
            if (json_is_object(value))
                status = apply_object(config, value, name, source);
            else
                status = moor_fail(MOOR_E_CONFIG, "%s: \"%s\" must be an object", source, name);
        } else {
            char nearest[MAX_KEY];
            nearest_key(group, name, nearest);
            status = moor_fail(MOOR_E_CONFIG, "%s: unknown key \"%s%s%.100s\"; the nearest known one is \"%s\"", source,
                               group ? group : "", group ? "." : "", name, nearest);
        }
        if (status)
            return status;
    }
    return MOOR_OK;
}

static moor_status apply_json(moor_config *config, json_t *root, const json_error_t *error, const char *source)
{
    moor_status status;
    if (!root)
        return moor_fail(MOOR_E_CONFIG, "%s: line %d, column %d: %s", source, error->line, error->column, error->text);
    if (json_is_object(root))
        status = apply_object(config, root, NULL, source);
    else
        status = moor_fail(MOOR_E_CONFIG, "%s: must be a JSON object", source);
    json_decref(root);
    return status;
}

static moor_status apply_text(moor_config *config, const char *text, size_t length, const char *source)
{
    json_error_t error = {0};
    return apply_json(config, json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error), &error,
                      source);
}

static moor_status apply_environment(moor_config *config)
{
    const char *text = getenv("MOOR_CONFIG");
    char source[256];
    json_error_t error = {0};
    if (!text || !text[strspn(text, " \t\r\n")])
        return MOOR_OK;
    if (text[strspn(text, " \t\r\n")] == '{')
        return apply_text(config, text, strlen(text), "$MOOR_CONFIG");
    snprintf(source, sizeof(source), "$MOOR_CONFIG (%.220s)", text);
    FILE *file = fopen(text, "re");
    if (!file)
        return moor_fail_errno(MOOR_E_CONFIG, errno, "%s: cannot be read", source);
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    fclose(file);
    return apply_json(config, root, &error, source);
}

/* What is understood, and cannot be done by this version, is refused rather than ignored. */
static moor_status finish(moor_config *config)
{
    moor_config_values *values = &config->values;
    if (config->across_hosts != MOOR_ACROSS_HOSTS_NONE)
        return moor_fail(MOOR_E_CONFIG, "\"barrier.across_hosts\": \"nccl\" is not in version %s; use \"none\"",
                         MOOR_VERSION_STRING);
    if (config->transport > MOOR_TRANSPORT_SHM)
        return moor_fail(MOOR_E_CONFIG, "\"weights.transport\": only \"auto\" and \"shm\" are in version %s",
                         MOOR_VERSION_STRING);
    if (!config->arena_given)
        values->arena_bytes = moor_memory_default_arena(moor_memory_limit(""));
    if (!config->keep_bytes_given)
        values->keep_bytes = values->arena_bytes / 2;
    return MOOR_OK;
}

moor_status moor_config_parse(const char *json, size_t json_len, moor_config **out)
{
    if (!out)
        return moor_fail(MOOR_E_INVALID, "config_parse: out is NULL");
    moor_config *config = malloc(sizeof(*config));
    if (!config)
        return moor_fail(MOOR_E_NOMEM, "config_parse: no memory");
    *config = defaults;
    moor_status status = apply_environment(config);
    if (!status && json)
        status = apply_text(config, json, json_len, "configuration");
    if (!status)
        status = finish(config);
    if (status) {
        moor_config_free(config);
        return status;
    }
    *out = config;
    return MOOR_OK;
}

moor_status moor_config_get_values(const moor_config *config, moor_config_values *out)
{
    if (!config || !out || out->size < sizeof(uint32_t) * 2)
        return moor_fail(MOOR_E_INVALID, "config_values: config or out is NULL, or out->size is not set");
    uint32_t size = out->size, copied = size < sizeof(*out) ? size : (uint32_t)sizeof(*out);
    memcpy(out, &config->values, copied);
    out->size = size;
    return MOOR_OK;
}

const moor_config *moor_config_retain(const moor_config *config)
{
    atomic_fetch_add_explicit(&((moor_config *)(uintptr_t)config)->refs, 1, memory_order_relaxed);
    return config;
}

void moor_config_free(moor_config *config)
{
    if (!config || atomic_fetch_sub_explicit(&config->refs, 1, memory_order_acq_rel) != 1)
        return;
    free((char *)(uintptr_t)config->values.instance);
    free((char *)(uintptr_t)config->values.dir);
    free((char *)(uintptr_t)config->values.record_restore);
    free(config);
}
