/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd.h: the pieces of the `moor` command. It knows the public ABI and nothing else of Moor.
 *
 * moor.c holds main and the small commands; each other command is a file. A command gets its own argv (argv[0] is its
 * name) and returns the exit code. One thread, no locks.
 */
#ifndef MOOR_TOOLS_CMD_H
#define MOOR_TOOLS_CMD_H

#include <moor/moor.h>

enum { /* exit codes, documented in `moor --help` */
       EXIT_OK = 0,
       EXIT_FAILED = 1,
       EXIT_USAGE = 2,
       EXIT_NOT_FOUND = 3,
       EXIT_AMBIGUOUS = 4,
       EXIT_TIMED_OUT = 5,
       EXIT_INCOMPLETE = 6,
       EXIT_CANNOT_RUN = 126, /* of the program to be run, as the shells have it */
       EXIT_NO_PROGRAM = 127
};

extern const moor_api *api;

int cmd_run(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_dump(int argc, char **argv);
int cmd_gate(int argc, char **argv);

/* "moor: …" to stderr; returns code. */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The last error of libmoor, and the exit code of its status. */
int fail_status(moor_status status);
/* The folder of the package moor (that of libmoor), into buf; 0, or an exit code. */
int package_dir(char *buf, size_t size);
/* Seconds from text, 0…1e9; -1 when it is no such number. */
double parse_seconds(const char *text);

#endif
