/* SPDX-License-Identifier: Apache-2.0 */
#include "status.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../allocator/locks.h"
#include "../client/wire.h"
#include "report.h"
#include "state.h"

enum { STORES_S = 1 };

/* ---- what there is to say --------------------------------------------------------------------------------------- */

/* "stores": what they answered; when they did not, "stores" is empty and "stores_error" says why. */
static moor_status add_stores(json_t *document, moor_client *client, moor_status attached)
{
    char *text = NULL;
    json_t *stores = NULL;
    moor_status status = attached;
    if (!status)
        status = moor_client_store_stats(client, &text);
    if (!status)
        stores = json_loads(text, 0, NULL);
    if (!stores) {
        json_object_set_new(document, "stores_error",
                            json_string(status ? moor_last_error() : "an answer that is no JSON"));
        stores = json_array();
    }
    json_object_set_new(document, "stores", stores);
    free(text);
    return status == MOOR_E_INTERRUPTED ? status : MOOR_OK;
}

/* client: NULL → a connection of its own, for this question. */
static moor_status collect(const moor_located *where, int dir_fd, moor_client *client, json_t **out)
{
    moor_state *state;
    moor_client *own = NULL;
    uint8_t alive[MOOR_LOCKS_SLOTS];
    moor_status status = moor_state_map(dir_fd, where->dir, 0, &state), attached = MOOR_OK;
    if (status)
        return status;
    for (uint32_t slot = 0; slot < MOOR_LOCKS_SLOTS; slot++)
        alive[slot] = atomic_load(&state->processes[slot].used) == 2; /* nobody is asked for of the others */
    moor_locks_slots_alive(dir_fd, alive);
    json_t *document = moor_report(where, state, alive);
    moor_state_unmap(state);
    if (!document)
        return moor_fail(MOOR_E_NOMEM, "status: no memory");
    if (!client) {
        attached = moor_client_make(where, STORES_S, &own);
        client = own;
    }
    status = add_stores(document, client, attached);
    moor_detach(own);
    if (status)
        json_decref(document);
    else
        *out = document;
    return status;
}

/* ---- texts ------------------------------------------------------------------------------------------------------ */

static void say(moor_wire_buffer *text, const char *format, ...) MOOR_PRINTF(2, 3);
static void say(moor_wire_buffer *text, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    moor_wire_put(text, line, n < 0 ? 0 : (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

static double number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static const char *string(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

static void to_json(const json_t *document, moor_wire_buffer *text)
{
    char *dumped = json_dumps(document, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    if (dumped)
        moor_wire_put(text, dumped, strlen(dumped));
    else
        text->failed = 1;
    free(dumped);
}

static void metric(moor_wire_buffer *text, const char *name, const char *type, const char *help)
{
    say(text, "# HELP moor_%s %s\n# TYPE moor_%s %s\n", name, help, name, type);
}

static void gauge(moor_wire_buffer *text, const char *name, const char *help, double value)
{
    metric(text, name, "gauge", help);
    say(text, "moor_%s %.17g\n", name, value);
}

static void prometheus_groups(const json_t *document, moor_wire_buffer *text)
{
    const char *name, *kind;
    json_t *value, *count;
    metric(text, "weights_seen_total", "counter", "Weight changes seen, by kind");
    json_object_foreach(json_object_get(json_object_get(document, "weights"), "seen"), name, value)
        say(text, "moor_weights_seen_total{kind=\"%s\"} %.17g\n", name, json_number_value(value));
    metric(text, "cleanup_total", "counter", "What happened in the phases of an update");
    json_object_foreach(json_object_get(document, "cleanup"), name, value)
        json_object_foreach(value, kind, count) if (strcmp(kind, "seconds"))
            say(text, "moor_cleanup_total{phase=\"%s\",kind=\"%s\"} %.17g\n", name, kind, json_number_value(count));
    metric(text, "cleanup_seconds_total", "counter", "Seconds spent in cleaning, by phase of an update");
    json_object_foreach(json_object_get(document, "cleanup"), name, value)
        say(text, "moor_cleanup_seconds_total{phase=\"%s\"} %.17g\n", name, number(value, "seconds"));
}

static void prometheus_stores(const json_t *document, moor_wire_buffer *text)
{
    const json_t *stores = json_object_get(document, "stores");
    json_t *first = json_array_get(stores, 0), *value;
    const char *name;
    json_object_foreach(first, name, value)
    {
        char metric_name[64];
        if (!strcmp(name, "store"))
            continue;
        snprintf(metric_name, sizeof(metric_name), "store_%s", name);
        metric(text, metric_name, "gauge", "Of a record store");
        for (size_t i = 0; i < json_array_size(stores); i++)
            say(text, "moor_%s{store=\"%.0f\"} %.17g\n", metric_name, number(json_array_get(stores, i), "store"),
                number(json_array_get(stores, i), name));
    }
}

static void to_prometheus(const json_t *document, moor_wire_buffer *text)
{
    const json_t *all = json_object_get(document, "counters"), *gate = json_object_get(document, "gate");
    size_t alive = 0, index;
    json_t *process;
#define X(id, name, help)                                                                                              \
    metric(text, name, "counter", help);                                                                               \
    say(text, "moor_%s %.17g\n", name, number(all, name));
    MOOR_COUNTERS(X)
#undef X
    metric(text, "info", "gauge", "Version and instance");
    say(text, "moor_info{version=\"%s\",instance=\"%s\"} 1\n", string(document, "version"),
        string(document, "instance"));
    gauge(text, "gate_open", "1 while the gate is open", !strcmp(string(gate, "state"), "open"));
    gauge(text, "gate_poisoned", "1 while the gate is poisoned", json_is_true(json_object_get(gate, "poisoned")));
    gauge(text, "gate_in_flight", "Requests admitted and not settled", number(gate, "in_flight"));
    gauge(text, "gate_waiting", "Requests waiting at the gate", number(gate, "waiting"));
    gauge(text, "gate_would_wait", "Requests that enforce would have kept waiting", number(gate, "would_wait"));
    gauge(text, "holds", "Processes that hold memory on a device of this machine",
          (double)json_array_size(json_object_get(document, "holds")));
    gauge(text, "weight_epoch", "Epoch of the weights", number(gate, "epoch"));
    json_array_foreach(json_object_get(document, "processes"), index, process) alive +=
        (size_t)json_is_true(json_object_get(process, "alive"));
    gauge(text, "processes", "Processes of the instance that live", (double)alive);
    prometheus_groups(document, text);
    prometheus_stores(document, text);
}

static void human_processes(const json_t *document, moor_wire_buffer *text)
{
    size_t i, j;
    json_t *process, *role;
    json_array_foreach(json_object_get(document, "processes"), i, process)
    {
        say(text, "process %5.0f  %s", number(process, "pid"),
            json_is_true(json_object_get(process, "alive")) ? "alive" : "GONE ");
        json_array_foreach(json_object_get(process, "roles"), j, role)
            say(text, "%s%s", j ? "+" : "  ", json_string_value(role));
        say(text, "  %s  rank %.0f of %.0f, dp %.0f\n", string(process, "engine"), number(process, "rank"),
            number(process, "world_size"), number(process, "dp_rank"));
    }
}

static void human_stores(const json_t *document, moor_wire_buffer *text)
{
    size_t i;
    json_t *store, *barrier;
    json_array_foreach(json_object_get(document, "stores"), i, store)
        say(text,
            "store %.0f  records %.0f (%.0f sealed)  leases %.0f of %.0f clients  live %.1f MiB, resident %.1f of %.0f "
            "MiB\n",
            number(store, "store"), number(store, "records"), number(store, "sealed"), number(store, "leases"),
            number(store, "clients"), number(store, "live_bytes") / 1048576, number(store, "resident_bytes") / 1048576,
            number(store, "arena_bytes") / 1048576);
    if (json_object_get(document, "stores_error"))
        say(text, "stores: %s\n", string(document, "stores_error"));
    json_array_foreach(json_object_get(document, "barriers"), i, barrier) say(
        text, "barrier %s  rounds %.0f  passed %.0f  timeouts %.0f  broken %.0f  last wait %.3f s, longest %.3f s\n",
        string(barrier, "name"), number(barrier, "rounds"), number(barrier, "passed"), number(barrier, "timeouts"),
        number(barrier, "broken"), number(barrier, "last_wait_s"), number(barrier, "max_wait_s"));
}

static void human_holds(const json_t *document, moor_wire_buffer *text)
{
    size_t i;
    json_t *hold;
    json_array_foreach(json_object_get(document, "holds"), i, hold)
        say(text, "hold on %s  %s (pid %.0f, %.1f MiB)\n", string(hold, "device"), string(hold, "label"),
            number(hold, "pid"), number(hold, "bytes") / 1048576);
}

static void to_human(const json_t *document, moor_wire_buffer *text)
{
    const json_t *gate = json_object_get(document, "gate");
    json_t *value;
    const char *name;
    say(text, "instance %s  (%s)  up %.0f s\n", string(document, "instance"), string(document, "dir"),
        number(document, "up_s"));
    say(text, "gate %s%s%s%s  epoch %.0f \"%s\"  in flight %.0f  waiting %.0f  would have waited %.0f\n",
        string(gate, "state"), json_is_true(json_object_get(gate, "kept")) ? " (requests kept)" : "",
        json_is_true(json_object_get(gate, "poisoned")) ? ", POISONED: " : "", string(gate, "poison_reason"),
        number(gate, "epoch"), string(gate, "label"), number(gate, "in_flight"), number(gate, "waiting"),
        number(gate, "would_wait"));
    if (number(gate, "full") > 0)
        say(text, "gate tickets: %.0f requests found none free of %.0f\n", number(gate, "full"),
            number(gate, "tickets"));
    if (*string(document, "recording_off"))
        say(text, "recording is off: %s\n", string(document, "recording_off"));
    human_processes(document, text);
    human_stores(document, text);
    human_holds(document, text);
    json_object_foreach(json_object_get(document, "counters"), name, value) if (json_integer_value(value))
        say(text, "%-32s %lld\n", name, (long long)json_integer_value(value));
}

static moor_status render(json_t *document, void (*to_text)(const json_t *, moor_wire_buffer *), char **out,
                          size_t *len)
{
    moor_wire_buffer text = {0};
    to_text(document, &text);
    json_decref(document);
    moor_wire_put(&text, "", 1);
    if (text.failed) {
        moor_wire_buffer_free(&text);
        return moor_fail(MOOR_E_NOMEM, "status: no memory for the text");
    }
    *out = (char *)text.data;
    *len = text.used - 1;
    return MOOR_OK;
}

moor_status moor_status_text(const char *instance, const char *dir, const char *format, char **out, size_t *len)
{
    void (*to_text)(const json_t *, moor_wire_buffer *) = NULL;
    moor_located where;
    json_t *document = NULL;
    int dir_fd;
    if (!out || !len || !format)
        return moor_fail(MOOR_E_INVALID, "status_text: out, len or format is NULL");
    if (!strcmp(format, "json"))
        to_text = to_json;
    else if (!strcmp(format, "prometheus"))
        to_text = to_prometheus;
    else if (!strcmp(format, "human"))
        to_text = to_human;
    else
        return moor_fail(MOOR_E_INVALID, "status_text: format \"%.40s\" is none of json, prometheus, human", format);
    moor_status status = moor_locate(instance, dir, &where);
    if (status == MOOR_E_NOT_FOUND)
        return moor_locate_why(instance, dir);
    if (!status)
        status = moor_dirs_open(where.dir, 0, &dir_fd);
    if (status)
        return status;
    status = collect(&where, dir_fd, NULL, &document);
    close(dir_fd);
    return status ? status : render(document, to_text, out, len);
}

moor_status moor_client_stats(moor_client *client, char **json, size_t *len)
{
    json_t *document = NULL;
    moor_status status = moor_client_check(client, "client_stats");
    if (!status && (!json || !len))
        status = moor_fail(MOOR_E_INVALID, "client_stats: json or len is NULL");
    if (!status)
        status = moor_client_has_files(client, "client_stats");
    if (!status)
        status = collect(moor_client_where(client), moor_client_dir_fd(client), client, &document);
    return status ? status : render(document, to_json, json, len);
}
