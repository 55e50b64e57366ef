/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.h — the request gate: no request straddles a weight change unnoticed (SEMANTICS 4). Called by the adapters (front end:
 * enter, leave; whoever runs the update: seal, drain, install, reopen), by consumers through moor_gate_verb, and by the store, which
 * reports stored records. Owns state->gate; one word moved by compare-and-swap, no lock.
 *
 * States: open → sealed → drained → open; poisoned is a bit beside them, sticky until acknowledged: it blocks drain, install and
 * reopen, in every mode. What is a no-op (seal of a sealed gate, reopen of an open one, acknowledge without poison, drain of a drained
 * gate) returns MOOR_OK, changes nothing and says so in the log at level info.
 *
 * Modes (config gate.mode). enforce: as above. observe: enter admits at once and counts would_wait; drain does not wait (it
 * logs what was in flight); install is allowed in any state; nothing is refused but for poison. off: enter gives an empty
 * ticket, seal, drain and reopen do nothing; install still moves the epoch.
 *
 * No cell of the ticket table is free (MOOR_MAX_TICKETS, fewer when ids collide): in enforce a request waits for one as at a closed
 * gate, so that no drain misses it; in observe it passes without a ticket. Counted, and said once in the log.
 *
 * An event loop looks: enter, drain and reopen with timeout 0 do not sleep, and watch.h tells when to look again.
 */
#ifndef MOOR_GATE_H
#define MOOR_GATE_H

#include "member.h"

/* moor_api members; contracts in moor.h. */
moor_status moor_gate_enter(moor_process *process, const char *id, uint32_t id_len, uint32_t records, double timeout,
                            moor_ticket *out);
/* The further looks of a request that waits in an event loop: timeout 0, and nothing is counted a second time. */
moor_status moor_gate_enter_again(moor_process *process, const char *id, uint32_t id_len, uint32_t records,
                                  moor_ticket *out);
/* delta: so many more requests (or fewer) wait in this process' event loops. */
moor_status moor_gate_waiting(moor_process *process, int delta);
/* outcome FAILED says that no record will come (refused before the engine had it): the ticket settles at once. */
moor_status moor_gate_leave(moor_process *process, moor_ticket *ticket, uint32_t outcome, moor_receipt *receipt);
moor_status moor_gate_fewer(moor_process *process, const moor_ticket *ticket, uint32_t n);
moor_status moor_gate_seal(moor_process *process);
moor_status moor_gate_close(moor_process *process, uint32_t flags, int *was_open);
moor_status moor_gate_note(moor_process *process, uint32_t set, uint32_t clear);
moor_status moor_gate_drain(moor_process *process, double timeout);
/* The last look of a drain that has waited `timeout` in an event loop: counted and told as one of that length. */
moor_status moor_gate_drain_late(moor_process *process, double timeout);
moor_status moor_gate_install(moor_process *process, const char *label, int keep_in_flight, uint64_t *epoch);
/* enforce: waits until no weight update session is open, so that nobody is admitted to half-loaded weights. */
moor_status moor_gate_reopen(moor_process *process, double timeout);
moor_status moor_gate_poison(moor_process *process, const char *reason);
moor_status moor_gate_acknowledge(moor_process *process);
/* The member gate_status; that name is the struct's. */
moor_status moor_gate_get_status(moor_process *process, moor_gate_status *out);

/* Once, by whoever creates the state, before anybody else maps it: the epoch starts at 1. */
void moor_gate_init(moor_state *state);

/* client_gate for a member: verb is "seal", "drain", "install", "install-keep", "reopen", "acknowledge" or "status". out may be
 * NULL except for "status"; it is filled on success. */
moor_status moor_gate_verb(const moor_member *member, const char *verb, const char *label, double timeout,
                           moor_gate_status *out);
moor_status moor_gate_read(const moor_member *member, moor_gate_status *out);
void moor_gate_set_poison(moor_state *state, const char *reason);

/* A record became terminal in the store (sealed and finalised, complete or not; also a seal for a request of which no row was
 * ever recorded). id: the core's id; alias: the front end's, all-zero when none. The ticket of either has one record less to wait
 * for. Any thread of any process; takes microseconds, no system call unless the gate is closed. 1 when a ticket was found: a store that
 * knows further ids tries them only after 0. */
int moor_gate_record_stored(moor_state *state, moor_hash128 id, moor_hash128 alias, uint64_t rows);

/* A ticket's cell was freed, or an update session ended: wakes who may wait for that. */
void moor_gate_settled(moor_state *state);
/* Looks for the dead: their tickets, and the sessions that they left open. Poisons in their name. */
void moor_gate_sweep(const moor_member *member);
/* 1 when `call` (MOOR_GATE_FOR_*) with timeout 0 would answer otherwise than that it has to wait; MOOR_GATE_FOR_ENTER: 1 while open. *seq and
 * *cell are 0 at first, and then the caller's to keep: how far a drain's look came. No system call. */
int moor_gate_answers(const moor_member *member, uint32_t call, uint64_t *seq, uint32_t *cell);

#endif
