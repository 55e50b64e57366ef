/* SPDX-License-Identifier: Apache-2.0 */
#include "gate.h"

#include <stdio.h>

#include "../allocator/interrupt.h"
#include "futex.h"
#include "shared_text.h"
#include "ticket.h"
#include "weights.h"

#define SEQ_ONE ((uint64_t)1 << 8)
#define POISONED ((uint64_t)1 << 4)
#define STATE(word) ((uint32_t)((word)&0xF))
#define FLAGS(flags) ((uint64_t)(flags) << 5)
#define FLAGS_OF(word) ((uint32_t)((word) >> 5) & 7)
#define KEPT FLAGS(MOOR_GATE_KEPT)
#define OWN FLAGS(MOOR_GATE_OWN)

/* Longest sleep without a look at the word: a process may die between moving it and waking. */
#define SLICE_NS 250000000u
/* How often a drain looks for the dead; SEMANTICS 4.11 asks for a second. */
#define SWEEP_NS 400000000u

static const char *state_name(uint32_t state)
{
    static const char *const names[] = {"open", "sealed", "drained"};
    return state < sizeof(names) / sizeof(names[0]) ? names[state] : "?";
}

static uint64_t min_ns(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t since(uint64_t then, uint64_t now)
{
    return then && now > then ? now - then : 0;
}

static void count(moor_state *state, enum moor_counter counter, uint64_t delta)
{
    atomic_fetch_add_explicit(&state->counters[counter], delta, memory_order_relaxed);
}

void moor_gate_init(moor_state *state)
{
    atomic_store(&state->gate.epoch, 1);
}

void moor_gate_settled(moor_state *state)
{
    /* seq_cst, after the cell's own seq_cst store: see ticket.h. */
    if (STATE(atomic_load(&state->gate.word)) != MOOR_GATE_OPEN ||
        (atomic_load(&state->gate.cells_wanted) && atomic_exchange(&state->gate.cells_wanted, 0)))
        moor_futex_raise(&state->gate.settled);
}

/* ---- poison ---------------------------------------------------------------------------------------------------- */

void moor_gate_set_poison(moor_state *state, const char *reason)
{
    moor_state_gate *gate = &state->gate;
    uint64_t number = atomic_fetch_add(&gate->poisons, 1) + 1, word = atomic_load(&gate->word);
    /* What fails behind a poisoned gate mostly follows from what poisoned it: the cause stays, the rest is counted and in the log. */
    if (!(word & POISONED)) {
        size_t place = number % MOOR_TEXT_WORDS(gate->poison);
        atomic_store(&gate->poison[place].number, 0);
        atomic_store(&gate->poison[place].at_ns, moor_now_ns());
        MOOR_TEXT_PUT(gate->poison[place].text, reason, strlen(reason));
        atomic_store(&gate->poison[place].number, number);
    }
    while (!(word & POISONED) && !atomic_compare_exchange_weak(&gate->word, &word, (word + SEQ_ONE) | POISONED))
        ;
    moor_futex_raise(&gate->settled); /* a drain must see it now */
    moor_log(MOOR_LOG_ERROR, "gate poisoned: %s", reason);
}

/* The newest reason that can be read, and how many came after it; when it was, or 0. */
static uint64_t poison_reason(moor_state *state, char *out, size_t size)
{
    moor_state_gate *gate = &state->gate;
    uint64_t newest = 0, at_ns = 0;
    snprintf(out, size, "reason lost: the process that poisoned the gate died while it wrote");
    for (size_t i = 0; i < MOOR_TEXT_WORDS(gate->poison); i++) {
        char text[192];
        uint64_t number = atomic_load(&gate->poison[i].number), at = atomic_load(&gate->poison[i].at_ns);
        MOOR_TEXT_GET(gate->poison[i].text, text, sizeof(text));
        if (number > newest && atomic_load(&gate->poison[i].number) == number) {
            newest = number;
            at_ns = at;
            snprintf(out, size, "%s", text);
        }
    }
    uint64_t all = atomic_load(&gate->poisons);
    if (newest && all > newest) {
        char more[64];
        int n = snprintf(more, sizeof(more), " (and %llu more since, in the log)", (unsigned long long)(all - newest));
        size_t used = strlen(out), room = size - 1 - (size_t)n;
        used = used < room ? used : room;
        while (used && (out[used] & 0xC0) == 0x80) /* not inside a character of UTF-8 */
            used--;
        memcpy(out + used, more, (size_t)n + 1);
    }
    return at_ns;
}

/* Who reads it may never have heard of Moor: what happened, when, and each way out. */
static void tell_poison(moor_state *state, char *out, size_t size)
{
    char reason[192];
    uint64_t at_ns = poison_reason(state, reason, sizeof(reason));
    snprintf(out, size,
             "poisoned %.0f s ago: %s. Whoever has seen to the cause acknowledges it, with `moor gate acknowledge "
             "%.63s` or, "
             "in Python, moor.attach(\"%.63s\").gate.acknowledge(); then a whole new update or the engine's resume "
             "opens the gate",
             (double)since(at_ns, moor_now_ns()) / 1e9, reason, state->instance, state->instance);
}

static moor_status fail_poisoned(moor_state *state, const char *what)
{
    char text[640];
    tell_poison(state, text, sizeof(text));
    return moor_fail(MOOR_E_POISONED, "%s: the gate is %s", what, text);
}

static moor_status acknowledge(const moor_member *member)
{
    moor_state_gate *gate = &member->state->gate;
    uint64_t word = atomic_load(&gate->word);
    do {
        if (!(word & POISONED)) {
            moor_log(MOOR_LOG_INFO, "gate acknowledge: the gate is not poisoned; nothing done");
            return MOOR_OK;
        }
    } while (!atomic_compare_exchange_weak(&gate->word, &word, (word + SEQ_ONE) & ~POISONED));
    char reason[192];
    poison_reason(member->state, reason, sizeof(reason));
    moor_log(MOOR_LOG_WARN, "gate poison acknowledged: %s", reason);
    return MOOR_OK;
}

/* ---- enter and leave ------------------------------------------------------------------------------------------- */

static void say_full(moor_state *state, int enforce)
{
    if (!atomic_exchange(&state->gate.full_told, 1))
        moor_log(MOOR_LOG_WARN, "gate: a request found no ticket cell, with %u requests in flight; %s",
                 moor_ticket_count(state),
                 enforce ? "such requests wait until one is settled"
                         : "such requests pass without a ticket, and no drain knows of them");
}

/* A cell for the request; 0 when there is none. Who may wait for one (enforce) says so first, and then looks once more: whoever
 * freed a cell before that look has been seen, and whoever frees one after it sees the wish. */
static int claim(moor_process *process, int enforce, uint32_t records, moor_hash128 hash, uint32_t *index,
                 uint64_t *ticket)
{
    moor_state *state = process->state;
    if (moor_ticket_claim(state, process->slot, records, hash, index, ticket))
        return 1;
    if (!enforce)
        return 0;
    atomic_store(&state->gate.cells_wanted, 1);
    return moor_ticket_claim(state, process->slot, records, hash, index, ticket);
}

/* One try. MOOR_OK: admitted; MOOR_E_STATE: not open; MOOR_E_FULL without a text: open, and no cell. */
static moor_status try_enter(moor_process *process, int enforce, moor_hash128 hash, const char *id, uint32_t id_len,
                             uint32_t records, moor_ticket *out)
{
    moor_state *state = process->state;
    uint32_t index;
    uint64_t ticket;
    if (enforce && STATE(atomic_load(&state->gate.word)) != MOOR_GATE_OPEN)
        return MOOR_E_STATE; /* whether or not a cell is free */
    if (!claim(process, enforce, records, hash, &index, &ticket)) {
        say_full(state, enforce);
        return MOOR_E_FULL;
    }
    /* After the claim, seq_cst: the order that ticket.h proves. */
    if (STATE(atomic_load(&state->gate.word)) != MOOR_GATE_OPEN) {
        if (enforce) {
            moor_ticket_back_out(state, index, ticket);
            return MOOR_E_STATE;
        }
        atomic_fetch_add_explicit(&state->gate.would_wait, 1, memory_order_relaxed);
    }
    /* Our cell keeps any drain from ending, so no install moves the epoch between here and the leave (enforce). */
    uint64_t epoch = moor_weights_mark_used(state), now = moor_now_ns();
    moor_ticket_publish(state, index, ticket, hash, id, id_len, epoch, now);
    count(state, MOOR_C_GATE_ENTERS, 1);
    out->id = moor_ticket_id(index, ticket);
    out->epoch = epoch;
    out->t_enter_ns = now;
    return MOOR_OK;
}

static moor_status fail_sealed(moor_process *process, const char *id, uint32_t id_len)
{
    moor_state *state = process->state;
    moor_member member = moor_member_of(process);
    uint64_t word = atomic_load(&state->gate.word);
    uint32_t by = atomic_load(&state->gate.sealed_by);
    char poison[640] = "", who[128] = "a consumer";
    if (word & POISONED)
        tell_poison(state, poison, sizeof(poison));
    if (by)
        snprintf(who, sizeof(who), "process %u%s", state->processes[by - 1].pid,
                 moor_member_alive(&member, by - 1)
                     ? ""
                     : ", which is gone: the engine's resume or the next update opens it");
    return moor_fail(MOOR_E_TIMEOUT, "request %.*s: the gate is %s since %.3f s (by %s)%s%s", (int)id_len, id,
                     state_name(STATE(word)),
                     (double)since(atomic_load(&state->gate.sealed_at_ns), moor_now_ns()) / 1e9, who,
                     *poison ? "; it is " : "", poison);
}

/* What the caller is told of a request that was not admitted. */
static moor_status refused(moor_process *process, moor_status status, const char *id, uint32_t id_len)
{
    if (status == MOOR_E_STATE)
        return fail_sealed(process, id, id_len);
    return moor_fail(MOOR_E_FULL, "request %.*s: no ticket cell is free, %u requests are in flight", (int)id_len, id,
                     moor_ticket_count(process->state));
}

static moor_status enter_waiting(moor_process *process, moor_hash128 hash, const char *id, uint32_t id_len,
                                 uint32_t records, double timeout, moor_ticket *out)
{
    moor_state *state = process->state;
    uint64_t deadline = moor_deadline(timeout);
    moor_status status;
    atomic_fetch_add(&state->processes[process->slot].waiting, 1);
    for (;;) {
        uint32_t opened = atomic_load(&state->gate.opened), settled = atomic_load(&state->gate.settled);
        uint64_t now = moor_now_ns();
        status = try_enter(process, 1, hash, id, id_len, records, out);
        if (status == MOOR_OK || now >= deadline)
            break;
        if (moor_interrupted()) {
            status = moor_fail(MOOR_E_INTERRUPTED, "request %.*s: interrupted at the gate; it is not admitted",
                               (int)id_len, id);
            break;
        }
        uint64_t until = moor_interrupt_slice(min_ns(deadline, now + SLICE_NS));
        if (status == MOOR_E_FULL)
            moor_futex_wait(&state->gate.settled, settled, until);
        else
            moor_futex_wait(&state->gate.opened, opened, until);
    }
    atomic_fetch_sub(&state->processes[process->slot].waiting, 1);
    return status && status != MOOR_E_INTERRUPTED ? refused(process, status, id, id_len) : status;
}

static moor_status enter(moor_process *process, const char *id, uint32_t id_len, uint32_t records, double timeout,
                         int again, moor_ticket *out)
{
    if (!process || process->pid != moor_pid())
        return moor_process_check(process, "gate_enter");
    if (!id || !id_len || !out)
        return moor_fail(MOOR_E_INVALID, "gate_enter: %s", !out ? "no ticket" : "no request id");
    if (records > MOOR_TICKET_RECORDS)
        return moor_fail(MOOR_E_INVALID, "gate_enter: request %.*s expects %u records, %u is the limit", (int)id_len,
                         id, records, MOOR_TICKET_RECORDS);
    if (!moor_process_records(process))
        records = 0; /* none would ever be stored, and no drain would end */
    if (process->config.gate_mode == MOOR_MODE_OFF) {
        *out = (moor_ticket){MOOR_TICKET_NONE, moor_weights_mark_used(process->state), moor_now_ns()};
        return MOOR_OK;
    }
    int enforce = process->config.gate_mode == MOOR_MODE_ENFORCE;
    moor_hash128 hash = moor_id_hash(id, id_len);
    moor_status status = try_enter(process, enforce, hash, id, id_len, records, out);
    if (status == MOOR_E_FULL && !again)
        count(process->state, MOOR_C_GATE_FULL, 1);
    if (status && enforce && timeout > 0)
        return enter_waiting(process, hash, id, id_len, records, timeout, out);
    return status ? refused(process, status, id, id_len) : MOOR_OK;
}

moor_status moor_gate_enter(moor_process *process, const char *id, uint32_t id_len, uint32_t records, double timeout,
                            moor_ticket *out)
{
    return enter(process, id, id_len, records, timeout, 0, out);
}

moor_status moor_gate_enter_again(moor_process *process, const char *id, uint32_t id_len, uint32_t records,
                                  moor_ticket *out)
{
    return enter(process, id, id_len, records, 0.0, 1, out);
}

moor_status moor_gate_waiting(moor_process *process, int delta)
{
    moor_status status = moor_process_check(process, "gate_waiting");
    if (!status)
        atomic_fetch_add(&process->state->processes[process->slot].waiting, (uint64_t)(int64_t)delta);
    return status;
}

static void fill_receipt(moor_process *process, const moor_ticket *ticket, uint32_t outcome,
                         const moor_ticket_view *view, moor_receipt *receipt)
{
    moor_receipt full = MOOR_RECEIPT_INIT;
    full.epoch_start = ticket->epoch;
    full.epoch_end = atomic_load_explicit(&process->state->gate.epoch, memory_order_acquire);
    full.rows = view->rows;
    full.wall_ns = since(ticket->t_enter_ns, moor_now_ns());
    full.outcome = outcome;
    memcpy(full.request_id, view->id, sizeof(view->id));
    size_t head = offsetof(moor_receipt, epoch_start);
    size_t size = receipt->size < sizeof(full) ? receipt->size : sizeof(full);
    if (size > head)
        memcpy((char *)receipt + head, (char *)&full + head, size - head);
}

moor_status moor_gate_leave(moor_process *process, moor_ticket *ticket, uint32_t outcome, moor_receipt *receipt)
{
    if (!process || process->pid != moor_pid())
        return moor_process_check(process, "gate_leave");
    if (!ticket || !ticket->id)
        return moor_fail(MOOR_E_INVALID, "gate_leave: %s",
                         !ticket ? "no ticket" : "the ticket was never admitted, or has left");
    if (outcome > MOOR_OUTCOME_UNKNOWN)
        return moor_fail(MOOR_E_INVALID, "gate_leave: outcome %u is none", outcome);
    moor_ticket_view view = {0};
    if (ticket->id != MOOR_TICKET_NONE) {
        /* Poison before the cell is free, or a drain could end in between. */
        if (outcome == MOOR_OUTCOME_UNKNOWN && moor_ticket_look(process->state, ticket->id, &view)) {
            char reason[192];
            snprintf(reason, sizeof(reason), "request %s: outcome unknown", view.id);
            moor_gate_set_poison(process->state, reason);
        }
        if (!moor_ticket_end(process->state, ticket->id, outcome, receipt ? &view : NULL))
            return moor_fail(MOOR_E_STALE, "gate_leave: ticket %llx has left already, or its process was declared dead",
                             (unsigned long long)ticket->id);
    }
    if (receipt)
        fill_receipt(process, ticket, outcome, &view, receipt);
    ticket->id = 0;
    return MOOR_OK;
}

moor_status moor_gate_fewer(moor_process *process, const moor_ticket *ticket, uint32_t n)
{
    if (!process || process->pid != moor_pid())
        return moor_process_check(process, "gate_fewer");
    if (!ticket || !ticket->id)
        return moor_fail(MOOR_E_INVALID, "gate_fewer: %s",
                         !ticket ? "no ticket" : "the ticket was never admitted, or has left");
    if (ticket->id == MOOR_TICKET_NONE || moor_ticket_fewer(process->state, ticket->id, n))
        return MOOR_OK;
    return moor_fail(MOOR_E_STALE, "gate_fewer: ticket %llx has left already, or its process was declared dead",
                     (unsigned long long)ticket->id);
}

/* ---- transitions ----------------------------------------------------------------------------------------------- */

static void just_sealed(const moor_member *member)
{
    moor_state_gate *gate = &member->state->gate;
    atomic_store(&gate->sealed_at_ns, moor_now_ns());
    atomic_store(&gate->epoch_at_seal, atomic_load(&gate->epoch));
    atomic_store(&gate->sealed_by, member->slot < MOOR_MAX_PROCESSES ? member->slot + 1 : 0);
    atomic_fetch_add(&gate->seals, 1);
}

static moor_status seal(const moor_member *member)
{
    moor_state_gate *gate = &member->state->gate;
    uint64_t word = atomic_load(&gate->word);
    if (member->gate_mode == MOOR_MODE_OFF)
        return MOOR_OK;
    do {
        if (STATE(word) != MOOR_GATE_OPEN) {
            moor_log(MOOR_LOG_INFO, "gate seal: the gate is %s already; nothing done", state_name(STATE(word)));
            return MOOR_OK;
        }
    } while (!atomic_compare_exchange_weak(&gate->word, &word, word + SEQ_ONE + MOOR_GATE_SEALED - MOOR_GATE_OPEN));
    just_sealed(member);
    return MOOR_OK;
}

static void close_gate(const moor_member *member, uint32_t flags, int *was_open)
{
    moor_state_gate *gate = &member->state->gate;
    uint64_t word = atomic_load(&gate->word), next;
    do {
        *was_open = STATE(word) == MOOR_GATE_OPEN;
        next = ((word & ~OWN) | FLAGS(flags & (MOOR_GATE_KEPT | MOOR_GATE_OWN))) + SEQ_ONE;
        if (*was_open)
            next += MOOR_GATE_SEALED - MOOR_GATE_OPEN;
    } while (!atomic_compare_exchange_weak(&gate->word, &word, next));
    if (*was_open)
        just_sealed(member);
    else if (flags & MOOR_GATE_KEPT)
        moor_futex_raise(&gate->settled); /* a drain need not go on */
}

/* How long a drain may last. `late`: it has lasted that long already, and this is its last look. */
typedef struct drain_limit {
    double timeout;
    int late;
} drain_limit;

static moor_status fail_drain(moor_state *state, drain_limit limit)
{
    char ids[640];
    uint32_t left = moor_ticket_list(state, ids, sizeof(ids));
    const char *plural = left == 1 ? "" : "s";
    if (!limit.late && !(limit.timeout > 0))
        return moor_fail(MOOR_E_TIMEOUT, "drain: %u request%s not settled: %s", left, plural, ids);
    count(state, MOOR_C_GATE_DRAIN_TIMEOUTS, 1);
    return moor_fail(MOOR_E_TIMEOUT, "drain: %u request%s not settled after %.3f s: %s", left, plural, limit.timeout,
                     ids);
}

static moor_status interrupted_drain(moor_state *state)
{
    char ids[640];
    uint32_t left = moor_ticket_list(state, ids, sizeof(ids));
    return moor_fail(MOOR_E_INTERRUPTED, "drain: interrupted with %u request%s not settled: %s; the gate stays sealed",
                     left, left == 1 ? "" : "s", ids);
}

/* One look at the gate. MOOR_OK: drained; MOOR_E_TIMEOUT without a text: go on waiting; else the failure. *cell is the first cell
 * that may be taken: a cell that was free after the seal stays free, so the scan never goes back. *seq tells a new seal. */
static moor_status drain_look(moor_state *state, uint64_t *seq, uint32_t *cell)
{
    uint64_t word = atomic_load(&state->gate.word);
    if (word & KEPT)
        return MOOR_OK; /* they stand still, and no drain would ever end (S4.8) */
    if (word & POISONED)
        return fail_poisoned(state, "drain");
    if (STATE(word) == MOOR_GATE_OPEN)
        return moor_fail(MOOR_E_STATE,
                         *seq ? "drain: the gate was reopened meanwhile" : "drain: the gate is open; seal it first");
    if (STATE(word) == MOOR_GATE_DRAINED)
        return MOOR_OK;
    if (word != *seq) {
        *seq = word;
        *cell = 0;
    }
    *cell = moor_ticket_next(state, *cell);
    if (*cell < MOOR_MAX_TICKETS)
        return MOOR_E_TIMEOUT;
    uint64_t drained = word + SEQ_ONE + MOOR_GATE_DRAINED - MOOR_GATE_SEALED;
    if (!atomic_compare_exchange_strong(&state->gate.word, &word, drained))
        return MOOR_E_TIMEOUT;
    count(state, MOOR_C_GATE_DRAIN_NS, since(atomic_load(&state->gate.sealed_at_ns), moor_now_ns()));
    return MOOR_OK;
}

/* At most every SWEEP_NS over all processes, however often a drain is called. */
void moor_gate_sweep(const moor_member *member)
{
    uint64_t last = atomic_load(&member->state->gate.swept_at_ns), now = moor_now_ns();
    if (last && now - last < SWEEP_NS && now > last)
        return;
    if (!atomic_compare_exchange_strong(&member->state->gate.swept_at_ns, &last, now))
        return;
    moor_ticket_sweep(member);
    moor_weights_close_dead(member);
}

static moor_status drain_enforce(const moor_member *member, drain_limit limit)
{
    moor_state *state = member->state;
    uint64_t deadline = moor_deadline(limit.late ? 0 : limit.timeout), seq = 0;
    uint32_t cell = 0;
    for (;;) {
        uint64_t now = moor_now_ns();
        moor_gate_sweep(member);
        uint32_t seen = atomic_load(&state->gate.settled); /* before the look: what settles after it changes the word */
        moor_status status = drain_look(state, &seq, &cell);
        if (status != MOOR_E_TIMEOUT)
            return status;
        if (now >= deadline)
            return fail_drain(state, limit);
        if (moor_interrupted())
            return interrupted_drain(state);
        moor_futex_wait(&state->gate.settled, seen, moor_interrupt_slice(min_ns(deadline, now + SLICE_NS)));
    }
}

static moor_status drain(const moor_member *member, drain_limit limit)
{
    if (member->gate_mode == MOOR_MODE_OFF)
        return MOOR_OK;
    if (member->gate_mode == MOOR_MODE_ENFORCE)
        return drain_enforce(member, limit);
    uint64_t seq = 0;
    uint32_t cell = 0;
    moor_gate_sweep(member);
    moor_status status = drain_look(member->state, &seq, &cell);
    if (status != MOOR_E_TIMEOUT)
        return status;
    char ids[640];
    uint32_t left = moor_ticket_list(member->state, ids, sizeof(ids));
    atomic_fetch_add(&member->state->gate.would_wait, left);
    moor_log(MOOR_LOG_INFO, "gate (observe): a drain would have waited for %u requests: %s", left, ids);
    return MOOR_OK;
}

static moor_status install(const moor_member *member, const char *label, int keep_in_flight, uint64_t *epoch)
{
    moor_state *state = member->state;
    uint64_t word = atomic_load(&state->gate.word);
    if (word & POISONED)
        return fail_poisoned(state, "install");
    if (member->gate_mode == MOOR_MODE_ENFORCE && STATE(word) == MOOR_GATE_OPEN)
        return moor_fail(MOOR_E_STATE, "install: the gate is open; seal it first");
    if (member->gate_mode == MOOR_MODE_ENFORCE && STATE(word) == MOOR_GATE_SEALED && !keep_in_flight && !(word & KEPT))
        return moor_fail(MOOR_E_STATE, "install: the gate is sealed, not drained, with %u requests in flight",
                         moor_ticket_count(state));
    uint64_t now = moor_weights_install(state, label);
    atomic_fetch_add(&state->gate.installs, 1);
    if (epoch)
        *epoch = now;
    return MOOR_OK;
}

/* Nobody is admitted to weights that are being loaded. */
static moor_status await_sessions(const moor_member *member, double timeout)
{
    char who[256];
    moor_state *state = member->state;
    uint64_t deadline = moor_deadline(timeout);
    for (;;) {
        uint32_t seen = atomic_load(&state->gate.settled);
        uint64_t now = moor_now_ns();
        moor_weights_close_dead(member); /* before the look: who looks once, too, learns that it ended badly */
        if (atomic_load(&state->gate.word) & POISONED)
            return fail_poisoned(state, "reopen"); /* whatever is open: this is what the caller has to know */
        if (!moor_weights_sessions(state, who, sizeof(who)))
            return MOOR_OK;
        if (now >= deadline)
            return moor_fail(MOOR_E_TIMEOUT, "reopen: a weight update is still open in process %s", who);
        if (moor_interrupted())
            return moor_fail(MOOR_E_INTERRUPTED,
                             "reopen: interrupted, a weight update is open in process %s; the gate stays closed", who);
        moor_futex_wait(&state->gate.settled, seen, moor_interrupt_slice(min_ns(deadline, now + SLICE_NS)));
    }
}

static moor_status reopen(const moor_member *member, double timeout)
{
    moor_state_gate *gate = &member->state->gate;
    if (member->gate_mode == MOOR_MODE_OFF)
        return MOOR_OK;
    if (member->gate_mode == MOOR_MODE_ENFORCE && STATE(atomic_load(&gate->word)) != MOOR_GATE_OPEN) {
        moor_status status = await_sessions(member, timeout);
        if (status)
            return status;
    }
    uint64_t sealed_at = atomic_load(&gate->sealed_at_ns), word = atomic_load(&gate->word);
    do {
        if (word & POISONED)
            return fail_poisoned(member->state, "reopen");
        if (STATE(word) == MOOR_GATE_OPEN) {
            moor_log(MOOR_LOG_INFO, "gate reopen: the gate is open already; nothing done");
            return MOOR_OK;
        }
    } while (!atomic_compare_exchange_weak(&gate->word, &word,
                                           ((word & ~(KEPT | OWN)) + SEQ_ONE - STATE(word)) + MOOR_GATE_OPEN));
    moor_futex_raise(&gate->opened);
    moor_futex_raise(&gate->settled); /* a drain that still waits learns it now */
    atomic_fetch_add(&gate->reopens, 1);
    count(member->state, MOOR_C_GATE_SEALED_NS, since(sealed_at, moor_now_ns()));
    return MOOR_OK;
}

int moor_gate_answers(const moor_member *member, uint32_t call, uint64_t *seq, uint32_t *cell)
{
    moor_state *state = member->state;
    uint64_t word = atomic_load(&state->gate.word);
    if (call == MOOR_GATE_FOR_ENTER)
        return STATE(word) == MOOR_GATE_OPEN;
    if ((word & POISONED) || STATE(word) == MOOR_GATE_OPEN)
        return 1;
    if (call == MOOR_GATE_FOR_REOPEN)
        return !moor_weights_sessions(state, NULL, 0);
    if (word & KEPT)
        return 1;
    if (word != *seq) {
        *seq = word;
        *cell = 0;
    }
    *cell = moor_ticket_next(state, *cell);
    return STATE(word) == MOOR_GATE_DRAINED || *cell == MOOR_MAX_TICKETS;
}

moor_status moor_gate_read(const moor_member *member, moor_gate_status *out)
{
    if (!out)
        return moor_fail(MOOR_E_INVALID, "gate_status: no place for the result");
    moor_state *state = member->state;
    moor_state_gate *gate = &state->gate;
    uint64_t word = atomic_load(&gate->word);
    moor_gate_status full = MOOR_GATE_STATUS_INIT;
    full.state = STATE(word);
    full.poisoned = (word & POISONED) != 0;
    full.flags = FLAGS_OF(word);
    full.epoch = atomic_load(&gate->epoch);
    full.in_flight = moor_ticket_count(state);
    for (uint32_t slot = 0; slot < MOOR_MAX_PROCESSES; slot++) {
        uint64_t waiting = atomic_load(&state->processes[slot].waiting);
        if (waiting && moor_member_alive(member, slot)) /* the dead do not wait, but left their number */
            full.waiting += waiting;
    }
    full.sealed_for_ns = full.state == MOOR_GATE_OPEN ? 0 : since(atomic_load(&gate->sealed_at_ns), moor_now_ns());
    full.seals = atomic_load(&gate->seals);
    full.installs = atomic_load(&gate->installs);
    full.reopens = atomic_load(&gate->reopens);
    full.would_wait = atomic_load(&gate->would_wait);
    moor_weights_label_of(state, full.epoch, full.label, sizeof(full.label));
    if (full.poisoned)
        poison_reason(state, full.poison_reason, sizeof(full.poison_reason));
    size_t head = offsetof(moor_gate_status, state);
    size_t size = out->size < sizeof(full) ? out->size : sizeof(full);
    if (size > head)
        memcpy((char *)out + head, (char *)&full + head, size - head);
    return MOOR_OK;
}

/* ---- the ABI's functions, and the same from outside ------------------------------------------------------------ */

moor_status moor_gate_seal(moor_process *process)
{
    moor_status status = moor_process_check(process, "gate_seal");
    if (status)
        return status;
    moor_member member = moor_member_of(process);
    return seal(&member);
}

moor_status moor_gate_close(moor_process *process, uint32_t flags, int *was_open)
{
    int open = 0;
    moor_status status = moor_process_check(process, "gate_close");
    if (status)
        return status;
    moor_member member = moor_member_of(process);
    if (member.gate_mode != MOOR_MODE_OFF)
        close_gate(&member, flags, &open);
    if (was_open)
        *was_open = open;
    return MOOR_OK;
}

moor_status moor_gate_note(moor_process *process, uint32_t set, uint32_t clear)
{
    moor_status status = moor_process_check(process, "gate_note");
    if (status)
        return status;
    uint64_t word = atomic_load(&process->state->gate.word), next;
    do {
        next = (word & ~FLAGS(clear & 7)) | FLAGS(set & 7);
        if (next == word)
            return MOOR_OK;
    } while (!atomic_compare_exchange_weak(&process->state->gate.word, &word, next + SEQ_ONE));
    if (set & MOOR_GATE_KEPT)
        moor_futex_raise(&process->state->gate.settled);
    return MOOR_OK;
}

moor_status moor_gate_drain(moor_process *process, double timeout)
{
    moor_status status = moor_process_check(process, "gate_drain");
    if (status)
        return status;
    moor_member member = moor_member_of(process);
    return drain(&member, (drain_limit){timeout, 0});
}

moor_status moor_gate_drain_late(moor_process *process, double timeout)
{
    moor_status status = moor_process_check(process, "gate_drain");
    if (status)
        return status;
    moor_member member = moor_member_of(process);
    return drain(&member, (drain_limit){timeout, 1});
}

moor_status moor_gate_install(moor_process *process, const char *label, int keep_in_flight, uint64_t *epoch)
{
    moor_status status = moor_process_check(process, "gate_install");
    if (status)
        return status;
    moor_member member = moor_member_of(process);
    return install(&member, label, keep_in_flight, epoch);
}

moor_status moor_gate_reopen(moor_process *process, double timeout)
{
    moor_status status = moor_process_check(process, "gate_reopen");
    if (status)
        return status;
    moor_member member = moor_member_of(process);
    return reopen(&member, timeout);
}

moor_status moor_gate_poison(moor_process *process, const char *reason)
{
    moor_status status = moor_process_check(process, "gate_poison");
    if (status)
        return status;
    if (!reason || !*reason)
        return moor_fail(MOOR_E_INVALID, "gate_poison: no reason; whoever acknowledges it must know what for");
    moor_gate_set_poison(process->state, reason);
    return MOOR_OK;
}

moor_status moor_gate_acknowledge(moor_process *process)
{
    moor_status status = moor_process_check(process, "gate_acknowledge");
    if (status)
        return status;
    moor_member member = moor_member_of(process);
    return acknowledge(&member);
}

moor_status moor_gate_get_status(moor_process *process, moor_gate_status *out)
{
    moor_status status = moor_process_check(process, "gate_status");
    if (status)
        return status;
    moor_member member = moor_member_of(process);
    return moor_gate_read(&member, out);
}

moor_status moor_gate_verb(const moor_member *member, const char *verb, const char *label, double timeout,
                           moor_gate_status *out)
{
    moor_status status;
    if (!verb)
        return moor_fail(MOOR_E_INVALID, "gate: no verb");
    if (!strcmp(verb, "seal"))
        status = seal(member);
    else if (!strcmp(verb, "drain"))
        status = drain(member, (drain_limit){timeout, 0});
    else if (!strcmp(verb, "install") || !strcmp(verb, "install-keep"))
        status = install(member, label, verb[sizeof("install") - 1] != 0, NULL);
    else if (!strcmp(verb, "reopen"))
        status = reopen(member, timeout);
    else if (!strcmp(verb, "acknowledge"))
        status = acknowledge(member);
    else if (!strcmp(verb, "status"))
        return moor_gate_read(member, out);
    else
        return moor_fail(MOOR_E_INVALID,
                         "gate: \"%.32s\" is none of seal, drain, install, install-keep, reopen, acknowledge, status",
                         verb);
    return status || !out ? status : moor_gate_read(member, out);
}
