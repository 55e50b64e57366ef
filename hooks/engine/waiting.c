/* SPDX-License-Identifier: Apache-2.0 */
#include "waiting.h"

#include <stdlib.h>

static const char PLACE[] = "moor.place";

typedef struct place {
    moor_look look; /* NULL: it was left */
    void *user;
} place;

static size_t waiting;

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

/* ---- what the lines call --------------------------------------------------------------------------------------------- */

static PyObject *watch(PyObject *self, PyObject *what)
{
    moor_runtime *rt = moor_runtime_get();
    unsigned long call = PyLong_AsUnsignedLong(what);
    int fd;
    (void)self;
    if (call == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    moor_status status = rt->process ? rt->api->gate_watch(rt->process, (uint32_t)call, &fd) : MOOR_E_CLOSED;
    return status ? moor_runtime_raise(status, "waiting at the gate") : PyLong_FromLong(fd);
}

static PyObject *unwatch(PyObject *self, PyObject *fd)
{
    moor_runtime *rt = moor_runtime_get();
    long number = PyLong_AsLong(fd);
    (void)self;
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (rt->api)
        rt->api->gate_unwatch((int)number);
    Py_RETURN_NONE;
}

/* True: the wait is over; False: the gate is closed; None: no ticket for this one. */
static PyObject *look(PyObject *capsule, PyObject *unused)
{
    (void)unused;
    place *p = PyCapsule_GetPointer(capsule, PLACE);
    if (!p)
        return NULL;
    switch (p->look ? p->look(p->user) : MOOR_LOOK_OVER) {
    case MOOR_LOOK_OVER:
        Py_RETURN_TRUE;
    case MOOR_LOOK_CLOSED:
        Py_RETURN_FALSE;
    case MOOR_LOOK_FULL:
        Py_RETURN_NONE;
    default:
        return NULL;
    }
}

static PyMethodDef watch_def = {"watch", watch, METH_O, NULL};
static PyMethodDef unwatch_def = {"unwatch", unwatch, METH_O, NULL};
static PyMethodDef look_def = {"look", look, METH_NOARGS, NULL};

/* moor._waiting, which knows by then how to watch; a borrowed reference, or NULL with an error. */
static PyObject *lines(void)
{
    static PyObject *module;
    if (module)
        return module;
    PyObject *imported = PyImport_ImportModule("moor._waiting");
    PyObject *w = imported ? PyCFunction_New(&watch_def, NULL) : NULL;
    PyObject *u = w ? PyCFunction_New(&unwatch_def, NULL) : NULL;
    PyObject *done = u ? PyObject_CallMethod(imported, "use", "OO", w, u) : NULL;
    Py_XDECREF(u);
    Py_XDECREF(w);
    if (done && !module)
        module = Py_NewRef(imported);
    Py_XDECREF(done);
    Py_XDECREF(imported);
    return done ? module : NULL;
}

/* ---- for the adapters ------------------------------------------------------------------------------------------------ */

static void place_free(PyObject *capsule)
{
    free(PyCapsule_GetPointer(capsule, PLACE));
}

static PyObject *place_new(moor_look answer, void *user)
{
    place *p = malloc(sizeof(*p));
    if (!p)
        return PyErr_NoMemory();
    *p = (place){answer, user};
    PyObject *capsule = PyCapsule_New(p, PLACE, place_free);
    if (!capsule)
        free(p);
    return capsule;
}

/* The line may hold it still: what it looked for is going. */
static void forget(PyObject *capsule)
{
    place *p = PyCapsule_GetPointer(capsule, PLACE);
    if (p)
        p->look = NULL;
}

int moor_line_join(moor_jp_call *call, moor_look answer, void *user, uint64_t deadline_ns, PyObject **out)
{
    PyObject *module = lines();
    PyObject *capsule = module ? place_new(answer, user) : NULL;
    PyObject *callable = capsule ? PyCFunction_New(&look_def, capsule) : NULL;
    PyObject *future = callable ? PyObject_CallMethod(module, "join", "Od", callable, seconds(deadline_ns)) : NULL;
    Py_XDECREF(callable);
    if (!future || moor_jp_set_awaitable(call, future)) {
        if (capsule)
            forget(capsule); /* what raised may have done so when it was in the line: a signal's handler */
        Py_XDECREF(capsule);
        return MOOR_JP_FAILED;
    }
    waiting++;
    *out = capsule;
    return MOOR_JP_AWAIT;
}

void moor_line_leave(PyObject **capsule)
{
    if (!*capsule)
        return;
    forget(*capsule);
    waiting--;
    Py_CLEAR(*capsule);
}

int moor_line_is_there(void)
{
    return waiting > 0;
}

int moor_await_gate(moor_jp_call *call, uint32_t what, uint64_t deadline_ns)
{
    PyObject *module = lines();
    PyObject *awaitable =
        module ? PyObject_CallMethod(module, "until", "Id", (unsigned)what, seconds(deadline_ns)) : NULL;
    return moor_jp_set_awaitable(call, awaitable) ? MOOR_JP_FAILED : MOOR_JP_AWAIT;
}
