/* SPDX-License-Identifier: Apache-2.0 */
#include "front.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

void front_fail(front *f, const mk_command *command, const char *format, ...)
{
    va_list args;
    f->failures++;
    fprintf(stderr, "%s:%u: %s%s%s: ", f->context->script.path, command->line, command->verb, command->word ? " " : "",
            command->word ? command->word : "");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

void front_check(front *f, const mk_command *command, moor_status got, const char *error)
{
    moor_status must = mk_status_parse(f->api, mk_arg_text(command, "expect", "ok"));
    f->checks++;
    if (got != must) {
        front_fail(f, command, "%s (%s), must be %s", f->api->status_name(got), error, f->api->status_name(must));
        return;
    }
    char words[256];
    snprintf(words, sizeof words, "%s", mk_arg_text(command, "text", ""));
    for (char *save, *word = strtok_r(words, ",", &save); word; word = strtok_r(NULL, ",", &save))
        if (!strstr(error, word))
            front_fail(f, command, "the error '%s' does not name '%s'", error, word);
}

double front_patience(const front *f, const mk_command *command, double fallback)
{
    double timeout = mk_arg_real(command, "timeout", fallback);
    return f->context->breaks && timeout > 0.5 ? 0.5 : timeout;
}

/* The value of moor_NAME in the Prometheus text, summed over labels; -1: not there. */
static double metric(front *f, const char *name)
{
    char *text, full[96];
    size_t len, n = (size_t)snprintf(full, sizeof full, "moor_%s", name);
    double sum = -1;
    if (f->api->status_text(f->context->instance, f->context->dir, "prometheus", &text, &len))
        return -2;
    for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, full, n) || (line[n] != ' ' && line[n] != '{'))
            continue;
        const char *value = line[n] == '{' ? strchr(line + n, '}') : line + n;
        if (value)
            sum = (sum < 0 ? 0 : sum) + strtod(value + (*value == '}'), NULL);
    }
    f->api->text_free(text);
    return sum;
}

/* stat NAME is=V or min=V: what `moor status` shows, in the end. */
static void stat_line(front *f, const mk_command *command)
{
    uint64_t deadline = mk_now_ns() + (uint64_t)(front_patience(f, command, 5) * 1e9);
    double got, low = mk_arg_real(command, "is", mk_arg_real(command, "min", 0)),
                high = mk_arg_real(command, "is", 1e18);
    f->checks++;
    for (;;) {
        got = metric(f, command->word);
        if (got >= low && got <= high)
            return;
        if (mk_now_ns() > deadline)
            break;
        mk_sleep_ms(5);
    }
    if (got == -2)
        front_fail(f, command, "status_text: %s", f->api->last_error());
    else if (got == -1)
        front_fail(f, command, "no such metric");
    else
        front_fail(f, command, "%g, must be %g%s", got, low, high > low ? " or more" : "");
}

/* files instances=N: so many instance directories are there. `holds` is the devices' own. */
static void files(front *f, const mk_command *command)
{
    uint64_t n = 0, must = mk_arg_number(command, "instances", 1), deadline = mk_now_ns() + 5000000000u;
    char names[256] = "";
    f->checks++;
    do {
        DIR *dir = opendir(f->context->dir);
        n = 0;
        names[0] = 0;
        for (struct dirent *e; dir && (e = readdir(dir));)
            if (e->d_name[0] != '.' && e->d_type == DT_DIR && strcmp(e->d_name, "holds")) {
                n++;
                snprintf(names + strlen(names), sizeof names - strlen(names), " %.30s", e->d_name);
            }
        if (dir)
            closedir(dir);
        if (n == must)
            return;
        mk_sleep_ms(5);
    } while (mk_now_ns() < deadline);
    front_fail(f, command, "%llu instance directories (%s ), must be %llu", (unsigned long long)n, names,
               (unsigned long long)must);
}

static void core_command(front *f, const mk_command *command, uint32_t type)
{
    char text[1024];
    moor_status status = front_call(f, type, command, text, sizeof text);
    mk_say(f->context, "line %u %s: %s %s", command->line, command->verb, f->api->status_name(status), text);
    front_check(f, command, status, text);
    if (type == MK_UPDATE && status == MOOR_OK)
        front_new_generation(f, command, 0);
}

static void consumer_command(front *f, const mk_command *command, uint32_t type)
{
    char text[1024];
    moor_status status = front_consume(f, type, command, text, sizeof text);
    f->checks++;
    if (status)
        front_fail(f, command, "%s", text);
    else if (type == MK_CLIENT_GATE && !strcmp(command->word, "install") && !mk_arg_text(command, "open", NULL))
        front_new_generation(f, command, 1);
}

static void play(front *f, const mk_command *command)
{
    static const struct {
        const char *verb;
        uint32_t type;
    } core[] = {{"step", MK_STEP},   {"run", MK_RUN},         {"go", MK_GO},         {"halt", MK_HALT},
                {"abort", MK_ABORT}, {"preempt", MK_PREEMPT}, {"update", MK_UPDATE}, {"reset_cache", MK_RESET_CACHE},
                {"sleep", MK_SLEEP}, {"wake", MK_WAKE},       {"fill", MK_FILL},     {"truncate", MK_TRUNCATE}},
      consumer[] = {{"expect", MK_EXPECT},           {"lease", MK_LEASE}, {"release", MK_RELEASE}, {"event", MK_EVENT},
                    {"client_gate", MK_CLIENT_GATE}, {"meet", MK_MEET}};
    static const struct {
        const char *verb;
        void (*play)(front *, const mk_command *);
    } own[] = {{"add", front_add}, {"wait", front_wait},       {"receipt", front_receipt}, {"stat", stat_line},
               {"files", files},   {"trainer", front_trainer}, {"kill", front_kill}};
    for (size_t i = 0; i < sizeof core / sizeof *core; i++)
        if (!strcmp(command->verb, core[i].verb)) {
            core_command(f, command, core[i].type);
            return;
        }
    for (size_t i = 0; i < sizeof consumer / sizeof *consumer; i++)
        if (!strcmp(command->verb, consumer[i].verb)) {
            consumer_command(f, command, consumer[i].type);
            return;
        }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(command->verb, own[i].verb)) {
            own[i].play(f, command);
            return;
        }
    if (front_gate(f, command))
        return;
    if (!strcmp(command->verb, "pause"))
        mk_sleep_ms(mk_arg_real(command, "ms", 10));
    else if (!strcmp(command->verb, "consumer"))
        front_start_consumer(f);
    else if (!strcmp(command->verb, "restart")) {
        front_stop(f);
        front_start(f);
    } else
        mk_script_fail(command, "no such verb");
}

int mk_front_main(mk_context *context)
{
    front f = {.context = context, .api = context->api, .core_fd = -1, .verify_fd = -1};
    char dir[] = "/dev/shm/moor-mock-XXXXXX";
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* a killed core's workers become ours to wait for */
    if (!context->dir && !mkdtemp(dir))
        mk_die("%s: %s", dir, strerror(errno));
    int own = !context->dir;
    context->dir = own ? dir : context->dir;
    setenv("MOOR_HOLDS_DIR", context->dir, 1); /* no other test's holds */
    pthread_mutex_init(&f.lock, NULL);
    pthread_mutex_init(&f.rpc, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    f.request = mk_alloc(MK_MAX_REQUESTS * sizeof *f.request);
    front_start(&f);
    for (uint32_t i = 1; i < context->script.n_commands; i++)
        play(&f, &context->script.command[i]);
    front_stop(&f);
    mk_command end = {.line = 0, .verb = "end", .n_args = 1, .arg = {{"instances", "0"}}};
    files(&f, &end);
    free(f.request);
    if (own) {
        char command[512];
        snprintf(command, sizeof command, "rm -rf '%s'", dir);
        if (system(command))
            fprintf(stderr, "%s: not removed\n", dir);
    }
    printf("%s: %u checks, %u failures\n", context->script.path, f.checks, f.failures);
    return f.failures ? 1 : 0;
}
