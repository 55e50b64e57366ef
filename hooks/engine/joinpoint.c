/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of join points: tables, their states, the report, and what is said about failures. */
#include "jp_state.h"

#include "jp_install.h"
#include "jp_wrap.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A registered engine and the states of its join points; never freed. */
typedef struct table {
    const moor_engine *engine;
    struct table *next;
    moor_jp_state states[];
} table;

static table *tables;
static bool strict_mode;

/* ---- saying things ---- */

static void log_to_stderr(const char *level, const char *line)
{
    (void)level;
    (void)fprintf(stderr, "moor: %s\n", line);
}

static void (*log_line)(const char *level, const char *line) = log_to_stderr;

void moor_jp_set_log(void (*log)(const char *level, const char *line))
{
    log_line = log ? log : log_to_stderr;
}

static void no_count(void)
{
}

static void (*count_failed)(void) = no_count;

void moor_jp_set_count(void (*failed)(void))
{
    count_failed = failed ? failed : no_count;
}

void moor_jp_set_strict(bool strict)
{
    strict_mode = strict;
}

void moor_jp_log(const char *level, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    log_line(level, line);
}

void moor_jp_error_text(char *buf, size_t size)
{
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *name = type ? PyObject_GetAttrString(type, "__name__") : NULL;
    PyObject *text = value ? PyObject_Str(value) : NULL;
    const char *name8 = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    const char *text8 = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    (void)snprintf(buf, size, "%s: %s", name8 ? name8 : "error", text8 ? text8 : "(no text)");
    Py_XDECREF(name);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
}

int moor_jp_state_failed(moor_jp_state *state, const char *what)
{
    state->errors++;
    count_failed();
    if (strict_mode) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_SystemError, "moor: join point %s: %s failed without an error", state->jp->name, what);
        return -1;
    }
    char text[512] = "no Python error was set";
    if (PyErr_Occurred())
        moor_jp_error_text(text, sizeof text);
    if (!state->logged) {
        state->logged = true;
        moor_jp_log("error",
                    "join point %s: %s failed, the engine goes on without it: %s (further ones are only counted)",
                    state->jp->name, what, text);
    }
    return 0;
}

int moor_jp_failed(const moor_jp *jp, const char *what)
{
    moor_jp_state *state = moor_jp_state_of(jp);
    if (state)
        return moor_jp_state_failed(state, what);
    PyErr_Clear();
    return 0;
}

void moor_jp_set_reason(moor_jp_state *state, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    free(state->reason);
    state->reason = strdup(text); /* NULL: the report has no reason, nothing worse */
}

/* ---- tables ---- */

moor_jp_state *moor_jp_state_of(const moor_jp *jp)
{
    for (table *t = tables; t; t = t->next) {
        if (jp >= t->engine->joinpoints && jp < t->engine->joinpoints + t->engine->njoinpoints)
            return &t->states[jp - t->engine->joinpoints];
    }
    return NULL;
}

moor_jp_state *moor_jp_state_at(size_t i)
{
    for (table *t = tables; t; t = t->next) {
        if (i < t->engine->njoinpoints)
            return &t->states[i];
        i -= t->engine->njoinpoints;
    }
    return NULL;
}

static table *table_of(const moor_engine *engine)
{
    table *t = tables;
    while (t && t->engine != engine)
        t = t->next;
    return t;
}

static int state_init(table *t, size_t i)
{
    moor_jp_state *state = &t->states[i];
    const moor_jp *jp = &t->engine->joinpoints[i];
    *state = (moor_jp_state){.jp = jp, .engine = t->engine, .best = MOOR_JP_MAX_TARGETS};
    memset(state->index, 0xff, sizeof state->index);
    for (int p = 0; p < MOOR_JP_MAX_PARAMS && jp->params[p]; p++) {
        state->names[p] = PyUnicode_InternFromString(jp->params[p]);
        if (!state->names[p])
            return -1;
    }
    if (!jp->fires_with)
        return 0;
    for (size_t k = 0; k < t->engine->njoinpoints; k++) {
        if (strcmp(t->engine->joinpoints[k].name, jp->fires_with) == 0)
            state->fires_with = &t->states[k];
    }
    if (state->fires_with)
        return 0;
    PyErr_Format(PyExc_ValueError, "moor: engine %s: join point %s fires with %s, which is not in the table",
                 t->engine->name, jp->name, jp->fires_with);
    return -1;
}

static void table_free(table *t)
{
    for (size_t i = 0; i < t->engine->njoinpoints; i++) {
        for (int p = 0; p < MOOR_JP_MAX_PARAMS; p++)
            Py_XDECREF(t->states[i].names[p]);
    }
    free(t);
}

int moor_jp_register(const moor_engine *engine)
{
    if (table_of(engine))
        return 0;
    table *t = calloc(1, sizeof *t + engine->njoinpoints * sizeof t->states[0]);
    if (!t) {
        PyErr_NoMemory();
        return -1;
    }
    t->engine = engine;
    for (size_t i = 0; i < engine->njoinpoints; i++) {
        if (state_init(t, i) < 0) {
            table_free(t);
            return -1;
        }
    }
    table **end = &tables;
    while (*end)
        end = &(*end)->next;
    *end = t;
    if (engine->on_detect && engine->on_detect(engine) < 0) {
        char text[512] = "no Python error was set";
        if (PyErr_Occurred())
            moor_jp_error_text(text, sizeof text);
        moor_jp_log("error", "engine %s: set-up failed: %s", engine->name, text);
    }
    moor_jp_rescan(engine);
    return 0;
}

void moor_jp_rescan(const moor_engine *engine)
{
    table *t = table_of(engine);
    for (size_t i = 0; t && i < engine->njoinpoints; i++)
        moor_jp_install_state(&t->states[i]);
}

/* ---- report ---- */

static uint64_t fired_total(const moor_jp_state *state)
{
    return state->fired + __atomic_load_n(&state->fired_nogil, __ATOMIC_RELAXED);
}

static moor_jp_status status_of(const moor_jp_state *state)
{
    if (fired_total(state))
        return MOOR_JP_FIRED;
    if (!state->sites)
        return state->seen ? MOOR_JP_MISSING : MOOR_JP_WAITING;
    if (state->fires_with) {
        uint64_t need = state->jp->fires_after ? state->jp->fires_after : 1;
        if (fired_total(state->fires_with) >= need)
            return MOOR_JP_NEVER_FIRED;
    }
    return MOOR_JP_INSTALLED;
}

static void fill_info(const moor_jp_state *state, moor_jp_info *out)
{
    *out = (moor_jp_info){
        .engine = state->engine,
        .jp = state->jp,
        .status = status_of(state),
        .resolved = state->resolved,
        .reason = state->sites ? NULL : state->reason,
        .sites = state->sites,
        .rebound = state->rebound,
        .fired = fired_total(state),
        .errors = state->errors,
    };
}

/* `state` fires for the first time in this process. */
static void look_for_first(const moor_jp_state *state)
{
    const moor_jp_state *first;
    for (size_t i = 0; (first = moor_jp_state_at(i)); i++) {
        if ((first->jp->flags & MOOR_JP_FIRST) && first->fires_with == state && !fired_total(first))
            moor_jp_log(
                "error",
                "%s: %s runs, but %s was not seen: it ran before Moor was in place here, or its module was loaded "
                "past sys.meta_path[0]; Moor does nothing in this process",
                state->engine->name, state->jp->name, first->jp->name);
    }
}

void moor_jp_count(moor_jp_state *state)
{
    if (!state->fired++)
        look_for_first(state);
}

bool moor_jp_get(size_t i, moor_jp_info *out)
{
    const moor_jp_state *state = moor_jp_state_at(i);
    if (!state)
        return false;
    fill_info(state, out);
    return true;
}

const moor_jp *moor_jp_named(const moor_engine *engine, const char *name)
{
    for (size_t i = 0; i < engine->njoinpoints; i++)
        if (strcmp(engine->joinpoints[i].name, name) == 0)
            return &engine->joinpoints[i];
    return NULL;
}

bool moor_jp_find(const moor_engine *engine, const char *name, moor_jp_info *out)
{
    const table *t = table_of(engine);
    for (size_t i = 0; t && i < engine->njoinpoints; i++) {
        if (strcmp(engine->joinpoints[i].name, name) == 0) {
            fill_info(&t->states[i], out);
            return true;
        }
    }
    return false;
}

void moor_jp_reset_counts(void)
{
    moor_jp_state *state;
    for (size_t i = 0; (state = moor_jp_state_at(i)); i++) {
        state->fired = state->errors = 0;
        __atomic_store_n(&state->fired_nogil, 0, __ATOMIC_RELAXED);
    }
}

/* ---- manual join points ---- */

void moor_jp_bound(const moor_jp *jp, const char *resolved, uint32_t sites)
{
    moor_jp_state *state = moor_jp_state_of(jp);
    if (!state)
        return;
    state->seen = true;
    state->sites += sites;
    char *note = resolved ? strdup(resolved) : NULL;
    if (note) {
        state->resolved = note;
        free(state->note);
        state->note = note;
    }
}

void moor_jp_fired(const moor_jp *jp)
{
    moor_jp_state *state = moor_jp_state_of(jp);
    if (state)
        state->fired++;
}

void moor_jp_fired_nogil(const moor_jp *jp)
{
    moor_jp_state *state = moor_jp_state_of(jp);
    if (state)
        __atomic_fetch_add(&state->fired_nogil, 1, __ATOMIC_RELAXED);
}
