/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.c — the engine core's process: schedulers (one a data-parallel replica), the workers' parent, and the place that
 * seals. One thread. With `async` it sends step t+1 before it reads the results of step t.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mock.h"
#include "sched.h"
#include "wire.h"

typedef struct core {
    mk_context *context;
    moor_process *process;
    mk_sched *sched[MK_MAX_DP];
    uint32_t dp, workers;
    int worker[MK_MAX_DP * 8];
    pid_t pid[MK_MAX_DP * 8];
    mk_batch flying[MK_MAX_DP]; /* the step whose results are not read yet */
    int in_flight, free_running, dead;
    moor_status status; /* of the command under way: the first failure */
    char text[1024];
    uint32_t fault_line; /* of a `step fault=` for the next step */
    mk_buffer body;
} core;

/* The scheduler frees a request: the seal goes on the ring before anything is told to the front end. */
static void freed(void *user, uint32_t line, uint32_t sibling, uint32_t outcome, int64_t rows)
{
    core *c = user;
    const moor_api *api = c->context->api;
    mk_request_spec spec;
    char id[MK_ID_BYTES];
    mk_request_parse(mk_script_line(&c->context->script, line), &spec);
    mk_core_id(&spec, sibling, id);
    uint32_t flags = (outcome == MOOR_OUTCOME_ABORTED ? MOOR_SEAL_ABORTED : 0) | (rows < 0 ? MOOR_SEAL_COMMITTED : 0);
    moor_status status = !c->context->script.engine.record ? MOOR_OK
                                                           : api->seal(c->process, spec.dp, id, (uint32_t)strlen(id),
                                                                       rows < 0 ? 0 : (uint64_t)rows, flags);
    if (status && !c->status) {
        c->status = status;
        snprintf(c->text, sizeof c->text, "seal of %s: %s", id, api->last_error());
    }
    mk_say(c->context, "freed %s outcome %u rows %lld", id, outcome, (long long)rows);
    mk_buffer body = {0};
    mk_put_u32(&body, line);
    mk_put_u32(&body, sibling);
    mk_put_u32(&body, outcome);
    mk_send(c->context->fd, MK_FREED, &body);
    mk_buffer_clear(&body);
}

static void note(core *c, moor_status status, const char *text)
{
    if (!status || c->status)
        return;
    c->status = status;
    snprintf(c->text, sizeof c->text, "%s", text);
}

/* One answer of every worker. A worker that is gone does not hide what the others say. */
static void gather(core *c)
{
    mk_buffer body = {0};
    uint32_t type, gone = UINT32_MAX;
    for (uint32_t i = 0; i < c->workers; i++) {
        if (c->worker[i] < 0 || mk_receive(c->worker[i], &type, &body)) {
            gone = i;
            continue;
        }
        moor_status status = (moor_status)mk_get_u32(&body);
        note(c, status, mk_get_text(&body));
    }
    mk_buffer_clear(&body);
    if (gone != UINT32_MAX) {
        char text[64];
        snprintf(text, sizeof text, "worker %u of %u is gone", gone, c->workers);
        note(c, MOOR_E_CLOSED, text);
        c->dead = 1;
    }
}

static void broadcast(core *c, uint32_t type, const mk_buffer *body)
{
    for (uint32_t i = 0; i < c->workers; i++)
        if (c->worker[i] >= 0 && mk_send(c->worker[i], type, body)) {
            close(c->worker[i]);
            c->worker[i] = -1;
        }
}

static void flush(core *c)
{
    if (!c->in_flight)
        return;
    c->in_flight = 0;
    gather(c);
    for (uint32_t r = 0; r < c->dp; r++) {
        if (!c->dead)
            mk_sched_results(c->sched[r], &c->flying[r]);
        mk_batch_clear(&c->flying[r]);
    }
}

/* One lockstep of all replicas. Returns 0 when none of them had anything to do. */
static int step(core *c)
{
    mk_batch batch[MK_MAX_DP];
    int any = 0, blocked = 0;
    for (uint32_t r = 0; r < c->dp; r++) {
        int got = mk_sched_step(c->sched[r], &batch[r]);
        any |= got > 0;
        blocked |= got < 0;
    }
    if (!any) {
        if (!blocked)
            return 0;
        flush(c);
        return !c->dead;
    }
    c->body.len = 0;
    mk_put_u32(&c->body, c->fault_line);
    c->fault_line = 0;
    for (uint32_t r = 0; r < c->dp; r++)
        mk_put_batch(&c->body, &batch[r]);
    if (!c->context->script.engine.async)
        flush(c);
    broadcast(c, MK_STEP, &c->body);
    flush(c); /* async: the results of the step before */
    memcpy(c->flying, batch, sizeof batch);
    c->in_flight = 1;
    if (!c->context->script.engine.async)
        flush(c);
    return !c->dead;
}

static void run_until_idle(core *c)
{
    int in_flight;
    do {
        while (step(c))
            ;
        in_flight = c->in_flight; /* its results may leave notices behind */
        flush(c);
    } while (in_flight && !c->dead);
}

static void forward(core *c, uint32_t type, uint32_t line)
{
    flush(c);
    c->body.len = 0;
    mk_put_u32(&c->body, line);
    broadcast(c, type, &c->body);
    gather(c);
}

/* The engine's update session spans core and workers, as a collective call does. */
static void update(core *c, uint32_t line)
{
    const moor_api *api = c->context->api;
    const mk_command *command = mk_script_line(&c->context->script, line);
    int session = !strcmp(mk_arg_text(command, "kind", "update"), "update");
    if (session && api->weights_begin(c->process, MOOR_WEIGHTS_UPDATE))
        note(c, MOOR_E_STATE, api->last_error());
    forward(c, MK_UPDATE, line);
    if (session && api->weights_end(c->process, !c->status, c->status ? c->text : NULL) && !c->status)
        note(c, MOOR_E_STATE, api->last_error());
    if (mk_arg_number(command, "reset", 0)) {
        for (uint32_t r = 0; r < c->dp; r++)
            mk_sched_reset_cache(c->sched[r]);
        forward(c, MK_RESET_CACHE, line);
    }
}

static void preempt(core *c, const mk_command *command, uint32_t add_line)
{
    uint32_t n = 0;
    flush(c);
    for (uint32_t r = 0; r < c->dp; r++)
        n += mk_sched_preempt(c->sched[r], add_line, (int)mk_arg_number(command, "last", 0));
    if (!n)
        note(c, MOOR_E_NOT_FOUND, command->word);
}

static void command(core *c, uint32_t type)
{
    const mk_script *script = &c->context->script;
    uint32_t line = mk_get_u32(&c->body), n;
    const mk_command *cmd = mk_script_line(script, line);
    const mk_command *add = cmd->word ? mk_script_add(script, cmd->word, line + 1) : NULL;
    mk_request_spec spec;
    switch (type) {
    case MK_ADD:
        mk_request_parse(cmd, &spec);
        mk_sched_add(c->sched[spec.dp], &spec);
        break;
    case MK_STEP:
        if (mk_arg_text(cmd, "fault", NULL))
            c->fault_line = line;
        n = cmd->word ? (uint32_t)strtoul(cmd->word, NULL, 10) : 1;
        while (n-- && step(c))
            ;
        break;
    case MK_RUN:
        run_until_idle(c);
        break;
    case MK_GO:
        c->free_running = 1;
        break;
    case MK_HALT:
        c->free_running = 0;
        flush(c);
        break;
    case MK_ABORT:
        for (uint32_t r = 0; r < c->dp && add; r++)
            mk_sched_abort(c->sched[r], add->line);
        break;
    case MK_PREEMPT:
        preempt(c, cmd, add ? add->line : 0);
        break;
    case MK_UPDATE:
        update(c, line);
        break;
    case MK_RESET_CACHE:
        for (uint32_t r = 0; r < c->dp; r++)
            mk_sched_reset_cache(c->sched[r]);
        forward(c, type, line);
        break;
    default: /* sleep, wake, fill, truncate: the workers' own */
        forward(c, type, line);
    }
}

static void start_workers(core *c)
{
    const mk_engine *e = &c->context->script.engine;
    mk_buffer ready = {0};
    mk_put_u32(&ready, e->dp * e->tp);
    for (uint32_t dp = 0; dp < e->dp; dp++)
        for (uint32_t tp = 0; tp < e->tp; tp++) {
            pid_t pid = mk_spawn(c->context, "worker", dp, tp, NULL, &c->worker[c->workers]);
            mk_put_u32(&ready, (uint32_t)pid);
            c->pid[c->workers++] = pid;
        }
    gather(c);
    if (c->status)
        mk_die("core: a worker did not start: %s", c->text);
    mk_send(c->context->fd, MK_READY, &ready);
    mk_buffer_clear(&ready);
}

static void stop(core *c)
{
    for (uint32_t i = 0; i < c->workers; i++)
        if (c->worker[i] >= 0)
            close(c->worker[i]);
    for (uint32_t i = 0; i < c->workers; i++)
        waitpid(c->pid[i], NULL, 0);
    for (uint32_t r = 0; r < c->dp; r++) {
        mk_batch_clear(&c->flying[r]);
        mk_sched_free(c->sched[r]);
    }
    mk_buffer_clear(&c->body);
    c->context->api->process_leave(c->process);
}

/* Free running: a step when there is work, without letting commands wait. Returns 0 when the front end is gone. */
static int turn(core *c)
{
    struct pollfd fd = {.fd = c->context->fd, .events = POLLIN};
    int busy = c->free_running && !c->status && !c->dead && step(c);
    if (!busy && c->free_running)
        flush(c); /* commands, however, find the last step of async still in flight */
    if (busy && poll(&fd, 1, 0) == 0)
        return 1;
    uint32_t waiting = 0;
    for (uint32_t r = 0; r < c->dp; r++)
        waiting += mk_sched_unfinished(c->sched[r]);
    if (c->free_running && waiting && !c->status && !c->dead && poll(&fd, 1, 0) == 0)
        return 1;
    uint32_t type;
    if (mk_receive(c->context->fd, &type, &c->body) || type == MK_QUIT)
        return 0;
    command(c, type);
    if (mk_send_done(c->context->fd, c->status, c->text))
        return 0;
    c->status = MOOR_OK;
    c->text[0] = 0;
    return !c->dead;
}

int mk_core_main(mk_context *context)
{
    core c = {.context = context, .dp = context->script.engine.dp};
    signal(SIGPIPE, SIG_IGN);
    if (mk_join(context, MOOR_ROLE_CORE, 0, &c.process))
        mk_die("core: %s", context->api->last_error());
    for (uint32_t r = 0; r < c.dp; r++)
        c.sched[r] = mk_sched_new(&context->script.engine, freed, &c);
    start_workers(&c);
    while (turn(&c))
        ;
    stop(&c);
    return 0;
}
