/* SPDX-License-Identifier: Apache-2.0 */
#include "errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct error_class {
    moor_status status;
    const char *name;    /* of the class */
    const char *builtin; /* second base, or NULL */
    const char *doc;
} error_class;

static const error_class classes[] = {
    {MOOR_E_INVALID, "Invalid", "ValueError", "An argument is wrong; the text names it and the values."},
    {MOOR_E_NOMEM, "OutOfMemory", "MemoryError", "Ordinary memory ran out."},
    {MOOR_E_FULL, "Full", NULL, "The arena or a fixed table is full."},
    {MOOR_E_NOT_FOUND, "NotFound", "LookupError", "No such request, record, instance or session."},
    {MOOR_E_AMBIGUOUS, "Ambiguous", "LookupError",
     "The id means several records. `ids`: their full ids, in index order."},
    {MOOR_E_TIMEOUT, "Timeout", "TimeoutError", "The deadline passed; the text says what was still missing."},
    {MOOR_E_STALE, "Stale", NULL, "The handle's record was freed."},
    {MOOR_E_INCOMPLETE, "Incomplete", NULL,
     "Rows are missing and were not asked for. `missing`: the ranges [(start, stop), ...]."},
    {MOOR_E_GONE, "Gone", "LookupError", "A released session or a retired store."},
    {MOOR_E_STATE, "StateError", NULL, "Not allowed in this state."},
    {MOOR_E_POISONED, "Poisoned", NULL, "The gate is poisoned; the text names the request and why."},
    {MOOR_E_BROKEN, "Broken", NULL, "The barrier's round was broken."},
    {MOOR_E_CONFIG, "ConfigError", "ValueError",
     "Configuration error; the text names the key and the nearest known one."},
    {MOOR_E_EXISTS, "Exists", NULL, "A live server has this instance name."},
    {MOOR_E_ACCESS, "AccessError", "PermissionError", "Owner, mode or peer credentials are not ours."},
    {MOOR_E_VERSION, "VersionError", NULL, "Another version of a file, a wire format or a table."},
    {MOOR_E_IO, "SystemFailure", "OSError", "A system call failed; the text has the reason."},
    {MOOR_E_CLOSED, "Closed", NULL, "The connection or object is closed."},
    {MOOR_E_FORKED, "Forked", NULL, "The object belongs to the parent process."},
    {MOOR_E_UNSUPPORTED, "Unsupported", NULL, "Not supported here."},
    {MOOR_E_RANGE, "RangeError", "IndexError", "An expert id, row or layer out of range."},
    {MOOR_E_CORRUPT, "Corrupt", NULL, "A file or message fails its checks."},
};
enum { N_CLASSES = sizeof(classes) / sizeof(classes[0]) };

static PyObject *base_error;        /* moor.Error */
static PyObject *errors[N_CLASSES]; /* by position in classes */

static PyObject *class_of(moor_status status)
{
    for (unsigned i = 0; i < N_CLASSES; i++)
        if (classes[i].status == status)
            return errors[i];
    return base_error;
}

/* What a wait left when a signal's handler raised: a note of that exception (PEP 678; before 3.11 an attribute that nobody prints). */
static void add_note(const char *text)
{
    PyObject *type, *exc, *trace;
    PyErr_Fetch(&type, &exc, &trace);
    PyErr_NormalizeException(&type, &exc, &trace);
    PyObject *note = PyUnicode_FromFormat("moor: %s", text), *notes = NULL, *done = NULL;
    if (note && PyObject_HasAttrString(exc, "add_note"))
        done = PyObject_CallMethod(exc, "add_note", "O", note);
    else if (note && (notes = PyList_New(0)) && PyList_Append(notes, note) == 0)
        (void)PyObject_SetAttrString(exc, "__notes__", notes);
    Py_XDECREF(done);
    Py_XDECREF(notes);
    Py_XDECREF(note);
    PyErr_Clear(); /* the exception itself matters more */
    PyErr_Restore(type, exc, trace);
}

PyObject *moor_py_raise(moor_status status)
{
    const char *text = moor_py_api()->last_error();
    if (!text || !*text)
        text = moor_py_api()->status_name(status);
    if (PyErr_Occurred()) {
        add_note(text);
        return NULL;
    }
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (message) {
        PyErr_SetObject(class_of(status), message);
        Py_DECREF(message);
    }
    return NULL;
}

PyObject *moor_py_raise_text(moor_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    PyErr_FormatV(class_of(status), format, args);
    va_end(args);
    return NULL;
}

void moor_py_raised_with(const char *name, PyObject *value)
{
    if (!value)
        return;
    PyObject *type, *exc, *trace;
    PyErr_Fetch(&type, &exc, &trace);
    PyErr_NormalizeException(&type, &exc, &trace);
    if (PyObject_SetAttrString(exc, name, value) < 0)
        PyErr_Clear(); /* the exception itself matters more */
    Py_DECREF(value);
    PyErr_Restore(type, exc, trace);
}

/* Attributes of a class: its status, and the empty default of the attribute that raisers set. */
static PyObject *class_dict(const error_class *c)
{
    PyObject *dict = Py_BuildValue("{s:i}", "status", (int)c->status);
    const char *extra = c->status == MOOR_E_AMBIGUOUS ? "ids" : c->status == MOOR_E_INCOMPLETE ? "missing" : NULL;
    if (!dict || !extra)
        return dict;
    PyObject *empty = PyTuple_New(0);
    if (!empty || PyDict_SetItemString(dict, extra, empty) < 0)
        Py_CLEAR(dict);
    Py_XDECREF(empty);
    return dict;
}

static PyObject *make_class(const error_class *c)
{
    PyObject *builtins = PyImport_ImportModule("builtins"), *bases = NULL, *second = NULL, *made = NULL;
    PyObject *dict = class_dict(c);
    char name[64];
    snprintf(name, sizeof(name), "moor.%s", c->name);
    if (!builtins || !dict)
        goto out;
    if (c->builtin) {
        second = PyObject_GetAttrString(builtins, c->builtin);
        bases = second ? PyTuple_Pack(2, base_error, second) : NULL;
    } else {
        bases = PyTuple_Pack(1, base_error);
    }
    if (bases)
        made = PyErr_NewExceptionWithDoc(name, c->doc, bases, dict);
out:
    Py_XDECREF(builtins);
    Py_XDECREF(bases);
    Py_XDECREF(second);
    Py_XDECREF(dict);
    return made;
}

int moor_py_add_errors(PyObject *module)
{
    if (!base_error) {
        PyObject *dict = Py_BuildValue("{s:i}", "status", 0);
        base_error = dict ? PyErr_NewExceptionWithDoc(
                                "moor.Error", "Base of every error of Moor. `status`: the MOOR_E_* code.", NULL, dict)
                          : NULL;
        Py_XDECREF(dict);
    }
    if (!base_error || PyModule_AddObjectRef(module, "Error", base_error) < 0)
        return -1;
    for (unsigned i = 0; i < N_CLASSES; i++) {
        if (!errors[i])
            errors[i] = make_class(&classes[i]);
        if (!errors[i] || PyModule_AddObjectRef(module, classes[i].name, errors[i]) < 0)
            return -1;
    }
    return 0;
}
