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
#define MOOR_STATE_VERSION 1u

enum {
    MOOR_MAX_PROCESSES = 256,
    MOOR_MAX_TICKETS = 8192,
    MOOR_TICKET_WINDOW = 64, /* cells probed from the hash's own; a full window is MOOR_E_FULL, counted, never a wait */
    MOOR_MAX_RANKS = 1024,
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

typedef struct moor_state_process {
    _Alignas(64) _Atomic uint32_t used; /* 0 free, 1 being filled, 2 published */
    uint32_t pid, roles, rank, world_size, dp_rank;
    uint64_t started_ns;
    char engine[16];
    _Atomic uint64_t in_flight; /* tickets this process holds */
} moor_state_process;

/* One admitted request. `word`: 0 free; else serial << 8 | flags. */
typedef struct moor_state_ticket {
    _Alignas(128) _Atomic uint64_t word;
    moor_hash128 id_hash; /* of the id given to gate_enter */
    uint64_t epoch, t_enter_ns;
    _Atomic int32_t records_left; /* records that must still be stored */
    uint32_t process;             /* slot of the process that holds it */
    _Atomic uint64_t rows;
    char id[48]; /* cut; for messages only */
} moor_state_ticket;
enum { MOOR_TICKET_BUSY = 1, MOOR_TICKET_READY = 2, MOOR_TICKET_ENDED = 4, MOOR_TICKET_WAITING = 8 };

typedef struct moor_state_gate {
    _Alignas(64) _Atomic uint64_t word; /* seq << 8 | poisoned << 4 | MOOR_GATE_*; every transition raises seq */
    _Alignas(64) _Atomic uint32_t futex; /* raised at every transition and every settled ticket while sealed */
    _Atomic uint64_t epoch;
    _Atomic uint64_t sealed_at_ns;
    _Atomic uint64_t waiting, seals, installs, reopens, would_wait;
    _Atomic uint64_t next_serial;
    _Atomic uint32_t poison_lock; /* 0/1: poison_reason is being written; a reader that sees 1 shows what is there */
    char poison_reason[192];
    struct {
        _Atomic uint64_t epoch; /* 0 free; written last */
        char label[MOOR_LABEL_BYTES];
    } labels[MOOR_EPOCH_LABELS]; /* cell epoch % MOOR_EPOCH_LABELS */
} moor_state_gate;

typedef struct moor_state_weights {
    _Alignas(64) _Atomic uint64_t used_epoch; /* highest epoch under which a row was recorded or a request admitted */
    _Atomic uint64_t sessions;                /* update sessions ever begun */
    _Atomic uint32_t depth;                   /* sessions open */
    _Atomic uint64_t bumped_session;          /* session that already moved the epoch */
    _Atomic uint64_t seen[8];                 /* by MOOR_WEIGHTS_* */
    _Atomic uint32_t unknown;                 /* 1: an update ended badly, the version of the weights is unknown */
} moor_state_weights;

/* One meeting place. Decided once per generation: `word` = generation << 8 | outcome. */
typedef struct moor_state_barrier {
    _Alignas(64) _Atomic uint64_t word;
    _Atomic uint32_t futex;
    _Atomic uint32_t world; /* size of the round, set by its first arriver */
    _Atomic uint64_t arrived[MOOR_MAX_RANKS / 64];
    _Atomic uint32_t external; /* external arrivals in this generation */
    uint32_t reserved;
    _Atomic uint64_t arrived_slot[MOOR_MAX_RANKS / 4]; /* 16 bits a rank: process slot + 1 of the arriver, for liveness */
    _Atomic uint64_t passed, timeouts, broken, last_wait_ns, max_wait_ns;
    _Atomic uint32_t named; /* 0 free, 1 being named, 2 named */
    char name[MOOR_LABEL_BYTES];
} moor_state_barrier;

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
    _Alignas(64) _Atomic uint64_t head; /* next position to drain (the store's owner) */
    _Atomic uint64_t lost;              /* seals not pushed because the ring was full */
    _Alignas(64) moor_state_seal entry[MOOR_SEAL_RING];
} moor_state_seal_ring;

typedef struct moor_state {
    uint64_t magic;
    uint32_t version, size;
    char instance[64];
    uint64_t created_ns; /* CLOCK_REALTIME */
    _Atomic uint64_t counters[MOOR_COUNTERS_MAX]; /* by moor_counter index */
    moor_state_process processes[MOOR_MAX_PROCESSES];
    moor_state_gate gate;
    moor_state_weights weights;
    moor_state_cleanup cleanup;
    moor_state_barrier resume[MOOR_MAX_REPLICAS];
    moor_state_barrier named[MOOR_MAX_BARRIERS];
    moor_state_ticket tickets[MOOR_MAX_TICKETS];
    moor_state_seal_ring seals[MOOR_MAX_STORES]; /* sparse: pages that nobody touches cost nothing */
} moor_state;

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "the shared state needs lock-free 64-bit atomics");
_Static_assert(sizeof(moor_state_ticket) == 128, "a ticket is two cache lines");

#endif
