/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the gate costs a request: gate_enter + gate_leave, uncontended, against an uncontended pthread mutex pair, getpid() and
 * clock_gettime() in the same run. SEMANTICS 4.12: below 200 ns. Prints one line per figure: name, median, best and worst of the
 * rounds in ns.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <moor/moor.h>

enum { ROUNDS = 31, CALLS = 20000, IDS = 64 };

static const moor_api *api;
static moor_process *process;
static char ids[IDS][49];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void gate_pair(int i)
{
    moor_ticket ticket;
    const char *id = ids[i % IDS];
    if (api->gate_enter(process, id, (uint32_t)sizeof(ids[0]) - 1, 0, 0, &ticket) ||
        api->gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL))
        exit(2);
}

static void mutex_pair(int i)
{
    (void)i;
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
}

static void clock_call(int i)
{
    struct timespec t;
    (void)i;
    clock_gettime(CLOCK_MONOTONIC, &t);
}

static void system_call(int i)
{
    (void)i;
    syscall(SYS_getpid);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct figure {
    double best, median;
} figure;

static figure measure(const char *name, void (*call)(int))
{
    double rounds[ROUNDS];
    for (int i = 0; i < CALLS; i++)
        call(i);
    for (int r = 0; r < ROUNDS; r++) {
        double start = now_ns();
        for (int i = 0; i < CALLS; i++)
            call(i);
        rounds[r] = (now_ns() - start) / CALLS;
    }
    qsort(rounds, ROUNDS, sizeof(rounds[0]), compare);
    printf("%-28s median %7.1f ns  best %7.1f  worst %7.1f\n", name, rounds[ROUNDS / 2], rounds[0], rounds[ROUNDS - 1]);
    return (figure){rounds[0], rounds[ROUNDS / 2]};
}

int main(void)
{
    char dir[] = "/tmp/moor-bench-XXXXXX", text[128];
    moor_config *config;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    api = moor_get_api(MOOR_API_VERSION, NULL);
    args.engine = "bench";
    args.roles = MOOR_ROLE_FRONTEND;
    if (!api || !mkdtemp(dir))
        return 2;
    snprintf(text, sizeof(text), "{\"dir\":\"%s\",\"gate\":{\"mode\":\"enforce\"}}", dir);
    if (api->config_parse(text, strlen(text), &config) || api->process_join(config, &args, &process)) {
        fprintf(stderr, "%s\n", api->last_error());
        return 2;
    }
    for (int i = 0; i < IDS; i++)
        snprintf(ids[i], sizeof(ids[i]), "cmpl-%032d-0-%08x", i * 7919, (unsigned)i * 2654435761u);
    figure gate = measure("gate_enter + gate_leave", gate_pair);
    figure lock = measure("pthread mutex lock + unlock", mutex_pair);
    measure("clock_gettime", clock_call);
    measure("getpid (system call)", system_call);
    printf("gate / mutex pair: %.1f\n", gate.median / lock.median);
    api->process_leave(process);
    api->config_free(config);
    rmdir(dir);
    return 0;
}
