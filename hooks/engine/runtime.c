/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "table.h"

enum { PATH_MAX_NAMES = 6 };

static moor_runtime runtime;
static int runtime_watches_forks;

/* A forked child has nothing of its parent's: the objects stay with the parent, the memory of the handles is left. */
static void runtime_in_child(void)
{
    memset(&runtime, 0, sizeof(runtime));
}

moor_runtime *moor_runtime_get(void)
{
    if (!runtime_watches_forks) /* before the runtime holds anything; a failure is tried again, and join refuses meanwhile */
        runtime_watches_forks = pthread_atfork(NULL, NULL, runtime_in_child) == 0;
    if (!runtime.api)
        runtime.api = moor_get_api(MOOR_API_VERSION, NULL);
    return &runtime;
}

int moor_runtime_records(void)
{
    const moor_runtime *rt = moor_runtime_get();
    return rt->process && rt->api->recording_on(rt->process);
}

int moor_runtime_configured_by_environment(void)
{
    const char *value = getenv("MOOR_CONFIG");
    return value && *value;
}

int moor_runtime_metrics(PyObject *registry)
{
    if (!moor_runtime_get()->process)
        return MOOR_JP_OK;
    PyObject *module = PyImport_ImportModule("moor.metrics");
    PyObject *added = module ? PyObject_CallMethod(module, "register", "O", registry ? registry : Py_None) : NULL;
    int result = added ? MOOR_JP_OK : MOOR_JP_FAILED;
    Py_XDECREF(added);
    Py_XDECREF(module);
    return result;
}

PyObject *moor_runtime_raise(moor_status status, const char *what)
{
    const moor_api *api = moor_runtime_get()->api;
    const char *text = api ? api->last_error() : "libmoor has no table of this version";
    const moor_runtime *rt = moor_runtime_get();
    moor_gate_status gate = MOOR_GATE_STATUS_INIT;
    int http = rt->acknowledge_route && rt->process && !api->gate_status(rt->process, &gate) && gate.poisoned;
    PyErr_Format(PyExc_RuntimeError, "moor: %s: %s%s%s (%s)", what, text, http ? ". Over HTTP: " : "",
                 http ? rt->acknowledge_route : "", api ? api->status_name(status) : "MOOR_E_VERSION");
    return NULL;
}

void moor_runtime_count(const char *name, uint64_t delta)
{
    const moor_runtime *rt = moor_runtime_get();
    if (rt->process)
        rt->api->count(rt->process, name, delta);
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

/* os.environ is a copy that Python took at its start, and what `env=os.environ.copy()` gives to a child. process_join has
 * put the names into the process' own list: what is assigned here replaces their values in it, and moves nothing. */
static int tell_os_environ(const char *name)
{
    const char *value = getenv(name);
    PyObject *os = value ? PyImport_ImportModule("os") : NULL;
    PyObject *mapping = os ? PyObject_GetAttrString(os, "environ") : NULL;
    PyObject *text = mapping ? PyUnicode_DecodeFSDefault(value) : NULL;
    PyObject *known = text ? PyObject_CallMethod(mapping, "get", "s", name) : NULL;
    int same = known ? PyObject_RichCompareBool(known, text, Py_EQ) : -1;
    int failed = value && (same < 0 || (!same && PyMapping_SetItemString(mapping, name, text) < 0));
    Py_XDECREF(known);
    Py_XDECREF(text);
    Py_XDECREF(mapping);
    Py_XDECREF(os);
    return failed ? -1 : 0;
}

static void tell_children(void)
{
    if (tell_os_environ("MOOR_INSTANCE") == 0 && tell_os_environ("MOOR_DIR") == 0)
        return;
    PyErr_Clear();
    moor_runtime_log(
        1, "os.environ cannot be changed: children that are started with a copy of it do not find the instance");
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

/* -1 with the error: on_error is strict, or a person must mend what was asked for (a configuration, a name that is taken, a directory).
 * Else the machine is to blame, and the engine goes on as if Moor were not there: 0. */
static int join_failed(moor_runtime *rt, const moor_config *config, moor_status status, const char *why)
{
    moor_config_values values = MOOR_CONFIG_VALUES_INIT;
    rt->api->config_values(config, &values);
    if (values.on_error == MOOR_ON_ERROR_STRICT || status == MOOR_E_INVALID || status == MOOR_E_CONFIG ||
        status == MOOR_E_EXISTS || status == MOOR_E_ACCESS || status == MOOR_E_NOT_FOUND) {
        PyErr_Format(PyExc_RuntimeError, "moor: joining the instance: %s (%s)", why, rt->api->status_name(status));
        return -1;
    }
    moor_runtime_log(0, "off in process %d, which records, gates and delivers nothing: joining the instance: %s (%s)",
                     (int)getpid(), why, rt->api->status_name(status));
    rt->off = 1;
    return 0;
}

static int is_turned_on(PyObject *section)
{
    return (section && section != Py_None) || moor_runtime_configured_by_environment();
}

int moor_runtime_configured(PyObject *section, moor_config_values *out)
{
    moor_runtime *rt = moor_runtime_get();
    moor_config *config = NULL;
    *out = (moor_config_values)MOOR_CONFIG_VALUES_INIT;
    if (!rt->api || !is_turned_on(section))
        return 0;
    if (parse_config(rt, section, &config))
        return -1;
    rt->api->config_values(config, out);
    rt->api->config_free(config);
    out->instance = out->dir = out->record_restore = NULL; /* they went with it */
    return 1;
}

int moor_runtime_join(const char *engine, uint32_t roles, uint32_t rank, uint32_t world, uint32_t dp_rank,
                      PyObject *section)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->api) {
        moor_runtime_raise(MOOR_E_VERSION, "join");
        return -1;
    }
    if (rt->off || (!rt->process && !is_turned_on(section))) {
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
    moor_status status = runtime_watches_forks ? rt->api->process_join(config, &args, &process) : MOOR_E_NOMEM;
    if (status) {
        int result =
            join_failed(rt, config, status,
                        runtime_watches_forks ? rt->api->last_error()
                                              : "pthread_atfork failed: a forked child would use its parent's store");
        rt->api->config_free(config);
        return result;
    }
    rt->process = process;
    rt->config = (moor_config_values)MOOR_CONFIG_VALUES_INIT;
    rt->api->config_free(config);
    tell_children();
    /* What the process was joined with: a later join point may see another section, or none, and must not act by it. */
    rt->api->config_values(rt->api->process_config(process), &rt->config);
    moor_jp_set_strict(rt->config.on_error == MOOR_ON_ERROR_STRICT);
    moor_runtime_log(3, "process %d joins instance %s in roles %#x, rank %u of %u", (int)getpid(),
                     rt->api->process_instance(process), roles, rank, world);
    return 1;
}

moor_client *moor_runtime_client(void)
{
    moor_runtime *rt = moor_runtime_get();
    if (rt->client || !rt->process)
        return rt->client;
    moor_client *client = NULL;
    moor_status status = rt->api->attach_own(rt->process, &client);
    if (status) {
        moor_runtime_raise(status, "attaching to our own store");
        return NULL;
    }
    return rt->client = client;
}

void moor_runtime_close_store(void)
{
    moor_runtime *rt = moor_runtime_get();
    moor_store *store = rt->store;
    moor_client *client = rt->client;
    rt->store = NULL;
    rt->client = NULL;
    Py_BEGIN_ALLOW_THREADS
    if (client)
        rt->api->detach(client);
    if (store)
        rt->api->store_close(store);
    Py_END_ALLOW_THREADS
}

/* A path's names as interned strings. A name made anew for every look-up would miss the interpreter's cache of class
 * attributes, and push somebody else's entry out of it. The GIL guards the table; paths are few, and written in the adapters. */
typedef struct {
    UT_hash_handle hh;
    uint32_t n;
    PyObject *names[PATH_MAX_NAMES];
    char path[];
} path_names;

static void path_free(path_names *p)
{
    while (p->n)
        Py_DECREF(p->names[--p->n]);
    free(p);
}

static path_names *path_parse(const char *path, size_t len)
{
    path_names *p = calloc(1, sizeof(*p) + len + 1);
    if (!p)
        return NULL;
    memcpy(p->path, path, len);
    for (char *at = p->path, *dot; p->n < PATH_MAX_NAMES; at = dot + 1) {
        dot = strchr(at, '.');
        if (dot)
            *dot = 0;
        PyObject *name = PyUnicode_InternFromString(at);
        if (!name)
            break;
        p->names[p->n++] = name;
        if (!dot)
            return p;
        *dot = '.';
    }
    path_free(p);
    return NULL;
}

static const path_names *path_find(const char *path)
{
    static path_names *known;
    size_t len = strlen(path);
    path_names *p;
    HASH_FIND(hh, known, path, len, p);
    if (p)
        return p;
    p = path_parse(path, len);
    if (!p)
        return NULL;
    HASH_ADD(hh, known, path, len, p);
    if (MOOR_TABLE_HAS(p))
        return p;
    path_free(p);
    return NULL;
}

PyObject *moor_py_path(PyObject *object, const char *path)
{
    const path_names *parsed = object ? path_find(path) : NULL;
    if (!parsed) {
        PyErr_Clear();
        return NULL;
    }
    PyObject *current = Py_NewRef(object);
    for (uint32_t i = 0; i < parsed->n; i++) {
        PyObject *next = PyObject_GetAttr(current, parsed->names[i]);
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

static PyObject *or_nothing(PyObject *object)
{
    if (object == Py_None)
        Py_CLEAR(object);
    PyErr_Clear();
    return object;
}

PyObject *moor_py_weak(PyObject *object)
{
    PyObject *weakref = PyImport_ImportModule("weakref");
    PyObject *weak = weakref ? PyObject_CallMethod(weakref, "ref", "O", object) : NULL;
    Py_XDECREF(weakref);
    return weak;
}

PyObject *moor_py_alive(PyObject *weak)
{
    return weak ? or_nothing(PyObject_CallNoArgs(weak)) : NULL;
}

int moor_py_note(PyObject **var, const char *name, PyObject *value)
{
    PyObject *contextvars = value && !*var ? PyImport_ImportModule("contextvars") : NULL;
    if (contextvars)
        *var = PyObject_CallMethod(contextvars, "ContextVar", "s", name);
    Py_XDECREF(contextvars);
    /* "(O)": a value that is a tuple is one argument */
    PyObject *token = value && *var ? PyObject_CallMethod(*var, "set", "(O)", value) : NULL;
    Py_XDECREF(token);
    return token ? 0 : -1;
}

PyObject *moor_py_noted(PyObject *var)
{
    return var ? or_nothing(PyObject_CallMethod(var, "get", "O", Py_None)) : NULL;
}
