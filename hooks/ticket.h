/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ticket.h — the table of admitted requests in the shared state: claim, end, record stored, settle. Called by gate.c only, but for
 * moor_gate_record_stored (gate.h) which the store calls. Owns state->tickets; lock-free, any process may die at any instruction.
 *
 * Why seal + drain never miss an admitted request. Enter: (1) claims a cell by compare-and-swap, (2) then loads gate.word; it is
 * admitted only if that says open, otherwise it gives the cell back. Seal: (3) moves gate.word by compare-and-swap. Drain:
 * (4) then loads every cell. All four are seq_cst, so they have one order. If (2) comes before (3), then (1) comes
 * before (4): the drain sees the cell taken. If (2) comes after (3), the request is not admitted. The wake-up is the same argument
 * backwards: settling stores the cell (5), then loads gate.word (6); the drain's seal (3) precedes its load of the futex word and the
 * scan. If (6) read "open", it came before (3), so the scan sees the cell free; else the futex word is raised after (5), and
 * the drain either reads the raised word before its scan, or its futex wait returns.
 */
#ifndef MOOR_TICKET_H
#define MOOR_TICKET_H

#include "../allocator/idhash.h"
#include "member.h"

enum {
    MOOR_TICKET_FLAGS = 0xFF,
    MOOR_TICKET_RECORDS_SHIFT = 8,
    MOOR_TICKET_OWNER_SHIFT = 24,
    MOOR_TICKET_SERIAL_SHIFT = 32
};

static inline uint32_t moor_ticket_serial(uint64_t word)
{
    return (uint32_t)(word >> MOOR_TICKET_SERIAL_SHIFT);
}

static inline uint32_t moor_ticket_owner(uint64_t word)
{
    return (uint32_t)(word >> MOOR_TICKET_OWNER_SHIFT) & 0xFF;
}

static inline uint32_t moor_ticket_records(uint64_t word)
{
    return (uint32_t)(word >> MOOR_TICKET_RECORDS_SHIFT) & 0xFFFF;
}

/* The caller's name of a ticket: serial and cell. Never 0; MOOR_TICKET_NONE is the ticket of a gate that is off. */
#define MOOR_TICKET_NONE UINT64_MAX

static inline uint64_t moor_ticket_id(uint32_t index, uint64_t word)
{
    return (uint64_t)moor_ticket_serial(word) << 16 | index;
}

/* Takes a free cell of the id's window, BUSY; 1, or 0 when the window is full. *word is the cell's word. */
int moor_ticket_claim(moor_state *state, uint32_t slot, uint32_t records, moor_hash128 hash, uint32_t *index,
                      uint64_t *word);
/* Fills the cell and makes it READY. The caller has seen the gate open after the claim. */
void moor_ticket_publish(moor_state *state, uint32_t index, uint64_t word, moor_hash128 hash, const char *id,
                         uint32_t id_len, uint64_t epoch, uint64_t now);
/* Gives a BUSY cell back: the request was not admitted. */
void moor_ticket_back_out(moor_state *state, uint32_t index, uint64_t word);

typedef struct moor_ticket_view {
    uint64_t epoch, t_enter_ns, rows;
    char id[80];
} moor_ticket_view;

/* The backend ended. outcome FAILED and UNKNOWN: no record is waited for any more. 1 and *view, or 0 when the ticket is not (or
 * no longer) in flight. */
int moor_ticket_end(moor_state *state, uint64_t ticket, uint32_t outcome, moor_ticket_view *view);
/* n records less to wait for (all, when there are fewer than n); 0 when the ticket is not in flight. */
int moor_ticket_fewer(moor_state *state, uint64_t ticket, uint32_t n);
/* Reads a ticket that is in flight; 0 when it is not. */
int moor_ticket_look(moor_state *state, uint64_t ticket, moor_ticket_view *view);

/* Cells taken: admitted and not settled, or in the act of being admitted. */
uint32_t moor_ticket_count(moor_state *state);
/* First taken cell at or after `from`; MOOR_MAX_TICKETS when none. */
uint32_t moor_ticket_next(moor_state *state, uint32_t from);
/* Appends "id (running)", "id (2 records not stored)" of the taken cells to text, comma separated, as many as fit, then ", …".
 * Returns how many there are. */
uint32_t moor_ticket_list(moor_state *state, char *text, size_t size);

/* Looks for tickets whose outcome can no longer be known: the holder died before it ended, or the backend ended, the record is
 * not stored and every worker is dead. Poisons the gate in their name, then frees them. */
void moor_ticket_sweep(const moor_member *member);
void moor_ticket_slot_ended(const moor_member *member, uint32_t slot);
/* 1 when the slot's process has tickets whose backend has not ended. */
int moor_ticket_slot_busy(moor_state *state, uint32_t slot);

#endif
