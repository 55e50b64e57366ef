# SPDX-License-Identifier: Apache-2.0
"""What the installer needs in Python: `async def` wrappers, so that inspect.iscoroutinefunction and
inspect.isasyncgenfunction say of a wrapped callable what they said of the original.

An activation (C, hooks/engine/jp_wrap.c) is one call of a join point.  Its methods before, again, item, after return None,
or an awaitable that is to be awaited and whose value goes to again().  Everything else here is forwarding: the engine's
arguments, items, asend, athrow, aclose and exceptions pass through unchanged.
"""
import functools
import inspect
from contextvars import ContextVar

# The innermost activation around the running code, for join points that can nest (an override that calls super()).
_around = ContextVar("moor_around", default=None)


def wrap(wrapper, original, hint, nests, has_item):
    """The shim that stands for `original`, or `wrapper` itself where `original` is plain."""
    inner = inspect.unwrap(original)
    if inspect.iscoroutinefunction(original):
        shim = _coroutine(wrapper.__moor_enter__, original, nests)
    elif inspect.isasyncgenfunction(original):
        shim = _async_generator(wrapper.__moor_enter__, original, nests, has_item)
    elif hint in ("coroutine", "async_generator") or (
            hint == "auto" and (inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner))):
        shim = _follower(wrapper.__moor_enter__, original, nests, has_item)
    else:
        return wrapper
    functools.update_wrapper(shim, original)
    shim.__moor_wrapper__ = wrapper
    return shim


async def _wait(call, waiting):
    while waiting is not None:
        waiting = call.again(await waiting)


async def _inside(call, awaitable):
    """Awaits with `call` as the innermost activation."""
    token = _around.set(call)
    try:
        return await awaitable
    finally:
        _around.reset(token)


def _coroutine(enter, original, nests, begun=False):
    async def shim(*args, **kwargs):
        call = enter(args, kwargs, _around.get() if nests else None)
        try:
            if not begun:
                waiting = call.before()
                if waiting is not None:
                    await _wait(call, waiting)
                if call.done:
                    return call.result
            try:
                result = original(*call.args, **call.kwargs)
                result = await (_inside(call, result) if nests else result)
            except BaseException as exc:
                call.error(exc)
                raise
            waiting = call.after(result)
            if waiting is not None:
                await _wait(call, waiting)
            return call.result
        finally:
            call.finish()
    return shim


def _async_generator(enter, original, nests, has_item, begun=False):
    async def shim(*args, **kwargs):
        call = enter(args, kwargs, _around.get() if nests else None)
        try:
            if not begun:
                waiting = call.before()
                if waiting is not None:
                    await _wait(call, waiting)
            try:
                inner = aiter(call.result if call.done else original(*call.args, **call.kwargs))
                step = inner.__anext__()
                while True:
                    try:
                        value = await (_inside(call, step) if nests else step)
                    except StopAsyncIteration:
                        break
                    if has_item:
                        value = await _item(call, inner, value)
                    try:
                        sent = yield value
                    except GeneratorExit:
                        await _close(inner)
                        raise
                    except BaseException as exc:
                        step = _throw(inner, exc)
                    else:
                        step = inner.__anext__() if sent is None else inner.asend(sent)
            except BaseException as exc:
                call.error(exc)
                raise
            waiting = call.after(None)
            if waiting is not None:
                await _wait(call, waiting)
        finally:
            call.finish()
    return shim


async def _item(call, inner, value):
    try:
        waiting = call.item(value)
        if waiting is not None:
            await _wait(call, waiting)
    except BaseException:
        await _close(inner)
        raise
    return call.result


async def _close(inner):
    close = getattr(inner, "aclose", None)  # a plain async iterator has none
    if close is not None:
        await close()


def _throw(inner, exc):
    throw = getattr(inner, "athrow", None)
    if throw is None:
        raise exc
    return throw(exc)


def _follower(enter, original, nests, has_item):
    """Looks plain, returns an awaitable or an async iterator: a decorated coroutine or async generator function."""
    def shim(*args, **kwargs):
        call = enter(args, kwargs, _around.get() if nests else None)
        try:
            if call.before() is not None:
                raise RuntimeError("moor: a callable that is not `async def` itself cannot wait before it is called")
            if call.done:
                result = call.result
            else:
                try:
                    result = original(*call.args, **call.kwargs)
                except BaseException as exc:
                    call.error(exc)
                    raise
                if hasattr(result, "__aiter__") or hasattr(result, "__await__"):
                    make = _async_generator if hasattr(result, "__aiter__") else _coroutine
                    more = (has_item,) if make is _async_generator else ()
                    held, call = call, None
                    return make(lambda *_: held, lambda *_, **__: result, nests, *more, begun=True)()
                if call.after(result) is not None:
                    raise RuntimeError("moor: a plain callable cannot wait after it returned")
                result = call.result
            return result
        finally:
            if call is not None:
                call.finish()
    return shim
