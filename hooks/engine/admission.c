/* SPDX-License-Identifier: Apache-2.0 */
#include "admission.h"

#include <stdlib.h>
#include <time.h>

#include "waiting.h"

typedef struct {
    moor_ticket ticket;
    uint64_t deadline_ns;
    uint32_t outcome, records;
    PyObject *id;     /* its key in `sent`, owned; NULL: it is not in there */
    uint32_t earlier; /* what was sent under its id before it came */
    PyObject *place;  /* in the line, while it waits */
    PyObject *name;   /* of one that came into the line, owned */
} admission;

/* Of requests that passed the gate: id → how many parts of it the engine was given, and, times USER, how many requests have that id. */
static PyObject *sent;
static int sent_is_seen; /* the engine does say when it is given one */
static const long long USER = 1ll << 32;

#define KEEP_AFTER_NS 1000000000u

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int moor_gate_enforced(void)
{
    const moor_runtime *rt = moor_runtime_get();
    return rt->process && rt->config.gate_mode == MOOR_MODE_ENFORCE;
}

int moor_gate_on(void)
{
    const moor_runtime *rt = moor_runtime_get();
    return rt->process && rt->config.gate_mode != MOOR_MODE_OFF;
}

/* ---- requests ------------------------------------------------------------------------------------------------------ */

static long long sent_under(PyObject *id)
{
    PyObject *value = sent && id ? PyDict_GetItem(sent, id) : NULL;
    return value ? PyLong_AsLongLong(value) : 0;
}

static int add_under(PyObject *id, long long more)
{
    PyObject *value = PyLong_FromLongLong(sent_under(id) + more);
    int failed = !value || PyDict_SetItem(sent, id, value);
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

/* It passed, and the engine has not been given it yet. Where that cannot be noted, all its records are waited for. */
static void note_unsent(admission *a, PyObject *id)
{
    if (!sent)
        sent = PyDict_New();
    a->earlier = (uint32_t)sent_under(id);
    if (sent && add_under(id, USER) == 0)
        a->id = Py_NewRef(id);
    PyErr_Clear();
}

static void forget_unsent(admission *a)
{
    if (!a->id)
        return;
    if (sent_under(a->id) < 2 * USER) /* the last one of this id */
        (void)PyDict_DelItem(sent, a->id);
    else
        (void)add_under(a->id, -USER);
    PyErr_Clear();
    Py_CLEAR(a->id);
}

/* What the engine was not given has no record. */
static void count_sent(admission *a)
{
    moor_runtime *rt = moor_runtime_get();
    uint32_t parts = a->id && sent_is_seen ? (uint32_t)sent_under(a->id) - a->earlier : a->records;
    PyErr_Clear();
    if (parts < a->records)
        rt->api->gate_fewer(rt->process, &a->ticket, a->records - parts);
}

/* In enforce nothing runs without a ticket; in observe nothing is kept from running. A Python error is set. */
static int refuse(void)
{
    return moor_gate_enforced() ? MOOR_JP_RAISE : MOOR_JP_FAILED;
}

/* Also of one that is still in the line, and perhaps given up before it runs. */
static void admitted(admission *a, PyObject *name)
{
    if (a->records)
        note_unsent(a, name);
}

static void leave_line(admission *a)
{
    moor_runtime *rt = moor_runtime_get();
    if (a->place && rt->process)
        rt->api->gate_waiting(rt->process, -1);
    moor_line_leave(&a->place);
}

/* The moor_look of a request. */
static int look_again(void *user)
{
    moor_runtime *rt = moor_runtime_get();
    admission *a = user;
    Py_ssize_t id_len = 0;
    const char *id = rt->process ? moor_py_text(a->name, &id_len) : NULL;
    if (!id)
        return MOOR_LOOK_OVER; /* Moor has left meanwhile */
    moor_status status = rt->api->gate_enter_again(rt->process, id, (uint32_t)id_len, a->records, &a->ticket);
    if ((status == MOOR_E_TIMEOUT || status == MOOR_E_FULL) && now_ns() < a->deadline_ns)
        return status == MOOR_E_FULL ? MOOR_LOOK_FULL : MOOR_LOOK_CLOSED;
    leave_line(a);
    if (status) {
        moor_runtime_raise(status, "admission");
        return MOOR_LOOK_FAILED;
    }
    admitted(a, a->name);
    return MOOR_LOOK_OVER;
}

static int stand_in_line(moor_jp_call *call, admission *a, PyObject *name)
{
    moor_runtime *rt = moor_runtime_get();
    a->name = Py_NewRef(name);
    if (moor_line_join(call, look_again, a, a->deadline_ns, &a->place) != MOOR_JP_AWAIT)
        return refuse();
    rt->api->gate_waiting(rt->process, 1);
    return MOOR_JP_AWAIT;
}

/* call->state, new: nothing of it runs yet, and until `before` is through no record of it comes. */
static admission *begin(moor_jp_call *call, uint32_t records)
{
    admission *a = call->state = calloc(1, sizeof(*a));
    if (!a) {
        PyErr_NoMemory();
        return NULL;
    }
    a->outcome = MOOR_OUTCOME_FAILED;
    a->records = records;
    a->deadline_ns = now_ns() + (uint64_t)(moor_runtime_get()->config.weights_timeout_s * 1e9);
    return a;
}

int moor_admission_before(moor_jp_call *call, PyObject *name, uint32_t records)
{
    moor_runtime *rt = moor_runtime_get();
    Py_ssize_t id_len;
    const char *id = moor_gate_on() ? moor_py_text(name, &id_len) : NULL;
    if (!id)
        return MOOR_JP_OK;
    admission *a = call->state;
    if (!a) {
        a = begin(call, records);
        if (!a)
            return refuse();
        if (moor_gate_enforced() && moor_line_is_there())
            return stand_in_line(call, a, name); /* behind those who came before, also when the gate is open by now */
        moor_status status = rt->api->gate_enter(rt->process, id, (uint32_t)id_len, records, 0.0, &a->ticket);
        if (moor_gate_enforced() && (status == MOOR_E_TIMEOUT || status == MOOR_E_FULL) && now_ns() < a->deadline_ns)
            return stand_in_line(call, a, name);
        if (status) {
            moor_runtime_raise(status, "admission");
            return refuse();
        }
        admitted(a, name);
    }
    a->outcome = MOOR_OUTCOME_ABORTED; /* until it ends well */
    return MOOR_JP_OK;
}

void moor_admission_sent(PyObject *id)
{
    if (sent && id && PyDict_Contains(sent, id) == 1 && add_under(id, 1) == 0)
        sent_is_seen = 1;
    PyErr_Clear();
}

int moor_admission_after(moor_jp_call *call)
{
    admission *a = call->state;
    if (a && a->outcome != MOOR_OUTCOME_FAILED)
        a->outcome = MOOR_OUTCOME_FINISHED;
    return MOOR_JP_OK;
}

void moor_admission_no_record(moor_jp_call *call)
{
    admission *a = call->state;
    if (a)
        a->outcome = MOOR_OUTCOME_FAILED;
}

int moor_admission_error(moor_jp_call *call)
{
    admission *a = call->state;
    if (a && !PyErr_GivenExceptionMatches(call->exc, PyExc_GeneratorExit))
        a->outcome =
            PyErr_GivenExceptionMatches(call->exc, PyExc_Exception) ? MOOR_OUTCOME_FAILED : MOOR_OUTCOME_ABORTED;
    if (a && a->ticket.id)
        count_sent(a);
    return MOOR_JP_OK;
}

void moor_admission_finish(moor_jp_call *call)
{
    admission *a = call->state;
    moor_runtime *rt = moor_runtime_get();
    if (a && a->ticket.id && rt->process)
        rt->api->gate_leave(rt->process, &a->ticket, a->outcome, NULL);
    call->state = NULL;
    if (!a)
        return;
    leave_line(a);
    forget_unsent(a);
    Py_XDECREF(a->name);
    free(a);
}

/* ---- pauses and updates -------------------------------------------------------------------------------------------- */

int moor_gate_close(uint32_t flags)
{
    moor_runtime *rt = moor_runtime_get();
    int was_open = 0;
    if (!moor_gate_on())
        return 0;
    rt->api->gate_close(rt->process, flags, &was_open);
    return was_open;
}

static int drained(moor_status status)
{
    if (status == MOOR_OK || !moor_gate_enforced())
        return MOOR_JP_OK;
    moor_runtime_raise(status, "drain");
    return MOOR_JP_RAISE;
}

int moor_gate_is(uint32_t flag)
{
    moor_runtime *rt = moor_runtime_get();
    moor_gate_status now = MOOR_GATE_STATUS_INIT;
    return rt->process && rt->api->gate_status(rt->process, &now) == MOOR_OK && (now.flags & flag);
}

void moor_gate_note(uint32_t set, uint32_t clear)
{
    moor_runtime *rt = moor_runtime_get();
    if (rt->process)
        rt->api->gate_note(rt->process, set, clear);
}

/* Each call has its own deadline: they may be many at a time. 1 while it has time left. */
static int has_time(moor_jp_call *call, uint64_t ns)
{
    if (!call->until_ns)
        call->until_ns = now_ns() + ns;
    return now_ns() < call->until_ns;
}

int moor_gate_drain(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!moor_gate_on())
        return MOOR_JP_OK;
    moor_status status = rt->api->gate_drain(rt->process, 0.0);
    if (status != MOOR_E_TIMEOUT || !moor_gate_enforced())
        return drained(status);
    if (has_time(call, (uint64_t)(rt->config.drain_timeout_s * 1e9)))
        return moor_await_gate(call, MOOR_GATE_FOR_DRAIN, call->until_ns);
    return drained(rt->api->gate_drain_late(rt->process, rt->config.drain_timeout_s));
}

int moor_gate_drain_or_keep(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!moor_gate_on())
        return MOOR_JP_OK;
    moor_status status = rt->api->gate_drain(rt->process, 0.0);
    if (status != MOOR_E_TIMEOUT || !moor_gate_enforced())
        return drained(status);
    if (has_time(call, KEEP_AFTER_NS))
        return moor_await_gate(call, MOOR_GATE_FOR_DRAIN, call->until_ns);
    moor_runtime_log(2, "kept across the pause: %s", rt->api->last_error());
    moor_gate_note(MOOR_GATE_KEPT, 0);
    return MOOR_JP_OK;
}

int moor_gate_drain_blocking(void)
{
    moor_runtime *rt = moor_runtime_get();
    if (!moor_gate_on())
        return MOOR_JP_OK;
    double timeout = moor_gate_enforced() ? rt->config.drain_timeout_s : 0.0;
    moor_status status;
    Py_BEGIN_ALLOW_THREADS
    status = rt->api->gate_drain(rt->process, timeout);
    Py_END_ALLOW_THREADS
    return drained(status);
}

int moor_gate_installed(const char *label)
{
    moor_runtime *rt = moor_runtime_get();
    if (rt->process)
        rt->api->weights_end(rt->process, 1, NULL);
    return moor_gate_install(label);
}

int moor_gate_install(const char *label)
{
    moor_runtime *rt = moor_runtime_get();
    if (!rt->process)
        return MOOR_JP_OK;
    moor_gate_status now = MOOR_GATE_STATUS_INIT;
    if (!moor_gate_on() || rt->api->gate_status(rt->process, &now) || now.state == MOOR_GATE_OPEN) {
        if (label)
            rt->api->weights_label(rt->process, label);
        return MOOR_JP_OK;
    }
    moor_status status = rt->api->gate_install(rt->process, label, !moor_gate_enforced(), NULL);
    if (status == MOOR_OK)
        return MOOR_JP_OK;
    moor_runtime_raise(status, "install");
    return moor_gate_enforced() ? MOOR_JP_RAISE : MOOR_JP_FAILED;
}

int moor_gate_update_error(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    PyObject *text = PyObject_Str(call->exc);
    const char *why = moor_py_text(text, NULL);
    if (rt->process)
        rt->api->weights_end(rt->process, 0, why ? why : "the engine raised");
    PyErr_Clear();
    Py_XDECREF(text);
    return MOOR_JP_OK;
}

static int opened(moor_status status)
{
    if (status == MOOR_OK)
        return MOOR_JP_OK;
    moor_runtime_raise(status, "reopen");
    return moor_gate_enforced() ? MOOR_JP_RAISE : MOOR_JP_FAILED;
}

int moor_gate_open(void)
{
    moor_runtime *rt = moor_runtime_get();
    if (!moor_gate_on())
        return MOOR_JP_OK;
    moor_gate_note(0, MOOR_GATE_KEPT); /* also where it does not open: the engine goes on, or may */
    return opened(rt->api->gate_reopen(rt->process, 0.0));
}

int moor_gate_open_settled(moor_jp_call *call)
{
    moor_runtime *rt = moor_runtime_get();
    if (!moor_gate_on())
        return MOOR_JP_OK;
    moor_gate_note(0, MOOR_GATE_KEPT);
    moor_status status = rt->api->gate_reopen(rt->process, 0.0);
    if (status == MOOR_E_TIMEOUT && moor_gate_enforced() &&
        has_time(call, (uint64_t)(rt->config.weights_timeout_s * 1e9)))
        return moor_await_gate(call, MOOR_GATE_FOR_REOPEN, call->until_ns);
    return opened(status);
}
