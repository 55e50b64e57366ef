/* SPDX-License-Identifier: Apache-2.0 */
/* front_gate.c — requests at the front end: admission through the gate, the end of each, receipts; and the gate's verbs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "front.h"

static front_request *find(front *f, const mk_command *command)
{
    front_request *found = NULL;
    for (uint32_t i = 0; i < f->n_requests; i++)
        if (!strcmp(f->request[i].spec.id, command->word))
            found = &f->request[i];
    if (!found)
        mk_script_fail(command, "%s was never added", command->word);
    return found;
}

static void admit(front_request *r, char *text, size_t size)
{
    front *f = r->front;
    moor_ticket ticket = {0};
    moor_status status = MOOR_OK;
    text[0] = 0;
    if (!(f->context->breaks & MK_BREAK_NO_GATE))
        status = f->api->gate_enter(f->process, r->spec.id, (uint32_t)strlen(r->spec.id),
                                    f->context->script.engine.record ? r->spec.siblings : 0,
                                    front_patience(f, r->add, 20), &ticket);
    if (status)
        snprintf(text, size, "%s", f->api->last_error());
    pthread_mutex_lock(&f->lock);
    r->ticket = ticket;
    r->started = !status;
    pthread_mutex_unlock(&f->lock);
    if (!status)
        status = front_call(f, MK_ADD, r->add, text, size);
    pthread_mutex_lock(&f->lock);
    r->status = status;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void *admit_thread(void *argument)
{
    char text[1024];
    admit(argument, text, sizeof text);
    return NULL;
}

/* add ID …: through the gate to the core. background=1: a client that waits for itself; `wait` hears of it. */
void front_add(front *f, const mk_command *command)
{
    char text[1024] = "";
    if (f->n_requests == MK_MAX_REQUESTS)
        mk_script_fail(command, "more than %d requests", MK_MAX_REQUESTS);
    pthread_mutex_lock(&f->lock);
    front_request *r = &f->request[f->n_requests];
    *r = (front_request){.add = command, .front = f, .background = (int)mk_arg_number(command, "background", 0)};
    mk_request_parse(command, &r->spec);
    r->left = r->spec.siblings;
    f->n_requests++;
    pthread_mutex_unlock(&f->lock);
    if (r->background) {
        if (pthread_create(&r->thread, NULL, admit_thread, r))
            mk_die("pthread_create");
        return;
    }
    admit(r, text, sizeof text);
    front_check(f, command, r->status, text);
}

/* The core says that one sibling ended. Reader thread. */
void front_freed(front *f, uint32_t line, uint32_t outcome)
{
    front_request *last = NULL;
    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < f->n_requests; i++) {
        front_request *r = &f->request[i];
        if (r->spec.line != line || !r->left)
            continue;
        r->outcome = outcome > r->outcome ? outcome : r->outcome;
        if (!--r->left)
            last = r;
    }
    pthread_mutex_unlock(&f->lock);
    if (!last)
        return;
    moor_receipt receipt = MOOR_RECEIPT_INIT;
    if (last->ticket.id && f->api->gate_leave(f->process, &last->ticket, last->outcome, &receipt))
        front_fail(f, last->add, "gate_leave: %s", f->api->last_error());
    pthread_mutex_lock(&f->lock);
    last->receipt = receipt;
    last->finished = 1;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* The connection to the core ended: whatever was with it has an unknown outcome. */
void front_engine_died(front *f)
{
    for (uint32_t i = 0; i < f->n_requests; i++) {
        front_request *r = &f->request[i];
        pthread_mutex_lock(&f->lock);
        int lost = r->started && !r->finished && r->left;
        r->left = 0;
        pthread_mutex_unlock(&f->lock);
        if (lost && r->ticket.id && f->api->gate_leave(f->process, &r->ticket, MOOR_OUTCOME_UNKNOWN, NULL))
            front_fail(f, r->add, "gate_leave: %s", f->api->last_error());
    }
}

void front_wait(front *f, const mk_command *command)
{
    front_request *r = find(f, command);
    struct timespec until;
    double timeout = front_patience(f, command, 20);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)timeout + 1;
    pthread_mutex_lock(&f->lock);
    while (!r->finished && !r->status && !f->dead && !pthread_cond_timedwait(&f->changed, &f->lock, &until))
        ;
    int finished = r->finished;
    moor_status status = r->status;
    pthread_mutex_unlock(&f->lock);
    front_check(f, command, finished ? MOOR_OK : status ? status : MOOR_E_TIMEOUT, finished ? "" : "not finished");
}

static uint64_t generation_of(front *f, uint64_t epoch)
{
    for (uint32_t g = f->generation; g; g--)
        if (f->epoch[g] == epoch)
            return g;
    return 0;
}

void front_receipt(front *f, const mk_command *command)
{
    front_request *r = find(f, command);
    pthread_mutex_lock(&f->lock);
    moor_receipt got = r->receipt;
    pthread_mutex_unlock(&f->lock);
    const struct {
        const char *key;
        uint64_t got;
    } numbers[] = {{"start", generation_of(f, got.epoch_start)},
                   {"end", generation_of(f, got.epoch_end)},
                   {"outcome", got.outcome},
                   {"rows", got.rows}};
    f->checks++;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (mk_arg_number(command, numbers[i].key, numbers[i].got) != numbers[i].got)
            front_fail(f, command, "%s is %llu, must be %s", numbers[i].key, (unsigned long long)numbers[i].got,
                       mk_arg_text(command, numbers[i].key, "?"));
    if (strcmp(got.request_id, command->word))
        front_fail(f, command, "the receipt names '%s'", got.request_id);
}

/* New weights are in: remember which epoch stands for them. An update must have moved the epoch. */
void front_new_generation(front *f, const mk_command *command, int installed)
{
    uint64_t epoch = f->api->weights_epoch(f->process);
    f->checks++;
    if (!installed && mk_arg_text(command, "fail", NULL))
        return;
    if (!installed && ++f->generation == MK_MAX_GENERATIONS)
        mk_script_fail(command, "more than %d weight generations", MK_MAX_GENERATIONS);
    f->epoch[f->generation] = epoch;
    if (f->generation > 1 && epoch <= f->epoch[f->generation - 1])
        front_fail(f, command, "the weight epoch stays at %llu", (unsigned long long)epoch);
    const char *label = installed ? NULL : mk_arg_text(command, "label", NULL);
    if (label && f->api->weights_label(f->process, label))
        front_fail(f, command, "weights_label: %s", f->api->last_error());
}

/* gate state=0|1|2 poisoned= in_flight= waiting= label=: in the end. */
static void expect_gate(front *f, const mk_command *command)
{
    moor_gate_status s = MOOR_GATE_STATUS_INIT;
    uint64_t deadline = mk_now_ns() + (uint64_t)(front_patience(f, command, 5) * 1e9);
    f->checks++;
    for (;;) {
        if (f->api->gate_status(f->process, &s)) {
            front_fail(f, command, "gate_status: %s", f->api->last_error());
            return;
        }
        if (mk_arg_number(command, "state", s.state) == s.state &&
            mk_arg_number(command, "poisoned", s.poisoned) == s.poisoned &&
            mk_arg_number(command, "in_flight", s.in_flight) == s.in_flight &&
            mk_arg_number(command, "waiting", s.waiting) == s.waiting &&
            !strcmp(mk_arg_text(command, "label", s.label), s.label) &&
            strstr(s.poison_reason, mk_arg_text(command, "reason", "")))
            return;
        if (mk_now_ns() > deadline)
            break;
        mk_sleep_ms(2);
    }
    front_fail(f, command, "state %u poisoned %u in flight %llu waiting %llu label '%s' reason '%s'", s.state,
               s.poisoned, (unsigned long long)s.in_flight, (unsigned long long)s.waiting, s.label, s.poison_reason);
}

int front_gate(front *f, const mk_command *command)
{
    const moor_api *api = f->api;
    double timeout = front_patience(f, command, 20);
    const char *verb = command->verb;
    moor_status status;
    uint64_t epoch;
    if (!strcmp(verb, "gate")) {
        expect_gate(f, command);
        return 1;
    }
    if (!strcmp(verb, "seal"))
        status = api->gate_seal(f->process);
    else if (!strcmp(verb, "drain"))
        status = api->gate_drain(f->process, timeout);
    else if (!strcmp(verb, "install"))
        status = api->gate_install(f->process, mk_arg_text(command, "label", NULL),
                                   (int)mk_arg_number(command, "keep", 0), &epoch);
    else if (!strcmp(verb, "reopen"))
        status = api->gate_reopen(f->process, timeout);
    else if (!strcmp(verb, "poison"))
        status = api->gate_poison(f->process, mk_arg_text(command, "why", "the script says so"));
    else if (!strcmp(verb, "acknowledge"))
        status = api->gate_acknowledge(f->process);
    else
        return 0;
    front_check(f, command, status, status ? api->last_error() : "");
    if (!status && !strcmp(verb, "install"))
        front_new_generation(f, command, 1);
    return 1;
}
