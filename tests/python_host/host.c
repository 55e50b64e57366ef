/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c: the example of an adapter, and the module `_jphost` of the tests: the installer of hooks/engine with a table for
 * the package mockeng, whose callbacks are Python functions that a test sets.
 *
 * _jphost.hook(name, phase, function): at that join point and phase call function(call) with a dict of what the callback
 * sees.  It answers None, or a tuple: ("done", result), ("result", r), ("args", args, kwargs), ("param", i, value),
 * ("await", awaitable), ("raise", exception), ("proceed",); an exception of its own is a failing hook.
 */
#include "hooks/engine/finder.h"
#include "hooks/engine/joinpoint.h"
#include "hooks/engine/jp_state.h"

#include <string.h>

static PyObject *hooks; /* {(name, phase): function} */

/* ---- callbacks ---- */

static void put(PyObject *dict, const char *key, PyObject *value)
{
    (void)PyDict_SetItemString(dict, key, value ? value : Py_None);
}

static PyObject *describe(const moor_jp_call *call)
{
    PyObject *dict = PyDict_New(), *params = PyDict_New();
    if (!dict || !params) {
        Py_XDECREF(dict);
        Py_XDECREF(params);
        return NULL;
    }
    put(dict, "self", call->self);
    put(dict, "args", call->args);
    put(dict, "kwargs", call->kwargs);
    put(dict, "result", call->result);
    put(dict, "exc", call->exc);
    put(dict, "awaited", call->awaited);
    put(dict, "by_name", moor_jp_arg(call, "request_id"));
    for (unsigned i = 0; i < MOOR_JP_MAX_PARAMS && call->jp->params[i]; i++) {
        PyObject *value = moor_jp_param(call, i);
        if (value)
            put(params, call->jp->params[i], value);
    }
    put(dict, "params", params);
    Py_DECREF(params);
    PyObject *rounds = PyLong_FromUnsignedLong(call->rounds);
    put(dict, "rounds", rounds);
    Py_XDECREF(rounds);
    return dict;
}

static int follow_answer(moor_jp_call *call, PyObject *answer)
{
    PyObject *a = NULL, *b = NULL;
    const char *verb;
    if (!PyTuple_Check(answer) || !PyArg_ParseTuple(answer, "s|OO", &verb, &a, &b))
        return MOOR_JP_FAILED;
    Py_XINCREF(a);
    if (strcmp(verb, "done") == 0)
        return moor_jp_set_result(call, a) < 0 ? MOOR_JP_FAILED : MOOR_JP_DONE;
    if (strcmp(verb, "await") == 0)
        return moor_jp_set_awaitable(call, a) < 0 ? MOOR_JP_FAILED : MOOR_JP_AWAIT;
    if (strcmp(verb, "result") == 0)
        return moor_jp_set_result(call, a) < 0 ? MOOR_JP_FAILED : MOOR_JP_OK;
    int status = MOOR_JP_FAILED;
    if (strcmp(verb, "args") == 0)
        status = moor_jp_set_args(call, a, b == Py_None ? NULL : b) < 0 ? MOOR_JP_FAILED : MOOR_JP_OK;
    else if (strcmp(verb, "param") == 0)
        status = moor_jp_set_param(call, (unsigned)PyLong_AsUnsignedLong(a), b) < 0 ? MOOR_JP_FAILED : MOOR_JP_OK;
    else if (strcmp(verb, "proceed") == 0) {
        (void)moor_jp_proceed(call);
        status = MOOR_JP_OK;
    } else if (strcmp(verb, "proceed and fail") == 0) {
        (void)moor_jp_proceed(call);
        PyErr_SetString(PyExc_RuntimeError, "after proceeding");
    } else if (strcmp(verb, "raise") == 0) {
        PyErr_SetObject((PyObject *)Py_TYPE(a), a);
        status = MOOR_JP_RAISE;
    }
    Py_XDECREF(a);
    return status;
}

static int phase(moor_jp_call *call, const char *which)
{
    PyObject *key = Py_BuildValue("(ss)", call->jp->name, which);
    PyObject *function = key ? PyDict_GetItemWithError(hooks, key) : NULL; /* borrowed */
    Py_XDECREF(key);
    if (!function)
        return PyErr_Occurred() ? MOOR_JP_FAILED : MOOR_JP_OK;
    Py_INCREF(function);
    PyObject *view = describe(call);
    PyObject *answer = view ? PyObject_CallFunctionObjArgs(function, view, NULL) : NULL;
    int status = !answer ? MOOR_JP_FAILED : answer == Py_None ? MOOR_JP_OK : follow_answer(call, answer);
    Py_XDECREF(answer);
    Py_XDECREF(view);
    Py_DECREF(function);
    return status;
}

static int before(moor_jp_call *call)
{
    return phase(call, "before");
}

static int around(moor_jp_call *call)
{
    return phase(call, "around");
}

static int item(moor_jp_call *call)
{
    return phase(call, "item");
}

static int after(moor_jp_call *call)
{
    return phase(call, "after");
}

static int error(moor_jp_call *call)
{
    return phase(call, "error");
}

static void finish(moor_jp_call *call)
{
    (void)phase(call, "finish");
}

static int nothing(moor_jp_call *call)
{
    (void)call;
    return MOOR_JP_OK;
}

/* ---- the table: what an adapter looks like ---- */

#define ALL .before = before, .item = item, .after = after, .error = error, .finish = finish

static const moor_jp joinpoints[] = {
    {.name = "core.add_request",
     .role = "core",
     .targets = {"mockeng.core:EngineCore.add_request"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"request", "request_wave"},
     ALL},
    {.name = "core.init", .role = "core", .targets = {"mockeng.core:EngineCore.__init__"}, ALL},
    {.name = "core.static", .targets = {"mockeng.core:EngineCore.make"}, .params = {"size"}, ALL},
    {.name = "core.class", .targets = {"mockeng.core:EngineCore.from_config"}, .params = {"config"}, ALL},
    {.name = "core.cached", .targets = {"mockeng.core:EngineCore.cached"}, .params = {"key"}, ALL},
    {.name = "core.around",
     .targets = {"mockeng.core:EngineCore.step"},
     .params = {"n"},
     .before = before,
     .around = around,
     .after = after,
     .error = error,
     .finish = finish},
    {.name = "core.nested", .targets = {"mockeng.core:EngineCore.Inner.deep"}, ALL},
    {.name = "core.never_called", .targets = {"mockeng.core:EngineCore.never_called"}, ALL},
    {.name = "core.inherited", .targets = {"mockeng.core:EngineCore.__reduce_ex__"}, .before = before},
    {.name = "sched.free",
     .role = "core",
     .targets = {"mockeng.sched:Scheduler._free_request"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .params = {"request"},
     ALL},
    {.name = "front.generate",
     .role = "frontend",
     .targets = {"mockeng.llm:AsyncLLM.generate"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .params = {"prompt", "request_id", "priority"},
     ALL},
    {.name = "front.plain_stream", .targets = {"mockeng.llm:AsyncLLM.stream"}},
    {.name = "front.sleep", .role = "frontend", .targets = {"mockeng.llm:AsyncLLM.sleep"}, .params = {"level"}, ALL},
    {.name = "front.wake_up",
     .targets = {"mockeng.llm:AsyncLLM.wake_up"},
     .flags = MOOR_JP_OVERRIDES,
     .params = {"tags"},
     ALL},
    {.name = "front.decorated", .targets = {"mockeng.llm:AsyncLLM.decorated"}, .params = {"value"}, ALL},
    {.name = "front.decorated_stream", .targets = {"mockeng.llm:AsyncLLM.decorated_stream"}, ALL},
    {.name = "front.hinted", .targets = {"mockeng.llm:AsyncLLM.hinted"}, .kind = MOOR_JP_COROUTINE, ALL},
    {.name = "front.class_coroutine", .targets = {"mockeng.llm:AsyncLLM.class_coroutine"}, ALL},
    {.name = "ops.select", .role = "worker", .targets = {"mockeng.ops:select_experts"}, .params = {"x", "k"}, ALL},
    {.name = "ops.pinned", .targets = {"mockeng.ops:collect"}, .flags = MOOR_JP_PINNED, ALL},
    {.name = "worker.wake_up",
     .role = "worker",
     .targets = {"mockeng.worker:Worker.wake_up"},
     .flags = MOOR_JP_OVERRIDES,
     .params = {"tags"},
     ALL},
    {.name = "moved",
     .targets = {"mockeng.gone:Old.run", "mockeng.core:NoSuch.run", "mockeng.core:EngineCore.moved"},
     .flags = MOOR_JP_REQUIRED,
     ALL},
    {.name = "lost", .role = "core", .targets = {"mockeng.core:EngineCore.lost"}, .flags = MOOR_JP_REQUIRED, ALL},
    {.name = "either.a",
     .targets = {"mockeng.core:EngineCore.absent"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_ANY_OF,
     .group = "either",
     ALL},
    {.name = "either.b",
     .targets = {"mockeng.core:EngineCore.moved"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_ANY_OF,
     .group = "either",
     ALL},
    {.name = "not_imported", .targets = {"mockeng.never:Nothing.run"}, ALL},
    {.name = "capture", .role = "worker", .fires_with = "core.add_request", .fires_after = 2},
    {.name = "object", .params = {"x"}, ALL},
    {.name = "perf.method",
     .targets = {"mockeng.perf:Perf.method"},
     .params = {"x"},
     .before = nothing,
     .after = nothing},
    {.name = "perf.stream", .targets = {"mockeng.perf:Perf.stream"}, .before = nothing},
    {.name = "never.init",
     .targets = {"mockeng.never:Nothing.__init__"},
     .flags = MOOR_JP_FIRST,
     .fires_with = "not_imported"},
    {.name = "perf.coroutine", .targets = {"mockeng.perf:Perf.coroutine"}, .before = nothing},
};
enum { N = sizeof joinpoints / sizeof joinpoints[0] };

static int detected;

static int on_detect(const moor_engine *engine)
{
    (void)engine;
    detected++;
    return 0;
}

static const char *const packages[] = {"mockeng", NULL};
static const moor_engine mockeng = {"mockeng", packages, joinpoints, N, on_detect};
static const moor_engine *const engines[] = {&mockeng};

static const moor_jp *joinpoint(const char *name)
{
    for (size_t i = 0; i < N; i++) {
        if (strcmp(joinpoints[i].name, name) == 0)
            return &joinpoints[i];
    }
    PyErr_SetString(PyExc_LookupError, name);
    return NULL;
}

/* ---- the module ---- */

static PyObject *py_install(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    if (moor_finder_install(engines, 1) < 0)
        return NULL;
    return PyBool_FromLong(moor_finder_installed());
}

static PyObject *py_hook(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *name, *which, *function;
    if (!PyArg_ParseTuple(args, "OOO", &name, &which, &function))
        return NULL;
    PyObject *key = PyTuple_Pack(2, name, which);
    if (!key || PyDict_SetItem(hooks, key, function) < 0) {
        Py_XDECREF(key);
        return NULL;
    }
    Py_DECREF(key);
    Py_RETURN_NONE;
}

static PyObject *py_unhook(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    PyDict_Clear(hooks);
    Py_RETURN_NONE;
}

static PyObject *py_info(PyObject *self, PyObject *name)
{
    static const char *const states[] = {"waiting", "missing", "installed", "fired", "never fired"};
    moor_jp_info info;
    (void)self;
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (!text)
        return NULL;
    if (!moor_jp_find(&mockeng, text, &info)) {
        PyErr_SetObject(PyExc_LookupError, name);
        return NULL;
    }
    return Py_BuildValue("{ss,sz,sz,sI,sI,sK,sK,si}", "state", states[info.status], "resolved", info.resolved, "reason",
                         info.reason, "sites", (unsigned)info.sites, "rebound", (unsigned)info.rebound, "fired",
                         (unsigned long long)info.fired, "errors", (unsigned long long)info.errors, "detected",
                         detected);
}

static PyObject *py_rescan(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    moor_jp_rescan(&mockeng);
    Py_RETURN_NONE;
}

static PyObject *py_strict(PyObject *self, PyObject *on)
{
    (void)self;
    moor_jp_set_strict(PyObject_IsTrue(on) == 1);
    Py_RETURN_NONE;
}

static PyObject *py_wrap_attr(PyObject *self, PyObject *args)
{
    PyObject *object;
    const char *name, *attr;
    (void)self;
    if (!PyArg_ParseTuple(args, "sOs", &name, &object, &attr))
        return NULL;
    const moor_jp *jp = joinpoint(name);
    int status = jp ? moor_jp_wrap_attr(jp, object, attr) : -1;
    return status < 0 ? NULL : PyLong_FromLong(status);
}

static PyObject *py_bound(PyObject *self, PyObject *args)
{
    const char *name;
    unsigned sites, fired;
    (void)self;
    if (!PyArg_ParseTuple(args, "sII", &name, &sites, &fired))
        return NULL;
    const moor_jp *jp = joinpoint(name);
    if (!jp)
        return NULL;
    moor_jp_bound(jp, "bound by hand", sites);
    for (unsigned i = 0; i < fired; i++)
        moor_jp_fired_nogil(jp);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"install", py_install, METH_NOARGS, NULL},
    {"hook", py_hook, METH_VARARGS, NULL},
    {"unhook", py_unhook, METH_NOARGS, NULL},
    {"info", py_info, METH_O, NULL},
    {"rescan", py_rescan, METH_NOARGS, NULL},
    {"strict", py_strict, METH_O, NULL},
    {"wrap_attr", py_wrap_attr, METH_VARARGS, NULL},
    {"bound", py_bound, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "_jphost", .m_size = -1,
                                        .m_methods = functions};

PyMODINIT_FUNC PyInit__jphost(void)
{
    hooks = PyDict_New();
    return hooks ? PyModule_Create(&module_def) : NULL;
}
