/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.h — what a hook may see of the process it runs in: the mapped state of the instance and this process' slot.
 *
 * Filled by plugin/process.c at process_join, immutable afterwards except for roles and rank (united by a later join, under
 * the plugin's join lock) and the atomics. The hooks never create or free it.
 */
#ifndef MOOR_PROCESS_H
#define MOOR_PROCESS_H

#include <limits.h>
#include <sys/types.h>
#include <unistd.h>

#include <moor/moor.h>

#include "../abi/state.h"
#include "../allocator/dirs.h"
#include "../allocator/error.h"

struct moor_process {
    moor_state *state;
    uint32_t slot; /* our cell of state->processes, and our byte of the lock file */
    pid_t pid;     /* of the process that joined; another one is a forked child */
    int locks_fd; /* the instance's `locks` file; never opened a second time in a process (closing would drop the lock) */
    moor_config_values config;
    const moor_config *parsed;
    char instance[64];
    char dir[PATH_MAX];   /* <dir>/<instance> */
    char base[PATH_MAX];  /* <dir> */
    moor_dirs hold_bases; /* base, and the others where a hold may lie */
    _Atomic int cleanup_depth;
    void *plugin; /* the plugin's own part */
};

/* MOOR_OK in the process that joined, MOOR_E_INVALID for NULL, MOOR_E_FORKED in a child. `what` names the call. Every public
 * entry that takes a process starts with it, except the hot ones, which compare the cached pid themselves. */
static inline moor_status moor_process_check(const moor_process *process, const char *what)
{
    if (!process)
        return moor_fail(MOOR_E_INVALID, "%s: no process", what);
    if (process->pid != getpid())
        return moor_fail(MOOR_E_FORKED, "%s: joined by process %d, called in its forked child %d", what,
                         (int)process->pid, (int)getpid());
    return MOOR_OK;
}

static inline void moor_count_add(moor_process *process, enum moor_counter counter, uint64_t delta)
{
    atomic_fetch_add_explicit(&process->state->counters[counter], delta, memory_order_relaxed);
}

/* 1 when requests of this server have records: configured, and not turned off by the worker that should record. */
static inline int moor_process_records(const moor_process *process)
{
    return process->config.record_enabled &&
           !atomic_load_explicit(&process->state->recording_off, memory_order_relaxed);
}

/* 1 when the process in `slot` still holds its lock byte (F_GETLK on locks_fd; a syscall), 0 when it is gone. Our own slot is 1. */
int moor_process_alive(const moor_process *process, uint32_t slot);

#endif
