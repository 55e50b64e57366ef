/* SPDX-License-Identifier: Apache-2.0 */
/* The finder on sys.meta_path. */
#include "finder.h"

#include "jp_install.h"
#include "jp_wrap.h"
#include "loader.h"

#include <string.h>

static PyTypeObject *finder_type;
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

static bool package_imported(const moor_engine *engine)
{
    PyObject *modules = PyImport_GetModuleDict();
    for (const char *const *p = engine->packages; modules && p && *p; p++) {
        if (PyDict_GetItemString(modules, *p))
            return true;
    }
    return false;
}

/* What came past us: engines that are in use, and modules of theirs. */
static void catch_up(void)
{
    for (size_t i = 0; i < nengines; i++) {
        if (engines[i] && package_imported(engines[i]))
            engine_in_use(engines[i]);
    }
    moor_jp_catch_up();
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
        moor_loader_watch(spec);
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
    catch_up();
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

bool moor_finder_installed(void)
{
    PyObject *meta_path = PySys_GetObject("meta_path");
    return the_finder && meta_path && PySequence_Contains(meta_path, the_finder) == 1;
}

static int make_finder(void)
{
    finder_type = (PyTypeObject *)PyType_FromSpec(&finder_spec);
    the_finder = finder_type && moor_loader_init() == 0 ? PyObject_CallObject((PyObject *)finder_type, NULL) : NULL;
    if (the_finder)
        return 0;
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
    /* The shims are imported before anything of ours looks at imports. */
    if (moor_jp_wrap_init() < 0 || (!the_finder && make_finder() < 0))
        return -1;
    engines = list;
    nengines = n;
    if (PyList_Insert(meta_path, 0, the_finder) < 0)
        return -1;
    catch_up();
    return 0;
}
