/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.h — layout of the instance's `state` file, the memory that all processes of one server share.
 *
 * Private to libmoor. Created and mapped by plugin/state.c; gate, barrier, weights and cleanup (hooks/) work on their own
 * part of it and on nothing else; seal rings are written by engine cores and drained by the store that owns the ring.
 * Everything shared is an atomic or is written once before it is published by one. Any process may die at any
 * instruction: no part may hold a lock that a dead process cannot give up, so there are no mutexes here, only words that move by
 * compare-and-swap and futexes on them. Liveness is never a pid: each process holds an fcntl lock on byte `slot` of
 * the file `locks` in the instance directory (process-owned, not inherited by fork, ends with the process).
 */
#ifndef MOOR_STATE_H
#define MOOR_STATE_H

#include <stdatomic.h>
#include <stdint.h>

#include "counters.h"

#define MOOR_STATE_MAGIC 0x315454534D4F4F4DULL /* "MOOMSTT1" little-endian */
#define MOOR_STATE_VERSION 3u

enum {
    MOOR_MAX_PROCESSES = 256, /* a slot is 8 bits of a ticket's word */
    MOOR_MAX_TICKETS = 8192,
    MOOR_TICKET_WINDOW = 64, /* cells probed from the hash's own; a full window is MOOR_E_FULL, and counted */
    MOOR_TICKET_RECORDS = 65535,
    MOOR_MAX_RANKS = 1024,
    MOOR_MAX_EXTERNAL = 64, /* external arrivals of a resume barrier */
    MOOR_MAX_REPLICAS = 64,
    MOOR_MAX_BARRIERS = 16, /* named barriers */
    MOOR_EPOCH_LABELS = 256,
    MOOR_LABEL_BYTES = 64,
    MOOR_ID_BYTES = 96,
    MOOR_MAX_STORES = 64,
    MOOR_SEAL_RING = 4096
};

typedef struct moor_hash128 {
    uint64_t lo, hi;
} moor_hash128; /* XXH3-128 of an id; the all-zero value means "none" */

/* Text that is read while it may be rewritten: bytes in 64-bit atomics, NUL terminated (hooks/shared_text.h). */
#define MOOR_SHARED_TEXT(name, bytes) _Atomic uint64_t name[(bytes) / 8]

typedef struct moor_state_process {
    _Alignas(64) _Atomic uint32_t used; /* 0 free, 1 being filled, 2 published */
    uint32_t pid, roles, rank, world_size, dp_rank;
    uint64_t started_ns;
    char engine[16];
    _Atomic uint64_t waiting; /* requests of this process that wait at the gate; zeroed by the slot's next owner */
    MOOR_SHARED_TEXT(device, MOOR_LABEL_BYTES); /* the one it arrived with at the resume barrier last */
} moor_state_process;

/*
 * One admitted request. word = serial:32 | owner's slot:8 | records still to be stored:16 | flags:8; flags 0 = free, the serial
 * stays, so that a ticket of an earlier use is told from this one's. One word, because "ended" and "stored" settle a request
 * together and exactly one of the two may see that it was the last. Everything else is written while BUSY.
 */
typedef struct moor_state_ticket {
    _Alignas(128) _Atomic uint64_t word;
    _Atomic uint64_t hash_lo, hash_hi; /* of the id given to gate_enter */
    _Atomic uint64_t epoch, t_enter_ns;
    _Atomic uint64_t rows;    /* serial:32 | rows of the records stored so far:32 */
    MOOR_SHARED_TEXT(id, 80); /* cut; for receipts and messages only */
} moor_state_ticket;
enum { MOOR_TICKET_BUSY = 1, MOOR_TICKET_READY = 2, MOOR_TICKET_ENDED = 4 };

typedef struct moor_state_gate {
    _Alignas(64) _Atomic uint64_t word; /* seq << 8 | poisoned << 4 | MOOR_GATE_*; every transition raises seq */
    _Atomic uint64_t epoch;             /* of the weights; starts at 1 */
    _Atomic uint32_t cells_wanted; /* 1: a request found no ticket cell; whoever frees one takes it back and wakes */
    _Atomic uint32_t full_told;    /* 1: the log has said that the table was full */
    _Alignas(64) _Atomic uint32_t opened; /* futex of requests that wait: raised by reopen */
    _Atomic uint32_t
        settled; /* futex of everybody else: raised by reopen, poison, and what settles while not open or wanted */
    _Atomic uint64_t sealed_at_ns, swept_at_ns, epoch_at_seal, installed_epoch;
    _Atomic uint32_t sealed_by; /* process slot + 1; 0 a consumer */
    _Atomic uint64_t seals, installs, reopens, would_wait;
    _Atomic uint64_t poisons; /* poisonings ever; the last four reasons are kept */
    struct {
        _Atomic uint64_t number; /* 0 while being written, else which poisoning this is, from 1 */
        MOOR_SHARED_TEXT(text, 192);
    } poison[4];
    struct {
        _Atomic uint64_t epoch; /* 0 while free or being written */
        MOOR_SHARED_TEXT(label, MOOR_LABEL_BYTES);
    } labels[MOOR_EPOCH_LABELS]; /* cell epoch % MOOR_EPOCH_LABELS */
} moor_state_gate;

/* Update sessions. A session lasts while any process' bit is set; it may move the epoch once by itself. */
typedef struct moor_state_weights {
    _Alignas(64) _Atomic uint64_t used_epoch; /* highest epoch under which a row was recorded or a request admitted */
    _Alignas(64) _Atomic uint64_t session;    /* number of the open or last session */
    _Atomic uint64_t moved_session;           /* the session that moved the epoch last */
    _Atomic uint64_t open[MOOR_MAX_PROCESSES / 64]; /* a bit per process slot: it is inside the session */
    _Atomic uint32_t depth[MOOR_MAX_PROCESSES];     /* nesting; another front end may end what the slot's began */
    _Atomic uint32_t kinds[MOOR_MAX_PROCESSES];     /* bits 1 << MOOR_WEIGHTS_* begun in it */
    _Atomic uint64_t seen[8];                       /* by MOOR_WEIGHTS_* */
    _Atomic uint64_t
        unknown; /* 0, or 1 + number of the session that ended badly: the version of the weights is unknown */
} moor_state_weights;

/*
 * One meeting place. The generation in `word` is the open round; deciding it is one compare-and-swap of the word to the next
 * generation, which also shifts the outcome in, so that it happens once and for everyone. A rank has arrived in the open
 * round when its cell carries that generation: nothing is ever reset. Cell 0 = never arrived.
 */
typedef struct moor_state_barrier {
    _Alignas(64) _Atomic uint64_t word; /* generation:32 | 16 outcomes of 2 bits, the last round's lowest */
    _Atomic uint64_t size;              /* generation:32 | external:16 | world:16; set by the round's first rank */
    _Atomic uint32_t futex;             /* raised by every arrival and decision */
    _Atomic uint64_t duty_ns;           /* when the next waiter looks for the dead and for holds */
    _Atomic uint64_t passed, timeouts, broken, last_wait_ns, max_wait_ns;
    _Atomic uint32_t named; /* 0 free, 1 being named, 2 named */
    _Atomic uint32_t missing, holders;
    _Atomic uint64_t told; /* 1 + generation that text, missing and holders are about; 0 while they are written */
    MOOR_SHARED_TEXT(text, 512);
    char name[MOOR_LABEL_BYTES];
    _Atomic uint64_t arrived[MOOR_MAX_RANKS];     /* generation:32 | process slot + 1, or MOOR_BARRIER_STRANGER */
    _Atomic uint64_t external[MOOR_MAX_EXTERNAL]; /* the same for external arrivals */
} moor_state_barrier;
enum { MOOR_BARRIER_STRANGER = 0xFFFF }; /* arrived from a process without a slot */

typedef struct moor_state_cleanup {
    _Alignas(64) _Atomic uint64_t count[8][8]; /* [phase][kind] */
    _Atomic uint64_t ns[8][8];
} moor_state_cleanup;

typedef struct moor_state_seal {
    _Atomic uint64_t seq; /* position + 1 when published; the drainer frees it by head */
    moor_hash128 id, alias;
    uint64_t rows_expected;
    uint32_t flags, reserved;
} moor_state_seal;

typedef struct moor_state_seal_ring {
    _Alignas(64) _Atomic uint64_t tail; /* next position to claim (producers) */
    _Atomic uint32_t ready; /* a store has opened: the entries have memory; until then nobody touches them */
    _Alignas(64) _Atomic uint64_t head; /* next position to drain (the store's owner) */
    _Atomic uint64_t lost;              /* seals not pushed because the ring was full */
    _Alignas(64) moor_state_seal entry[MOOR_SEAL_RING];
} moor_state_seal_ring;

typedef struct moor_state {
    uint64_t magic;
    uint32_t version, size;
    char instance[64];
    uint64_t created_ns;                          /* CLOCK_REALTIME */
    _Atomic uint64_t counters[MOOR_COUNTERS_MAX]; /* by moor_counter index */
    _Alignas(64) _Atomic uint32_t
        recording_off; /* 1: the worker that should record cannot; undone when a store opens */
    MOOR_SHARED_TEXT(recording_off_why, 192);
    moor_state_process processes[MOOR_MAX_PROCESSES];
    moor_state_gate gate;
    moor_state_weights weights;
    moor_state_cleanup cleanup;
    moor_state_barrier resume[MOOR_MAX_REPLICAS];
    moor_state_barrier named[MOOR_MAX_BARRIERS];
    moor_state_ticket tickets[MOOR_MAX_TICKETS];
    moor_state_seal_ring seals[MOOR_MAX_STORES]; /* sparse: entries have memory when a store opens */
} moor_state;

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
               "the shared state needs lock-free 64-bit atomics");
_Static_assert(sizeof(moor_state_ticket) == 128, "a ticket is two cache lines");
_Static_assert(MOOR_MAX_PROCESSES == 256, "a ticket's word has 8 bits for the slot");

#endif
