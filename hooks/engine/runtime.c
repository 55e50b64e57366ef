/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static moor_runtime runtime;
static pid_t runtime_pid;

moor_runtime *moor_runtime_get(void)
{
    /* A forked child has nothing of its parent's: the objects stay with the parent, the memory of the handles is left. */
    pid_t pid = getpid();
    if (runtime_pid != pid) {
        memset(&runtime, 0, sizeof(runtime));
        runtime.api = moor_get_api(MOOR_API_VERSION, NULL);
        runtime_pid = pid;
    }
    return &runtime;
}

int moor_runtime_configured_by_environment(void)
{
    const char *value = getenv("MOOR_CONFIG");
    return value && *value;
}

PyObject *moor_runtime_raise(moor_status status, const char *what)
{
    const moor_api *api = moor_runtime_get()->api;
    const char *text = api ? api->last_error() : "libmoor has no table of this version";
    PyErr_Format(PyExc_RuntimeError, "moor: %s: %s (%s)", what, text,
                 api ? api->status_name(status) : "MOOR_E_VERSION");
    return NULL;
}

void moor_runtime_log(int level, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    moor_runtime *rt = moor_runtime_get();
    if (rt->api && rt->api->log)
        rt->api->log(rt->process, level, line);
}

/* JSON text of the section: a str is taken as it is, anything else goes through json.dumps. */
static PyObject *section_text(PyObject *section)
{
    if (!section || section == Py_None)
        return PyUnicode_FromString("");
    if (PyUnicode_Check(section))
        return Py_NewRef(section);
    PyObject *json = PyImport_ImportModule("json");
    if (!json)
        return NULL;
    PyObject *text = PyObject_CallMethod(json, "dumps", "O", section);
    Py_DECREF(json);
    return text;
}

static int parse_config(moor_runtime *rt, PyObject *section, moor_config **out)
{
    PyObject *text = section_text(section);
    if (!text)
        return -1;
    Py_ssize_t length;
    const char *json = PyUnicode_AsUTF8AndSize(text, &length);
    if (!json) {
        Py_DECREF(text);
        return -1;
    }
    moor_status status = rt->api->config_parse(length ? json : NULL, (size_t)length, out);
    Py_DECREF(text);
    if (status) {
        moor_runtime_raise(status, "configuration");
        return -1;
    }
    return 0;
}

int moor_runtime_join(const char *engine, uint32_t roles, uint32_t rank, uint32_t world, uint32_t dp_rank,
                      PyObject *section)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->api) {
        moor_runtime_raise(MOOR_E_VERSION, "join");
        return -1;
    }
    int present = section && section != Py_None;
    if (rt->off || (!rt->process && !present && !moor_runtime_configured_by_environment())) {
        rt->off = 1;
        return 0;
    }
    moor_config *config = NULL;
    if (parse_config(rt, section, &config))
        return -1;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    args.engine = engine;
    args.roles = roles;
    args.rank = rank;
    args.world_size = world;
    args.dp_rank = dp_rank;
    moor_process *process = NULL;
    moor_status status = rt->api->process_join(config, &args, &process);
    if (status) {
        moor_runtime_raise(status, "joining the instance");
        rt->api->config_free(config);
        return -1;
    }
    rt->process = process;
    rt->config = (moor_config_values)MOOR_CONFIG_VALUES_INIT;
    rt->api->config_values(config, &rt->config);
    rt->api->config_free(config); /* the process holds its own reference */
    moor_jp_set_strict(rt->config.on_error == MOOR_ON_ERROR_STRICT);
    moor_runtime_log(3, "process %d joins instance %s in roles %#x, rank %u of %u", (int)getpid(),
                     rt->api->process_instance(process), roles, rank, world);
    return 1;
}

void moor_runtime_leave(void)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->process)
        return;
    moor_runtime gone = *rt;
    memset(rt, 0, sizeof(*rt));
    rt->api = gone.api;
    Py_BEGIN_ALLOW_THREADS
    if (gone.client)
        gone.api->detach(gone.client);
    if (gone.store)
        gone.api->store_close(gone.store);
    gone.api->process_leave(gone.process);
    Py_END_ALLOW_THREADS
}

moor_client *moor_runtime_client(void)
{
    moor_runtime *rt = moor_runtime_get();
    if (rt->client || !rt->process)
        return rt->client;
    moor_client *client = NULL;
    moor_status status;
    Py_BEGIN_ALLOW_THREADS
    /* process_dir is <dir>/<instance>; attach takes <dir> from the environment that process_join exported. */
    status = rt->api->attach(rt->api->process_instance(rt->process), NULL, 1.0, &client);
    Py_END_ALLOW_THREADS
    if (status) {
        moor_runtime_raise(status, "attaching to our own store");
        return NULL;
    }
    if (rt->client) { /* another thread was first while the GIL was released */
        rt->api->detach(client);
        return rt->client;
    }
    rt->client = client;
    return client;
}

PyObject *moor_py_path(PyObject *object, const char *path)
{
    if (!object)
        return NULL;
    PyObject *current = Py_NewRef(object);
    while (*path) {
        char name[96];
        size_t length = strcspn(path, ".");
        if (length >= sizeof(name)) {
            Py_DECREF(current);
            return NULL;
        }
        memcpy(name, path, length);
        name[length] = 0;
        path += length + (path[length] == '.');
        PyObject *next = PyObject_GetAttrString(current, name);
        Py_DECREF(current);
        if (!next || next == Py_None) {
            PyErr_Clear();
            Py_XDECREF(next);
            return NULL;
        }
        current = next;
    }
    return current;
}

long long moor_py_int(PyObject *object, const char *path, long long missing)
{
    PyObject *value = moor_py_path(object, path);
    if (!value)
        return missing;
    PyObject *index = PyNumber_Index(value);
    Py_DECREF(value);
    if (!index) {
        PyErr_Clear();
        return missing;
    }
    long long number = PyLong_AsLongLong(index);
    Py_DECREF(index);
    if (number == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return missing;
    }
    return number;
}

int moor_py_true(PyObject *object, const char *path, int missing)
{
    PyObject *value = moor_py_path(object, path);
    if (!value)
        return missing;
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    if (truth < 0) {
        PyErr_Clear();
        return missing;
    }
    return truth;
}

const char *moor_py_text(PyObject *object, Py_ssize_t *length)
{
    if (!object || !PyUnicode_Check(object))
        return NULL;
    const char *text = PyUnicode_AsUTF8AndSize(object, length);
    if (!text)
        PyErr_Clear();
    return text;
}

int moor_py_has(PyObject *names, const char *name, int none_is_all)
{
    if (!names || names == Py_None)
        return none_is_all;
    PyObject *key = PyUnicode_FromString(name);
    int found = key ? PySequence_Contains(names, key) : -1;
    Py_XDECREF(key);
    if (found < 0) {
        PyErr_Clear();
        return 0;
    }
    return found;
}
