/* SPDX-License-Identifier: Apache-2.0 */
/* LD_PRELOAD: the constructor and the audit hook. */
#include "preload.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is used of CPython's C API; all of it by dlsym, since libmoor has no Python symbol.  All in the stable ABI (or, the
 * audit functions, unchanged since 3.8).  Objects are opaque here. */
typedef void object;
typedef int (*audit_hook)(const char *event, object *args, void *user);

#define PYTHON_FUNCTIONS(X)                                                                                            \
    X(object *, PyTuple_GetItem, (object *, ptrdiff_t))                                                                \
    X(const char *, PyUnicode_AsUTF8AndSize, (object *, ptrdiff_t *))                                                  \
    X(object *, PyUnicode_DecodeFSDefault, (const char *))                                                             \
    X(object *, PyDict_New, (void))                                                                                    \
    X(int, PyDict_SetItemString, (object *, const char *, object *))                                                   \
    X(object *, PyEval_GetBuiltins, (void))                                                                            \
    X(object *, Py_CompileString, (const char *, const char *, int))                                                   \
    X(object *, PyEval_EvalCode, (object *, object *, object *))                                                       \
    X(void, PyErr_Clear, (void))                                                                                       \
    X(object *, PyErr_Occurred, (void))                                                                                \
    X(void, PyErr_Fetch, (object **, object **, object **))                                                            \
    X(void, PyErr_Restore, (object *, object *, object *))                                                             \
    X(void, PyErr_NormalizeException, (object **, object **, object **))                                               \
    X(object *, PyObject_Str, (object *))                                                                              \
    X(void *, PyInterpreterState_Get, (void))                                                                          \
    X(long long, PyInterpreterState_GetID, (void *))                                                                   \
    X(void, Py_DecRef, (object *))

enum { FILE_INPUT = 257 }; /* Py_file_input */

static struct {
#define X(result, name, arguments) result(*name) arguments;
    PYTHON_FUNCTIONS(X)
#undef X
    bool said;           /* about subinterpreters */
    const char *missing; /* name that this libpython lacks */
    enum { NOT_YET, RUNNING, DONE } state;
} python;

/* Runs in a namespace of its own.  `folder` is .../moor, the folder of libmoor.so.1. */
static const char import_moor[] = "import sys\n"
                                  "if 'moor' not in sys.modules:\n"
                                  "    from importlib.machinery import PathFinder\n"
                                  "    from importlib.util import module_from_spec\n"
                                  "    from os.path import dirname\n"
                                  "    spec = PathFinder.find_spec('moor', [dirname(folder)])\n"
                                  "    if spec is None or spec.loader is None:\n"
                                  "        raise ImportError('no Python package beside libmoor in ' + folder)\n"
                                  "    module = module_from_spec(spec)\n"
                                  "    sys.modules['moor'] = module\n"
                                  "    try:\n"
                                  "        spec.loader.exec_module(module)\n"
                                  "    except BaseException:\n"
                                  "        sys.modules.pop('moor', None)\n"
                                  "        raise\n"
                                  "from moor._moor import bootstrap\n"
                                  "bootstrap()\n";

bool moor_preload_disabled(void)
{
    const char *value = getenv("MOOR_DISABLE");
    return value && *value && strcmp(value, "0") != 0;
}

bool moor_preload_is_engine(const char *module)
{
    static const char *const packages[] = {"vllm", "sglang", "lmdeploy"};
    for (size_t i = 0; i < sizeof packages / sizeof packages[0]; i++) {
        size_t n = strlen(packages[i]);
        if (strncmp(module, packages[i], n) == 0 && (module[n] == '\0' || module[n] == '.'))
            return true;
    }
    return false;
}

/* One line: the log is configured later, and this is about not getting that far. */
static void complain(const char *what, const char *detail)
{
    int length = detail ? (int)strcspn(detail, "\n") : 0;
    (void)fprintf(stderr, "moor: %s%s%.*s; this process runs without Moor\n", what, detail ? ": " : "", length,
                  detail ? detail : "");
}

static bool load_python(void)
{
#define X(result, name, arguments)                                                                                     \
    *(void **)&python.name = dlsym(RTLD_DEFAULT, #name);                                                               \
    if (!python.name && !python.missing)                                                                               \
        python.missing = #name;
    PYTHON_FUNCTIONS(X)
#undef X
    return python.missing == NULL;
}

/* The pending error as one line on stderr; cleared. */
static void complain_of_error(void)
{
    object *type = NULL, *value = NULL, *trace = NULL;
    python.PyErr_Fetch(&type, &value, &trace);
    python.PyErr_NormalizeException(&type, &value, &trace);
    object *text = value ? python.PyObject_Str(value) : NULL;
    const char *detail = text ? python.PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    complain("cannot import the package moor", detail ? detail : "no text");
    python.Py_DecRef(text);
    python.Py_DecRef(type);
    python.Py_DecRef(value);
    python.Py_DecRef(trace);
    if (python.PyErr_Occurred()) { /* of PyObject_Str */
        python.PyErr_Fetch(&type, &value, &trace);
        python.Py_DecRef(type);
        python.Py_DecRef(value);
        python.Py_DecRef(trace);
    }
}

/* The folder that libmoor.so.1 lies in, as a Python string. */
static object *library_folder(void)
{
    Dl_info info;
    if (!dladdr(&python, &info) || !info.dli_fname)
        return NULL;
    char *path = realpath(info.dli_fname, NULL); /* LD_PRELOAD may be relative, or a link */
    char *slash = path ? strrchr(path, '/') : NULL;
    object *folder = NULL;
    if (slash) {
        *slash = '\0';
        folder = python.PyUnicode_DecodeFSDefault(path);
    }
    free(path);
    return folder;
}

static bool run_import(void)
{
    object *globals = python.PyDict_New();
    object *folder = globals ? library_folder() : NULL;
    object *code = folder ? python.Py_CompileString(import_moor, "<moor preload>", FILE_INPUT) : NULL;
    object *result = NULL;
    if (code && python.PyDict_SetItemString(globals, "folder", folder) == 0 &&
        python.PyDict_SetItemString(globals, "__builtins__", python.PyEval_GetBuiltins()) == 0)
        result = python.PyEval_EvalCode(code, globals, globals);
    bool ok = result != NULL;
    python.Py_DecRef(result);
    python.Py_DecRef(code);
    python.Py_DecRef(folder);
    python.Py_DecRef(globals);
    return ok;
}

static void import_package(void)
{
    object *type, *value, *trace;
    python.PyErr_Fetch(&type, &value, &trace); /* whatever is in flight is not ours to lose */
    if (!run_import())
        complain_of_error();
    python.PyErr_Restore(type, value, trace);
}

/* Called for every audited event, always with the GIL: must be cheap when there is nothing to do. */
static int on_audit_event(const char *event, object *args, void *user)
{
    (void)user;
    if (python.state != NOT_YET || event[0] != 'i' || strcmp(event, "import") != 0)
        return 0;
    if (!python.PyTuple_GetItem && !load_python()) {
        python.state = DONE;
        complain("this Python lacks a function", python.missing);
        return 0;
    }
    object *name = python.PyTuple_GetItem(args, 0);
    const char *text = name ? python.PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    if (!text) {
        python.PyErr_Clear(); /* anybody may sys.audit("import") with anything */
        return 0;
    }
    if (!moor_preload_is_engine(text))
        return 0;
    if (python.PyInterpreterState_GetID(python.PyInterpreterState_Get()) != 0) {
        if (!python.said)
            complain("an engine is imported in a subinterpreter, which is not supported", NULL);
        python.said = true;
        return 0;
    }
    python.state = RUNNING;
    import_package();
    python.state = DONE;
    return 0;
}

__attribute__((constructor)) static void moor_preload_constructor(void)
{
    int (*add)(audit_hook, void *) = NULL;
    if (moor_preload_disabled())
        return;
    *(void **)&add = dlsym(RTLD_DEFAULT, "PySys_AddAuditHook");
    if (!add) { /* not a Python: leave no trace, not even dlsym's message in the host's dlerror() */
        (void)dlerror();
        (void)dlerror();
        return;
    }
    int (*is_initialized)(void) = NULL;
    const char *(*version)(void) = NULL;
    *(void **)&is_initialized = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    *(void **)&version = dlsym(RTLD_DEFAULT, "Py_GetVersion");
    if (!is_initialized || is_initialized())
        return; /* loaded by `import moor`: the entry points call bootstrap() themselves */
    if (version && strstr(version(), "free-threading")) {
        complain("free-threaded builds of Python are not supported", NULL);
        return;
    }
    if (add(on_audit_event, NULL) != 0)
        complain("PySys_AddAuditHook failed", NULL);
}
