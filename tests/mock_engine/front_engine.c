/* SPDX-License-Identifier: Apache-2.0 */
/* front_engine.c — the front end's processes: the core and through it the workers, the consumer, trainers; and killing them. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "front.h"

static void *read_core(void *argument)
{
    front *f = argument;
    mk_buffer body = {0};
    uint32_t type;
    while (!mk_receive(f->core_fd, &type, &body)) {
        if (type == MK_FREED) {
            uint32_t line = mk_get_u32(&body);
            mk_get_u32(&body); /* sibling */
            front_freed(f, line, mk_get_u32(&body));
            continue;
        }
        pthread_mutex_lock(&f->lock);
        f->answer = (moor_status)mk_get_u32(&body);
        snprintf(f->answer_text, sizeof f->answer_text, "%s", mk_get_text(&body));
        f->answered = 1;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->lock);
    }
    mk_buffer_clear(&body);
    pthread_mutex_lock(&f->lock);
    f->dead = 1;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    front_engine_died(f);
    return NULL;
}

moor_status front_call(front *f, uint32_t type, const mk_command *command, char *text, size_t size)
{
    moor_status status = MOOR_E_CLOSED;
    pthread_mutex_lock(&f->rpc);
    pthread_mutex_lock(&f->lock);
    f->answered = 0;
    snprintf(text, size, "the core is gone");
    if (!f->dead && !mk_send_line(f->core_fd, type, command->line)) {
        while (!f->answered && !f->dead)
            pthread_cond_wait(&f->changed, &f->lock);
        if (f->answered) {
            status = f->answer;
            snprintf(text, size, "%s", f->answer_text);
        }
    }
    pthread_mutex_unlock(&f->lock);
    pthread_mutex_unlock(&f->rpc);
    return status;
}

static moor_status read_done(int fd, char *text, size_t size)
{
    mk_buffer body = {0};
    uint32_t type;
    moor_status status = MOOR_E_CLOSED;
    snprintf(text, size, "the process is gone");
    if (fd >= 0 && !mk_receive(fd, &type, &body)) {
        status = (moor_status)mk_get_u32(&body);
        snprintf(text, size, "%s", mk_get_text(&body));
    }
    mk_buffer_clear(&body);
    return status;
}

moor_status front_consume(front *f, uint32_t type, const mk_command *command, char *text, size_t size)
{
    mk_buffer body = {0};
    mk_put_u32(&body, command->line);
    mk_put_u32(&body, f->generation + 1);
    mk_put(&body, f->epoch, (f->generation + 1) * sizeof *f->epoch);
    int gone = f->verify_fd < 0 || mk_send(f->verify_fd, type, &body);
    mk_buffer_clear(&body);
    return read_done(gone ? -1 : f->verify_fd, text, size);
}

void front_start_consumer(front *f)
{
    char text[1024];
    f->verify_pid = mk_spawn(f->context, "verify", 0, 0, NULL, &f->verify_fd);
    if (read_done(f->verify_fd, text, sizeof text))
        mk_die("consumer: %s", text);
}

void front_start(front *f)
{
    mk_buffer body = {0};
    uint32_t type;
    moor_status status = mk_join(f->context, MOOR_ROLE_FRONTEND, 0, &f->process);
    if (status)
        mk_die("front end: %s", f->api->last_error());
    /* The configured name may have got a suffix. */
    f->context->instance = strdup(f->api->process_instance(f->process));
    f->generation = 1;
    f->epoch[1] = f->api->weights_epoch(f->process);
    f->dead = 0;
    f->core_pid = mk_spawn(f->context, "core", 0, 0, NULL, &f->core_fd);
    if (mk_receive(f->core_fd, &type, &body) || type != MK_READY)
        mk_die("the core did not start");
    f->n_workers = mk_get_u32(&body);
    for (uint32_t i = 0; i < f->n_workers; i++)
        f->worker_pid[i] = (pid_t)mk_get_u32(&body);
    mk_buffer_clear(&body);
    if (pthread_create(&f->reader, NULL, read_core, f))
        mk_die("pthread_create");
    front_start_consumer(f);
}

void front_stop(front *f)
{
    front_release_trainers(f);
    if (f->verify_fd >= 0) {
        close(f->verify_fd);
        waitpid(f->verify_pid, NULL, 0);
        f->verify_fd = -1;
    }
    (void)mk_send(f->core_fd, MK_QUIT, NULL);
    pthread_join(f->reader, NULL);
    waitpid(f->core_pid, NULL, 0);
    for (uint32_t i = 0; i < f->n_workers; i++)
        waitpid(f->worker_pid[i], NULL, 0); /* those that outlived the core; the others are reaped already */
    close(f->core_fd);
    for (uint32_t i = 0; i < f->n_requests; i++)
        if (f->request[i].background)
            pthread_join(f->request[i].thread, NULL);
    f->n_requests = 0;
    f->api->process_leave(f->process);
    f->process = NULL;
    free((char *)f->context->instance);
    f->context->instance = "mock";
}

void front_trainer(front *f, const mk_command *command)
{
    char text[1024];
    if (f->n_trainers == MK_MAX_TRAINERS)
        mk_script_fail(command, "more than %d trainers", MK_MAX_TRAINERS);
    uint32_t i = f->n_trainers++;
    f->trainer[i].label = command->word;
    f->trainer[i].pid = mk_spawn(f->context, "trainer", 0, 0, command->word, &f->trainer[i].fd);
    moor_status status = read_done(f->trainer[i].fd, text, sizeof text);
    front_check(f, command, status, text);
    mk_buffer body = {0};
    mk_put_u32(&body, (uint32_t)mk_arg_number(command, "ms", 0));
    mk_put_u32(&body, (uint32_t)mk_arg_number(command, "dies", 0));
    (void)mk_send(f->trainer[i].fd, MK_STEP, &body);
    mk_buffer_clear(&body);
}

void front_release_trainers(front *f)
{
    while (f->n_trainers) {
        uint32_t i = --f->n_trainers;
        close(f->trainer[i].fd);
        waitpid(f->trainer[i].pid, NULL, 0);
    }
}

/* kill worker=N | core=1 | consumer=1: SIGKILL, and it is gone when this returns. */
void front_kill(front *f, const mk_command *command)
{
    uint64_t worker = mk_arg_number(command, "worker", UINT64_MAX);
    if (mk_arg_number(command, "consumer", 0)) {
        kill(f->verify_pid, SIGKILL);
        waitpid(f->verify_pid, NULL, 0);
        close(f->verify_fd);
        f->verify_fd = -1;
    } else if (mk_arg_number(command, "core", 0)) {
        kill(f->core_pid, SIGKILL);
        pthread_mutex_lock(&f->lock);
        while (!f->dead)
            pthread_cond_wait(&f->changed, &f->lock);
        pthread_mutex_unlock(&f->lock);
    } else if (worker < f->n_workers) {
        kill(f->worker_pid[worker], SIGKILL); /* the core's child: it notices at its next message */
    } else if (!mk_arg_text(command, "trainers", NULL)) {
        mk_script_fail(command, "whom? worker= core= consumer= trainers=");
    } else {
        front_release_trainers(f);
    }
}
