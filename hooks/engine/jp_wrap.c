/* SPDX-License-Identifier: Apache-2.0 */
/* The objects that take the place of an engine's callables. */
#include "jp_wrap.h"

#include "jp_call.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

typedef struct wrapper {
    PyObject_HEAD
    PyObject *dict, *weakrefs;
    moor_jp_site site;
    bool binds;
} wrapper;

typedef struct activation {
    PyObject_HEAD
    moor_jp_call call;
    PyObject *owner;          /* the wrapper: keeps call.site alive */
    PyObject *parent;         /* activation it runs inside of, or NULL */
    moor_jp_callback current; /* to run again after an await */
    const char *what;
    bool muted; /* nested: one event only, the outermost's */
    bool begun, done, finished;
} activation;

static PyTypeObject *wrapper_type, *activation_type, *method_type;
static PyObject *shims;

static bool is_wrapper(PyObject *object)
{
    return wrapper_type && Py_TYPE(object) == wrapper_type;
}

/* ---- Wrapper ---- */

static int wrapper_traverse(PyObject *self, visitproc visit, void *arg)
{
    wrapper *w = (wrapper *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(w->dict);
    Py_VISIT(w->site.original);
    return 0;
}

static int wrapper_clear(PyObject *self)
{
    wrapper *w = (wrapper *)self;
    Py_CLEAR(w->dict);
    Py_CLEAR(w->site.original);
    return 0;
}

static void wrapper_dealloc(PyObject *self)
{
    wrapper *w = (wrapper *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (w->weakrefs)
        PyObject_ClearWeakRefs(self);
    (void)wrapper_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *wrapper_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return moor_jp_run(&((wrapper *)self)->site, args, kwargs);
}

/* Binding as a function does it.  (Calls of methods mostly skip this: Py_TPFLAGS_METHOD_DESCRIPTOR.) */
static PyObject *wrapper_bind(PyObject *self, PyObject *instance, PyObject *owner)
{
    (void)owner;
    if (!instance || instance == Py_None || !((wrapper *)self)->binds) {
        Py_INCREF(self);
        return self;
    }
    return PyObject_CallFunctionObjArgs((PyObject *)method_type, self, instance, NULL);
}

/* What the wrapper itself lacks is asked of the original: __code__, __defaults__, __annotations__, ... */
static PyObject *wrapper_getattro(PyObject *self, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value || !((wrapper *)self)->site.original || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return value;
    PyErr_Clear();
    return PyObject_GetAttr(((wrapper *)self)->site.original, name);
}

static PyObject *wrapper_repr(PyObject *self)
{
    const wrapper *w = (const wrapper *)self;
    return PyUnicode_FromFormat("<moor join point %s around %R>", w->site.state->jp->name, w->site.original);
}

/* Pickled, and copied, by name as functions are: in a process without Moor the name is the engine's own function. */
static PyObject *wrapper_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyObject_GetAttrString(self, "__qualname__");
}

static PyObject *wrapper_enter(PyObject *self, PyObject *args);

static PyMethodDef wrapper_methods[] = {
    {"__reduce__", wrapper_reduce, METH_NOARGS, NULL},
    {"__moor_enter__", wrapper_enter, METH_VARARGS, "(args, kwargs, parent) -> Activation; for moor._shims"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef wrapper_members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(wrapper, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(wrapper, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef wrapper_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot wrapper_slots[] = {
    {Py_tp_traverse, wrapper_traverse},
    {Py_tp_clear, wrapper_clear},
    {Py_tp_dealloc, wrapper_dealloc},
    {Py_tp_call, wrapper_call},
    {Py_tp_descr_get, wrapper_bind},
    {Py_tp_getattro, wrapper_getattro},
    {Py_tp_repr, wrapper_repr},
    {Py_tp_methods, wrapper_methods},
    {Py_tp_members, wrapper_members},
    {Py_tp_getset, wrapper_getset},
    {0, NULL},
};

static PyType_Spec wrapper_spec = {
    .name = "moor._moor.Wrapper",
    .basicsize = sizeof(wrapper),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = wrapper_slots,
};

/* ---- Activation: one call of a coroutine or async generator ---- */

/* Runs the current callback: an awaitable (new reference), or None when there is nothing to wait for. */
static PyObject *activation_step(activation *a, moor_jp_callback callback, const char *what)
{
    a->current = callback;
    a->what = what;
    int status = a->muted || a->done ? MOOR_JP_OK : moor_jp_step(&a->call, callback, what);
    if (status == MOOR_JP_RAISE)
        return NULL;
    if (status == MOOR_JP_AWAIT) {
        PyObject *awaitable = a->call.awaitable;
        a->call.awaitable = NULL;
        return awaitable;
    }
    a->done = a->done || status == MOOR_JP_DONE;
    a->call.rounds = 0;
    a->call.until_ns = 0;
    Py_CLEAR(a->call.awaited);
    Py_RETURN_NONE;
}

static PyObject *activation_before(PyObject *self, PyObject *unused)
{
    activation *a = (activation *)self;
    (void)unused;
    a->begun = true;
    PyObject *waiting = activation_step(a, a->call.jp->before, "before");
    if (waiting && !a->done)
        Py_CLEAR(a->call.result);
    if (!a->call.kwargs) { /* set_args(args, NULL); the shim writes **call.kwargs */
        PyObject *none = PyDict_New();
        if (!none)
            Py_CLEAR(waiting);
        a->call.kwargs = none;
    }
    return waiting;
}

static PyObject *activation_again(PyObject *self, PyObject *awaited)
{
    activation *a = (activation *)self;
    Py_INCREF(awaited);
    Py_XDECREF(a->call.awaited);
    a->call.awaited = awaited;
    a->call.rounds++;
    return activation_step(a, a->current, a->what);
}

static PyObject *activation_result(activation *a, PyObject *result, moor_jp_callback callback, const char *what)
{
    PyObject *old = a->call.result;
    Py_INCREF(result);
    a->call.result = result;
    Py_XDECREF(old);
    return activation_step(a, callback, what);
}

static PyObject *activation_item(PyObject *self, PyObject *item)
{
    return activation_result((activation *)self, item, ((activation *)self)->call.jp->item, "item");
}

static PyObject *activation_after(PyObject *self, PyObject *result)
{
    return activation_result((activation *)self, result, ((activation *)self)->call.jp->after, "after");
}

/* (exception) -> None, or raises the replacement. */
static PyObject *activation_error(PyObject *self, PyObject *exc)
{
    activation *a = (activation *)self;
    if (a->muted || a->done || !a->call.jp->error)
        Py_RETURN_NONE;
    PyObject *type = (PyObject *)Py_TYPE(exc);
    Py_INCREF(type);
    Py_INCREF(exc);
    PyErr_Restore(type, exc, PyException_GetTraceback(exc));
    Py_CLEAR(a->call.result);
    moor_jp_step_error(&a->call);
    PyObject *now_type, *now, *trace;
    PyErr_Fetch(&now_type, &now, &trace);
    if (now == exc) { /* the shim raises it again itself: no second traceback entry */
        Py_XDECREF(now_type);
        Py_XDECREF(now);
        Py_XDECREF(trace);
        Py_RETURN_NONE;
    }
    PyErr_Restore(now_type, now, trace);
    return NULL;
}

static void activation_end(activation *a)
{
    if (a->finished)
        return;
    a->finished = true;
    if (a->begun && !a->muted)
        moor_jp_step_finish(&a->call);
}

static PyObject *activation_finish(PyObject *self, PyObject *unused)
{
    (void)unused;
    activation_end((activation *)self);
    Py_RETURN_NONE;
}

static int activation_traverse(PyObject *self, visitproc visit, void *arg)
{
    activation *a = (activation *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(a->owner);
    Py_VISIT(a->parent);
    Py_VISIT(a->call.args);
    Py_VISIT(a->call.kwargs);
    Py_VISIT(a->call.result);
    Py_VISIT(a->call.exc);
    Py_VISIT(a->call.awaited);
    Py_VISIT(a->call.awaitable);
    return 0;
}

static int activation_clear(PyObject *self)
{
    activation *a = (activation *)self;
    activation_end(a); /* the last moment at which the adapter's state can go */
    moor_jp_call_clear(&a->call);
    Py_CLEAR(a->parent);
    Py_CLEAR(a->owner);
    return 0;
}

static void activation_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)activation_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef activation_methods[] = {
    {"before", activation_before, METH_NOARGS, NULL},
    {"again", activation_again, METH_O, NULL},
    {"item", activation_item, METH_O, NULL},
    {"after", activation_after, METH_O, NULL},
    {"error", activation_error, METH_O, NULL},
    {"finish", activation_finish, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* Read by the shims; members are the cheapest way. */
static PyMemberDef activation_members[] = {
    {"args", T_OBJECT, offsetof(activation, call.args), READONLY, NULL},
    {"kwargs", T_OBJECT, offsetof(activation, call.kwargs), READONLY, NULL},
    {"result", T_OBJECT, offsetof(activation, call.result), READONLY, NULL},
    {"done", T_BOOL, offsetof(activation, done), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot activation_slots[] = {
    {Py_tp_traverse, activation_traverse}, {Py_tp_clear, activation_clear},     {Py_tp_dealloc, activation_dealloc},
    {Py_tp_methods, activation_methods},   {Py_tp_members, activation_members}, {0, NULL},
};

static PyType_Spec activation_spec = {
    .name = "moor._moor.Activation",
    .basicsize = sizeof(activation),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = activation_slots,
};

/* Is `a`'s event already being seen by an activation around it, through another wrapper? */
static bool activation_nested(const activation *a)
{
    for (const activation *p = (const activation *)a->parent; p; p = (const activation *)p->parent) {
        if (!p->finished && p->call.site && p->call.site->state == a->call.site->state && p->call.self == a->call.self)
            return p->call.site != a->call.site;
    }
    return false;
}

static PyObject *wrapper_enter(PyObject *self, PyObject *args)
{
    wrapper *w = (wrapper *)self;
    PyObject *call_args, *kwargs, *parent;
    if (!PyArg_ParseTuple(args, "O!O!O:__moor_enter__", &PyTuple_Type, &call_args, &PyDict_Type, &kwargs, &parent))
        return NULL;
    activation *a = PyObject_GC_New(activation, activation_type);
    if (!a)
        return NULL;
    memset((char *)a + sizeof(PyObject), 0, sizeof *a - sizeof(PyObject));
    moor_jp_call_init(&a->call, &w->site, call_args, kwargs);
    moor_jp_call_keep(&a->call);
    Py_INCREF(self);
    a->owner = self;
    if (Py_TYPE(parent) == activation_type) {
        Py_INCREF(parent);
        a->parent = parent;
        a->muted = activation_nested(a);
    }
    if (!a->muted)
        moor_jp_count(w->site.state);
    PyObject_GC_Track(a);
    return (PyObject *)a;
}

/* ---- making them ---- */

int moor_jp_wrap_init(void)
{
    if (shims)
        return 0;
    PyObject *types = PyImport_ImportModule("types");
    PyObject *method = types ? PyObject_GetAttrString(types, "MethodType") : NULL;
    Py_XDECREF(types);
    PyObject *w = method ? PyType_FromSpec(&wrapper_spec) : NULL;
    PyObject *a = w ? PyType_FromSpec(&activation_spec) : NULL;
    PyObject *s = a ? PyImport_ImportModule("moor._shims") : NULL;
    if (!s) {
        Py_XDECREF(a);
        Py_XDECREF(w);
        Py_XDECREF(method);
        return -1;
    }
    method_type = (PyTypeObject *)method;
    wrapper_type = (PyTypeObject *)w;
    activation_type = (PyTypeObject *)a;
    shims = s;
    return 0;
}

/* As functools.update_wrapper: the names, the attributes, and the way back. */
static int copy_identity(wrapper *w)
{
    static const char *const names[] = {"__module__", "__name__", "__qualname__", "__doc__"};
    PyObject *original = w->site.original;
    w->dict = PyDict_New();
    if (!w->dict)
        return -1;
    PyObject *attributes = PyObject_GetAttrString(original, "__dict__");
    if (!attributes || !PyDict_Check(attributes) || PyDict_Update(w->dict, attributes) < 0)
        PyErr_Clear(); /* a builtin has none */
    Py_XDECREF(attributes);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        PyObject *value = PyObject_GetAttrString(original, names[i]);
        if (!value)
            PyErr_Clear();
        else if (PyDict_SetItemString(w->dict, names[i], value) < 0) {
            Py_DECREF(value);
            return -1;
        }
        Py_XDECREF(value);
    }
    return PyDict_SetItemString(w->dict, "__wrapped__", original);
}

static PyObject *new_wrapper(moor_jp_state *state, PyObject *original, bool method, bool binds)
{
    wrapper *w = PyObject_GC_New(wrapper, wrapper_type);
    if (!w)
        return NULL;
    memset((char *)w + sizeof(PyObject), 0, sizeof *w - sizeof(PyObject));
    Py_INCREF(original);
    w->site.state = state;
    w->site.wrapper = (PyObject *)w;
    w->site.original = original;
    w->site.method = method;
    w->binds = binds;
    moor_jp_site_index(&w->site);
    PyObject_GC_Track(w);
    if (copy_identity(w) < 0) {
        Py_DECREF(w);
        return NULL;
    }
    return (PyObject *)w;
}

/* May activations of this state nest through different wrappers? */
static bool can_nest(const moor_jp *jp)
{
    return (jp->flags & MOOR_JP_OVERRIDES) || (jp->targets[0] && jp->targets[1]);
}

PyObject *moor_jp_wrap_callable(moor_jp_state *state, PyObject *original, bool method, bool binds)
{
    static const char *const hints[] = {"auto", "plain", "coroutine", "async_generator"};
    if (moor_jp_wrap_init() < 0)
        return NULL;
    PyObject *w = new_wrapper(state, original, method, binds);
    if (!w)
        return NULL;
    /* (wrapper, original, hint, nests, has_item) -> the shim around an async callable, or the wrapper itself */
    PyObject *result = PyObject_CallMethod(shims, "wrap", "OOsii", w, original, hints[state->jp->kind],
                                           can_nest(state->jp) ? 1 : 0, state->jp->item ? 1 : 0);
    Py_DECREF(w);
    if (result)
        state->sites++;
    return result;
}

bool moor_jp_is_wrapped(const moor_jp_state *state, PyObject *object)
{
    Py_INCREF(object);
    for (int depth = 0; object && depth < 64; depth++) {
        PyObject *w = NULL;
        if (is_wrapper(object)) {
            w = object;
            Py_INCREF(w);
        } else {
            w = PyObject_GetAttrString(object, "__moor_wrapper__");
            PyErr_Clear();
        }
        Py_DECREF(object);
        if (!w || !is_wrapper(w)) {
            Py_XDECREF(w);
            return false;
        }
        bool ours = ((wrapper *)w)->site.state == state;
        object = ((wrapper *)w)->site.original;
        Py_XINCREF(object);
        Py_DECREF(w);
        if (ours) {
            Py_XDECREF(object);
            return true;
        }
    }
    Py_XDECREF(object);
    return false;
}
