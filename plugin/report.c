/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../hooks/gate.h"
#include "../hooks/holds.h"
#include "../hooks/shared_text.h"
#include "../hooks/weights.h"

static void put(json_t *object, const char *name, uint64_t value)
{
    json_object_set_new(object, name, json_integer((json_int_t)(value > INT64_MAX ? INT64_MAX : value)));
}

static void put_s(json_t *object, const char *name, uint64_t ns)
{
    json_object_set_new(object, name, json_real((double)ns * 1e-9));
}

static void put_text(json_t *object, const char *name, const char *text)
{
    json_t *value = json_string(text); /* NULL when it is not UTF-8: labels are the caller's bytes */
    json_object_set_new(object, name, value ? value : json_string("?"));
}

static uint64_t load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit((_Atomic uint64_t *)(uintptr_t)word, memory_order_relaxed);
}

static json_t *counters(const moor_state *state)
{
    json_t *out = json_object();
#define X(id, name, help) put(out, name, load(&state->counters[MOOR_C_##id]));
    MOOR_COUNTERS(X)
#undef X
    return out;
}

static int alive_at(void *user, uint32_t slot)
{
    return ((const uint8_t *)user)[slot];
}

static json_t *gate(moor_state *state, const uint8_t *alive)
{
    static const char *const states[] = {
        [MOOR_GATE_OPEN] = "open", [MOOR_GATE_SEALED] = "sealed", [MOOR_GATE_DRAINED] = "drained"};
    json_t *out = json_object();
    moor_gate_status status = MOOR_GATE_STATUS_INIT;
    moor_member member = {state, MOOR_NO_SLOT, MOOR_MODE_ENFORCE, alive_at, (void *)(uintptr_t)alive};
    if (moor_gate_read(&member, &status))
        return out;
    put_text(out, "state", status.state < 3 ? states[status.state] : "?");
    json_object_set_new(out, "poisoned", json_boolean(status.poisoned));
    put_text(out, "poison_reason", status.poison_reason);
    json_object_set_new(out, "kept", json_boolean(status.flags & MOOR_GATE_KEPT));
    put(out, "epoch", status.epoch);
    put_text(out, "label", status.label);
    put(out, "in_flight", status.in_flight);
    put(out, "waiting", status.waiting);
    put(out, "tickets", MOOR_MAX_TICKETS);
    put(out, "full", load(&state->counters[MOOR_C_GATE_FULL]));
    put_s(out, "sealed_for_s", status.sealed_for_ns);
    put(out, "seals", status.seals);
    put(out, "installs", status.installs);
    put(out, "reopens", status.reopens);
    put(out, "would_wait", status.would_wait);
    return out;
}

static json_t *weights(moor_state *state)
{
    static const char *const kinds[MOOR_WEIGHTS_KINDS] = {"update", "rpc", "load", "reload", "lora"};
    json_t *out = json_object(), *seen = json_object();
    put(out, "epoch", load(&state->gate.epoch));
    put(out, "sessions", load(&state->weights.session));
    put(out, "open", moor_weights_sessions(state, NULL, 0));
    json_object_set_new(out, "unknown", json_boolean(moor_weights_unknown(state)));
    for (int kind = 0; kind < MOOR_WEIGHTS_KINDS; kind++)
        put(seen, kinds[kind], load(&state->weights.seen[kind]));
    json_object_set_new(out, "seen", seen);
    return out;
}

static json_t *cleanup(const moor_state *state)
{
    static const char *const phases[MOOR_PHASES] = {"before_weights", "transfer", "after_weights", "before_kv"};
    static const char *const kinds[MOOR_CLEAN_KINDS] = {
        "gc", "gc_suppressed", "empty_cache", "empty_cache_skipped", "synchronize", "escalated", "retry"};
    json_t *out = json_object();
    for (int phase = 0; phase < MOOR_PHASES; phase++) {
        json_t *one = json_object();
        uint64_t ns = 0;
        for (int kind = 0; kind < MOOR_CLEAN_KINDS; kind++) {
            put(one, kinds[kind], load(&state->cleanup.count[phase][kind]));
            ns += load(&state->cleanup.ns[phase][kind]);
        }
        put_s(one, "seconds", ns);
        json_object_set_new(out, phases[phase], one);
    }
    return out;
}

/* Barriers that somebody ever came to. */
static json_t *barriers(const moor_state *state)
{
    json_t *out = json_array();
    for (int i = 0; i < MOOR_MAX_REPLICAS + MOOR_MAX_BARRIERS; i++) {
        const moor_state_barrier *cell =
            i < MOOR_MAX_REPLICAS ? &state->resume[i] : &state->named[i - MOOR_MAX_REPLICAS];
        char name[MOOR_LABEL_BYTES + 16];
        uint64_t rounds = load(&cell->word) >> 32;
        if (!rounds && !load(&cell->size))
            continue;
        if (i < MOOR_MAX_REPLICAS)
            snprintf(name, sizeof(name), "resume:%d", i);
        else
            snprintf(name, sizeof(name), "%.*s", MOOR_LABEL_BYTES - 1, cell->name);
        json_t *one = json_object();
        put_text(one, "name", name);
        put(one, "rounds", rounds);
        put(one, "passed", load(&cell->passed));
        put(one, "timeouts", load(&cell->timeouts));
        put(one, "broken", load(&cell->broken));
        put_s(one, "last_wait_s", load(&cell->last_wait_ns));
        put_s(one, "max_wait_s", load(&cell->max_wait_ns));
        json_array_append_new(out, one);
    }
    return out;
}

static json_t *processes(const moor_state *state, const uint8_t *alive)
{
    static const char *const names[] = {"frontend", "core", "worker", "consumer"};
    json_t *out = json_array();
    for (uint32_t slot = 0; slot < MOOR_MAX_PROCESSES; slot++) {
        const moor_state_process *cell = &state->processes[slot];
        char engine[sizeof(cell->engine) + 1] = "";
        if (atomic_load((_Atomic uint32_t *)(uintptr_t)&cell->used) != 2)
            continue;
        uint32_t roles = __atomic_load_n(&cell->roles, __ATOMIC_RELAXED);
        memcpy(engine, cell->engine, sizeof(cell->engine));
        json_t *one = json_object(), *list = json_array();
        for (int i = 0; i < 4; i++)
            if (roles & 1u << i)
                json_array_append_new(list, json_string(names[i]));
        put(one, "slot", slot);
        put(one, "pid", cell->pid);
        json_object_set_new(one, "alive", json_boolean(alive[slot]));
        json_object_set_new(one, "roles", list);
        put_text(one, "engine", engine);
        put(one, "rank", __atomic_load_n(&cell->rank, __ATOMIC_RELAXED));
        put(one, "world_size", __atomic_load_n(&cell->world_size, __ATOMIC_RELAXED));
        put(one, "dp_rank", __atomic_load_n(&cell->dp_rank, __ATOMIC_RELAXED));
        put(one, "waiting", load(&cell->waiting));
        json_array_append_new(out, one);
    }
    return out;
}

static json_t *rings(const moor_state *state)
{
    json_t *out = json_array();
    for (int i = 0; i < MOOR_MAX_STORES; i++) {
        const moor_state_seal_ring *ring = &state->seals[i];
        uint64_t tail = load(&ring->tail);
        if (!tail && !load(&ring->lost))
            continue;
        json_t *one = json_object();
        put(one, "store", (uint64_t)i);
        put(one, "pushed", tail);
        put(one, "drained", load(&ring->head));
        put(one, "lost", load(&ring->lost));
        json_array_append_new(out, one);
    }
    return out;
}

static void add_hold(void *list, const char *device, const moor_holder *holder)
{
    json_t *one = json_object();
    put_text(one, "device", device);
    put_text(one, "label", holder->label);
    put(one, "pid", holder->pid);
    put(one, "bytes", holder->bytes);
    json_array_append_new(list, one);
}

/* As the resume barrier of this instance would see them. */
static json_t *holds(const moor_located *where)
{
    json_t *out = json_array();
    moor_dirs bases;
    char base[PATH_MAX];
    snprintf(base, sizeof(base), "%s", where->dir);
    *strrchr(base, '/') = 0;
    if (!moor_dirs_all(base, &bases))
        moor_holds_each(&bases, add_hold, out);
    return out;
}

/* "" while it is on. */
static const char *why_not_recording(const moor_state *state, char *why, size_t size)
{
    why[0] = 0;
    if (atomic_load(&state->recording_off))
        MOOR_TEXT_GET(state->recording_off_why, why, size);
    return why;
}

json_t *moor_report(const moor_located *where, moor_state *state, const uint8_t *alive)
{
    struct timespec now;
    char why[192];
    json_t *out = json_object();
    if (!out)
        return NULL;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    put_text(out, "version", MOOR_VERSION_STRING);
    put_text(out, "instance", where->name);
    put_text(out, "dir", where->dir);
    put_s(out, "up_s", now_ns > state->created_ns ? now_ns - state->created_ns : 0);
    put_text(out, "recording_off", why_not_recording(state, why, sizeof(why)));
    json_object_set_new(out, "counters", counters(state));
    json_object_set_new(out, "gate", gate(state, alive));
    json_object_set_new(out, "weights", weights(state));
    json_object_set_new(out, "barriers", barriers(state));
    json_object_set_new(out, "holds", holds(where));
    json_object_set_new(out, "cleanup", cleanup(state));
    json_object_set_new(out, "processes", processes(state, alive));
    json_object_set_new(out, "seal_rings", rings(state));
    return out;
}
