/* SPDX-License-Identifier: Apache-2.0 */
/*
 * front.h — the front end: plays the script. The main thread runs the commands in order; one thread reads what the core
 * says (a finished request leaves the gate there); a request added with background=1 waits at the gate in a thread of its
 * own. `lock` protects requests, the mailbox and `dead`; `rpc` lets one command at a time be with the core. No lock is held
 * across a call into Moor that waits.
 */
#ifndef MOCK_FRONT_H
#define MOCK_FRONT_H

#include <pthread.h>

#include "mock.h"
#include "wire.h"

enum { MK_MAX_REQUESTS = 1024, MK_MAX_TRAINERS = 8, MK_MAX_GENERATIONS = 64 };

typedef struct front_request {
    const mk_command *add;
    mk_request_spec spec;
    moor_ticket ticket;
    moor_receipt receipt;
    uint32_t left;    /* siblings not finished */
    uint32_t outcome; /* the worst */
    int started, finished;
    moor_status status; /* of its admission */
    pthread_t thread;
    int background;
    struct front *front;
} front_request;

typedef struct front {
    mk_context *context;
    const moor_api *api;
    moor_process *process;
    pthread_mutex_t lock, rpc;
    pthread_cond_t changed;
    front_request *request; /* [MK_MAX_REQUESTS] */
    uint32_t n_requests;

    int core_fd, verify_fd;
    pid_t core_pid, verify_pid, worker_pid[MK_MAX_DP * 8];
    uint32_t n_workers;
    pthread_t reader;
    int dead;     /* the core's connection ended */
    int answered; /* mailbox */
    moor_status answer;
    char answer_text[1024];

    struct {
        const char *label;
        int fd;
        pid_t pid;
    } trainer[MK_MAX_TRAINERS];
    uint32_t n_trainers;

    uint64_t epoch[MK_MAX_GENERATIONS]; /* [generation] of the weights → Moor's epoch; 1 is the first */
    uint32_t generation;
    uint32_t failures, checks;
} front;

/* Prints what did not hold, with the script's line. */
void front_fail(front *f, const mk_command *command, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Compares a status and the words of `text=` with what the command expects (`expect=`, default ok). */
void front_check(front *f, const mk_command *command, moor_status got, const char *error);

/* How long to wait for what must come in the end, in seconds. A run that is broken on purpose does not wait for what cannot come. */
double front_patience(const front *f, const mk_command *command, double fallback);

/* front_engine.c: processes. */
void front_start(front *f);
void front_stop(front *f);
moor_status front_call(front *f, uint32_t type, const mk_command *command, char *text,
                       size_t size); /* one command to the core */
moor_status front_consume(front *f, uint32_t type, const mk_command *command, char *text, size_t size);
void front_start_consumer(front *f);
void front_trainer(front *f, const mk_command *command);
void front_kill(front *f, const mk_command *command);
void front_release_trainers(front *f);

/* front_gate.c: requests and the gate. */
void front_add(front *f, const mk_command *command);
void front_wait(front *f, const mk_command *command);
void front_freed(front *f, uint32_t line, uint32_t outcome);
void front_engine_died(front *f);
void front_receipt(front *f, const mk_command *command);
int front_gate(front *f, const mk_command *command); /* 0: not a gate verb */
void front_new_generation(front *f, const mk_command *command, int installed);

#endif
