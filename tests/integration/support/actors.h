/* SPDX-License-Identifier: Apache-2.0 */
/*
 * actors.h — starts actor processes (tests/integration/actor.c) and talks to them; each test has a directory of its own as
 * $MOOR_DIR. The program's path is $MOOR_ACTOR. No shared state but `actors_dir`.
 */
#ifndef MOOR_TEST_ACTORS_H
#define MOOR_TEST_ACTORS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

typedef struct actor {
    pid_t pid;
    int in, out;
    char line[8192]; /* the last answer */
} actor;

extern char actors_dir[64];

/* Fresh directory, no MOOR_* in the environment / everything ended and removed. cmocka's setup and teardown. */
int actors_begin(void **state);
int actors_end(void **state);

/* env: "NAME=value" or "NAME" (unset), NULL terminated list after the actor. MOOR_DIR is actors_dir unless told otherwise. */
void actor_start(actor *a, ...);
/* Sends a command, waits up to 20 s for the answer, which must begin with `expected`. Returns the answer. */
const char *actor_say(actor *a, const char *expected, const char *format, ...);
void actor_send(actor *a, const char *format, ...);
const char *actor_hear(actor *a, const char *expected);
void actor_kill(actor *a); /* SIGKILL */
void actor_stop(actor *a); /* SIGSTOP; returns once it does nothing more */
void actor_exit(actor *a); /* exit() without leaving */
/* A server with store 0; another process of it with a store of its own; a consumer attached to it; a sealed record of this many rows. */
void start_server(actor *server);
void start_another(actor *process, int store);
void start_consumer(actor *consumer);
void record(actor *server, const char *id, int rows);
int files_in(const char *path); /* entries of a directory, -1 when there is none */

#endif
