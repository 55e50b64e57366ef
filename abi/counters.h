/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counters.h — every counter of an instance, once. The list makes the enum, the Prometheus text and the name lookup of
 * moor_api.count. Append only within a state version: the index is the cell in the shared state.
 * X(id, prometheus name without the "moor_" prefix, help)
 */
#ifndef MOOR_COUNTERS_H
#define MOOR_COUNTERS_H

#define MOOR_COUNTERS(X)                                                                                               \
    X(REQUESTS, "requests_total", "Requests whose record was created")                                                 \
    X(SEALED, "records_sealed_total", "Records sealed")                                                                \
    X(INCOMPLETE, "records_incomplete_total", "Records sealed with missing rows")                                      \
    X(FREED, "records_freed_total", "Records freed")                                                                   \
    X(EXPIRED, "records_expired_total", "Records nobody opened, freed by the keep policy")                             \
    X(STEPS, "steps_total", "Steps committed")                                                                         \
    X(STEPS_FAILED, "steps_failed_total", "Steps abandoned or failed")                                                 \
    X(STEPS_NEVER_FIRED, "steps_never_fired_total", "Steps with tokens in which no bound layer captured")              \
    X(ROWS, "rows_total", "Rows accepted")                                                                             \
    X(ROWS_DROPPED, "rows_dropped_total", "Recomputed rows dropped: the first accepted one stays")                     \
    X(ROWS_REJECTED, "rows_rejected_total", "Rows of rejected speculative tokens")                                     \
    X(ROWS_PREFIX, "rows_prefix_total", "Rows supplied by the KV-slot index")                                          \
    X(ROWS_MISSING, "rows_missing_total", "Rows missing at seal")                                                      \
    X(CAPTURE_ERRORS, "capture_errors_total", "Capture calls refused")                                                 \
    X(ARENA_FULL, "arena_full_total", "Allocations refused because the arena was full")                                \
    X(SEALS_LOST, "seals_lost_total", "Seals that found the ring full")                                                \
    X(OPENS, "opens_total", "Records opened")                                                                          \
    X(OPEN_ERRORS, "open_errors_total", "Opens refused for another reason than that the record is not there yet")      \
    X(DELIVERED, "delivered_total", "Records delivered in the engine's own field")                                     \
    X(DELIVER_ERRORS, "deliver_errors_total", "Deliveries that failed")                                                \
    X(GATE_ENTERS, "gate_enters_total", "Requests admitted by the gate")                                               \
    X(GATE_FULL, "gate_full_total", "Requests that found no ticket cell")                                              \
    X(GATE_DRAIN_TIMEOUTS, "gate_drain_timeouts_total", "Drains that ended at their deadline")                         \
    X(BARRIER_PASSED, "barrier_passed_total", "Resume barriers passed")                                                \
    X(BARRIER_TIMEOUTS, "barrier_timeouts_total", "Resume barriers that ended at their deadline")                      \
    X(HOOK_ERRORS, "hook_errors_total", "Hooks that failed; the engine's own behaviour went on")                       \
    X(WEIGHT_UPDATES, "weight_updates_total", "Times the weight epoch moved")                                          \
    X(GATE_DRAIN_NS, "gate_drain_ns_total", "Nanoseconds spent in drains")                                             \
    X(GATE_SEALED_NS, "gate_sealed_ns_total", "Nanoseconds the gate was sealed")                                       \
    X(BARRIER_WAIT_NS, "barrier_wait_ns_total", "Nanoseconds ranks waited in resume barriers")                         \
    X(BARRIER_WOULD_WAIT, "barrier_would_wait_total", "Ranks that enforce would have kept waiting (observe)")          \
    X(BARRIER_BROKEN, "barrier_broken_total", "Resume barriers broken by a rank that died")

enum moor_counter {
#define X(id, name, help) MOOR_C_##id,
    MOOR_COUNTERS(X)
#undef X
        MOOR_COUNTERS_COUNT,
    MOOR_COUNTERS_MAX = 128
};

#endif
