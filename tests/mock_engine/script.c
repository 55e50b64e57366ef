/* SPDX-License-Identifier: Apache-2.0 */
#include "script.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *g_path = "?";

void mk_script_fail(const mk_command *command, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "%s:%u: %s: ", g_path, command ? command->line : 0, command ? command->verb : "script");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(2);
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        mk_script_fail(NULL, "%s: %s", path, strerror(errno));
    size_t cap = 1 << 16, len = 0, got;
    char *text = malloc(cap);
    while (text && (got = fread(text + len, 1, cap - len - 1, file)) > 0) {
        len += got;
        if (len + 1 == cap)
            text = realloc(text, cap *= 2);
    }
    fclose(file);
    if (!text)
        mk_script_fail(NULL, "%s: out of memory", path);
    text[len] = 0;
    return text;
}

/* The next word of a line, cut in place. A value in single quotes may hold blanks. */
static char *next_word(char **cursor)
{
    char *p = *cursor;
    while (*p && isspace((unsigned char)*p))
        p++;
    if (!*p || *p == '#')
        return NULL;
    char *start = p, *out = p;
    int quoted = 0;
    for (; *p && (quoted || !isspace((unsigned char)*p)); p++) {
        if (*p == '\'')
            quoted = !quoted;
        else
            *out++ = *p;
    }
    *cursor = *p ? p + 1 : p;
    *out = 0;
    return start;
}

static void parse_line(mk_script *script, char *line, uint32_t number)
{
    char *verb = next_word(&line), *word;
    if (!verb)
        return;
    mk_command *grown = realloc(script->command, (script->n_commands + 1) * sizeof *grown);
    if (!grown)
        mk_script_fail(NULL, "out of memory");
    script->command = grown;
    mk_command *command = &grown[script->n_commands++];
    *command = (mk_command){.line = number, .verb = verb};
    while ((word = next_word(&line)) != NULL) {
        char *equals = strchr(word, '=');
        if (!equals) {
            if (command->word)
                mk_script_fail(command, "two bare words: '%s' and '%s'", command->word, word);
            command->word = word;
            continue;
        }
        if (command->n_args == MK_MAX_ARGS)
            mk_script_fail(command, "more than %d arguments", MK_MAX_ARGS);
        *equals = 0;
        command->arg[command->n_args++] = (mk_arg){word, equals + 1};
    }
}

const char *mk_arg_text(const mk_command *command, const char *key, const char *fallback)
{
    for (uint32_t i = 0; i < command->n_args; i++)
        if (!strcmp(command->arg[i].key, key))
            return command->arg[i].value;
    return fallback;
}

uint64_t mk_arg_number(const mk_command *command, const char *key, uint64_t fallback)
{
    const char *text = mk_arg_text(command, key, NULL);
    if (!text)
        return fallback;
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 0);
    if (errno || !*text || *end)
        mk_script_fail(command, "%s=%s is not a number", key, text);
    return value;
}

double mk_arg_real(const mk_command *command, const char *key, double fallback)
{
    const char *text = mk_arg_text(command, key, NULL);
    char *end;
    double value = text ? strtod(text, &end) : fallback;
    if (text && (!*text || *end))
        mk_script_fail(command, "%s=%s is not a number", key, text);
    return value;
}

static uint32_t source_dtype(const mk_command *command)
{
    static const struct {
        const char *name;
        uint32_t dtype;
    } names[] = {{"u8", MOOR_DTYPE_U8},
                 {"u16", MOOR_DTYPE_U16},
                 {"i16", MOOR_DTYPE_I16},
                 {"i32", MOOR_DTYPE_I32},
                 {"i64", MOOR_DTYPE_I64}};
    const char *text = mk_arg_text(command, "source", "i32");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i].name))
            return names[i].dtype;
    mk_script_fail(command, "source=%s is none of u8 u16 i16 i32 i64", text);
}

static enum mk_layout layout(const mk_command *command)
{
    const char *text = mk_arg_text(command, "layout", "local");
    if (!strcmp(text, "local"))
        return MK_LAYOUT_LOCAL;
    if (!strcmp(text, "all"))
        return MK_LAYOUT_ALL;
    if (!strcmp(text, "shards"))
        return MK_LAYOUT_SHARDS;
    mk_script_fail(command, "layout=%s is none of local all shards", text);
}

static void parse_engine(mk_script *script)
{
    if (!script->n_commands || strcmp(script->command[0].verb, "engine"))
        mk_script_fail(script->command, "the first command is not `engine`");
    const mk_command *c = &script->command[0];
    mk_engine *e = &script->engine;
    *e = (mk_engine){
        .layers = (uint32_t)mk_arg_number(c, "layers", 4),
        .top_k = (uint32_t)mk_arg_number(c, "top_k", 2),
        .experts = (uint32_t)mk_arg_number(c, "experts", 16),
        .kv_blocks = (uint32_t)mk_arg_number(c, "blocks", 64),
        .block_size = (uint32_t)mk_arg_number(c, "block_size", 4),
        .step_tokens = (uint32_t)mk_arg_number(c, "step_tokens", 64),
        .tp = (uint32_t)mk_arg_number(c, "tp", 1),
        .dp = (uint32_t)mk_arg_number(c, "dp", 1),
        .layout = layout(c),
        .source = source_dtype(c),
        .strided = (int)mk_arg_number(c, "strided", 0),
        .async = (int)mk_arg_number(c, "async", 0),
        .shuffle = (int)mk_arg_number(c, "shuffle", 1),
        .kv_index = (int)mk_arg_number(c, "kv_index", 1),
        .record = (int)mk_arg_number(c, "record", 1),
        .arena_bytes = mk_arg_number(c, "arena", 8 << 20),
        .moor_json = mk_arg_text(c, "moor", NULL),
    };
    if (!e->layers || e->layers > MK_MAX_LAYERS || !e->tp || !e->dp || e->dp > MK_MAX_DP || !e->block_size ||
        !e->top_k || e->top_k > e->experts)
        mk_script_fail(c, "a value is out of range");
    uint32_t dense = (uint32_t)mk_arg_number(c, "dense", 0); /* so many dense layers come first */
    for (uint32_t i = 0; i < e->layers; i++)
        e->layer_ids[i] = (int32_t)(dense + i);
    e->model_layers = dense + e->layers;
}

/* The overrides come first in the line, and the first of two equal keys counts. */
static void override_engine(mk_script *script)
{
    mk_command own = script->command[0], *command = &script->command[0];
    char *cursor = script->overrides, *word;
    command->n_args = 0;
    while ((word = next_word(&cursor)) != NULL) {
        char *equals = strchr(word, '=');
        if (!equals || command->n_args == MK_MAX_ARGS)
            mk_script_fail(command, "--engine: '%s' is not key=value, or one too many", word);
        *equals = 0;
        command->arg[command->n_args++] = (mk_arg){word, equals + 1};
    }
    for (uint32_t i = 0; i < own.n_args; i++) {
        if (command->n_args == MK_MAX_ARGS)
            mk_script_fail(command, "more than %d arguments", MK_MAX_ARGS);
        command->arg[command->n_args++] = own.arg[i];
    }
}

void mk_script_load(const char *path, const char *overrides, mk_script *out)
{
    g_path = path;
    *out = (mk_script){.text = read_file(path), .path = strdup(path), .overrides = strdup(overrides ? overrides : "")};
    uint32_t number = 0;
    for (char *line = out->text; line;) {
        char *end = strchr(line, '\n');
        if (end)
            *end++ = 0;
        parse_line(out, line, ++number);
        line = end;
    }
    if (out->n_commands)
        override_engine(out);
    parse_engine(out);
}

const mk_command *mk_script_line(const mk_script *script, uint32_t line)
{
    for (uint32_t i = 0; i < script->n_commands; i++)
        if (script->command[i].line == line)
            return &script->command[i];
    mk_script_fail(NULL, "no command at line %u", line);
}

const mk_command *mk_script_add(const mk_script *script, const char *id, uint32_t before)
{
    const mk_command *found = NULL;
    for (uint32_t i = 0; i < script->n_commands && script->command[i].line < before; i++) {
        const mk_command *c = &script->command[i];
        if (!strcmp(c->verb, "add") && c->word && !strcmp(c->word, id))
            found = c;
    }
    return found;
}

/* "7" or "1:12,7": seed 1 for the first 12 positions, then 7. */
static void parse_tokens(const mk_command *command, mk_tokens *out)
{
    const char *text = mk_arg_text(command, "seed", NULL);
    char *end;
    *out = (mk_tokens){0};
    if (!text) { /* a request of its own */
        out->run[0].stop = UINT64_MAX;
        out->run[0].seed = command->line * 1000003ull;
        out->n = 1;
        return;
    }
    for (;;) {
        if (out->n == MK_MAX_RUNS)
            mk_script_fail(command, "seed=%s has too many runs", text);
        out->run[out->n].seed = strtoull(text, &end, 0);
        out->run[out->n].stop = *end == ':' ? strtoull(end + 1, &end, 0) : UINT64_MAX;
        out->n++;
        if (*end != ',')
            break;
        text = end + 1;
    }
    if (*end || out->run[out->n - 1].stop != UINT64_MAX)
        mk_script_fail(command, "seed= is not like 7 or 1:12,7");
}

void mk_request_parse(const mk_command *command, mk_request_spec *out)
{
    if (strcmp(command->verb, "add") || !command->word)
        mk_script_fail(command, "not an `add ID`");
    *out = (mk_request_spec){
        .id = command->word,
        .line = command->line,
        .prompt = (uint32_t)mk_arg_number(command, "prompt", 5),
        .max_tokens = (uint32_t)mk_arg_number(command, "max_tokens", 3),
        .stop_at = (uint32_t)mk_arg_number(command, "stop_at", 0),
        .siblings = (uint32_t)mk_arg_number(command, "n", 1),
        .dp = (uint32_t)mk_arg_number(command, "dp", 0),
        .external = (uint32_t)mk_arg_number(command, "external", 0),
        .unproven = (int)mk_arg_number(command, "unproven", 0),
        .spec = (uint32_t)mk_arg_number(command, "spec", 0),
        .n_accept = 1,
    };
    const char *accept = mk_arg_text(command, "accept", NULL);
    for (out->n_accept = 0; accept && *accept && out->n_accept < 8;) {
        out->accept[out->n_accept++] = (uint32_t)strtoul(accept, (char **)&accept, 10);
        if (*accept == ',')
            accept++;
    }
    if (!out->n_accept)
        out->n_accept = 1; /* accept[0] = 0: none */
    if (!out->siblings || out->siblings > MK_MAX_SIBLINGS || !out->prompt)
        mk_script_fail(command, "n or prompt is out of range");
    parse_tokens(command, &out->tokens);
}

mk_tokens mk_sibling_tokens(const mk_request_spec *spec, uint32_t sibling)
{
    mk_tokens tokens = spec->tokens;
    tokens.fork_at = spec->prompt;
    tokens.fork = sibling;
    return tokens;
}

void mk_external_id(const mk_request_spec *spec, uint32_t sibling, char out[MK_ID_BYTES])
{
    snprintf(out, MK_ID_BYTES, "%s-%u", spec->id, sibling);
}

void mk_core_id(const mk_request_spec *spec, uint32_t sibling, char out[MK_ID_BYTES])
{
    uint32_t tail = (spec->line * 2654435761u) ^ (sibling * 40503u + 0x9e37u);
    snprintf(out, MK_ID_BYTES, "%s-%u-%08x", spec->id, sibling, tail);
}

moor_status mk_status_parse(const moor_api *api, const char *text)
{
    if (!strcasecmp(text, "ok"))
        return MOOR_OK;
    for (moor_status status = -1; status >= -32; status--) {
        const char *name = api->status_name(status);
        if (!strcasecmp(name, text) || (!strncmp(name, "MOOR_E_", 7) && !strcasecmp(name + 7, text)))
            return status;
    }
    mk_script_fail(NULL, "'%s' is no status of Moor", text);
}
