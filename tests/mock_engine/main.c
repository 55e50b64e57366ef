/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moor-mock-engine — an engine that knows only moor.h. It plays a script (schedules/) with real processes, and a consumer
 * process checks every recorded row.
 *
 *     moor-mock-engine [--break FAULT]… [--engine 'KEY=VALUE …'] [--dir DIR] [--verbose] SCRIPT
 *
 * Exit: 0 all expectations held, 1 one did not, 2 the script or the machine is at fault, 77 skipped.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "mock.h"

void mk_die(const char *format, ...)
{
    va_list args;
    fprintf(stderr, "mock engine (%d): ", (int)getpid());
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(2);
}

void mk_say(const mk_context *context, const char *format, ...)
{
    if (!context->verbose)
        return;
    va_list args;
    char line[1024];
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "[%s %u.%u] %s\n", context->role, context->dp, context->tp, line);
}

void *mk_alloc(size_t size)
{
    void *memory = calloc(1, size ? size : 1);
    if (!memory)
        mk_die("out of memory");
    return memory;
}

void *mk_grow(void *memory, size_t size)
{
    void *grown = realloc(memory, size ? size : 1);
    if (!grown)
        mk_die("out of memory");
    return grown;
}

uint64_t mk_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void mk_sleep_ms(double ms)
{
    struct timespec t = {(time_t)(ms / 1e3), (long)((ms - 1e3 * (double)(time_t)(ms / 1e3)) * 1e6)};
    while (nanosleep(&t, &t) && errno == EINTR)
        ;
}

static const struct {
    const char *name;
    unsigned bit;
} g_breaks[] = {{"drop-layer", MK_BREAK_DROP_LAYER},
                {"shift-ids", MK_BREAK_SHIFT_IDS},
                {"no-barrier", MK_BREAK_NO_BARRIER},
                {"no-gate", MK_BREAK_NO_GATE},
                {"stale-slot", MK_BREAK_STALE_SLOT}};

pid_t mk_spawn(const mk_context *c, const char *role, uint32_t dp, uint32_t tp, const char *label, int *fd)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        mk_die("socketpair: %s", strerror(errno));
    char number[4][16];
    const char *argv[40] = {"moor-mock-engine", "--role", role, "--dir", c->dir, "--instance", c->instance};
    int n = 7;
    snprintf(number[0], sizeof number[0], "%u", dp);
    snprintf(number[1], sizeof number[1], "%u", tp);
    snprintf(number[2], sizeof number[2], "%d", pair[1]);
    snprintf(number[3], sizeof number[3], "%d", c->ledger_fd);
    const char *more[] = {"--dp",     number[0], "--tp",    number[1],          "--fd",     number[2],
                          "--ledger", number[3], "--label", label ? label : "", "--engine", c->overrides};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        argv[n++] = more[i];
    for (size_t i = 0; i < sizeof g_breaks / sizeof *g_breaks; i++)
        if (c->breaks & g_breaks[i].bit) {
            argv[n++] = "--break";
            argv[n++] = g_breaks[i].name;
        }
    if (c->verbose)
        argv[n++] = "--verbose";
    argv[n++] = c->script.path;
    argv[n] = NULL;
    pid_t pid = fork();
    if (pid < 0)
        mk_die("fork: %s", strerror(errno));
    if (!pid) {
        fcntl(pair[1], F_SETFD, 0);
        fcntl(c->ledger_fd, F_SETFD, 0);
        execv("/proc/self/exe", (char *const *)argv);
        _exit(127);
    }
    close(pair[1]);
    *fd = pair[0];
    return pid;
}

moor_status mk_join(const mk_context *c, uint32_t roles, uint32_t rank, moor_process **out)
{
    const moor_api *api = c->api;
    const char *inner = c->script.engine.moor_json;
    char json[2048];
    /* The script's object, with instance and dir of this run put in front. */
    snprintf(json, sizeof json, "{\"instance\": \"%s\", \"dir\": \"%s\"%s%s", c->instance, c->dir,
             inner && inner[0] == '{' && inner[1] != '}' ? ", " : "", inner && inner[0] == '{' ? inner + 1 : "}");
    moor_config *config;
    moor_status status = api->config_parse(json, strlen(json), &config);
    if (status)
        return status;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    args.engine = "mock";
    args.roles = roles;
    args.rank = rank;
    args.world_size = c->script.engine.tp;
    args.dp_rank = c->dp;
    status = api->process_join(config, &args, out);
    api->config_free(config);
    return status;
}

static void parse_break(mk_context *c, const char *name)
{
    for (size_t i = 0; i < sizeof g_breaks / sizeof *g_breaks; i++)
        if (!strcmp(name, g_breaks[i].name)) {
            c->breaks |= g_breaks[i].bit;
            return;
        }
    mk_die("--break %s: none of drop-layer shift-ids no-barrier no-gate stale-slot", name);
}

static const char *parse_options(mk_context *c, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (option[0] != '-')
            return option;
        if (!strcmp(option, "--verbose")) {
            c->verbose = 1;
            continue;
        }
        if (++i == argc)
            break;
        const char *value = argv[i];
        if (!strcmp(option, "--break"))
            parse_break(c, value);
        else if (!strcmp(option, "--dir"))
            c->dir = value;
        else if (!strcmp(option, "--instance"))
            c->instance = value;
        else if (!strcmp(option, "--role"))
            c->role = value;
        else if (!strcmp(option, "--label"))
            c->label = value;
        else if (!strcmp(option, "--engine"))
            c->overrides = value;
        else if (!strcmp(option, "--dp"))
            c->dp = (uint32_t)atoi(value);
        else if (!strcmp(option, "--tp"))
            c->tp = (uint32_t)atoi(value);
        else if (!strcmp(option, "--fd"))
            c->fd = atoi(value);
        else if (!strcmp(option, "--ledger"))
            c->ledger_fd = atoi(value);
        else
            mk_die("unknown option %s", option);
    }
    mk_die("usage: moor-mock-engine [--break FAULT]… [--engine 'KEY=VALUE …'] [--dir DIR] [--verbose] SCRIPT");
}

static void open_ledger(mk_context *c)
{
    if (c->ledger_fd < 0) {
        c->ledger_fd = memfd_create("mock-device", MFD_CLOEXEC);
        if (c->ledger_fd < 0 || ftruncate(c->ledger_fd, sizeof(mk_ledger)))
            mk_die("memfd: %s", strerror(errno));
    }
    fcntl(c->ledger_fd, F_SETFD, FD_CLOEXEC);
    c->ledger = mmap(NULL, sizeof(mk_ledger), PROT_READ | PROT_WRITE, MAP_SHARED, c->ledger_fd, 0);
    if (c->ledger == MAP_FAILED)
        mk_die("mmap: %s", strerror(errno));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(mk_context *);
    } roles[] = {{"front", mk_front_main},
                 {"core", mk_core_main},
                 {"worker", mk_worker_main},
                 {"verify", mk_verify_main},
                 {"trainer", mk_trainer_main}};
    mk_context context = {.role = "front", .instance = "mock", .fd = -1, .ledger_fd = -1, .label = "", .overrides = ""};
    const char *path = parse_options(&context, argc, argv);
    context.api = moor_get_api(MOOR_API_VERSION, NULL);
    if (!context.api)
        mk_die("libmoor has no table of version %u", MOOR_API_VERSION);
    if (context.fd >= 0)
        fcntl(context.fd, F_SETFD, FD_CLOEXEC);
    mk_script_load(path, context.overrides, &context.script);
    open_ledger(&context);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(context.role, roles[i].name)) {
            int code = roles[i].run(&context);
            free(context.script.command);
            free(context.script.text);
            free(context.script.path);
            free(context.script.overrides);
            return code;
        }
    mk_die("--role %s: no such role", context.role);
}
