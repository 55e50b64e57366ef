/* SPDX-License-Identifier: Apache-2.0 */
/* One activation of a join point. */
#include "jp_call.h"

#include <string.h>

enum { OWN_ARGS = 1u, OWN_KWARGS = 2u };

/* ---- the fields of a call ---- */

void moor_jp_call_init(moor_jp_call *call, moor_jp_site *site, PyObject *args, PyObject *kwargs)
{
    *call = (moor_jp_call){
        .jp = site->state->jp,
        .args = args,
        .kwargs = kwargs,
        .original = site->original,
        .site = site,
    };
    if (site->method && PyTuple_Size(args) > 0)
        call->self = PyTuple_GetItem(args, 0);
}

void moor_jp_call_keep(moor_jp_call *call)
{
    if (!(call->own & OWN_ARGS))
        Py_INCREF(call->args);
    if (!(call->own & OWN_KWARGS))
        Py_XINCREF(call->kwargs);
    call->own |= OWN_ARGS | OWN_KWARGS;
}

void moor_jp_call_clear(moor_jp_call *call)
{
    PyObject *args = call->own & OWN_ARGS ? call->args : NULL;
    PyObject *kwargs = call->own & OWN_KWARGS ? call->kwargs : NULL;
    call->own = 0;
    call->args = call->kwargs = call->self = NULL;
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    Py_CLEAR(call->result);
    Py_CLEAR(call->exc);
    Py_CLEAR(call->awaited);
    Py_CLEAR(call->awaitable);
}

PyObject *moor_jp_param(const moor_jp_call *call, unsigned i)
{
    if (i >= MOOR_JP_MAX_PARAMS || !call->site->state->names[i])
        return NULL;
    int index = call->site->index[i];
    if (index >= 0 && index < PyTuple_Size(call->args))
        return PyTuple_GetItem(call->args, index);
    if (!call->kwargs)
        return NULL;
    PyObject *value = PyDict_GetItemWithError(call->kwargs, call->site->state->names[i]);
    if (!value && PyErr_Occurred())
        PyErr_Clear(); /* only an exotic key's __eq__ can do this: then it is not our name */
    return value;
}

/* Names of the original's positional parameters, as a tuple; NULL without an error when they cannot be known. */
static PyObject *positional_names(PyObject *original)
{
    PyObject *inspect = PyImport_ImportModule("inspect");
    PyObject *plain = inspect ? PyObject_CallMethod(inspect, "unwrap", "O", original) : NULL;
    PyObject *code = plain ? PyObject_GetAttrString(plain, "__code__") : NULL;
    PyObject *names = code ? PyObject_GetAttrString(code, "co_varnames") : NULL;
    PyObject *count = code ? PyObject_GetAttrString(code, "co_argcount") : NULL;
    PyObject *result = NULL;
    if (names && count && PyTuple_Check(names))
        result = PyTuple_GetSlice(names, 0, PyLong_AsSsize_t(count));
    PyErr_Clear();
    Py_XDECREF(count);
    Py_XDECREF(names);
    Py_XDECREF(code);
    Py_XDECREF(plain);
    Py_XDECREF(inspect);
    return result;
}

/* Names of a callable without code (a builtin, a partial): asks inspect.signature. */
static PyObject *signature_names(PyObject *original)
{
    PyObject *inspect = PyImport_ImportModule("inspect");
    PyObject *signature = inspect ? PyObject_CallMethod(inspect, "signature", "O", original) : NULL;
    PyObject *parameters = signature ? PyObject_GetAttrString(signature, "parameters") : NULL;
    PyObject *values = parameters ? PyObject_CallMethod(parameters, "values", NULL) : NULL;
    PyObject *list = values ? PySequence_List(values) : NULL;
    PyObject *names = list ? PyList_New(0) : NULL;
    for (Py_ssize_t i = 0; names && i < PyList_Size(list); i++) {
        PyObject *parameter = PyList_GetItem(list, i);
        PyObject *kind = PyObject_GetAttrString(parameter, "kind");
        long k = kind ? PyLong_AsLong(kind) : 9;
        PyObject *name = k <= 1 ? PyObject_GetAttrString(parameter, "name") : NULL;
        if (name)
            (void)PyList_Append(names, name);
        Py_XDECREF(name);
        Py_XDECREF(kind);
        if (k > 1)
            break; /* *args, keyword-only, **kwargs: no position */
    }
    PyObject *result = names ? PyList_AsTuple(names) : NULL;
    PyErr_Clear();
    Py_XDECREF(names);
    Py_XDECREF(list);
    Py_XDECREF(values);
    Py_XDECREF(parameters);
    Py_XDECREF(signature);
    Py_XDECREF(inspect);
    return result;
}

static PyObject *parameter_names(PyObject *original)
{
    /* A bound method's code still names self, which is not among the arguments; its signature does not. */
    PyObject *names = PyObject_HasAttrString(original, "__func__") ? NULL : positional_names(original);
    return names ? names : signature_names(original);
}

/* Another plugin's function around the engine's may take `*args`, and so name nothing: what is past the parameters that it
 * names is where the engine's own function has it. */
void moor_jp_site_index(moor_jp_site *site)
{
    moor_jp_state *state = site->state;
    memset(site->index, 0xff, sizeof site->index);
    if (!state->names[0])
        return;
    PyObject *names = parameter_names(site->original);
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    for (int p = 0; names && p < MOOR_JP_MAX_PARAMS && state->names[p]; p++) {
        for (Py_ssize_t i = 0; i < named && i < INT16_MAX; i++) {
            if (PyUnicode_Compare(PyTuple_GetItem(names, i), state->names[p]) == 0)
                site->index[p] = (int16_t)i;
        }
        if (state->index[p] < 0)
            state->index[p] = site->index[p];
        else if (site->index[p] < 0 && state->index[p] >= named)
            site->index[p] = state->index[p];
    }
    PyErr_Clear();
    Py_XDECREF(names);
}

PyObject *moor_jp_arg(const moor_jp_call *call, const char *name)
{
    PyObject *value = NULL;
    PyObject *key = PyUnicode_FromString(name);
    PyObject *names = key ? parameter_names(call->original) : NULL;
    for (Py_ssize_t i = 0; names && !value && i < PyTuple_Size(names); i++) {
        if (PyUnicode_Compare(PyTuple_GetItem(names, i), key) == 0 && i < PyTuple_Size(call->args))
            value = PyTuple_GetItem(call->args, i);
    }
    if (!value && key && call->kwargs)
        value = PyDict_GetItemWithError(call->kwargs, key);
    PyErr_Clear();
    Py_XDECREF(names);
    Py_XDECREF(key);
    return value;
}

int moor_jp_set_args(moor_jp_call *call, PyObject *args, PyObject *kwargs)
{
    if (!args || !PyTuple_Check(args) || (kwargs && !PyDict_Check(kwargs))) {
        PyErr_Format(PyExc_SystemError, "moor: join point %s: arguments must be a tuple and a dict", call->jp->name);
        return -1;
    }
    Py_INCREF(args);
    Py_XINCREF(kwargs);
    PyObject *old_args = call->own & OWN_ARGS ? call->args : NULL;
    PyObject *old_kwargs = call->own & OWN_KWARGS ? call->kwargs : NULL;
    call->args = args;
    call->kwargs = kwargs;
    call->own |= OWN_ARGS | OWN_KWARGS;
    call->self = call->site->method && PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : NULL;
    Py_XDECREF(old_args);
    Py_XDECREF(old_kwargs);
    return 0;
}

static PyObject *tuple_with(PyObject *args, Py_ssize_t index, PyObject *value)
{
    Py_ssize_t n = PyTuple_Size(args);
    PyObject *copy = PyTuple_New(n);
    for (Py_ssize_t i = 0; copy && i < n; i++) {
        PyObject *item = i == index ? value : PyTuple_GetItem(args, i);
        Py_INCREF(item);
        (void)PyTuple_SetItem(copy, i, item);
    }
    return copy;
}

int moor_jp_set_param(moor_jp_call *call, unsigned i, PyObject *value)
{
    if (i >= MOOR_JP_MAX_PARAMS || !call->site->state->names[i] || !value) {
        PyErr_Format(PyExc_SystemError, "moor: join point %s has no parameter %u", call->jp->name, i);
        return -1;
    }
    int index = call->site->index[i], status = -1;
    if (index >= 0 && index < PyTuple_Size(call->args)) {
        PyObject *args = tuple_with(call->args, index, value);
        if (args)
            status = moor_jp_set_args(call, args, call->kwargs);
        Py_XDECREF(args);
        return status;
    }
    PyObject *kwargs = call->kwargs ? PyDict_Copy(call->kwargs) : PyDict_New();
    if (kwargs && PyDict_SetItem(kwargs, call->site->state->names[i], value) == 0)
        status = moor_jp_set_args(call, call->args, kwargs);
    Py_XDECREF(kwargs);
    return status;
}

static int set_owned(PyObject **field, PyObject *value, const moor_jp_call *call, const char *what)
{
    if (!value) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_SystemError, "moor: join point %s: %s is NULL", call->jp->name, what);
        return -1;
    }
    PyObject *old = *field;
    *field = value;
    Py_XDECREF(old);
    return 0;
}

int moor_jp_set_result(moor_jp_call *call, PyObject *result)
{
    return set_owned(&call->result, result, call, "the result");
}

int moor_jp_set_awaitable(moor_jp_call *call, PyObject *awaitable)
{
    return set_owned(&call->awaitable, awaitable, call, "the awaitable");
}

/* ---- callbacks ---- */

int moor_jp_step(moor_jp_call *call, moor_jp_callback callback, const char *what)
{
    if (!callback)
        return MOOR_JP_OK;
    int status = callback(call);
    if (status == MOOR_JP_OK)
        return MOOR_JP_OK;
    if (status == MOOR_JP_DONE && call->result && callback == call->jp->before)
        return MOOR_JP_DONE;
    if (status == MOOR_JP_AWAIT && call->awaitable)
        return MOOR_JP_AWAIT;
    if (status == MOOR_JP_RAISE && PyErr_Occurred())
        return MOOR_JP_RAISE;
    if (status != MOOR_JP_FAILED && !PyErr_Occurred())
        PyErr_Format(PyExc_SystemError, "answered %d without what that needs", status);
    return moor_jp_state_failed(call->site->state, what) < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
}

int moor_jp_step_plain(moor_jp_call *call, moor_jp_callback callback, const char *what)
{
    int status = moor_jp_step(call, callback, what);
    if (status != MOOR_JP_AWAIT)
        return status;
    Py_CLEAR(call->awaitable);
    PyErr_SetString(PyExc_SystemError, "a plain callable cannot await");
    return moor_jp_state_failed(call->site->state, what) < 0 ? MOOR_JP_RAISE : MOOR_JP_OK;
}

/* Moves the pending error into call->exc. */
static void take_error(moor_jp_call *call)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace)
        (void)PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    Py_XDECREF(call->exc);
    call->exc = value;
}

/* Raises call->exc again, with the traceback that it carries. */
static void give_error(moor_jp_call *call)
{
    PyObject *value = call->exc;
    call->exc = NULL;
    PyObject *type = (PyObject *)Py_TYPE(value);
    Py_INCREF(type);
    PyErr_Restore(type, value, PyException_GetTraceback(value));
}

void moor_jp_step_error(moor_jp_call *call)
{
    if (!call->jp->error)
        return;
    take_error(call);
    if (!call->exc)
        return;
    if (moor_jp_step_plain(call, call->jp->error, "error") != MOOR_JP_RAISE) {
        give_error(call);
        return;
    }
    /* A replacement: chained to the engine's own error, which stays readable. */
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && value != call->exc) {
        PyException_SetContext(value, call->exc); /* steals */
        call->exc = NULL;
    }
    PyErr_Restore(type, value, trace);
    Py_CLEAR(call->exc);
}

void moor_jp_step_finish(moor_jp_call *call)
{
    if (!call->jp->finish)
        return;
    /* The engine's result or error is on its way out: keep it apart from what happens here. */
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    call->jp->finish(call);
    if (PyErr_Occurred())
        PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

/* ---- plain calls ---- */

/* Activations on this thread's stack, innermost first; only of join points with more than one site, since only these
 * can nest through different wrappers. */
typedef struct frame {
    const moor_jp_site *site;
    PyObject *self;
    struct frame *outer;
} frame;

static _Thread_local frame *innermost;

static bool is_nested(const moor_jp_site *site, PyObject *self)
{
    for (const frame *f = innermost; f; f = f->outer) {
        if (f->site->state == site->state && f->self == self)
            return f->site != site; /* the same wrapper again is a recursion: a new event */
    }
    return false;
}

/* The original, unless `around` runs instead.  0: call->result; -1: error pending. */
static int run_body(moor_jp_call *call)
{
    if (call->jp->around) {
        int status = moor_jp_step_plain(call, call->jp->around, "around");
        if (status == MOOR_JP_RAISE) {
            Py_CLEAR(call->result);
            Py_CLEAR(call->exc);
            return -1;
        }
        if (call->exc) {
            give_error(call);
            return -1;
        }
        if (call->result)
            return 0;
    }
    call->result = PyObject_Call(call->original, call->args, call->kwargs);
    return call->result ? 0 : -1;
}

int moor_jp_proceed(moor_jp_call *call)
{
    if (call->result || call->exc) {
        PyErr_Format(PyExc_SystemError, "moor: join point %s proceeded twice", call->jp->name);
        return -1;
    }
    call->result = PyObject_Call(call->original, call->args, call->kwargs);
    if (call->result)
        return 0;
    take_error(call);
    return -1;
}

static PyObject *take_result(moor_jp_call *call)
{
    PyObject *result = call->result;
    call->result = NULL;
    return result;
}

static PyObject *run_callbacks(moor_jp_call *call)
{
    int status = moor_jp_step_plain(call, call->jp->before, "before");
    if (status == MOOR_JP_RAISE)
        return NULL;
    if (status == MOOR_JP_DONE)
        return take_result(call);
    Py_CLEAR(call->result);
    if (run_body(call) < 0) {
        moor_jp_step_error(call);
        return NULL;
    }
    if (moor_jp_step_plain(call, call->jp->after, "after") == MOOR_JP_RAISE) {
        Py_CLEAR(call->result);
        return NULL;
    }
    return take_result(call);
}

PyObject *moor_jp_run(moor_jp_site *site, PyObject *args, PyObject *kwargs)
{
    moor_jp_call call;
    moor_jp_call_init(&call, site, args, kwargs);
    if (site->state->sites > 1 && is_nested(site, call.self))
        return PyObject_Call(site->original, args, kwargs);
    frame here = {site, call.self, innermost};
    innermost = &here;
    moor_jp_count(site->state);
    PyObject *result = run_callbacks(&call);
    moor_jp_step_finish(&call);
    innermost = here.outer;
    moor_jp_call_clear(&call);
    return result;
}
