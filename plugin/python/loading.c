/* SPDX-License-Identifier: Apache-2.0 */
/* bootstrap() and the report of the join points. */
#include "loading.h"

#include "hooks/engine/engines.h"
#include "hooks/engine/finder.h"
#include "hooks/engine/joinpoint.h"
#include "hooks/engine/jp_state.h"
#include "hooks/engine/runtime.h"
#include "hooks/engine/selftest.h"

#include <stdlib.h>
#include <string.h>

/* An adapter that is not part of this build leaves a NULL here. */
static const moor_engine *const engines[] = {
    &moor_engine_vllm,
    &moor_engine_sglang,
    &moor_engine_lmdeploy,
};
enum { NENGINES = sizeof engines / sizeof engines[0] };

static bool booted;

/* ---- log ---- */

static void log_to_library(const char *level, const char *line)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    int number = 0;
    while (number < 3 && strcmp(names[number], level) != 0)
        number++;
    moor_py_api()->log(NULL, number, line);
}

/* ---- bootstrap ---- */

static bool is_disabled(void)
{
    const char *value = getenv("MOOR_DISABLE");
    return value && *value && strcmp(value, "0") != 0;
}

static PyObject *after_fork(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    moor_jp_reset_counts();
    Py_RETURN_NONE;
}

static PyMethodDef after_fork_def = {"_after_fork_in_child", after_fork, METH_NOARGS, NULL};

/* A forked child reports what fired in it, not in its parent. */
static int register_fork_handler(void)
{
    PyObject *os = PyImport_ImportModule("os");
    PyObject *hook = os ? PyCFunction_New(&after_fork_def, NULL) : NULL;
    PyObject *register_at_fork = hook ? PyObject_GetAttrString(os, "register_at_fork") : NULL;
    PyObject *kwargs = register_at_fork ? Py_BuildValue("{sO}", "after_in_child", hook) : NULL;
    PyObject *none = kwargs ? PyTuple_New(0) : NULL;
    PyObject *done = none ? PyObject_Call(register_at_fork, none, kwargs) : NULL;
    Py_XDECREF(none);
    Py_XDECREF(kwargs);
    Py_XDECREF(register_at_fork);
    Py_XDECREF(hook);
    Py_XDECREF(os);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static PyObject *bootstrap(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    if (is_disabled())
        Py_RETURN_FALSE;
    if (booted && moor_finder_installed())
        Py_RETURN_TRUE;
    if (!booted && register_fork_handler() < 0)
        return NULL;
    booted = true;
    if (moor_finder_install(engines, NENGINES) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

/* ---- report ---- */

static const char *const status_names[] = {"waiting", "missing", "installed", "fired", "never fired"};

static PyObject *list_of_strings(const char *const *strings, size_t n)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < n && strings[i]; i++) {
        PyObject *text = PyUnicode_FromString(strings[i]);
        if (!text || PyList_Append(list, text) < 0)
            Py_CLEAR(list);
        Py_XDECREF(text);
    }
    return list;
}

static PyObject *joinpoint_dict(const moor_jp_info *info)
{
    PyObject *targets = list_of_strings(info->jp->targets, MOOR_JP_MAX_TARGETS);
    if (!targets)
        return NULL;
    return Py_BuildValue("{ss,ss,sz,ss,sz,sz,sO,sz,sN,sI,sI,sK,sK}", "engine", info->engine->name, "name",
                         info->jp->name, "role", info->jp->role, "state", status_names[info->status], "resolved",
                         info->resolved, "reason", info->reason, "required",
                         info->jp->flags & MOOR_JP_REQUIRED ? Py_True : Py_False, "group",
                         info->jp->flags & MOOR_JP_ANY_OF ? info->jp->group : NULL, "targets", targets, "sites",
                         (unsigned)info->sites, "rebound", (unsigned)info->rebound, "fired",
                         (unsigned long long)info->fired, "errors", (unsigned long long)info->errors);
}

static PyObject *joinpoints(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    PyObject *list = PyList_New(0);
    moor_jp_info info;
    for (size_t i = 0; list && moor_jp_get(i, &info); i++) {
        if (info.engine == &moor_engine_selftest)
            continue;
        PyObject *entry = joinpoint_dict(&info);
        if (!entry || PyList_Append(list, entry) < 0)
            Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

static PyObject *selftest(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return moor_jp_selftest();
}

static PyObject *rescan(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    for (size_t i = 0; i < NENGINES; i++) {
        if (engines[i])
            moor_jp_rescan(engines[i]);
    }
    Py_RETURN_NONE;
}

static PyObject *known_engines(void)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < NENGINES; i++) {
        PyObject *name = engines[i] ? PyUnicode_FromString(engines[i]->name) : NULL;
        if (engines[i] && (!name || PyList_Append(list, name) < 0))
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

/* (engine) -> its packages; registers its table although the engine may not be imported. */
static PyObject *register_engine(PyObject *self, PyObject *name)
{
    (void)self;
    for (size_t i = 0; i < NENGINES && PyUnicode_Check(name); i++) {
        if (!engines[i] || PyUnicode_CompareWithASCIIString(name, engines[i]->name) != 0)
            continue;
        if (moor_jp_register(engines[i]) < 0)
            return NULL;
        return list_of_strings(engines[i]->packages, 16);
    }
    PyObject *known = known_engines();
    if (known)
        PyErr_Format(PyExc_LookupError, "moor: engine %R is not known; known: %S", name, known);
    Py_XDECREF(known);
    return NULL;
}

static PyMethodDef functions[] = {
    {"bootstrap", bootstrap, METH_NOARGS,
     "bootstrap() -> bool\n\nPut Moor's hooks into the engines of this process, now and as they are imported.\n"
     "Again: no-op.  False when MOOR_DISABLE is set."},
    {"joinpoints", joinpoints, METH_NOARGS, "joinpoints() -> list of dict, one per join point of the engines in use"},
    {"selftest", selftest, METH_NOARGS, "selftest() -> {kind of wrapper: None, or what is wrong}"},
    {"rescan", rescan, METH_NOARGS, "rescan() -> None\n\nLook again for modules, subclasses and names bound early."},
    {"register", register_engine, METH_O, "register(engine) -> list of its packages"},
    {NULL, NULL, 0, NULL},
};

static void count_failed_hook(void)
{
    moor_runtime_count("moor_hook_errors_total", 1);
}

int moor_py_loading_init(PyObject *module)
{
    moor_jp_set_log(log_to_library);
    moor_jp_set_count(count_failed_hook);
    return PyModule_AddFunctions(module, functions);
}
