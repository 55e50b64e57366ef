/* SPDX-License-Identifier: Apache-2.0 */
/*
 * joinpoint.h: the table-driven installer of Moor's hooks in a Python engine.
 *
 * What it is for.  An adapter (vllm.c, sglang.c, lmdeploy.c, a test's table) states in one const table which attributes
 * of which modules it wants to see, and which C callbacks run there.  The installer finds the attributes, wraps them,
 * counts what happens and reports it (`moor check`, _moor.joinpoints()).  It knows no engine and decides no policy.
 *
 * Who calls it.  plugin/python/module.c (set up, report), the import hook finder.c (a module has just been executed),
 * the adapters (parameters, results, manual join points).  Everything here is called with the GIL held.
 *
 * What it owns.  One state per registered join point, for the life of the process (tables are never unregistered), and
 * the wrapper objects, which belong to the classes and modules they were put into.
 *
 * Lock.  The GIL protects all of it.  No callback may be called while a lock of Moor's is held, and a callback may
 * release the GIL.
 *
 * How a join point is found.  targets[] are "module:Attribute.path", best first.  Every target whose module has been
 * imported and whose path resolves is wrapped (each place is a `site`), right after its module executed, or at once if
 * it was imported before Moor.  Resolution is by attribute, never by version number.
 *   - functions, methods, static methods, class methods, coroutine functions, async generator functions: told apart by
 *     looking at the attribute; the static/class method object is rebuilt around the wrapper.
 *   - an attribute that a class inherits is wrapped in the class that defines it, when that class belongs to one of the
 *     engine's packages; otherwise the named class gets its own wrapper around what it inherits.
 *   - MOOR_JP_OVERRIDES: overrides in subclasses are wrapped too, those that exist and those created by engine modules
 *     imported later.  Subclasses from elsewhere (a user's worker class): moor_jp_rescan().
 *   - a module-level function: names that engine modules bound early (`from x import y`) are rebound to the wrapper.
 *   - nested activations of one join point through *different* wrappers with the same self (an override that calls
 *     super(), an alias) are one event: only the outermost runs the callbacks.  Recursion through the same wrapper is a
 *     new event each time.
 *
 * What a wrapper is.  Plain callables become a C object that keeps __name__, __qualname__, __doc__, __module__,
 * __dict__, __wrapped__, inspect.signature, pickling by name, weak references, and gives every other attribute of the
 * original (__code__, __defaults__, ...).  Coroutine and async generator functions become `async def` shims
 * (moor/_shims.py), so that inspect tells them apart as before.
 *
 * Errors.  The engine's own exceptions always pass through unchanged.  A callback that fails (MOOR_JP_FAILED) is logged
 * once per join point and counted, and the original behaviour goes on (on_error: open) or the error is raised at the
 * join point (strict).  A refusal that is meant for the engine, whatever the mode, is MOOR_JP_RAISE.
 */
#ifndef MOOR_HOOKS_ENGINE_JOINPOINT_H
#define MOOR_HOOKS_ENGINE_JOINPOINT_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOOR_JP_MAX_TARGETS = 6, MOOR_JP_MAX_PARAMS = 8 };

/* What the wrapped callable is.  AUTO looks (also through __wrapped__).  A hint matters only for a callable that *looks*
 * plain but returns an awaitable or an async iterator (a decorated one): its result is then followed to its end, so that
 * `item`, `after`, `error` and `finish` come when the work is done, and not when the coroutine object was made. */
typedef enum moor_jp_kind {
    MOOR_JP_AUTO = 0,
    MOOR_JP_PLAIN,
    MOOR_JP_COROUTINE,
    MOOR_JP_ASYNC_GENERATOR,
} moor_jp_kind;

/* What a callback answers. */
enum {
    MOOR_JP_OK = 0,    /* go on */
    MOOR_JP_DONE = 1,  /* before only: call->result is set (moor_jp_set_result); the original is not called, and
                          * neither are `after` and `error` */
    MOOR_JP_AWAIT = 2, /* before, after and item of a coroutine or async generator: moor_jp_set_awaitable() was called;
                          * it is awaited, then the same callback runs again with call->rounds one higher and the value
                          * in call->awaited.  An exception of the awaitable (cancellation) is the caller's. */
    MOOR_JP_FAILED = -1, /* the hook failed, Python error set: logged once, counted; raised only under strict */
    MOOR_JP_RAISE = -2,  /* refuse: the Python error that is set is raised at the join point, in both modes.  From
                          * `before`: the original is not called.  From `after`: its result is dropped. */
};

/* Flags of a join point. */
enum {
    MOOR_JP_REQUIRED = 1u << 0,  /* missing in a process that imported its module makes `moor check` fail */
    MOOR_JP_OVERRIDES = 1u << 1, /* wrap overrides in subclasses as well */
    MOOR_JP_ANY_OF = 1u << 2,    /* REQUIRED holds for the group of all entries with the same `group`: one is enough */
    MOOR_JP_FIRST = 1u << 4,  /* fires before `fires_with` does: this is where the process learns its role. If it does
                                  * not, the engine began before Moor was in place, and that is said in one line. */
    MOOR_JP_PINNED = 1u << 3, /* never rebind early bound names (gc.collect: only attribute look-ups are seen) */
};

typedef struct moor_jp moor_jp;
typedef struct moor_jp_call moor_jp_call;
typedef struct moor_jp_state moor_jp_state; /* private */
typedef struct moor_jp_site moor_jp_site;   /* private: one wrapped place */

typedef int (*moor_jp_callback)(moor_jp_call *call);

/* One join point.  All pointers must stay valid for the life of the process (string literals, static functions). */
struct moor_jp {
    const char *name;                         /* short and unique in its engine: "core.add_request" */
    const char *role;                         /* for the report: "frontend", "core", "worker"; NULL = any */
    const char *targets[MOOR_JP_MAX_TARGETS]; /* "module:Attr.path", best first; all NULL = manual (see below) */
    moor_jp_kind kind;                        /* usually MOOR_JP_AUTO */
    uint32_t flags;
    const char *group; /* MOOR_JP_ANY_OF */

    /* Parameters the callbacks read by index with moor_jp_param(call, i): names of the original's parameters. */
    const char *params[MOOR_JP_MAX_PARAMS];

    /* "Must have fired": installed, never fired, while the join point named here (same engine) fired at least
     * `fires_after` times (0 = once): state MOOR_JP_NEVER_FIRED, an error state.  NULL = no such condition. */
    const char *fires_with;
    uint32_t fires_after;

    /* Callbacks, each optional.  Order of one call: before → original → (item …) → after | error → finish.
     *   before   may replace the arguments, or supply the result and answer DONE.
     *   around   plain callables only: runs instead of the original and calls moor_jp_proceed() itself, at most once.
     *            If it fails without having proceeded, the original runs (open).
     *   item     async generators: call->result is what is about to be yielded; may be replaced.
     *   after    call->result is what the original returned (async generator: None at its end); may be replaced.
     *   error    the original raised: call->exc.  OK: it propagates.  RAISE: the new error instead (chained).
     *            A consumer that closes an async generator early is GeneratorExit; a cancelled task CancelledError.
     *   finish   exactly once for each call whose `before` ran (or that has none), whatever happened; frees call->state;
     *            must leave no Python error. */
    moor_jp_callback before;
    moor_jp_callback around;
    moor_jp_callback item;
    moor_jp_callback after;
    moor_jp_callback error;
    void (*finish)(moor_jp_call *call);

    void *user; /* the adapter's own */
};

/* One activation.  Object pointers are borrowed by the callback: they live at least until it returns.  Change `args`,
 * `kwargs`, `result` only through the setters below. */
struct moor_jp_call {
    const moor_jp *jp;
    PyObject *self;      /* instance or class of a method call; NULL for functions and static methods */
    PyObject *args;      /* tuple; a method's self is args[0] (also of class methods) */
    PyObject *kwargs;    /* dict or NULL; not to be modified in place */
    PyObject *original;  /* the wrapped callable (underlying function of a static/class method) */
    PyObject *result;    /* after, item, and what DONE supplies; else NULL */
    PyObject *exc;       /* error: the exception object; else NULL */
    PyObject *awaited;   /* value of the last awaitable in rounds > 0; else NULL */
    uint32_t rounds;     /* how often this callback has been awaited for */
    uint64_t until_ns;   /* the adapter's: how long this callback awaits at most; 0 in its first round */
    void *state;         /* the adapter's, from before to finish */
    moor_jp_site *site;  /* private */
    PyObject *awaitable; /* private */
    uint32_t own;        /* private: which of the references this struct holds */
};

/* A parameter by index into jp->params: borrowed, or NULL without an error when the caller did not pass it (the
 * original's default applies).  Positional or keyword, whatever the caller used.  No allocation; hot path. */
PyObject *moor_jp_param(const moor_jp_call *call, unsigned i);
/* The same by name, for names that are not in jp->params; slower. */
PyObject *moor_jp_arg(const moor_jp_call *call, const char *name);
/* Replace a parameter (new tuple or dict; the caller's objects are untouched).  0, or -1 with an error. */
int moor_jp_set_param(moor_jp_call *call, unsigned i, PyObject *value);
/* Replace all arguments (args: tuple including self; kwargs: dict or NULL).  Takes its own references. */
int moor_jp_set_args(moor_jp_call *call, PyObject *args, PyObject *kwargs);
/* Both steal the reference.  NULL is refused: -1 with an error (the pending one, or SystemError). */
int moor_jp_set_result(moor_jp_call *call, PyObject *result);
int moor_jp_set_awaitable(moor_jp_call *call, PyObject *awaitable);
/* Inside `around`: run the original with the current arguments.  0: call->result is set.  -1: it raised; the exception
 * is in call->exc (the error indicator is clear) and will be raised when `around` returns OK. */
int moor_jp_proceed(moor_jp_call *call);

/* An engine. */
typedef struct moor_engine {
    const char *name;            /* "vllm" */
    const char *const *packages; /* NULL-terminated top-level packages: {"vllm", NULL}; their modules are watched */
    const moor_jp *joinpoints;
    size_t njoinpoints;
    /* The engine's package is being used in this process for the first time (before any wrapper fires).  Optional.
     * -1 with an error: logged; the join points are installed nevertheless. */
    int (*on_detect)(const struct moor_engine *engine);
} moor_engine;

/* States of a join point in this process. */
typedef enum moor_jp_status {
    MOOR_JP_WAITING = 0, /* none of its modules has been imported yet */
    MOOR_JP_MISSING,     /* a module was imported, but no target resolved */
    MOOR_JP_INSTALLED,   /* wrapped, not called yet */
    MOOR_JP_FIRED,
    MOOR_JP_NEVER_FIRED, /* installed and not fired although `fires_with` says that it must have */
} moor_jp_status;

typedef struct moor_jp_info {
    const moor_engine *engine;
    const moor_jp *jp;
    moor_jp_status status;
    const char *resolved; /* first resolved target, or the note of a manual one; NULL */
    const char *reason;   /* why a target did not resolve; NULL */
    uint32_t sites;       /* wrapped places, overrides included */
    uint32_t rebound;     /* early bound names that were rebound */
    uint64_t fired;       /* outermost activations in this process (a forked child starts from 0) */
    uint64_t errors;      /* failed callbacks */
} moor_jp_info;

/* Register a table.  Same table again: no-op.  Modules already imported are patched at once.  0, or -1 with an error. */
int moor_jp_register(const moor_engine *engine);
/* Look again at everything: modules in sys.modules, subclasses wherever they were defined, names bound early.
 * Cheap enough for once at start of a role (~1 ms), not for a step.  Never fails (logs). */
void moor_jp_rescan(const moor_engine *engine);
/* The i-th join point over all engines, in table order; false past the end. */
bool moor_jp_get(size_t i, moor_jp_info *out);
/* The entry of this name in the engine's table, registered or not; NULL when there is none. */
const moor_jp *moor_jp_named(const moor_engine *engine, const char *name);
bool moor_jp_find(const moor_engine *engine, const char *name, moor_jp_info *out);

/* Join points on objects (a router, a loaded model) rather than on attributes of modules.
 *  wrap       a new wrapper around `callable` (new reference) that runs jp's callbacks; counts as a site.
 *             `self_first`: its first argument is self.
 *  wrap_attr  replace attribute `name` of `object` by a wrapper around its present value; once per object (a second
 *             call finds the wrapper and does nothing).  1 wrapped, 0 already wrapped, -1 error.
 *  bound/fired  for hooks that need no wrapper (a custom op, a callback given to the engine): counts, no object.
 *             `fired` is cheap (one add); from a thread without the GIL use moor_jp_fired_nogil. */
PyObject *moor_jp_wrap(const moor_jp *jp, PyObject *callable, bool self_first);
int moor_jp_wrap_attr(const moor_jp *jp, PyObject *object, const char *name);
void moor_jp_bound(const moor_jp *jp, const char *resolved, uint32_t sites);
void moor_jp_fired(const moor_jp *jp);
void moor_jp_fired_nogil(const moor_jp *jp);
/* Report a failed piece of a hook that is not a callback: takes and clears the pending Python error; counted, logged
 * once per join point.  Under strict the error stays pending and -1 is returned; else 0. */
int moor_jp_failed(const moor_jp *jp, const char *what);

/* on_error of the configuration. */
void moor_jp_set_strict(bool strict);
/* Where lines go (default: stderr).  level as in the log configuration: "error", "warn", "info", "debug". */
void moor_jp_set_log(void (*log)(const char *level, const char *line));
/* Called for each failed piece of a hook, with the GIL. */
void moor_jp_set_count(void (*failed)(void));

#endif
