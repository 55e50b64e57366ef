/* SPDX-License-Identifier: Apache-2.0 */
#include "visit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../allocator/locks.h"
#include "../client/client.h"
#include "../hooks/barrier.h"
#include "../hooks/gate.h"
#include "process.h"
#include "state.h"

struct visit {
    moor_member member;
    int locks_fd;
    int own_cell; /* the slot's cell is ours, not that of a server's process that we are as well */
};

static int visitor_sees(void *user, uint32_t slot)
{
    return moor_locks_slot_alive(((struct visit *)user)->locks_fd, slot);
}

static void end_visit(void *user)
{
    struct visit *visit = user;
    if (visit->own_cell)
        atomic_store(&visit->member.state->processes[visit->member.slot].used, 0);
    moor_locks_leave(visit->locks_fd, 0);
    moor_state_unmap(visit->member.state);
    free(visit);
}

/* The process may have the slot already, as a member of the server or through another client: then the cell is filled. */
static void fill_cell(struct visit *visit)
{
    moor_state_process *cell = &visit->member.state->processes[visit->member.slot];
    if (atomic_load(&cell->used) && cell->pid == (uint32_t)getpid())
        return;
    if (atomic_load(&cell->used))
        moor_slot_ended(&visit->member, visit->member.slot);
    atomic_store(&cell->used, 1);
    cell->pid = (uint32_t)getpid();
    __atomic_store_n(&cell->roles, MOOR_ROLE_CONSUMER, __ATOMIC_RELAXED);
    __atomic_store_n(&cell->rank, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cell->world_size, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&cell->dp_rank, 0, __ATOMIC_RELAXED);
    cell->started_ns = moor_now_ns();
    memset(cell->engine, 0, sizeof(cell->engine));
    atomic_store(&cell->waiting, 0);
    atomic_store(&cell->used, 2);
    visit->own_cell = 1;
}

static moor_status visit_of(moor_client *client, const char *what, struct visit **out)
{
    uint8_t avoid[MOOR_LOCKS_SLOTS];
    moor_status status = moor_client_check(client, what);
    if (status)
        return status;
    const moor_located *where = moor_client_where(client);
    int dir_fd = moor_client_dir_fd(client);
    struct visit *visit = moor_client_visit(client);
    /* Also later: the state of a dead server answers, and means nothing. */
    status = visit && moor_locks_server_lives(visit->locks_fd) ? MOOR_OK : moor_client_has_files(client, what);
    if (status)
        return status;
    if (visit) {
        *out = visit;
        return MOOR_OK;
    }
    visit = calloc(1, sizeof(*visit));
    if (!visit)
        return moor_fail(MOOR_E_NOMEM, "%s: no memory", what);
    status = moor_state_map(dir_fd, where->dir, 1, &visit->member.state);
    if (!status) {
        for (uint32_t slot = 0; slot < MOOR_LOCKS_SLOTS; slot++)
            avoid[slot] = atomic_load(&visit->member.state->processes[slot].used) != 0;
        status = moor_locks_join(dir_fd, where->dir, 0, avoid, &visit->locks_fd, &visit->member.slot);
        if (status)
            moor_state_unmap(visit->member.state);
    }
    if (status) {
        free(visit);
        return status;
    }
    visit->member.gate_mode = MOOR_MODE_ENFORCE; /* who calls from outside does so on purpose */
    visit->member.alive = visitor_sees;
    visit->member.user = visit;
    fill_cell(visit);
    *out = moor_client_set_visit(client, visit, end_visit);
    if (*out != visit) {
        visit->own_cell = 0; /* another thread was faster, and shares the slot */
        end_visit(visit);
    }
    return MOOR_OK;
}

moor_status moor_client_gate(moor_client *client, const char *verb, const char *label, double timeout,
                             moor_gate_status *out)
{
    struct visit *visit;
    moor_status status = visit_of(client, "client_gate", &visit);
    return status ? status : moor_gate_verb(&visit->member, verb, label, timeout, out);
}

moor_status moor_barrier_arrive(moor_client *client, const char *name, uint32_t size, uint32_t rank, double timeout,
                                moor_barrier_result *result)
{
    struct visit *visit;
    moor_status status = visit_of(client, "barrier_arrive", &visit);
    return status ? status : moor_barrier_client(&visit->member, name, size, rank, timeout, result);
}

moor_status moor_attach_own(moor_process *process, moor_client **out)
{
    moor_status status = moor_process_check(process, "attach_own");
    moor_located where = {.name = ""};
    if (!status && !out)
        status = moor_fail(MOOR_E_INVALID, "attach_own: out is NULL");
    if (status)
        return status;
    snprintf(where.name, sizeof(where.name), "%.*s", MOOR_NAME_MAX, process->instance);
    memcpy(where.dir, process->dir, sizeof(where.dir));
    int dir_fd = fcntl(moor_process_dir_fd(process), F_DUPFD_CLOEXEC, 0);
    if (dir_fd < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "attach_own: %s", where.dir);
    return moor_client_make_at(&where, dir_fd, MOOR_CLIENT_PATIENCE_S, out);
}
