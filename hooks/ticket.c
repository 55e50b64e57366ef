/* SPDX-License-Identifier: Apache-2.0 */
#include "ticket.h"

#include <stdio.h>

#include "gate.h"
#include "shared_text.h"

#define RECORD ((uint64_t)1 << MOOR_TICKET_RECORDS_SHIFT)

/* What is left of a word when its cell is freed: the serial. */
static uint64_t freed(uint64_t word)
{
    return word >> MOOR_TICKET_SERIAL_SHIFT << MOOR_TICKET_SERIAL_SHIFT;
}

static uint32_t cell_of(uint64_t hash_lo, uint32_t probe)
{
    return (uint32_t)(hash_lo + probe) & (MOOR_MAX_TICKETS - 1);
}

int moor_ticket_claim(moor_state *state, uint32_t slot, uint32_t records, moor_hash128 hash, uint32_t *index,
                      uint64_t *word)
{
    for (uint32_t probe = 0; probe < MOOR_TICKET_WINDOW; probe++) {
        uint32_t at = cell_of(hash.lo, probe);
        /* seq_cst: a second look comes after gate.cells_wanted, in one order with who frees a cell and looks there. */
        uint64_t old = atomic_load(&state->tickets[at].word);
        if (old & MOOR_TICKET_FLAGS)
            continue;
        uint32_t serial = moor_ticket_serial(old) + 1;
        if (!serial)
            serial = 1;
        uint64_t claimed = (uint64_t)serial << MOOR_TICKET_SERIAL_SHIFT | (uint64_t)slot << MOOR_TICKET_OWNER_SHIFT |
                           (uint64_t)records << MOOR_TICKET_RECORDS_SHIFT | MOOR_TICKET_BUSY;
        if (atomic_compare_exchange_strong(&state->tickets[at].word, &old, claimed)) {
            *index = at;
            *word = claimed;
            return 1;
        }
    }
    return 0;
}

void moor_ticket_publish(moor_state *state, uint32_t index, uint64_t word, moor_hash128 hash, const char *id,
                         uint32_t id_len, uint64_t epoch, uint64_t now)
{
    moor_state_ticket *cell = &state->tickets[index];
    atomic_store_explicit(&cell->hash_lo, hash.lo, memory_order_release);
    atomic_store_explicit(&cell->hash_hi, hash.hi, memory_order_release);
    atomic_store_explicit(&cell->epoch, epoch, memory_order_release);
    atomic_store_explicit(&cell->t_enter_ns, now, memory_order_release);
    atomic_store_explicit(&cell->rows, freed(word), memory_order_release);
    MOOR_TEXT_PUT(cell->id, id, id_len);
    atomic_store_explicit(&cell->word, word - MOOR_TICKET_BUSY + MOOR_TICKET_READY, memory_order_release);
}

void moor_ticket_back_out(moor_state *state, uint32_t index, uint64_t word)
{
    atomic_store(&state->tickets[index].word, freed(word));
    moor_gate_settled(state);
}

/* Reads the cell while its word is `word`; 0 when it changed meanwhile in more than its count of records. */
static int look(moor_state_ticket *cell, uint64_t word, moor_ticket_view *view)
{
    view->epoch = atomic_load_explicit(&cell->epoch, memory_order_acquire);
    view->t_enter_ns = atomic_load_explicit(&cell->t_enter_ns, memory_order_acquire);
    view->rows = (uint32_t)atomic_load_explicit(&cell->rows, memory_order_acquire);
    MOOR_TEXT_GET(cell->id, view->id, sizeof(view->id));
    uint64_t now = atomic_load_explicit(&cell->word, memory_order_relaxed);
    return moor_ticket_serial(now) == moor_ticket_serial(word) && (now & MOOR_TICKET_FLAGS);
}

static moor_state_ticket *cell_of_ticket(moor_state *state, uint64_t ticket, uint64_t *word)
{
    uint32_t index = ticket & 0xFFFF;
    if (index >= MOOR_MAX_TICKETS)
        return NULL;
    moor_state_ticket *cell = &state->tickets[index];
    *word = atomic_load_explicit(&cell->word, memory_order_acquire);
    if (moor_ticket_serial(*word) != ticket >> 16 || (*word & MOOR_TICKET_FLAGS) != MOOR_TICKET_READY)
        return NULL;
    return cell;
}

int moor_ticket_look(moor_state *state, uint64_t ticket, moor_ticket_view *view)
{
    uint64_t word;
    moor_state_ticket *cell = cell_of_ticket(state, ticket, &word);
    return cell && look(cell, word, view);
}

int moor_ticket_end(moor_state *state, uint64_t ticket, uint32_t outcome, moor_ticket_view *view)
{
    uint64_t word;
    moor_state_ticket *cell = cell_of_ticket(state, ticket, &word);
    if (!cell || (view && !look(cell, word, view)))
        return 0;
    uint64_t next;
    do {
        if (moor_ticket_serial(word) != ticket >> 16 || (word & MOOR_TICKET_FLAGS) != MOOR_TICKET_READY)
            return 0;
        int settled = !moor_ticket_records(word) || outcome == MOOR_OUTCOME_FAILED || outcome == MOOR_OUTCOME_UNKNOWN;
        next = settled ? freed(word) : word | MOOR_TICKET_ENDED;
    } while (!atomic_compare_exchange_weak(&cell->word, &word, next));
    if (!(next & MOOR_TICKET_FLAGS))
        moor_gate_settled(state);
    return 1;
}

int moor_ticket_fewer(moor_state *state, uint64_t ticket, uint32_t n)
{
    uint64_t word, next;
    moor_state_ticket *cell = cell_of_ticket(state, ticket, &word);
    if (!cell)
        return 0;
    do {
        if (moor_ticket_serial(word) != ticket >> 16 || (word & MOOR_TICKET_FLAGS) != MOOR_TICKET_READY)
            return 0;
        uint32_t left = moor_ticket_records(word);
        next = word - RECORD * (n < left ? n : left);
    } while (!atomic_compare_exchange_weak(&cell->word, &word, next));
    return 1;
}

static void add_rows(moor_state_ticket *cell, uint64_t word, uint64_t rows)
{
    uint64_t old = atomic_load(&cell->rows), next;
    do {
        if (freed(old) != freed(word))
            return; /* the cell has another ticket by now */
        uint64_t sum = (uint32_t)old + rows;
        next = freed(word) | (sum < UINT32_MAX ? sum : UINT32_MAX);
    } while (!atomic_compare_exchange_weak(&cell->rows, &old, next));
}

static int waits_for_record(uint64_t word)
{
    return (word & MOOR_TICKET_READY) && moor_ticket_records(word);
}

/* One record less to wait for; 0 when the cell has another ticket by now, or this one waits for none. */
static int take_record(moor_state *state, moor_state_ticket *cell, uint64_t word, uint64_t rows)
{
    uint64_t serial = freed(word), next;
    add_rows(cell, word, rows); /* before the record counts as stored: a leave that finds it stored has the rows */
    do {
        if (freed(word) != serial || !waits_for_record(word))
            return 0;
        next = word - RECORD;
        if ((next & MOOR_TICKET_ENDED) && !moor_ticket_records(next))
            next = freed(next);
    } while (!atomic_compare_exchange_weak(&cell->word, &word, next));
    if (!(next & MOOR_TICKET_FLAGS))
        moor_gate_settled(state);
    return 1;
}

/* Finds a ticket of this hash that waits for a record; 0 when there is none. */
static int record_stored(moor_state *state, moor_hash128 hash, uint64_t rows)
{
    for (uint32_t probe = 0; probe < MOOR_TICKET_WINDOW; probe++) {
        moor_state_ticket *cell = &state->tickets[cell_of(hash.lo, probe)];
        uint64_t word = atomic_load_explicit(&cell->word, memory_order_acquire);
        if (!waits_for_record(word) || atomic_load_explicit(&cell->hash_lo, memory_order_acquire) != hash.lo ||
            atomic_load_explicit(&cell->hash_hi, memory_order_acquire) != hash.hi)
            continue;
        if (take_record(state, cell, word, rows))
            return 1;
    }
    return 0;
}

int moor_gate_record_stored(moor_state *state, moor_hash128 id, moor_hash128 alias, uint64_t rows)
{
    if (!moor_hash_none(id) && record_stored(state, id, rows))
        return 1;
    return !moor_hash_none(alias) && !moor_hash_equal(id, alias) && record_stored(state, alias, rows);
}

uint32_t moor_ticket_next(moor_state *state, uint32_t from)
{
    while (from < MOOR_MAX_TICKETS && !(atomic_load(&state->tickets[from].word) & MOOR_TICKET_FLAGS))
        from++;
    return from;
}

uint32_t moor_ticket_count(moor_state *state)
{
    uint32_t count = 0;
    for (uint32_t at = moor_ticket_next(state, 0); at < MOOR_MAX_TICKETS; at = moor_ticket_next(state, at + 1))
        count++;
    return count;
}

/* Appends ", item" while it fits; once it does not, the list ends with ", …". */
static void append(char *text, size_t size, size_t *used, const char *item)
{
    const size_t tail = sizeof(", …");
    if (*used == SIZE_MAX)
        return;
    size_t need = strlen(item) + (*used ? 2 : 0);
    if (*used + need + tail > size) {
        if (*used + tail <= size)
            memcpy(text + *used, ", …", tail);
        *used = SIZE_MAX;
        return;
    }
    *used += (size_t)snprintf(text + *used, size - *used, "%s%s", *used ? ", " : "", item);
}

uint32_t moor_ticket_list(moor_state *state, char *text, size_t size)
{
    uint32_t count = 0;
    size_t used = 0;
    text[0] = 0;
    for (uint32_t at = moor_ticket_next(state, 0); at < MOOR_MAX_TICKETS; at = moor_ticket_next(state, at + 1)) {
        moor_state_ticket *cell = &state->tickets[at];
        uint64_t word = atomic_load(&cell->word);
        moor_ticket_view view;
        char item[128];
        if (!(word & MOOR_TICKET_READY) || !look(cell, word, &view))
            continue; /* in the act of being admitted or settled */
        count++;
        if (word & MOOR_TICKET_ENDED)
            snprintf(item, sizeof(item), "%s (%u records not stored)", view.id, moor_ticket_records(word));
        else
            snprintf(item, sizeof(item), "%s (running)", view.id);
        append(text, size, &used, item);
    }
    return count;
}

/* ---- outcomes that nobody can know any more -------------------------------------------------------------------- */

enum { SWEEP_BATCH = 64, EVERY_SLOT = MOOR_MAX_PROCESSES };

typedef struct sweep {
    moor_state *state;
    uint32_t count;
    uint32_t index[SWEEP_BATCH];
    uint64_t word[SWEEP_BATCH];
} sweep;

/* Collects tickets that are `ended` or not, of one slot or of all. BUSY cells count as not ended: the holder died inside enter. */
static void collect(sweep *found, uint32_t slot, int ended)
{
    moor_state *state = found->state;
    found->count = 0;
    for (uint32_t at = moor_ticket_next(state, 0); at < MOOR_MAX_TICKETS && found->count < SWEEP_BATCH;
         at = moor_ticket_next(state, at + 1)) {
        uint64_t word = atomic_load(&state->tickets[at].word);
        if (!(word & MOOR_TICKET_FLAGS) || !(word & MOOR_TICKET_ENDED) != !ended)
            continue;
        if (slot != EVERY_SLOT && moor_ticket_owner(word) != slot)
            continue;
        found->index[found->count] = at;
        found->word[found->count++] = word;
    }
}

/* Poisons in the name of what was collected, then frees it: in this order, so that no drain finds the table empty and the gate
 * clean. A request that was not admitted yet (BUSY) is nobody's loss. */
static void give_up(sweep *found, const char *why)
{
    char ids[160], reason[192];
    size_t used = 0;
    uint32_t lost = 0;
    ids[0] = 0;
    for (uint32_t i = 0; i < found->count; i++) {
        moor_ticket_view view;
        if (!(found->word[i] & MOOR_TICKET_READY) ||
            !look(&found->state->tickets[found->index[i]], found->word[i], &view))
            continue;
        lost++;
        append(ids, sizeof(ids), &used, view.id);
    }
    if (lost) {
        snprintf(reason, sizeof(reason), "%s: %u request%s of unknown outcome: ", why, lost, lost == 1 ? "" : "s");
        size_t at = strlen(reason);
        snprintf(reason + at, sizeof(reason) - at, "%.*s", (int)(sizeof(reason) - at - 1), ids);
        moor_gate_set_poison(found->state, reason);
    }
    for (uint32_t i = 0; i < found->count; i++)
        atomic_compare_exchange_strong(&found->state->tickets[found->index[i]].word, &found->word[i],
                                       freed(found->word[i]));
    if (found->count)
        moor_gate_settled(found->state);
}

static void end_slot(const moor_member *member, uint32_t slot, int known_dead)
{
    sweep found = {.state = member->state};
    char why[64];
    do {
        collect(&found, slot, 0);
        /* Asked after collecting: whoever took the slot over meanwhile is alive, and then nothing is touched. */
        if (!known_dead && moor_member_alive(member, slot))
            return;
        snprintf(why, sizeof(why), "process %u ended", member->state->processes[slot].pid);
        give_up(&found, why);
    } while (found.count == SWEEP_BATCH);
}

void moor_ticket_slot_ended(const moor_member *member, uint32_t slot)
{
    end_slot(member, slot, 1);
}

int moor_ticket_slot_busy(moor_state *state, uint32_t slot)
{
    sweep found = {.state = state};
    collect(&found, slot, 0);
    return found.count != 0;
}

/* Requests that ended, and whose records no store is left to keep. */
static void end_unstored(const moor_member *member)
{
    int workers = 0;
    for (uint32_t slot = 0; slot < MOOR_MAX_PROCESSES; slot++) {
        const moor_state_process *process = &member->state->processes[slot];
        if (atomic_load(&process->used) != 2 || !(process->roles & MOOR_ROLE_WORKER))
            continue;
        workers++;
        if (moor_member_alive(member, slot))
            return;
    }
    if (!workers)
        return; /* none ever joined, or all left in order: the deadline of the drain decides */
    sweep found = {.state = member->state};
    do {
        collect(&found, EVERY_SLOT, 1);
        give_up(&found, "no worker is left to store the records");
    } while (found.count == SWEEP_BATCH);
}

void moor_ticket_sweep(const moor_member *member)
{
    moor_state *state = member->state;
    uint8_t judged[MOOR_MAX_PROCESSES] = {0};
    int any_ended = 0;
    for (uint32_t at = moor_ticket_next(state, 0); at < MOOR_MAX_TICKETS; at = moor_ticket_next(state, at + 1)) {
        uint64_t word = atomic_load(&state->tickets[at].word);
        uint32_t slot = moor_ticket_owner(word);
        any_ended |= (word & MOOR_TICKET_ENDED) != 0;
        if (!(word & MOOR_TICKET_FLAGS) || judged[slot])
            continue;
        judged[slot] = 1;
        if (!moor_member_alive(member, slot))
            end_slot(member, slot, 0);
    }
    if (any_ended)
        end_unstored(member);
}
