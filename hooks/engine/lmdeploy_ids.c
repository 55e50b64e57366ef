/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a request is called. LMDeploy numbers its sessions; a client knows none of these numbers, but sends some of its own as session_id, or
 * is shown an id that the route makes up and the engine never hears of. A record is therefore called "lmdeploy-<number>", which no client is
 * shown; "session-N" where the client has sent N; and whatever the route shows. The HTTP process knows the last two, and they
 * travel to the engine's with the request's configuration.
 */
#include <string.h>

#include "lmdeploy.h"

/* Attributes of a GenerationConfig, and then of a SamplingParam: the session_id that the client sent, and the id that its route shows. */
#define SESSION "moor_session"
#define SHOWN "moor_shown"

PyObject *moor_lmdeploy_name(PyObject *session)
{
    return session ? PyUnicode_FromFormat("lmdeploy-%S", session) : NULL;
}

/* ---- what a route shows: known from its handler on, in whose context its requests are generated ---- */

/* Modules that make up an id, and what they put before it. A fan-out of n > 1 shows its own id, not those of its samples. */
static const struct route {
    const char *module, *prefix;
    int fans_out;
} routes[] = {
    {"lmdeploy.serve.openai.chat_completions.serving", "chatcmpl-", 0},
    {"lmdeploy.serve.openai.chat_completions.fanout", "chatcmpl-", 1},
    {"lmdeploy.serve.openai.responses.protocol", "resp_", 0},
    {"lmdeploy.serve.anthropic.endpoints.messages", "msg_", 0},
};

static PyObject *shown; /* a ContextVar: (id, whether of a fan-out), or None */

/* Steals `value`. 0, or -1 with an error. */
static int show(PyObject *value)
{
    int failed = moor_py_note(&shown, "moor_shown", value);
    Py_XDECREF(value);
    return failed;
}

static int in_fan_out(void)
{
    PyObject *now = moor_py_noted(shown);
    int is = now && PyTuple_GetItem(now, 1) == Py_True;
    Py_XDECREF(now);
    return is;
}

/* shortuuid.random: who asks says what it is for. */
int moor_lmdeploy_random_after(moor_jp_call *call)
{
    PyObject *globals = moor_runtime_records() ? PyEval_GetGlobals() : NULL;
    const char *module = globals ? moor_py_text(PyDict_GetItemString(globals, "__name__"), NULL) : NULL;
    for (size_t i = 0; module && i < sizeof(routes) / sizeof(routes[0]); i++) {
        const struct route *r = &routes[i];
        if (strcmp(module, r->module) != 0)
            continue;
        if (i == 0 && in_fan_out())
            return MOOR_JP_OK;
        PyObject *id = PyUnicode_FromFormat("%s%S", r->prefix, call->result);
        PyObject *value = id ? Py_BuildValue("(OO)", id, r->fans_out ? Py_True : Py_False) : NULL;
        Py_XDECREF(id);
        return show(value) ? MOOR_JP_FAILED : MOOR_JP_OK;
    }
    return MOOR_JP_OK;
}

/* /v1/completions shows the session_id as it was sent: -1 where none was, to whoever asks. */
int moor_lmdeploy_completions_before(moor_jp_call *call)
{
    if (!moor_runtime_records())
        return MOOR_JP_OK;
    PyObject *sent = moor_py_path(moor_jp_param(call, 0), "session_id");
    int is_one = sent && PyLong_Check(sent) && PyLong_AsLongLong(sent) >= 0;
    PyErr_Clear();
    PyObject *id = is_one ? PyObject_Str(sent) : NULL;
    PyObject *value = id ? Py_BuildValue("(OO)", id, Py_False) : Py_NewRef(Py_None);
    Py_XDECREF(id);
    Py_XDECREF(sent);
    return show(value) ? MOOR_JP_FAILED : MOOR_JP_OK;
}

/* ---- the way to the engine ---- */

/* The session_id that a client has sent, which the server maps to a number of its own; NULL when it has sent none. */
static PyObject *sent_session(PyObject *request)
{
    PyObject *number = moor_py_path(request, "session.session_id"), *manager_ref, *manager, *map;
    manager_ref = number ? moor_py_path(request, "session._session_mgr") : NULL;
    manager = manager_ref ? PyObject_CallNoArgs(manager_ref) : NULL;
    map = manager ? moor_py_path(manager, "session_id_map") : NULL;
    PyObject *sent = map && PyDict_Check(map) ? PyDict_GetItem(map, number) : NULL;
    Py_XINCREF(sent);
    PyErr_Clear();
    Py_XDECREF(map);
    Py_XDECREF(manager);
    Py_XDECREF(manager_ref);
    Py_XDECREF(number);
    return sent;
}

void moor_lmdeploy_send_ids(PyObject *request)
{
    PyObject *sent = sent_session(request), *now = moor_py_noted(shown);
    PyObject *config = sent || now ? moor_py_path(request, "gen_config") : NULL;
    if (config && sent)
        PyObject_SetAttrString(config, SESSION, sent);
    PyErr_Clear(); /* such a record is found by the engine's own name alone */
    if (config && now)
        PyObject_SetAttrString(config, SHOWN, PyTuple_GetItem(now, 0));
    PyErr_Clear();
    Py_XDECREF(config);
    Py_XDECREF(now);
    Py_XDECREF(sent);
}

int moor_lmdeploy_keep_ids(PyObject *config, PyObject *param)
{
    static const char *const names[] = {SESSION, SHOWN};
    int failed = 0;
    for (int i = 0; i < 2 && !failed; i++) {
        PyObject *value = moor_py_path(config, names[i]);
        failed = value && PyObject_SetAttrString(param, names[i], value);
        Py_XDECREF(value);
    }
    return failed ? -1 : 0;
}

static void alias(const char *id, uint32_t len, PyObject *name, uint32_t index)
{
    moor_runtime *rt = moor_runtime_get();
    Py_ssize_t name_len;
    const char *text = moor_py_text(name, &name_len);
    if (text)
        rt->api->request_alias(rt->store, id, len, text, (uint32_t)name_len, index);
    PyErr_Clear();
    Py_XDECREF(name);
}

/* Sessions are numbered in the order of their prompts and samples, which is open_many's. */
void moor_lmdeploy_add_ids(PyObject *sequence, const char *id, uint32_t len)
{
    PyObject *sent = moor_py_path(sequence, "sampling_param." SESSION);
    if (sent)
        alias(id, len, PyUnicode_FromFormat("session-%S", sent), 0);
    alias(id, len, moor_py_path(sequence, "sampling_param." SHOWN), (uint32_t)moor_py_int(sequence, "session_id", 0));
    Py_XDECREF(sent);
}
