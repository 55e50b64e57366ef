/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for a loader. */
#include "loader.h"

#include "jp_install.h"

#include <string.h>

typedef struct stand_in {
    PyObject_HEAD
    PyObject *loader;
    PyObject *spec;      /* the one it was put into */
    PyObject *overrides; /* dict: exec_module or load_module that somebody has set on us, or NULL */
} stand_in;

static PyTypeObject *type;

/* ---- modules ---- */

PyObject *moor_loader_own(PyObject *module, const char *name)
{
    PyObject *dict =
        PyModule_Check(module) ? Py_XNewRef(PyModule_GetDict(module)) : PyObject_GetAttrString(module, "__dict__");
    PyObject *value = dict ? PyMapping_GetItemString(dict, name) : NULL;
    Py_XDECREF(dict);
    PyErr_Clear();
    return value;
}

/* Its type looks at every access to an attribute, and no code has run in it. */
bool moor_loader_is_deferred(PyObject *module)
{
    if (!PyModule_Check(module))
        return false;
    PyObject *plain = PyObject_GetAttrString((PyObject *)&PyModule_Type, "__getattribute__");
    PyObject *its = PyObject_GetAttrString((PyObject *)Py_TYPE(module), "__getattribute__");
    PyObject *builtins = moor_loader_own(module, "__builtins__");
    bool deferred = plain && its && plain != its && !builtins;
    Py_XDECREF(builtins);
    Py_XDECREF(its);
    Py_XDECREF(plain);
    PyErr_Clear();
    return deferred;
}

/* New reference to the module's spec, NULL when it has none. */
static PyObject *spec_of(PyObject *module)
{
    PyObject *spec = moor_loader_own(module, "__spec__");
    if (spec != Py_None)
        return spec;
    Py_DECREF(spec);
    return NULL;
}

/* ---- one execution ---- */

static PyObject *attribute(PyObject *object, const char *name)
{
    PyObject *value = object ? PyObject_GetAttrString(object, name) : NULL;
    PyErr_Clear();
    return value;
}

static void step_aside(stand_in *s, PyObject *spec)
{
    PyObject *now = attribute(spec, "loader");
    if (now == (PyObject *)s && PyObject_SetAttrString(spec, "loader", s->loader) < 0)
        PyErr_Clear();
    Py_XDECREF(now);
}

/* The module's attributes are written in its dict: to set one runs code of its type's. */
static void step_out_of(stand_in *s, PyObject *module, PyObject *spec)
{
    PyObject *now = moor_loader_own(module, "__loader__");
    PyObject *dict = PyModule_Check(module) ? PyModule_GetDict(module) : NULL; /* borrowed */
    if (now == (PyObject *)s && (dict ? PyDict_SetItemString(dict, "__loader__", s->loader)
                                      : PyObject_SetAttrString(module, "__loader__", s->loader)) < 0)
        PyErr_Clear();
    Py_XDECREF(now);
    step_aside(s, s->spec);
    if (spec)
        step_aside(s, spec);
}

static void executed(stand_in *s, PyObject *module, PyObject *spec)
{
    if (moor_loader_is_deferred(module)) {
        moor_loader_watch(spec ? spec : s->spec);
        return;
    }
    PyObject *name = attribute(spec ? spec : s->spec, "name");
    const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    if (text)
        moor_jp_module_executed(text, module);
    Py_XDECREF(name);
    PyErr_Clear();
}

static PyObject *exec_module(PyObject *self, PyObject *module)
{
    stand_in *s = (stand_in *)self;
    PyObject *spec = spec_of(module);
    step_out_of(s, module, spec);
    PyObject *result = PyObject_CallMethod(s->loader, "exec_module", "O", module);
    if (result)
        executed(s, module, spec);
    Py_XDECREF(spec);
    return result;
}

/* What importlib calls of a loader without exec_module. */
static PyObject *load_module(PyObject *self, PyObject *name)
{
    stand_in *s = (stand_in *)self;
    step_aside(s, s->spec);
    PyObject *module = PyObject_CallMethod(s->loader, "load_module", "O", name);
    if (module) {
        PyObject *spec = spec_of(module);
        executed(s, module, spec);
        Py_XDECREF(spec);
    }
    return module;
}

/* ---- everything else is the loader's ---- */

static bool is_ours(PyObject *name)
{
    return PyUnicode_CompareWithASCIIString(name, "exec_module") == 0 ||
           PyUnicode_CompareWithASCIIString(name, "load_module") == 0;
}

static PyObject *get(PyObject *self, PyObject *name)
{
    stand_in *s = (stand_in *)self;
    PyObject *set = is_ours(name) && s->overrides ? PyDict_GetItemWithError(s->overrides, name) : NULL;
    if (set)
        return Py_NewRef(set);
    PyObject *its = PyErr_Occurred() ? NULL : PyObject_GetAttr(s->loader, name);
    if (!its || !is_ours(name))
        return its;
    Py_DECREF(its);
    return PyObject_GenericGetAttr(self, name);
}

/* Somebody's wrapper around our exec_module calls it: on the loader itself, our call would come back to the wrapper. */
static int set(PyObject *self, PyObject *name, PyObject *value)
{
    stand_in *s = (stand_in *)self;
    if (!is_ours(name))
        return PyObject_SetAttr(s->loader, name, value);
    if (!s->overrides && !(s->overrides = PyDict_New()))
        return -1;
    return value ? PyDict_SetItem(s->overrides, name, value) : PyDict_DelItem(s->overrides, name);
}

static PyObject *repr(PyObject *self)
{
    return PyObject_Repr(((stand_in *)self)->loader);
}

static Py_hash_t hash(PyObject *self)
{
    return PyObject_Hash(((stand_in *)self)->loader);
}

static PyObject *compare(PyObject *self, PyObject *other, int op)
{
    PyObject *its = Py_TYPE(other) == type ? ((stand_in *)other)->loader : other;
    return PyObject_RichCompare(((stand_in *)self)->loader, its, op);
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((stand_in *)self)->loader);
    Py_VISIT(((stand_in *)self)->spec);
    Py_VISIT(((stand_in *)self)->overrides);
    return 0;
}

static int clear(PyObject *self)
{
    Py_CLEAR(((stand_in *)self)->spec);
    Py_CLEAR(((stand_in *)self)->overrides);
    return 0;
}

static void dealloc(PyObject *self)
{
    PyTypeObject *its = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)clear(self);
    Py_CLEAR(((stand_in *)self)->loader);
    PyObject_GC_Del(self);
    Py_DECREF(its);
}

/* copy and pickle ask the type. */
static PyObject *reduce_ex(PyObject *self, PyObject *protocol)
{
    return PyObject_CallMethod(((stand_in *)self)->loader, "__reduce_ex__", "O", protocol);
}

static PyMethodDef methods[] = {
    {"__reduce_ex__", reduce_ex, METH_O, NULL},
    {"exec_module", exec_module, METH_O, NULL},
    {"load_module", load_module, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_methods, methods},   {Py_tp_getattro, get},
    {Py_tp_setattro, set},      {Py_tp_repr, repr},
    {Py_tp_hash, hash},         {Py_tp_richcompare, compare},
    {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},   {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "moor._moor.Loader",
    .basicsize = sizeof(stand_in),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

int moor_loader_init(void)
{
    if (!type)
        type = (PyTypeObject *)PyType_FromSpec(&type_spec);
    return type ? 0 : -1;
}

void moor_loader_watch(PyObject *spec)
{
    PyObject *loader = attribute(spec, "loader"); /* None: a namespace, which executes nothing */
    if (loader && loader != Py_None && Py_TYPE(loader) != type) {
        stand_in *s = PyObject_GC_New(stand_in, type);
        if (s) {
            s->loader = Py_NewRef(loader);
            s->spec = Py_NewRef(spec);
            s->overrides = NULL;
            PyObject_GC_Track((PyObject *)s);
            (void)PyObject_SetAttrString(spec, "loader", (PyObject *)s);
            Py_DECREF(s);
        }
    }
    PyErr_Clear();
    Py_XDECREF(loader);
}
