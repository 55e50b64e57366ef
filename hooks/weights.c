/* SPDX-License-Identifier: Apache-2.0 */
#include "weights.h"

#include <stdio.h>

#include "gate.h"
#include "shared_text.h"

#define SLOT_WORD(slot) ((slot) / 64)
#define SLOT_BIT(slot) ((uint64_t)1 << (slot) % 64)

void moor_weights_raise_used(moor_state *state, uint64_t epoch)
{
    uint64_t used = atomic_load(&state->weights.used_epoch);
    while (used < epoch && !atomic_compare_exchange_weak(&state->weights.used_epoch, &used, epoch))
        ;
}

static void set_label(moor_state *state, uint64_t epoch, const char *label, size_t len)
{
    size_t place = epoch % MOOR_EPOCH_LABELS;
    atomic_store(&state->gate.labels[place].epoch, 0);
    MOOR_TEXT_PUT(state->gate.labels[place].label, label, len);
    atomic_store(&state->gate.labels[place].epoch, epoch);
}

void moor_weights_set_label(moor_state *state, uint64_t epoch, const char *label)
{
    set_label(state, epoch, label ? label : "", label ? strlen(label) : 0);
}

void moor_weights_label_of(moor_state *state, uint64_t epoch, char *out, size_t size)
{
    size_t place = epoch % MOOR_EPOCH_LABELS;
    uint64_t before = atomic_load(&state->gate.labels[place].epoch);
    MOOR_TEXT_GET(state->gate.labels[place].label, out, size);
    if (before != epoch || atomic_load(&state->gate.labels[place].epoch) != epoch)
        out[0] = 0;
}

void moor_weights_restore_label(moor_state *state, uint64_t epoch, const char *label)
{
    if (atomic_load(&state->gate.labels[epoch % MOOR_EPOCH_LABELS].epoch) <= epoch)
        moor_weights_set_label(state, epoch, label);
}

void moor_weights_restore(moor_state *state, uint64_t epoch, const char *label)
{
    uint64_t now = atomic_load(&state->gate.epoch);
    do {
        if (now > epoch || epoch == UINT64_MAX)
            return;
    } while (!atomic_compare_exchange_weak(&state->gate.epoch, &now, epoch + 1));
    if (label[0])
        moor_weights_set_label(state, epoch + 1, label);
}

/* Moves the epoch on from `seen`. When somebody else moved it since it was read, that move serves us too: whatever is
 * recorded from now on has an epoch of its own. */
static void move(moor_state *state, uint64_t seen)
{
    if (atomic_compare_exchange_strong(&state->gate.epoch, &seen, seen + 1))
        atomic_fetch_add_explicit(&state->counters[MOOR_C_WEIGHT_UPDATES], 1, memory_order_relaxed);
}

/* Weights changed before this call, or are about to change under its caller. */
static void move_if_due(moor_state *state, int in_session)
{
    moor_state_weights *weights = &state->weights;
    uint64_t epoch = atomic_load(&state->gate.epoch);
    uint64_t session = atomic_load(&weights->session), moved = atomic_load(&weights->moved_session);
    /* The session's own move is claimed before the epoch is looked at: of two ranks at once, one has it. */
    int ours =
        in_session && moved != session && atomic_compare_exchange_strong(&weights->moved_session, &moved, session);
    if (ours || atomic_load(&weights->used_epoch) >= epoch)
        move(state, epoch);
}

uint64_t moor_weights_install(moor_state *state, const char *label)
{
    moor_state_gate *gate = &state->gate;
    uint64_t epoch = atomic_load(&gate->epoch);
    uint64_t sealed = atomic_load(&gate->epoch_at_seal), installed = atomic_load(&gate->installed_epoch);
    /* The update itself was seen and moved the epoch since the seal: this install gives that epoch its label. */
    int moved_already = epoch > sealed && epoch > installed && atomic_load(&state->weights.used_epoch) < epoch;
    if (!moved_already)
        move(state, epoch);
    epoch = atomic_load(&gate->epoch);
    if (label)
        moor_weights_set_label(state, epoch, label);
    atomic_store(&gate->installed_epoch, epoch);
    return epoch;
}

/* ---- sessions --------------------------------------------------------------------------------------------------- */

static int any_open(moor_state *state)
{
    for (size_t i = 0; i < MOOR_MAX_PROCESSES / 64; i++)
        if (atomic_load(&state->weights.open[i]))
            return 1;
    return 0;
}

uint32_t moor_weights_sessions(moor_state *state, char *text, size_t size)
{
    uint32_t n = 0;
    size_t used = 0;
    if (text && size)
        text[0] = 0;
    for (uint32_t slot = 0; slot < MOOR_MAX_PROCESSES; slot++) {
        if (!(atomic_load(&state->weights.open[SLOT_WORD(slot)]) & SLOT_BIT(slot)))
            continue;
        n++;
        if (text && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%u", used ? ", " : "", state->processes[slot].pid);
    }
    return n;
}

int moor_weights_unknown(moor_state *state)
{
    return atomic_load(&state->weights.unknown) != 0;
}

/* The update that `slot` was in ended badly: what the weights are, nobody knows. */
static void went_wrong(const moor_member *member, const char *why)
{
    moor_state *state = member->state;
    moor_state_weights *weights = &state->weights;
    uint64_t session = atomic_load(&weights->session), unknown = atomic_load(&weights->unknown);
    while (unknown < session + 1 && !atomic_compare_exchange_weak(&weights->unknown, &unknown, session + 1))
        ;
    atomic_store(&weights->moved_session, session);
    move(state, atomic_load(&state->gate.epoch));
    char reason[192];
    snprintf(reason, sizeof(reason), "weight update failed, the version of the weights is unknown: %s", why);
    if (member->gate_mode == MOOR_MODE_ENFORCE)
        moor_gate_set_poison(state, reason);
    else
        moor_log(MOOR_LOG_ERROR, "%s", reason);
}

/* Takes the slot out of the session. A reopen may wait for that. */
static void leave_session(moor_state *state, uint32_t slot)
{
    if (atomic_fetch_and(&state->weights.open[SLOT_WORD(slot)], ~SLOT_BIT(slot)) & SLOT_BIT(slot))
        moor_gate_settled(state);
}

void moor_weights_slot_ended(const moor_member *member, uint32_t slot)
{
    char why[96];
    atomic_store(&member->state->weights.depth[slot], 0);
    atomic_store(&member->state->weights.kinds[slot], 0);
    if (!(atomic_load(&member->state->weights.open[SLOT_WORD(slot)]) & SLOT_BIT(slot)))
        return;
    /* The session holds a reopen up until the poison does: left first, it would let requests in between the two. Of two who find the
     * dead at once both may poison, which costs an epoch. */
    snprintf(why, sizeof(why), "process %u ended inside it", member->state->processes[slot].pid);
    went_wrong(member, why);
    leave_session(member->state, slot);
}

void moor_weights_close_dead(const moor_member *member)
{
    for (uint32_t slot = 0; slot < MOOR_MAX_PROCESSES; slot++)
        if ((atomic_load(&member->state->weights.open[SLOT_WORD(slot)]) & SLOT_BIT(slot)) &&
            !moor_member_alive(member, slot))
            moor_weights_slot_ended(member, slot);
}

static moor_status check_kind(const char *what, uint32_t kind)
{
    if (kind < MOOR_WEIGHTS_KINDS)
        return MOOR_OK;
    return moor_fail(MOOR_E_INVALID, "%s: kind %u is none of %d", what, kind, MOOR_WEIGHTS_KINDS);
}

moor_status moor_weights_begin(moor_process *process, uint32_t kind)
{
    moor_status status = moor_process_check(process, "weights_begin");
    if (status || (status = check_kind("weights_begin", kind)))
        return status;
    moor_state *state = process->state;
    moor_state_weights *weights = &state->weights;
    moor_member member = moor_member_of(process);
    atomic_fetch_or(&weights->kinds[process->slot], 1u << kind);
    if (atomic_fetch_add(&weights->depth[process->slot], 1) > 0)
        return MOOR_OK;
    moor_weights_close_dead(&member);
    /* A new session unless one is open. Two that begin at once may raise the number twice, which costs at most one epoch. */
    uint64_t session = atomic_load(&weights->session);
    if (!any_open(state))
        atomic_compare_exchange_strong(&weights->session, &session, session + 1);
    atomic_fetch_or(&weights->open[SLOT_WORD(process->slot)], SLOT_BIT(process->slot));
    return MOOR_OK;
}

moor_status moor_weights_touched(moor_process *process, uint32_t kind, const char *what)
{
    moor_status status = moor_process_check(process, "weights_touched");
    if (status || (status = check_kind("weights_touched", kind)))
        return status;
    moor_state *state = process->state;
    atomic_fetch_add(&state->weights.seen[kind], 1);
    uint64_t before = atomic_load(&state->gate.epoch);
    move_if_due(state, any_open(state));
    if (atomic_load(&state->gate.epoch) != before)
        moor_log(MOOR_LOG_DEBUG, "weights changed (%s): epoch %llu", what ? what : "?",
                 (unsigned long long)atomic_load(&state->gate.epoch));
    return MOOR_OK;
}

/* A full update after the one that failed makes the version known again. */
static void made_good(moor_state *state, uint32_t kinds)
{
    const uint32_t full = 1u << MOOR_WEIGHTS_UPDATE | 1u << MOOR_WEIGHTS_RELOAD;
    uint64_t unknown = atomic_load(&state->weights.unknown);
    if (unknown && (kinds & full) && atomic_load(&state->weights.session) + 1 > unknown &&
        atomic_compare_exchange_strong(&state->weights.unknown, &unknown, 0))
        moor_log(MOOR_LOG_INFO, "a full weight update succeeded: the version of the weights is known again");
}

static int is_front_end(moor_state *state, uint32_t slot)
{
    return (__atomic_load_n(&state->processes[slot].roles, __ATOMIC_RELAXED) & MOOR_ROLE_FRONTEND) != 0;
}

/* Whose session this process ends: its own; for a front end that has none, another one's. A server's front ends accept from one
 * socket, so that an update begun through one may be ended through the next. */
static uint32_t session_slot(const moor_process *process, const moor_member *member)
{
    moor_state *state = process->state;
    if (atomic_load(&state->weights.depth[process->slot]) || !is_front_end(state, process->slot))
        return process->slot;
    for (uint32_t slot = 0; slot < MOOR_MAX_PROCESSES; slot++)
        if (atomic_load(&state->weights.depth[slot]) && is_front_end(state, slot) && moor_member_alive(member, slot))
            return slot;
    return process->slot;
}

moor_status moor_weights_end(moor_process *process, int ok, const char *why)
{
    moor_status status = moor_process_check(process, "weights_end");
    if (status)
        return status;
    moor_state *state = process->state;
    moor_state_weights *weights = &state->weights;
    moor_member member = moor_member_of(process);
    uint32_t slot = session_slot(process, &member), depth = atomic_load(&weights->depth[slot]);
    uint32_t kinds = atomic_load(&weights->kinds[slot]);
    if (!ok)
        went_wrong(&member, why && *why ? why : "no reason was given");
    while (depth && !atomic_compare_exchange_weak(&weights->depth[slot], &depth, depth - 1))
        ;
    if (!depth && ok)
        moor_log(MOOR_LOG_INFO, "weights_end: no update session is open in this process; nothing done");
    if (depth != 1)
        return MOOR_OK; /* none, or an outer one goes on */
    if (ok) {
        move_if_due(state, 1); /* whatever the session changed unseen */
        made_good(state, kinds);
    }
    leave_session(state, slot);
    if (atomic_load(&weights->depth[slot])) /* another thread began meanwhile, and found itself in */
        atomic_fetch_or(&weights->open[SLOT_WORD(slot)], SLOT_BIT(slot));
    else
        atomic_fetch_and(&weights->kinds[slot], ~kinds);
    return MOOR_OK;
}

moor_status moor_weights_label(moor_process *process, const char *label)
{
    moor_status status = moor_process_check(process, "weights_label");
    if (status)
        return status;
    moor_weights_set_label(process->state, atomic_load(&process->state->gate.epoch), label);
    return MOOR_OK;
}

uint64_t moor_weights_epoch(moor_process *process)
{
    return process ? atomic_load(&process->state->gate.epoch) : 0;
}
