/* SPDX-License-Identifier: Apache-2.0 */
/* The finder on sys.meta_path. */
#include "finder.h"

#include "jp_install.h"

#include <string.h>

typedef struct executor {
    PyObject_HEAD
    PyObject *loader;
    PyObject *before; /* the exec_module that the instance had of its own, or NULL */
} executor;

static PyTypeObject *finder_type, *executor_type;
static PyObject *the_finder;
static const moor_engine *const *engines;
static size_t nengines;

/* Names being looked up on this thread, so that two finders that ask each other do not do so for ever. */
typedef struct lookup {
    const char *name;
    struct lookup *outer;
} lookup;
static _Thread_local lookup *lookups;

/* ---- which modules ---- */

static bool has_prefix(const char *name, const char *package)
{
    size_t n = strlen(package);
    return strncmp(name, package, n) == 0 && (name[n] == '\0' || name[n] == '.');
}

static const moor_engine *engine_of(const char *name)
{
    for (size_t i = 0; i < nengines; i++) {
        for (const char *const *p = engines[i] ? engines[i]->packages : NULL; p && *p; p++) {
            if (has_prefix(name, *p))
                return engines[i];
        }
    }
    return NULL;
}

static void engine_in_use(const moor_engine *engine)
{
    if (moor_jp_register(engine) == 0)
        return;
    char text[512];
    moor_jp_error_text(text, sizeof text);
    moor_jp_log("error", "engine %s: its join points cannot be registered: %s", engine->name, text);
}

/* ---- Executor: stands as loader.exec_module for one call ---- */

static PyObject *executor_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *loader = ((executor *)self)->loader, *module;
    static char *names[] = {"module", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:exec_module", names, &module))
        return NULL;
    /* What another import hook had put there on the instance runs as it would without us. */
    if (PyObject_SetAttrString(loader, "exec_module", ((executor *)self)->before) < 0)
        PyErr_Clear(); /* somebody put something else there meanwhile: then that is what runs */
    PyObject *result = PyObject_CallMethod(loader, "exec_module", "O", module);
    if (!result)
        return NULL;
    PyObject *name = PyObject_GetAttrString(module, "__name__");
    const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    if (text)
        moor_jp_module_executed(text, module);
    Py_XDECREF(name);
    PyErr_Clear();
    return result;
}

static int executor_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((executor *)self)->loader);
    Py_VISIT(((executor *)self)->before);
    return 0;
}

static int executor_clear(PyObject *self)
{
    Py_CLEAR(((executor *)self)->loader);
    Py_CLEAR(((executor *)self)->before);
    return 0;
}

static void executor_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)executor_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyType_Slot executor_slots[] = {
    {Py_tp_call, executor_call},
    {Py_tp_traverse, executor_traverse},
    {Py_tp_clear, executor_clear},
    {Py_tp_dealloc, executor_dealloc},
    {0, NULL},
};

static PyType_Spec executor_spec = {
    .name = "moor._moor.Executor",
    .basicsize = sizeof(executor),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = executor_slots,
};

/* Does the loader belong to this module alone?  (importlib's file loaders carry the name; a zipimporter does not.) */
static bool loader_is_for(PyObject *loader, PyObject *fullname)
{
    PyObject *name = PyObject_GetAttrString(loader, "name");
    bool result = name && PyUnicode_Check(name) && PyUnicode_Compare(name, fullname) == 0 &&
                  PyObject_HasAttrString(loader, "exec_module");
    Py_XDECREF(name);
    PyErr_Clear();
    return result;
}

/* New reference to the loader instance's own exec_module, NULL when its class' one would run. */
static PyObject *own_exec_module(PyObject *loader)
{
    PyObject *attributes = PyObject_GetAttrString(loader, "__dict__");
    PyObject *own = attributes ? PyDict_GetItemString(attributes, "exec_module") : NULL;
    Py_XINCREF(own);
    Py_XDECREF(attributes);
    PyErr_Clear();
    return own;
}

static void arm(PyObject *spec, PyObject *fullname)
{
    PyObject *loader = PyObject_GetAttrString(spec, "loader");
    if (loader && loader != Py_None && loader_is_for(loader, fullname)) {
        executor *e = PyObject_GC_New(executor, executor_type);
        if (e) {
            Py_INCREF(loader);
            e->loader = loader;
            e->before = own_exec_module(loader);
            PyObject_GC_Track(e);
            if (PyObject_SetAttrString(loader, "exec_module", (PyObject *)e) < 0)
                PyErr_Clear();
            Py_DECREF(e);
        }
    }
    PyErr_Clear();
    Py_XDECREF(loader);
}

/* ---- Finder ---- */

static PyObject *ask_others(PyObject *self, PyObject *fullname, PyObject *path, PyObject *target)
{
    PyObject *meta_path = PySys_GetObject("meta_path"); /* borrowed */
    PyObject *finders = meta_path ? PySequence_List(meta_path) : NULL;
    if (!finders)
        return NULL;
    PyObject *spec = NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(finders); i++) {
        PyObject *other = PyList_GetItem(finders, i);
        if (other == self)
            continue;
        PyObject *find = PyObject_GetAttrString(other, "find_spec");
        if (!find) {
            PyErr_Clear(); /* importlib skips such a finder as well */
            continue;
        }
        spec = PyObject_CallFunctionObjArgs(find, fullname, path, target, NULL);
        Py_DECREF(find);
        if (spec != Py_None)
            break; /* found, or raised */
        Py_CLEAR(spec);
    }
    bool raised = PyErr_Occurred() != NULL;
    Py_DECREF(finders);
    if (spec || raised)
        return spec;
    Py_RETURN_NONE;
}

static PyObject *find_watched(PyObject *self, const char *name, PyObject *fullname, PyObject *path, PyObject *target)
{
    for (const lookup *l = lookups; l; l = l->outer) {
        if (strcmp(l->name, name) == 0)
            Py_RETURN_NONE;
    }
    lookup here = {name, lookups};
    lookups = &here;
    PyObject *spec = ask_others(self, fullname, path, target);
    lookups = here.outer;
    if (spec && spec != Py_None)
        arm(spec, fullname);
    return spec;
}

static PyObject *finder_find_spec(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fullname", "path", "target", NULL};
    PyObject *fullname, *path = Py_None, *target = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U|OO:find_spec", names, &fullname, &path, &target))
        return NULL;
    const char *name = PyUnicode_AsUTF8AndSize(fullname, NULL);
    if (!name) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    const moor_engine *engine = engine_of(name);
    if (!engine && !moor_jp_is_target(name))
        Py_RETURN_NONE;
    if (engine)
        engine_in_use(engine);
    return find_watched(self, name, fullname, path, target);
}

static PyMethodDef finder_methods[] = {
    {"find_spec", (PyCFunction)(void (*)(void))finder_find_spec, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot finder_slots[] = {
    {Py_tp_methods, finder_methods},
    {Py_tp_doc, "Lets Moor see an engine's modules right after they are executed; finds nothing itself."},
    {0, NULL},
};

static PyType_Spec finder_spec = {
    .name = "moor._moor.Finder",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = finder_slots,
};

/* ---- installation ---- */

static bool package_imported(const moor_engine *engine)
{
    PyObject *modules = PyImport_GetModuleDict();
    for (const char *const *p = engine->packages; modules && p && *p; p++) {
        if (PyDict_GetItemString(modules, *p))
            return true;
    }
    return false;
}

bool moor_finder_installed(void)
{
    PyObject *meta_path = PySys_GetObject("meta_path");
    return the_finder && meta_path && PySequence_Contains(meta_path, the_finder) == 1;
}

static int make_finder(void)
{
    finder_type = (PyTypeObject *)PyType_FromSpec(&finder_spec);
    executor_type = finder_type ? (PyTypeObject *)PyType_FromSpec(&executor_spec) : NULL;
    the_finder = executor_type ? PyObject_CallObject((PyObject *)finder_type, NULL) : NULL;
    if (the_finder)
        return 0;
    Py_CLEAR(executor_type);
    Py_CLEAR(finder_type);
    return -1;
}

int moor_finder_install(const moor_engine *const *list, size_t n)
{
    if (moor_finder_installed())
        return 0;
    PyObject *meta_path = PySys_GetObject("meta_path");
    if (!meta_path || !PyList_Check(meta_path)) {
        PyErr_SetString(PyExc_RuntimeError, "moor: sys.meta_path is not a list");
        return -1;
    }
    if (!the_finder && make_finder() < 0)
        return -1;
    engines = list;
    nengines = n;
    if (PyList_Insert(meta_path, 0, the_finder) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (engines[i] && package_imported(engines[i]))
            engine_in_use(engines[i]);
    }
    return 0;
}
