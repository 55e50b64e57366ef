/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runtime.h — Moor inside one engine process: what every adapter shares.
 *
 * Who calls it: the adapters' callbacks (vllm_*.c, …), capture.c, deliver.c. All with the GIL held.
 * What it owns: this process' membership (moor_process), its store when it records, its client when it delivers. Made by
 * the first role join point, made anew in a forked child that reaches one. Protected by the GIL.
 * It knows no engine and decides no policy; the rules are below the ABI.
 */
#ifndef MOOR_HOOKS_ENGINE_RUNTIME_H
#define MOOR_HOOKS_ENGINE_RUNTIME_H

#include "joinpoint.h"

#include <moor/moor.h>

typedef struct moor_runtime {
    const moor_api *api;
    moor_process *process; /* NULL: Moor is off in this process */
    moor_config_values config;
    moor_store *store; /* NULL: this process does not record */
    uint32_t store_index;
    moor_client *client;           /* NULL until the first delivery */
    const char *acknowledge_route; /* how the engine's HTTP server clears a poisoned gate; NULL: not at all */
    int off;                       /* the configuration leaves Moor out: decided once per process */
} moor_runtime;

/* The runtime of this process; never NULL. process == NULL while Moor is off. */
moor_runtime *moor_runtime_get(void);

/* A role join point was reached. `section` is the "moor" object of the engine's own configuration (dict, JSON str, or
 * NULL/None when the engine has none: then $MOOR_CONFIG decides whether Moor is on). Returns 1 on, 0 off, -1 with a Python
 * error that must reach the user (configuration, a name that is taken): answer MOOR_JP_RAISE; what else hinders the join turns Moor off in
 * this process with one line, unless on_error is strict. Idempotent; unites roles. */
int moor_runtime_join(const char *engine, uint32_t roles, uint32_t rank, uint32_t world, uint32_t dp_rank,
                      PyObject *section);

/* What a join with this section would be told: 1 and the numbers of *out, 0 Moor is off, -1 with a Python error as moor_runtime_join's. */
int moor_runtime_configured(PyObject *section, moor_config_values *out);

/* 1 when this process may hold a configuration: $MOOR_CONFIG is set. */
int moor_runtime_configured_by_environment(void);

/* 1 when this server's requests have records: Moor is on, and so is recording, here and in the worker. */
int moor_runtime_records(void);

/* The client of our own instance, attached at first use; NULL with a Python error. */
moor_client *moor_runtime_client(void);
/* Another engine of this process takes the place of the one that had the store: it goes, with what nobody has opened yet, and the client. */
void moor_runtime_close_store(void);

/* Moor's metrics into this prometheus_client registry (NULL: its own), once; nothing while Moor is off. MOOR_JP_OK or _FAILED. */
int moor_runtime_metrics(PyObject *registry);

/* Raise `status` as a Python error (RuntimeError with the ABI's sentence); returns NULL. */
PyObject *moor_runtime_raise(moor_status status, const char *what);
/* Adds to one of the instance's counters (moor_api.count); nothing while Moor is off. */
void moor_runtime_count(const char *name, uint64_t delta);
/* Log through Moor's log; usable before join. */
void moor_runtime_log(int level, const char *format, ...);

/* ---- reading an engine's objects: all tolerate absence --------------------------------------------------------- */

/* New reference to object.a.b.c, or NULL without an error when a link is missing or None. */
PyObject *moor_py_path(PyObject *object, const char *path);
/* Integer at path; `missing` when absent or not an integer. */
long long moor_py_int(PyObject *object, const char *path, long long missing);
/* Truth at path; `missing` when absent. */
int moor_py_true(PyObject *object, const char *path, int missing);
/* UTF-8 of a str (borrowed from it); NULL without an error when it is not one. */
const char *moor_py_text(PyObject *object, Py_ssize_t *length);
/* 1 when `name` is an element of the list/tuple/set `names`, or `names` is None and missing_is_all. */
int moor_py_has(PyObject *names, const char *name, int none_is_all);

/* A weak reference to the object: new reference, or NULL with an error. */
PyObject *moor_py_weak(PyObject *object);
/* What it refers to: new reference; NULL without an error when that is gone, or weak is NULL. */
PyObject *moor_py_alive(PyObject *weak);

/* A note for what is called later in the same context (contextvars), and in tasks that begin there. var: made on first use. 0, or -1 with an
 * error, also for a NULL value. */
int moor_py_note(PyObject **var, const char *name, PyObject *value);
/* New reference to what is noted here; NULL without an error when that is nothing, or None. */
PyObject *moor_py_noted(PyObject *var);

#endif
