/* SPDX-License-Identifier: Apache-2.0 */
/*
 * actor — a real process that does what it is told, one command a line on stdin, one answer a line on stdout: "ok …" or
 * "MOOR_E_… text". It knows only the public ABI. Written for the tests of membership, stores and clients, which need several
 * processes that join, die and come back.
 */
#include <inttypes.h>
#include <moor/moor.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 3, TOP_K = 2, EXPERTS = 16, MODEL_LAYERS = 5, MAX_RECORDS = 4096 };

static const moor_api *api;
static moor_config *config;
static moor_process *process;
static moor_store *store;
static moor_client *client;
static moor_record *records[MAX_RECORDS];
static uint32_t n_records;
static uint32_t columns[LAYERS] = {0, 1, 2}, n_columns = LAYERS; /* of the model's that the store has */

/* The id that row `row` of request `id` has in a layer and place: two of a layer differ. */
static uint8_t expert(const char *id, uint64_t row, uint32_t layer, uint32_t k)
{
    uint64_t sum = row * 7 + layer * 5;
    for (; *id; id++)
        sum += (unsigned char)*id;
    return (uint8_t)((sum * 2 + k) % EXPERTS);
}

static void answer(moor_status status, const char *text)
{
    if (status)
        printf("%s %s\n", api->status_name(status), api->last_error());
    else
        printf("ok %s\n", text ? text : "");
    fflush(stdout);
}

static void join(const char *json)
{
    char text[600];
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    args.roles = MOOR_ROLE_WORKER;
    args.engine = "actor";
    moor_status status = config ? MOOR_OK : api->config_parse(json, strlen(json), &config);
    if (!status)
        status = api->process_join(config, &args, &process);
    if (status)
        return answer(status, NULL);
    snprintf(text, sizeof(text), "%s %s", api->process_instance(process), api->process_dir(process));
    answer(MOOR_OK, text);
}

/* So many MiB in small pages: what takes a killed process a while to give back. */
static void weigh(unsigned long long mib)
{
    size_t size = (size_t)mib << 20;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return answer(MOOR_E_NOMEM, NULL);
    madvise(memory, size, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < size; at += 4096)
        memory[at] = 1;
    answer(MOOR_OK, NULL);
}

/* stages, digits: a pipeline stage with these columns of the model. */
static void open_store(uint32_t index, uint32_t stages, const char *digits)
{
    static const int32_t layer_ids[LAYERS] = {1, 2, 4};
    int32_t own_ids[LAYERS];
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    for (n_columns = 0; n_columns < LAYERS && digits[n_columns]; n_columns++) {
        columns[n_columns] = (uint32_t)(digits[n_columns] - '0') % LAYERS;
        own_ids[n_columns] = layer_ids[columns[n_columns]];
    }
    args.store_index = index;
    args.stages = stages;
    args.layers = n_columns;
    args.top_k = TOP_K;
    args.num_experts = EXPERTS;
    args.layer_ids = own_ids;
    args.model_layers = MODEL_LAYERS;
    args.max_step_tokens = 4096;
    args.arena_bytes = 16u << 20;
    answer(api->store_open(process, &args, &store), NULL);
}

/* One step that adds rows start…start+rows-1. */
static moor_status step(const char *id, uint64_t start, uint32_t rows)
{
    moor_step_request request = {.id = id, .id_len = (uint32_t)strlen(id), .count = rows, .start = start};
    uint8_t *ids = malloc((size_t)rows * TOP_K);
    moor_status status = api->step_begin(store, &request, 1);
    for (uint32_t layer = 0; layer < n_columns && !status; layer++) {
        for (uint32_t i = 0; i < rows * TOP_K; i++)
            ids[i] = expert(id, start + i / TOP_K, columns[layer], i % TOP_K);
        moor_ids capture = {.data = ids, .dtype = MOOR_DTYPE_U8, .tokens = rows, .top_k = TOP_K};
        status = api->capture(store, layer, &capture, NULL);
    }
    if (!status)
        status = api->step_commit(store, NULL, 0);
    free(ids);
    return status;
}

/* "" when every present row is what `step` wrote. */
static const char *verify(const moor_record *record, const moor_record_info *info)
{
    const char *name = info->request_id;
    if (info->layers != LAYERS || info->layer_ids[0] != 1 || info->layer_ids[1] != 2 || info->layer_ids[2] != 4)
        return "columns differ";
    for (uint32_t s = 0; s < info->n_segments; s++) {
        const uint8_t *at = info->segments[s].data;
        for (uint64_t row = 0; at && row < info->segments[s].rows; row++)
            for (uint32_t i = 0; i < LAYERS * TOP_K; i++)
                if (*at++ != expert(name, info->first_row + info->segments[s].start + row, i / TOP_K, i % TOP_K))
                    return "segments differ";
    }
    if (info->missing_rows || !info->rows)
        return "";
    int32_t *copy = malloc(info->rows * MODEL_LAYERS * TOP_K * sizeof(*copy));
    moor_status status = api->record_copy(record, 0, info->rows, 1, MOOR_DTYPE_I32, copy,
                                          info->rows * MODEL_LAYERS * TOP_K * sizeof(*copy), NULL);
    const char *result = status ? "copy failed" : "";
    for (uint64_t row = 0; row < info->rows && !*result; row++)
        for (uint32_t k = 0; k < TOP_K; k++) {
            const int32_t *of_row = copy + row * MODEL_LAYERS * TOP_K;
            if (of_row[k] || of_row[3 * TOP_K + k] ||
                of_row[4 * TOP_K + k] != expert(name, info->first_row + row, 2, k))
                result = "copies differ";
        }
    free(copy);
    return result;
}

static void open_record(const char *id, double timeout, uint32_t flags)
{
    char text[400];
    moor_record_info info = MOOR_RECORD_INFO_INIT;
    moor_record *record;
    moor_status status = api->open(client, id, (uint32_t)strlen(id), timeout, flags, 0, &record);
    if (status)
        return answer(status, NULL);
    records[n_records++] = record;
    api->record_info(record, &info);
    const char *wrong = verify(record, &info);
    snprintf(text, sizeof(text),
             "%s rows=%" PRIu64 " missing=%" PRIu64 " segments=%u versions=%u store=%u reasons=%u %s", info.request_id,
             info.rows, info.missing_rows, info.n_segments, info.n_versions, info.store_index, info.reasons,
             *wrong ? wrong : "good");
    answer(MOOR_OK, text);
}

static void resolve(const char *ref)
{
    moor_record_info info = MOOR_RECORD_INFO_INIT;
    moor_record *record;
    moor_status status = api->resolve(ref, strlen(ref), 1, &record);
    if (status)
        return answer(status, NULL);
    records[n_records++] = record;
    api->record_info(record, &info);
    answer(MOOR_OK, info.request_id);
}

/* What a forked child sees of everything that its parent has. */
static void fork_check(void)
{
    int pipes[2];
    char text[300] = "";
    if (pipe(pipes))
        return answer(MOOR_E_IO, NULL);
    pid_t child = fork();
    if (child == 0) {
        moor_record_info info = MOOR_RECORD_INFO_INIT;
        moor_record *record;
        moor_step_request request = {.id = "f", .id_len = 1, .count = 1};
        int n = 0;
        n += snprintf(text + n, sizeof(text) - (size_t)n, "open=%s ",
                      client ? api->status_name(api->open(client, "a", 1, 0, 0, 0, &record)) : "-");
        n += snprintf(text + n, sizeof(text) - (size_t)n, "info=%s ",
                      n_records ? api->status_name(api->record_info(records[0], &info)) : "-");
        n += snprintf(text + n, sizeof(text) - (size_t)n, "event=%s ",
                      n_records ? api->status_name(api->record_event(records[0], 2)) : "-");
        n += snprintf(text + n, sizeof(text) - (size_t)n, "count=%s ",
                      process ? api->status_name(api->count(process, "moor_opens_total", 1)) : "-");
        n += snprintf(text + n, sizeof(text) - (size_t)n, "step=%s ",
                      store ? api->status_name(api->step_begin(store, &request, 1)) : "-");
        for (uint32_t i = 0; i < n_records; i++)
            api->record_release(records[i]);
        api->detach(client);
        if (store)
            api->store_close(store);
        api->process_leave(process);
        if (process) {
            moor_process_args args = MOOR_PROCESS_ARGS_INIT;
            moor_process *own;
            args.roles = MOOR_ROLE_CORE;
            moor_status status = api->process_join(NULL, &args, &own);
            snprintf(text + n, sizeof(text) - (size_t)n, "join=%s %s", api->status_name(status),
                     status ? api->last_error() : api->process_instance(own));
            if (!status)
                api->process_leave(own);
        }
        ssize_t wrote = write(pipes[1], text, sizeof(text));
        _exit(wrote != sizeof(text));
    }
    close(pipes[1]);
    ssize_t got = read(pipes[0], text, sizeof(text));
    close(pipes[0]);
    int status = 1;
    waitpid(child, &status, 0);
    answer(MOOR_OK, got == (ssize_t)sizeof(text) && status == 0 ? text : "the child failed");
}

/* What the first record is here: "good", or what is wrong with it. */
static const char *first_record(void)
{
    moor_record_info info = MOOR_RECORD_INFO_INIT;
    moor_status status = api->record_info(records[0], &info);
    const char *wrong = status ? api->status_name(status) : verify(records[0], &info);
    return *wrong ? wrong : "good";
}

static void release_all(void)
{
    while (n_records)
        api->record_release(records[--n_records]);
}

static int child_in, child_out; /* pipes of the last child */

/* A data loader's worker: it does nothing but what `tell` sends, until its parent ends (or, told to s(tay), until it is killed):
 * v(erify), r(elease), e(vent), f(ork a child, which verifies and goes on in its place). */
static void child_main(int in, int out)
{
    char word, reply[64];
    int stays = 0, handed_over = 0;
    alarm(60); /* its end if the test forgets it */
    while (!handed_over && read(in, &word, 1) == 1) {
        snprintf(reply, sizeof(reply), "done");
        if (word == 's')
            stays = 1;
        else if (word == 'r')
            release_all();
        else if (word == 'e')
            snprintf(reply, sizeof(reply), "%s", api->status_name(api->record_event(records[0], 2)));
        else if (word == 'f' && fork() > 0)
            stays = handed_over = 1;
        else
            snprintf(reply, sizeof(reply), "%s", first_record());
        if (!handed_over && write(out, reply, sizeof(reply)) < 0)
            break;
    }
    while (stays)
        pause();
    _exit(0);
}

static void leave_child(void)
{
    char text[32];
    int in[2], out[2];
    if (pipe(in) || pipe(out))
        return answer(MOOR_E_IO, NULL);
    pid_t child = fork();
    if (child == 0) {
        close(in[1]);
        close(out[0]);
        child_main(in[0], out[1]);
    }
    close(in[0]);
    close(out[1]);
    child_in = in[1];
    child_out = out[0];
    snprintf(text, sizeof(text), "%d", (int)child);
    answer(MOOR_OK, text);
}

static void tell_child(char word)
{
    char reply[64];
    ssize_t got = write(child_in, &word, 1) == 1 ? read(child_out, reply, sizeof(reply)) : -1;
    answer(MOOR_OK, got == sizeof(reply) ? reply : "the child is gone");
}

/* Several threads open and release at once. */
struct racer {
    pthread_t thread;
    const char *id;
    int rounds, failed;
};

static void *race(void *user)
{
    struct racer *racer = user;
    for (int i = 0; i < racer->rounds; i++) {
        moor_record_info info = MOOR_RECORD_INFO_INIT;
        moor_record *record;
        if (api->open(client, racer->id, (uint32_t)strlen(racer->id), 5, 0, 0, &record)) {
            racer->failed++;
            fprintf(stderr, "race: %s\n", api->last_error());
            continue;
        }
        api->record_info(record, &info);
        racer->failed += *verify(record, &info) != 0;
        api->record_release(record);
    }
    return NULL;
}

/* forks: children that read the first record, made while the threads are at it. */
static void race_opens(const char *id, int threads, int rounds, int forks)
{
    struct racer racers[16];
    int failed = 0;
    char text[32];
    for (int i = 0; i < threads; i++) {
        racers[i] = (struct racer){.id = id, .rounds = rounds};
        pthread_create(&racers[i].thread, NULL, race, &racers[i]);
    }
    for (int i = 0; i < forks; i++) {
        int status = 1;
        pid_t child = fork();
        if (child == 0) {
            int good = !strcmp(first_record(), "good");
            release_all();
            syscall(SYS_exit_group, !good); /* ThreadSanitizer would ask for the parent's threads */
        }
        waitpid(child, &status, 0);
        failed += status != 0;
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(racers[i].thread, NULL);
        failed += racers[i].failed;
    }
    snprintf(text, sizeof(text), "failed=%d", failed);
    answer(MOOR_OK, text);
}

static void open_all(const char *id, double timeout)
{
    moor_record **all;
    uint32_t n;
    char text[400] = "";
    moor_status status = api->open_all(client, id, (uint32_t)strlen(id), timeout, &all, &n);
    if (status)
        return answer(status, NULL);
    for (uint32_t i = 0; i < n; i++) {
        moor_record_info info = MOOR_RECORD_INFO_INIT;
        api->record_info(all[i], &info);
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s ", info.request_id);
        records[n_records++] = all[i];
    }
    api->records_free(all, n);
    answer(MOOR_OK, text);
}

static void stats(void)
{
    char *json;
    size_t len;
    moor_status status = api->client_stats(client, &json, &len);
    if (status)
        return answer(status, NULL);
    for (char *at = json; *at; at++)
        if (*at == '\n')
            *at = ' ';
    answer(MOOR_OK, json);
    api->text_free(json);
}

static void ref_of_last(void)
{
    char text[800];
    moor_status status = api->record_ref(records[n_records - 1], text, sizeof(text));
    answer(status, text);
}

/* 1: the word was a server's. */
static int obey_server(const char *word, const char *a)
{
    unsigned long long x = 0, y = 0;
    char id[128] = "", digits[LAYERS + 1] = "012";
    if (!strcmp(word, "join"))
        join(a ? a : "{}");
    else if (!strcmp(word, "leave"))
        api->process_leave(process), process = NULL, answer(MOOR_OK, NULL);
    else if (!strcmp(word, "store") && (!a || sscanf(a, "%llu %llu %3s", &x, &y, digits) >= 1))
        open_store((uint32_t)x, (uint32_t)y, digits);
    else if (!strcmp(word, "close"))
        api->store_close(store), store = NULL, answer(MOOR_OK, NULL);
    else if (!strcmp(word, "step") && sscanf(a, "%127s %llu %llu", id, &x, &y) == 3)
        answer(step(id, x, (uint32_t)y), NULL);
    else if (!strcmp(word, "seal") && sscanf(a, "%127s %llu %llu", id, &x, &y) >= 2)
        answer(api->seal(process, (uint32_t)y, id, (uint32_t)strlen(id), x, 0), NULL);
    else if (!strcmp(word, "alias") && sscanf(a, "%127s %llu", id, &x) == 2)
        answer(api->request_alias(store, id, (uint32_t)strlen(id), "http", 4, (uint32_t)x), NULL);
    else if (!strcmp(word, "own"))
        answer(api->attach_own(process, &client), NULL);
    else if (!strcmp(word, "off"))
        answer(api->recording_off(process, a), NULL);
    else if (!strcmp(word, "weights"))
        answer(api->weights_touched(process, MOOR_WEIGHTS_RPC, "told to"), NULL);
    else
        return 0;
    return 1;
}

/* 1: the word was about the record that was opened last. */
static int obey_record(const char *word, const char *a)
{
    moor_record *last = n_records ? records[n_records - 1] : NULL;
    if (!strcmp(word, "event"))
        answer(api->record_event(last, (uint32_t)atoi(a)), NULL);
    else if (!strcmp(word, "claim"))
        answer(api->record_claim(last, (uint32_t)atoi(a)), NULL);
    else if (!strcmp(word, "ref"))
        ref_of_last();
    else if (!strcmp(word, "insert")) {
        moor_segment_args segment = MOOR_SEGMENT_ARGS_INIT;
        segment.record = last;
        answer(api->session_insert(client, a, (uint32_t)strlen(a), "key", 3, &segment), NULL);
    } else
        return 0;
    return 1;
}

static int obey(char *line)
{
    char *word = strtok(line, " "), *a = strtok(NULL, ""), id[128] = "";
    unsigned long long x = 0, y = 0, z = 0;
    double timeout = 0;
    if (!word)
        return 1;
    if (obey_server(word, a) || obey_record(word, a))
        return 1;
    if (!strcmp(word, "env"))
        answer(MOOR_OK, getenv(a) && *getenv(a) ? getenv(a) : "-");
    else if (!strcmp(word, "attach") && sscanf(a, "%127s %lf", id, &timeout) == 2)
        answer(api->attach(id[0] == '-' ? NULL : id, NULL, timeout, &client), NULL);
    else if (!strcmp(word, "detach"))
        api->detach(client), client = NULL, answer(MOOR_OK, NULL);
    else if (!strcmp(word, "open") && sscanf(a, "%127s %lf", id, &timeout) == 2)
        open_record(id, timeout, 0);
    else if (!strcmp(word, "open_private") && sscanf(a, "%127s %lf", id, &timeout) == 2)
        open_record(id, timeout, MOOR_OPEN_PRIVATE);
    else if (!strcmp(word, "open_all") && sscanf(a, "%127s %lf", id, &timeout) == 2)
        open_all(id, timeout);
    else if (!strcmp(word, "verify")) {
        answer(MOOR_OK, first_record());
    } else if (!strcmp(word, "release")) {
        release_all();
        answer(MOOR_OK, NULL);
    } else if (!strcmp(word, "truncate") && sscanf(a, "%127s %llu", id, &x) == 2)
        answer(api->client_truncate(client, id, (uint32_t)strlen(id), x), NULL);
    else if (!strcmp(word, "gate")) {
        moor_gate_status status = MOOR_GATE_STATUS_INIT;
        answer(api->client_gate(client, a, NULL, 1, &status), NULL);
    } else if (!strcmp(word, "race") && sscanf(a, "%127s %llu %llu %llu", id, &x, &y, &z) >= 3)
        race_opens(id, (int)x, (int)y, (int)z);
    else if (!strcmp(word, "resolve"))
        resolve(a);
    else if (!strcmp(word, "stats"))
        stats();
    else if (!strcmp(word, "save") && sscanf(a, "%lf", &timeout) == 1 && strchr(a, '/'))
        answer(api->client_save(client, strchr(a, '/'), timeout), NULL);
    else if (!strcmp(word, "fork"))
        fork_check();
    else if (!strcmp(word, "child"))
        leave_child();
    else if (!strcmp(word, "tell"))
        tell_child(a ? *a : 'v');
    else if (!strcmp(word, "weigh") && sscanf(a, "%llu", &x) == 1)
        weigh(x);
    else if (!strcmp(word, "exit"))
        return 0;
    else
        printf("unknown command\n"), fflush(stdout);
    return 1;
}

int main(void)
{
    char line[1024];
    api = moor_get_api(MOOR_API_VERSION, NULL);
    if (!api)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!obey(line))
            break;
    }
    if (config)
        api->config_free(config);
    return 0;
}
