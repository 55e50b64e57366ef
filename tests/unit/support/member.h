/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member.h — a real instance in a directory of its own, for tests of gate, weights, barrier and holds. One at a time per process;
 * a forked child joins the same instance by support_join (it is a child of the same server).
 */
#ifndef SUPPORT_MEMBER_H
#define SUPPORT_MEMBER_H

#include "hooks/member.h"

/* Makes the directory and joins. config: JSON members after "dir" and "instance", e.g. "\"gate\":{\"mode\":\"enforce\"}". Ends the
 * test program with a message when it cannot. */
moor_process *support_start(const char *config, uint32_t roles);
/* In a forked child: joins the parent's instance, as rank of world. */
moor_process *support_join(uint32_t roles, uint32_t rank, uint32_t world, uint32_t dp_rank);
/* What the child does before it ends, unless it is to look killed. */
void support_leave(moor_process *process);
/* Leaves, removes the directory; 1 when nothing was left in it. */
int support_end(moor_process *process);
const char *support_dir(void);

/* The log since support_start or the last clear; every line ends with a newline. */
const char *support_log(void);
void support_log_clear(void);

void support_sleep_ms(unsigned ms);

/* Waits for a forked child, at most 60 s: its exit code, or 128 + the signal that ended it; -1 when it had to be killed. */
int support_wait(pid_t pid);

#endif
