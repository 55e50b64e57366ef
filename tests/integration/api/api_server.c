/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_server: a store that a test drives line by line: the smallest C host that knows only moor.h.
 *
 * Reads commands on stdin and answers each with one line on stdout: "ok …" or "error STATUS text".
 *   open STORE LAYERS MODEL_LAYERS TOP_K EXPERTS ARENA   layer_ids are 1, 2, … but the last, which is MODEL_LAYERS - 1
 *   record ID FROM TO SEED [MISSING]   steps of at most 512 tokens over positions FROM…TO-1; with MISSING the last layer does not capture
 *   seal ID ROWS FLAGS     alias ID ALIAS INDEX     touch LABEL (the weights changed)
 *   begin                  end (of a weight update)
 *   enter ID               leave (of the gate; the receipt's outcome is finished)
 *   close
 * The ids of a row are known to the test (api_lib.py): ids[row][column][k] = (13 row + 5 column + k + SEED) % EXPERTS.
 */
#include <moor/moor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP = 512, LINE = 4096 };

static const moor_api *api;
static moor_process *process;
static moor_store *store;
static moor_store_args shape = MOOR_STORE_ARGS_INIT;
static int32_t layer_ids[64];
static moor_ticket ticket;

static moor_status cmd_open(char *line)
{
    unsigned index, layers, model_layers, top_k, experts;
    unsigned long long arena;
    if (sscanf(line, "%u %u %u %u %u %llu", &index, &layers, &model_layers, &top_k, &experts, &arena) != 6 ||
        layers > 64)
        return MOOR_E_INVALID;
    for (unsigned l = 0; l < layers; l++)
        layer_ids[l] = (int32_t)(l + 1 < layers ? l + 1 : model_layers - 1);
    shape.store_index = index;
    shape.layers = layers;
    shape.model_layers = model_layers;
    shape.top_k = top_k;
    shape.num_experts = experts;
    shape.layer_ids = layer_ids;
    shape.max_step_tokens = STEP;
    shape.max_requests = 256;
    shape.arena_bytes = arena;
    return api->store_open(process, &shape, &store);
}

static moor_status step(const char *id, uint64_t from, uint32_t n, uint32_t seed, int missing)
{
    static int32_t ids[STEP * 64];
    moor_step_request request = {.id = id, .id_len = (uint32_t)strlen(id), .count = n, .start = from};
    moor_status status = api->step_begin(store, &request, 1);
    for (uint32_t l = 0; !status && l + (missing ? 1 : 0) < shape.layers; l++) {
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t k = 0; k < shape.top_k; k++)
                ids[t * shape.top_k + k] = (int32_t)((13 * (from + t) + 5 * l + k + seed) % shape.num_experts);
        moor_ids source = {.data = ids, .dtype = MOOR_DTYPE_I32, .tokens = n, .top_k = shape.top_k};
        status = api->capture(store, l, &source, NULL);
    }
    return status ? status : api->step_commit(store, NULL, 0);
}

static moor_status cmd_record(char *line)
{
    char id[256], word[16] = "";
    unsigned long long from, to;
    unsigned seed;
    if (sscanf(line, "%255s %llu %llu %u %15s", id, &from, &to, &seed, word) < 4 || shape.top_k > 64)
        return MOOR_E_INVALID;
    moor_status status = MOOR_OK;
    for (; !status && from < to; from += STEP)
        status = step(id, from, (uint32_t)(to - from < STEP ? to - from : STEP), seed, *word != 0);
    return status;
}

static moor_status cmd_seal(char *line)
{
    char id[256];
    unsigned long long rows;
    unsigned flags;
    if (sscanf(line, "%255s %llu %u", id, &rows, &flags) != 3)
        return MOOR_E_INVALID;
    return api->seal(process, shape.store_index, id, (uint32_t)strlen(id), rows, flags);
}

static moor_status cmd_alias(char *line)
{
    char id[256], alias[256];
    unsigned index;
    if (sscanf(line, "%255s %255s %u", id, alias, &index) != 3)
        return MOOR_E_INVALID;
    return api->request_alias(store, id, (uint32_t)strlen(id), alias, (uint32_t)strlen(alias), index);
}

static moor_status cmd_touch(char *label)
{
    moor_status status = api->weights_touched(process, MOOR_WEIGHTS_UPDATE, "api_server");
    return status ? status : api->weights_label(process, label);
}

static moor_status cmd_begin(char *unused)
{
    (void)unused;
    return api->weights_begin(process, MOOR_WEIGHTS_UPDATE);
}

static moor_status cmd_end(char *unused)
{
    (void)unused;
    return api->weights_end(process, 1, NULL);
}

static moor_status cmd_enter(char *id)
{
    return api->gate_enter(process, id, (uint32_t)strlen(id), 0, 0, &ticket);
}

static moor_status cmd_poison(char *reason)
{
    return api->gate_poison(process, reason);
}

static moor_status cmd_leave(char *unused)
{
    (void)unused;
    return api->gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL);
}

static moor_status run(char *line)
{
    static const struct {
        const char *name;
        moor_status (*run)(char *);
    } commands[] = {{"open", cmd_open},   {"record", cmd_record}, {"seal", cmd_seal},   {"alias", cmd_alias},
                    {"touch", cmd_touch}, {"enter", cmd_enter},   {"leave", cmd_leave}, {"poison", cmd_poison},
                    {"begin", cmd_begin}, {"end", cmd_end}};
    char *rest = strchr(line, ' ');
    if (rest)
        *rest++ = 0;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (!strcmp(line, commands[i].name))
            return commands[i].run(rest ? rest : line + strlen(line));
    return MOOR_E_INVALID;
}

static int answer(moor_status status)
{
    if (status)
        printf("error %d %s\n", status, api->last_error());
    else
        printf("ok %s %s\n", api->process_instance(process), api->process_dir(process));
    return fflush(stdout);
}

/* argv[1]: the configuration, JSON. */
int main(int argc, char **argv)
{
    static char line[LINE];
    const char *json = argc > 1 ? argv[1] : "{}";
    moor_config *config = NULL;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    args.engine = "api_test";
    args.roles = MOOR_ROLE_FRONTEND | MOOR_ROLE_CORE | MOOR_ROLE_WORKER;
    api = moor_get_api(MOOR_API_VERSION, NULL);
    if (!api)
        return 1;
    moor_status status = api->config_parse(json, strlen(json), &config);
    if (!status)
        status = api->process_join(config, &args, &process);
    if (answer(status) || status)
        return 1;
    while (fgets(line, sizeof(line), stdin) && strcmp(line, "close\n")) {
        line[strcspn(line, "\n")] = 0;
        if (answer(run(line)))
            return 1;
    }
    if (store)
        api->store_close(store);
    api->process_leave(process);
    api->config_free(config);
    return 0;
}
