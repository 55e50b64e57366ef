/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../allocator/locks.h"
#include "../hooks/member.h"
#include "../hooks/watch.h"
#include "config.h"
#include "environment.h"
#include "instance.h"

enum { EXPORTED = 2 }; /* names in the environment, for the children */

/* moor_process.plugin */
struct membership {
    moor_instance instance;
    uint32_t refs;
    char *before[EXPORTED]; /* what the exported names said before the join; NULL: not exported */
};

static pthread_mutex_t join_mutex = PTHREAD_MUTEX_INITIALIZER;
static moor_process *current;
static moor_process
    *inherited; /* the parent's, in a forked child: kept, so that its handles go on saying MOOR_E_FORKED */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void after_fork_child(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&join_mutex, &fresh, sizeof(fresh)); /* another thread of the parent may have held it */
    if (current)
        inherited = current;
    current = NULL;
}

static void register_fork(void)
{
    if (pthread_atfork(NULL, NULL, after_fork_child))
        moor_log(MOOR_LOG_WARN, "pthread_atfork failed: a forked child of this process cannot use Moor");
}

static struct membership *membership(const moor_process *process)
{
    return process->plugin;
}

/* ---- our cell of the shared state ------------------------------------------------------------------------------- */

static void cell_fill(moor_process *process, const moor_process_args *args)
{
    moor_state_process *cell = &process->state->processes[process->slot];
    moor_member member = moor_member_of(process);
    if (atomic_load(&cell->used)) /* of a process that died: nothing of it may be taken for ours */
        moor_slot_ended(&member, process->slot);
    atomic_store(&cell->used, 1);
    cell->pid = (uint32_t)process->pid;
    __atomic_store_n(&cell->roles, args->roles, __ATOMIC_RELAXED);
    __atomic_store_n(&cell->rank, args->rank, __ATOMIC_RELAXED);
    __atomic_store_n(&cell->world_size, args->world_size, __ATOMIC_RELAXED);
    __atomic_store_n(&cell->dp_rank, args->dp_rank, __ATOMIC_RELAXED);
    cell->started_ns = moor_now_ns();
    memset(cell->engine, 0, sizeof(cell->engine));
    snprintf(cell->engine, sizeof(cell->engine), "%s", args->engine ? args->engine : "");
    atomic_store(&cell->waiting, 0);
    atomic_store(&cell->used, 2);
}

/* A later join of the same process: roles add up; a worker's rank is the one that counts. */
static void cell_unite(moor_process *process, const moor_process_args *args)
{
    moor_state_process *cell = &process->state->processes[process->slot];
    __atomic_fetch_or(&cell->roles, args->roles, __ATOMIC_RELAXED);
    if (args->roles & MOOR_ROLE_WORKER) {
        __atomic_store_n(&cell->rank, args->rank, __ATOMIC_RELAXED);
        __atomic_store_n(&cell->world_size, args->world_size, __ATOMIC_RELAXED);
        __atomic_store_n(&cell->dp_rank, args->dp_rank, __ATOMIC_RELAXED);
    }
}

/* ---- join ------------------------------------------------------------------------------------------------------- */

static const char *const exported_names[EXPORTED] = {"MOOR_INSTANCE", "MOOR_DIR"};

static const char *exported_value(const moor_process *process, int i)
{
    return i == 0 ? process->instance : process->base;
}

static moor_status export_environment(moor_process *process)
{
    struct membership *own = membership(process);
    for (int i = 0; i < EXPORTED; i++) {
        const char *before = getenv(exported_names[i]);
        own->before[i] = strdup(before ? before : "");
        if (!own->before[i] || moor_environment_put(exported_names[i], exported_value(process, i)))
            return moor_fail(MOOR_E_NOMEM, "process_join: no memory");
    }
    return MOOR_OK;
}

/* Each name that is still ours says again what it said before. One that was not there is empty now, and names nothing. */
static void unexport_environment(moor_process *process)
{
    struct membership *own = membership(process);
    for (int i = 0; i < EXPORTED; i++) {
        const char *value = getenv(exported_names[i]);
        if (own->before[i] && value && strcmp(value, exported_value(process, i)) == 0)
            (void)moor_environment_put(exported_names[i],
                                       own->before[i]); /* without memory the old name stays: of no live server */
        free(own->before[i]);
        own->before[i] = NULL;
    }
}

/* Under join_mutex. */
static moor_status join_first(const moor_config *config, const moor_process_args *args, moor_process **out)
{
    moor_process *process = calloc(1, sizeof(*process));
    struct membership *own = calloc(1, sizeof(*own));
    moor_status status = MOOR_OK;
    if (!process || !own)
        status = moor_fail(MOOR_E_NOMEM, "process_join: no memory");
    if (!status) {
        process->config = (moor_config_values)MOOR_CONFIG_VALUES_INIT;
        status = moor_config_get_values(config, &process->config);
    }
    if (!status)
        status = moor_instance_enter(process->config.instance, process->config.dir, &own->instance);
    if (status) {
        free(process);
        free(own);
        return status;
    }
    own->refs = 1;
    process->plugin = own;
    process->parsed = moor_config_retain(config);
    process->pid = getpid();
    process->state = own->instance.state;
    process->slot = own->instance.slot;
    process->locks_fd = own->instance.locks_fd;
    memcpy(process->instance, own->instance.name, sizeof(process->instance));
    memcpy(process->dir, own->instance.dir, sizeof(process->dir));
    memcpy(process->base, own->instance.base, sizeof(process->base));
    status = export_environment(process);
    if (status) {
        unexport_environment(process);
        moor_instance_leave(&own->instance, 1);
        moor_config_free((moor_config *)(uintptr_t)process->parsed);
        free(own);
        free(process);
        return status;
    }
    process->hold_bases = own->instance.hold_bases;
    cell_fill(process, args);
    *out = current = process;
    return MOOR_OK;
}

/* Reads what `size` covers, so that an older caller's struct is not read beyond its end. */
static moor_status take_args(const moor_process_args *given, moor_process_args *args)
{
    *args = (moor_process_args)MOOR_PROCESS_ARGS_INIT;
    if (!given || given->size < 2 * sizeof(uint32_t))
        return moor_fail(MOOR_E_INVALID, "process_join: args is NULL or its size is not set");
    memcpy(args, given, given->size < sizeof(*args) ? given->size : sizeof(*args));
    if (args->rank >= args->world_size)
        return moor_fail(MOOR_E_INVALID, "process_join: rank %u of world_size %u", args->rank, args->world_size);
    if (args->world_size > MOOR_MAX_RANKS)
        return moor_fail(MOOR_E_FULL, "process_join: world_size is %u, a barrier has %d ranks", args->world_size,
                         MOOR_MAX_RANKS);
    return MOOR_OK;
}

moor_status moor_process_join(const moor_config *config, const moor_process_args *given, moor_process **out)
{
    moor_process_args args;
    moor_config *own_config = NULL;
    if (!out)
        return moor_fail(MOOR_E_INVALID, "process_join: out is NULL");
    moor_status status = take_args(given, &args);
    if (!status && !config) {
        status = moor_config_parse(NULL, 0, &own_config);
        config = own_config;
    }
    if (status)
        return status;
    moor_config_values values = MOOR_CONFIG_VALUES_INIT;
    moor_config_get_values(config, &values);
    pthread_once(&once, register_fork);
    pthread_mutex_lock(&join_mutex);
    int first = !current;
    if (current) {
        membership(current)->refs++;
        cell_unite(current, &args);
        *out = current;
    } else {
        status = join_first(config, &args, out);
    }
    pthread_mutex_unlock(&join_mutex);
    if (!status && first) {
        moor_log_configure(args.host, values.log_level);
        for (int i = 0; i < 2; i++)
            if (membership(*out)->instance.note[i][0])
                moor_log(MOOR_LOG_INFO, "%s", membership(*out)->instance.note[i]);
    }
    moor_config_free(own_config);
    return status;
}

void moor_process_retain(moor_process *process)
{
    pthread_mutex_lock(&join_mutex);
    membership(process)->refs++;
    pthread_mutex_unlock(&join_mutex);
}

void moor_process_leave(moor_process *process)
{
    if (!process || process->pid != getpid())
        return;
    pthread_mutex_lock(&join_mutex);
    if (process != current || --membership(process)->refs) {
        pthread_mutex_unlock(&join_mutex);
        return;
    }
    current = NULL;
    unexport_environment(process);
    /* A cell with requests in flight stays, as that of a process that is gone: the gate must see them unsettled. */
    moor_state_process *cell = &process->state->processes[process->slot];
    if (!moor_slot_busy(process->state, process->slot))
        atomic_store(&cell->used, 0);
    int unused = moor_watch_leave(process);
    moor_instance_leave(&membership(process)->instance, unused);
    pthread_mutex_unlock(&join_mutex);
    if (!unused)
        return; /* a thread still looks at it */
    moor_config_free((moor_config *)(uintptr_t)process->parsed);
    free(process->plugin);
    process->pid = 0;
    free(process);
}

/* exit() without process_leave (a Python host that just ends). Other threads may still run: nothing is unmapped or freed. */
__attribute__((destructor)) static void leave_at_exit(void)
{
    if (current && current->pid == getpid() && pthread_mutex_trylock(&join_mutex) == 0) {
        moor_instance_leave(&membership(current)->instance, 0);
        pthread_mutex_unlock(&join_mutex);
    }
}

/* ---- small ones ------------------------------------------------------------------------------------------------- */

const moor_config *moor_process_config(const moor_process *process)
{
    return process ? process->parsed : NULL;
}

const char *moor_process_instance(const moor_process *process)
{
    return process ? process->instance : NULL;
}

const char *moor_process_dir(const moor_process *process)
{
    return process ? process->dir : NULL;
}

int moor_process_dir_fd(const moor_process *process)
{
    return membership(process)->instance.dir_fd;
}

void moor_process_log(moor_process *process, int level, const char *text)
{
    (void)process; /* one sink and one level a process */
    if (text)
        moor_log(level, "%s", text);
}

int moor_process_alive(const moor_process *process, uint32_t slot)
{
    return slot < MOOR_MAX_PROCESSES && moor_locks_slot_alive(process->locks_fd, slot);
}

moor_status moor_count(moor_process *process, const char *name, uint64_t delta)
{
    static const char *const names[] = {
#define X(id, text, help) "moor_" text,
        MOOR_COUNTERS(X)
#undef X
    };
    moor_status status = moor_process_check(process, "count");
    if (status)
        return status;
    if (!name)
        return moor_fail(MOOR_E_INVALID, "count: name is NULL");
    for (int i = 0; i < MOOR_COUNTERS_COUNT; i++)
        if (strcmp(name, names[i]) == 0) {
            moor_count_add(process, (enum moor_counter)i, delta);
            return MOOR_OK;
        }
    return moor_fail(MOOR_E_NOT_FOUND, "count: no counter is named \"%.100s\"", name);
}
