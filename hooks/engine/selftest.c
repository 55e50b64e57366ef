/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that each kind of wrapper fires. */
#include "selftest.h"

#include <stdio.h>

/* How often each callback ran for one join point. */
typedef struct tally {
    int before, item, after, finish;
    bool saw_parameter;
} tally;

enum { FUNCTION, METHOD, STATIC, CLASS, COROUTINE, ASYNC_GENERATOR, OVERRIDE, KINDS };
static tally tallies[KINDS];

static int on_before(moor_jp_call *call)
{
    tally *t = call->jp->user;
    t->before++;
    t->saw_parameter = moor_jp_param(call, 0) != NULL;
    return MOOR_JP_OK;
}

static int on_item(moor_jp_call *call)
{
    ((tally *)call->jp->user)->item++;
    return MOOR_JP_OK;
}

static int on_after(moor_jp_call *call)
{
    ((tally *)call->jp->user)->after++;
    return MOOR_JP_OK;
}

static void on_finish(moor_jp_call *call)
{
    ((tally *)call->jp->user)->finish++;
}

#define ENTRY(index, label, path, more_flags, ...)                                                                     \
    [index] = {.name = label,                                                                                          \
               .targets = {"moor._selftest:" path},                                                                    \
               .flags = MOOR_JP_REQUIRED | (more_flags),                                                               \
               .params = {"value"},                                                                                    \
               .before = on_before,                                                                                    \
               .after = on_after,                                                                                      \
               .finish = on_finish,                                                                                    \
               .user = &tallies[index],                                                                                \
               __VA_ARGS__}

static const moor_jp joinpoints[KINDS] = {
    ENTRY(FUNCTION, "function", "function", 0, ),
    ENTRY(METHOD, "method", "Thing.method", 0, ),
    ENTRY(STATIC, "staticmethod", "Thing.static", 0, ),
    ENTRY(CLASS, "classmethod", "Thing.klass", 0, ),
    ENTRY(COROUTINE, "coroutine", "Thing.coroutine", 0, ),
    ENTRY(ASYNC_GENERATOR, "async_generator", "Thing.stream", 0, .item = on_item),
    ENTRY(OVERRIDE, "override", "Thing.overridden", MOOR_JP_OVERRIDES, ),
};

static const char *const packages[] = {NULL};

const moor_engine moor_engine_selftest = {
    .name = "_selftest",
    .packages = packages,
    .joinpoints = joinpoints,
    .njoinpoints = KINDS,
};

/* _selftest.run() calls each once; the stream yields twice. */
static PyObject *verdict(int kind)
{
    const tally *t = &tallies[kind];
    int items = kind == ASYNC_GENERATOR ? 2 : 0;
    if (t->before == 1 && t->after == 1 && t->finish == 1 && t->item == items && t->saw_parameter)
        Py_RETURN_NONE;
    return PyUnicode_FromFormat(
        "before %d, after %d, finish %d times instead of 1; %d items instead of %d; parameter %s", t->before, t->after,
        t->finish, t->item, items, t->saw_parameter ? "seen" : "not seen");
}

PyObject *moor_jp_selftest(void)
{
    PyObject *module = PyImport_ImportModule("moor._selftest");
    if (!module || moor_jp_register(&moor_engine_selftest) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    for (int i = 0; i < KINDS; i++)
        tallies[i] = (tally){0};
    PyObject *ran = PyObject_CallMethod(module, "run", NULL);
    Py_DECREF(module);
    PyObject *report = ran ? PyDict_New() : NULL;
    Py_XDECREF(ran);
    for (int i = 0; report && i < KINDS; i++) {
        PyObject *text = verdict(i);
        if (!text || PyDict_SetItemString(report, joinpoints[i].name, text) < 0)
            Py_CLEAR(report);
        Py_XDECREF(text);
    }
    return report;
}
