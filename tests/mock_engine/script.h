/* SPDX-License-Identifier: Apache-2.0 */
/*
 * script.h — the text that a mock engine plays: one command a line, `verb [word] key=value …`, # starts a comment.
 *
 * Every process of the engine (front end, core, workers, consumer) parses the same file, so that a message between them
 * names a command by its line number only. Immutable after mk_script_load; owned by the process; no lock.
 * schedules/README.md lists the verbs.
 */
#ifndef MOCK_SCRIPT_H
#define MOCK_SCRIPT_H

#include <stddef.h>
#include <stdint.h>

#include <moor/moor.h>

enum { MK_MAX_DP = 8, MK_MAX_LAYERS = 64, MK_MAX_ARGS = 24, MK_MAX_RUNS = 8, MK_ID_BYTES = 64, MK_MAX_SIBLINGS = 64 };

enum mk_layout { MK_LAYOUT_LOCAL, MK_LAYOUT_ALL, MK_LAYOUT_SHARDS };

typedef struct mk_arg {
    const char *key, *value;
} mk_arg;

typedef struct mk_command {
    uint32_t line; /* 1-based, as an editor shows it */
    const char *verb, *word;
    mk_arg arg[MK_MAX_ARGS];
    uint32_t n_args;
} mk_command;

/* The shape of the engine: the script's first command. */
typedef struct mk_engine {
    uint32_t layers, top_k, experts, model_layers;
    int32_t layer_ids[MK_MAX_LAYERS];
    uint32_t kv_blocks, block_size, step_tokens;
    uint32_t tp, dp;
    enum mk_layout layout;
    uint32_t source; /* MOOR_DTYPE_* of what the model hands to capture */
    int strided, async, shuffle, kv_index, record;
    uint64_t arena_bytes;
    const char *moor_json; /* NULL: none */
} mk_engine;

typedef struct mk_script {
    char *text, *path, *overrides;
    mk_command *command;
    uint32_t n_commands;
    mk_engine engine;
} mk_script;

/* Position → seed of the token there: run[i].seed for positions below run[i].stop. */
typedef struct mk_tokens {
    struct {
        uint64_t stop, seed;
    } run[MK_MAX_RUNS];
    uint32_t n;
    uint64_t fork_at, fork; /* fork != 0: from position fork_at on it is a sibling's own continuation */
} mk_tokens;

/* What an `add` line asks for. */
typedef struct mk_request_spec {
    const char *id;
    uint32_t line, prompt, max_tokens, stop_at, siblings, dp;
    uint32_t external; /* tokens of the prompt whose KV a connector supplies */
    int unproven;
    uint32_t spec;      /* draft tokens a decode step */
    uint32_t accept[8]; /* how many of them the sampler accepts, by step, cyclic */
    uint32_t n_accept;
    mk_tokens tokens;
} mk_request_spec;

/* Exits with a message on a script that cannot be read: this is a test program. */
/* `overrides`: "key=value …" that go before the engine line's own, or NULL. */
void mk_script_load(const char *path, const char *overrides, mk_script *out);
const mk_command *mk_script_line(const mk_script *script, uint32_t line);
/* The last `add` of that id before line `before`, or NULL. */
const mk_command *mk_script_add(const mk_script *script, const char *id, uint32_t before);

const char *mk_arg_text(const mk_command *command, const char *key, const char *fallback);
uint64_t mk_arg_number(const mk_command *command, const char *key, uint64_t fallback);
double mk_arg_real(const mk_command *command, const char *key, double fallback);
void mk_request_parse(const mk_command *command, mk_request_spec *out);
/* Siblings share the prompt's tokens and sample different ones. */
mk_tokens mk_sibling_tokens(const mk_request_spec *spec, uint32_t sibling);

/* "ID-i-hhhhhhhh", what the core calls sibling i; "ID-i", what the front end calls it. The HTTP id is ID itself. */
void mk_core_id(const mk_request_spec *spec, uint32_t sibling, char out[MK_ID_BYTES]);
void mk_external_id(const mk_request_spec *spec, uint32_t sibling, char out[MK_ID_BYTES]);

/* "timeout" or "MOOR_E_TIMEOUT" → MOOR_E_TIMEOUT; "ok" → MOOR_OK. */
moor_status mk_status_parse(const moor_api *api, const char *text);

_Noreturn void mk_script_fail(const mk_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
