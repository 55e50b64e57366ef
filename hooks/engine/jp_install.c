/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the attributes that a table names and puts wrappers in their place. */
#include "jp_install.h"

#include "jp_wrap.h"
#include "loader.h"

#include <stdlib.h>
#include <string.h>

static bool initializing_seen; /* some target's module was only half executed: look again at the next chance */

/* ---- names ---- */

static bool target_in_module(const char *target, const char *module)
{
    size_t n = strlen(module);
    return strncmp(target, module, n) == 0 && target[n] == ':';
}

bool moor_jp_is_target(const char *module)
{
    const moor_jp_state *state;
    for (size_t i = 0; (state = moor_jp_state_at(i)); i++) {
        for (int t = 0; t < MOOR_JP_MAX_TARGETS && state->jp->targets[t]; t++) {
            if (target_in_module(state->jp->targets[t], module))
                return true;
        }
    }
    return false;
}

/* Is `name` ("a.b.c") in one of the engine's packages? */
static bool in_packages(const moor_engine *engine, const char *name)
{
    for (const char *const *p = engine->packages; p && *p; p++) {
        size_t n = strlen(*p);
        if (strncmp(name, *p, n) == 0 && (name[n] == '\0' || name[n] == '.'))
            return true;
    }
    return false;
}

static bool object_in_packages(const moor_engine *engine, PyObject *object)
{
    PyObject *module = PyObject_GetAttrString(object, "__module__");
    const char *name = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8AndSize(module, NULL) : NULL;
    bool result = name && in_packages(engine, name);
    Py_XDECREF(module);
    PyErr_Clear();
    return result;
}

static bool is_initializing(PyObject *module)
{
    PyObject *spec = moor_loader_own(module, "__spec__");
    PyObject *flag = spec ? PyObject_GetAttrString(spec, "_initializing") : NULL;
    bool result = flag && PyObject_IsTrue(flag) == 1;
    Py_XDECREF(flag);
    Py_XDECREF(spec);
    PyErr_Clear();
    return result;
}

/* ---- raw attributes: without running descriptors, so that static and class methods are seen as such ---- */

static PyObject *own_attribute(PyObject *type, const char *name)
{
    if (PyModule_Check(type))
        return moor_loader_own(type, name);
    PyObject *dict = PyObject_GetAttrString(type, "__dict__");
    PyObject *value = dict ? PyMapping_GetItemString(dict, name) : NULL;
    Py_XDECREF(dict);
    PyErr_Clear();
    return value;
}

/* The class in type's MRO that defines `name`: new references to both, or NULL without an error. */
static PyObject *defining_class(PyObject *type, const char *name, PyObject **raw)
{
    PyObject *mro = PyObject_GetAttrString(type, "__mro__");
    PyObject *found = NULL;
    for (Py_ssize_t i = 0; mro && PyTuple_Check(mro) && i < PyTuple_Size(mro) && !found; i++) {
        PyObject *candidate = PyTuple_GetItem(mro, i);
        *raw = own_attribute(candidate, name);
        if (*raw) {
            Py_INCREF(candidate);
            found = candidate;
        }
    }
    Py_XDECREF(mro);
    PyErr_Clear();
    return found;
}

/* ---- wrapping one attribute ---- */

typedef enum place { PLACE_MODULE, PLACE_CLASS, PLACE_OBJECT } place;

/* The limited API has neither type under a name of its own. */
static bool is_instance_of(PyObject *object, const char *builtin)
{
    PyObject *builtins = PyImport_ImportModule("builtins");
    PyObject *type = builtins ? PyObject_GetAttrString(builtins, builtin) : NULL;
    bool result = type && PyObject_TypeCheck(object, (PyTypeObject *)type);
    Py_XDECREF(type);
    Py_XDECREF(builtins);
    PyErr_Clear();
    return result;
}

/* The function inside a static or class method object; `object` itself otherwise.  New reference. */
static PyObject *underlying(PyObject *object)
{
    if (is_instance_of(object, "staticmethod") || is_instance_of(object, "classmethod")) {
        PyObject *function = PyObject_GetAttrString(object, "__func__");
        if (function)
            return function;
        PyErr_Clear();
    }
    Py_INCREF(object);
    return object;
}

/* Wraps `raw`, found in a place of this kind.  New reference; NULL with an error. */
static PyObject *wrap_raw(moor_jp_state *state, PyObject *raw, place where)
{
    bool is_static = is_instance_of(raw, "staticmethod");
    bool is_class = is_instance_of(raw, "classmethod");
    PyObject *function = underlying(raw);
    if (!PyCallable_Check(function)) {
        PyErr_Format(PyExc_TypeError, "%R is not callable", raw);
        Py_DECREF(function);
        return NULL;
    }
    /* A callable in a class binds only if it has __get__ (a builtin function has none). */
    bool binds = where == PLACE_CLASS && !is_static && (is_class || PyObject_HasAttrString(function, "__get__"));
    PyObject *wrapped = moor_jp_wrap_callable(state, function, binds, binds);
    Py_DECREF(function);
    if (!wrapped || !(is_static || is_class))
        return wrapped;
    PyObject *rebuilt = PyObject_CallFunctionObjArgs((PyObject *)Py_TYPE(raw), wrapped, NULL);
    Py_DECREF(wrapped);
    return rebuilt;
}

/* Replaces owner.name, whose present raw value is `raw`.  1 wrapped, 0 was wrapped already, -1 error. */
static int wrap_attribute(moor_jp_state *state, PyObject *owner, const char *name, PyObject *raw, place where)
{
    PyObject *function = underlying(raw);
    bool already = moor_jp_is_wrapped(state, function);
    Py_DECREF(function);
    if (already)
        return 0;
    PyObject *wrapped = wrap_raw(state, raw, where);
    if (!wrapped)
        return -1;
    int status = PyObject_SetAttrString(owner, name, wrapped);
    Py_DECREF(wrapped);
    if (status < 0) {
        state->sites--;
        return -1;
    }
    return 1;
}

static void report_attribute_error(moor_jp_state *state, const char *what)
{
    char text[384];
    moor_jp_error_text(text, sizeof text);
    moor_jp_set_reason(state, "%s: %s", what, text);
    moor_jp_log("warn", "join point %s: cannot wrap %s: %s", state->jp->name, what, text);
}

/* ---- names bound early ---- */

static void rebind_in(moor_jp_state *state, PyObject *module, PyObject *old, PyObject *new)
{
    PyObject *dict = PyModule_GetDict(module); /* borrowed */
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (dict && PyDict_Next(dict, &at, &key, &value)) {
        if (value != old)
            continue;
        if (PyDict_SetItem(dict, key, new) < 0) /* an existing key: allowed while iterating */
            PyErr_Clear();
        else
            state->rebound++;
    }
}

static void rebind_early_names(moor_jp_state *state, PyObject *old, PyObject *new)
{
    if ((state->jp->flags & MOOR_JP_PINNED) || old == new)
        return;
    PyObject *modules = PyImport_GetModuleDict(); /* borrowed */
    PyObject *list = modules ? PyMapping_Items(modules) : NULL;
    for (Py_ssize_t i = 0; list && i < PyList_Size(list); i++) {
        PyObject *item = PyList_GetItem(list, i);
        PyObject *name = PyTuple_GetItem(item, 0), *module = PyTuple_GetItem(item, 1);
        const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
        if (text && PyModule_Check(module) && (in_packages(state->engine, text) || strcmp(text, "__main__") == 0))
            rebind_in(state, module, old, new);
    }
    PyErr_Clear();
    Py_XDECREF(list);
}

/* ---- overrides ---- */

static void remember_owner(moor_jp_state *state, PyObject *type, const char *attr)
{
    for (const moor_jp_owner *o = state->owners; o; o = o->next) {
        if (o->type == type && strcmp(o->attr, attr) == 0)
            return;
    }
    moor_jp_owner *owner = malloc(sizeof *owner);
    char *copy = strdup(attr);
    if (!owner || !copy) { /* later subclasses of this one stay unwrapped: said, not hidden */
        free(owner);
        free(copy);
        moor_jp_log("error", "join point %s: out of memory, overrides are not followed", state->jp->name);
        return;
    }
    Py_INCREF(type);
    *owner = (moor_jp_owner){type, copy, state->owners};
    state->owners = owner;
}

/* `type` is a strict subclass of an owner: if it overrides the attribute, wrap that. */
static void wrap_override(moor_jp_state *state, PyObject *type, const char *attr)
{
    PyObject *raw = own_attribute(type, attr);
    if (!raw)
        return;
    if (wrap_attribute(state, type, attr, raw, PLACE_CLASS) < 0)
        report_attribute_error(state, attr);
    Py_DECREF(raw);
}

static void wrap_overrides_below(moor_jp_state *state, PyObject *type, const char *attr, int depth)
{
    PyObject *subclasses = PyObject_CallMethod(type, "__subclasses__", NULL);
    for (Py_ssize_t i = 0; subclasses && PyList_Check(subclasses) && i < PyList_Size(subclasses); i++) {
        PyObject *subclass = PyList_GetItem(subclasses, i);
        wrap_override(state, subclass, attr);
        if (depth < 32)
            wrap_overrides_below(state, subclass, attr, depth + 1);
    }
    PyErr_Clear();
    Py_XDECREF(subclasses);
}

static bool is_type(PyObject *object)
{
    return PyObject_TypeCheck(object, &PyType_Type);
}

/* Classes that `module` defines, against the owners of every join point that follows overrides. */
static void wrap_overrides_in(PyObject *module)
{
    PyObject *dict = PyModule_Check(module) ? PyModule_GetDict(module) : NULL;
    PyObject *values = dict ? PyDict_Values(dict) : NULL;
    for (Py_ssize_t i = 0; values && i < PyList_Size(values); i++) {
        PyObject *type = PyList_GetItem(values, i);
        if (!is_type(type))
            continue;
        moor_jp_state *state;
        for (size_t k = 0; (state = moor_jp_state_at(k)); k++) {
            for (const moor_jp_owner *o = state->owners; o; o = o->next) {
                if (type != o->type && PyType_IsSubtype((PyTypeObject *)type, (PyTypeObject *)o->type))
                    wrap_override(state, type, o->attr);
            }
        }
    }
    PyErr_Clear();
    Py_XDECREF(values);
}

/* ---- one target ---- */

static int install_in_class(moor_jp_state *state, PyObject *type, const char *attr)
{
    PyObject *raw = NULL;
    PyObject *definer = defining_class(type, attr, &raw);
    if (!definer)
        return -1;
    /* Inherited from the engine's own base: there it is seen for every class. From elsewhere (object, nn.Module): here. */
    PyObject *owner = definer == type || object_in_packages(state->engine, definer) ? definer : type;
    int status = wrap_attribute(state, owner, attr, raw, PLACE_CLASS);
    if (status < 0)
        report_attribute_error(state, attr);
    if (status >= 0 && (state->jp->flags & MOOR_JP_OVERRIDES)) {
        remember_owner(state, owner, attr);
        wrap_overrides_below(state, owner, attr, 0);
    }
    Py_DECREF(raw);
    Py_DECREF(definer);
    return status < 0 ? -1 : 0;
}

static int install_in_module(moor_jp_state *state, PyObject *module, const char *attr)
{
    PyObject *raw = own_attribute(module, attr);
    if (!raw)
        return -1;
    int status = wrap_attribute(state, module, attr, raw, PLACE_MODULE);
    if (status < 0)
        report_attribute_error(state, attr);
    if (status > 0) {
        PyObject *new = own_attribute(module, attr);
        if (new)
            rebind_early_names(state, raw, new);
        Py_XDECREF(new);
    }
    Py_DECREF(raw);
    return status < 0 ? -1 : 0;
}

/* Walks path from the module.  The first step looks only into the module's own dict: a module's __getattr__ may import
 * half of the engine. */
static int install_path(moor_jp_state *state, PyObject *module, const char *path)
{
    char part[128];
    PyObject *owner = module;
    Py_INCREF(owner);
    for (;;) {
        size_t n = strcspn(path, ".");
        if (n == 0 || n >= sizeof part) {
            Py_DECREF(owner);
            return -1;
        }
        memcpy(part, path, n);
        part[n] = '\0';
        if (path[n] == '\0')
            break;
        PyObject *next = owner == module ? own_attribute(module, part) : PyObject_GetAttrString(owner, part);
        PyErr_Clear();
        Py_DECREF(owner);
        if (!next)
            return -1;
        owner = next;
        path += n + 1;
    }
    int status = is_type(owner) ? install_in_class(state, owner, part) : install_in_module(state, owner, part);
    Py_DECREF(owner);
    return status;
}

static void install_target(moor_jp_state *state, int t, PyObject *module)
{
    const char *target = state->jp->targets[t];
    state->seen = true;
    if (install_path(state, module, strchr(target, ':') + 1) < 0) {
        if (!state->reason)
            moor_jp_set_reason(state, "%s: no such attribute", target);
        return;
    }
    if (t < state->best) {
        state->best = t;
        state->resolved = target;
    }
}

/* It was made before we came, or past our finder. */
static void watch_deferred(PyObject *module)
{
    PyObject *spec = moor_loader_own(module, "__spec__");
    if (spec)
        moor_loader_watch(spec);
    Py_XDECREF(spec);
}

/* The module of a target if it has been imported completely: borrowed name in `name`, new reference, or NULL. */
static PyObject *imported_module(const char *target)
{
    const char *colon = strchr(target, ':');
    PyObject *name = colon ? PyUnicode_FromStringAndSize(target, colon - target) : NULL;
    PyObject *modules =
        PyImport_GetModuleDict(); /* borrowed; PyImport_GetModule asks for __spec__: a deferred one executes */
    PyObject *module = name && modules ? Py_XNewRef(PyDict_GetItemWithError(modules, name)) : NULL;
    Py_XDECREF(name);
    PyErr_Clear();
    if (module && moor_loader_is_deferred(module)) {
        watch_deferred(module);
        Py_CLEAR(module);
    }
    if (module && is_initializing(module)) {
        initializing_seen = true;
        Py_CLEAR(module);
    }
    return module;
}

void moor_jp_install_state(moor_jp_state *state)
{
    for (int t = 0; t < MOOR_JP_MAX_TARGETS && state->jp->targets[t]; t++) {
        PyObject *module = imported_module(state->jp->targets[t]);
        if (module)
            install_target(state, t, module);
        Py_XDECREF(module);
    }
}

static void install_all(void)
{
    moor_jp_state *state;
    initializing_seen = false;
    for (size_t i = 0; (state = moor_jp_state_at(i)); i++)
        moor_jp_install_state(state);
}

void moor_jp_module_executed(const char *name, PyObject *module)
{
    moor_jp_state *state;
    for (size_t i = 0; (state = moor_jp_state_at(i)); i++) {
        for (int t = 0; t < MOOR_JP_MAX_TARGETS && state->jp->targets[t]; t++) {
            if (target_in_module(state->jp->targets[t], name))
                install_target(state, t, module);
        }
    }
    wrap_overrides_in(module);
    if (initializing_seen)
        install_all();
}

void moor_jp_catch_up(void)
{
    static _Thread_local bool busy; /* whatever is imported meanwhile */
    moor_jp_state *state;
    if (busy)
        return;
    busy = true;
    for (size_t i = 0; (state = moor_jp_state_at(i)); i++) {
        if (!state->sites && state->jp->targets[0])
            moor_jp_install_state(state);
    }
    busy = false;
}

/* ---- objects ---- */

PyObject *moor_jp_wrap(const moor_jp *jp, PyObject *callable, bool self_first)
{
    moor_jp_state *state = moor_jp_state_of(jp);
    if (!state) {
        PyErr_Format(PyExc_SystemError, "moor: join point %s is not registered", jp->name);
        return NULL;
    }
    state->seen = true;
    return moor_jp_wrap_callable(state, callable, self_first, false);
}

int moor_jp_wrap_attr(const moor_jp *jp, PyObject *object, const char *name)
{
    moor_jp_state *state = moor_jp_state_of(jp);
    if (!state) {
        PyErr_Format(PyExc_SystemError, "moor: join point %s is not registered", jp->name);
        return -1;
    }
    state->seen = true;
    PyObject *value = PyObject_GetAttrString(object, name);
    if (!value)
        return -1;
    int status = wrap_attribute(state, object, name, value, PLACE_OBJECT);
    Py_DECREF(value);
    return status;
}
