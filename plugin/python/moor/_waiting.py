# SPDX-License-Identifier: Apache-2.0
"""Waiting at the gate in an event loop: requests in a line, pauses and updates for what they need.

However many requests wait in a loop, they cost it one descriptor, one timer, and one look at the gate at a time. libmoor makes
the descriptor readable when a look is worth while; the timer looks a few times a second, so that none waits for ever for a
thread or a descriptor that could not be had. Who came first is admitted first. After a few of them the loop goes on with
whatever else it has to do, as what they do next is the engine's, and takes its time.
"""
import asyncio
import functools
import itertools
import logging
import os
import time
import weakref
from collections import OrderedDict

_FOR_ENTER = 0  # moor.h: MOOR_GATE_FOR_ENTER
_BEAT = 0.25
_AT_ONCE = 16  # admitted, or looked for in vain, before the loop does something else
_LONGEST = 0.001  # and no longer than that

_log = logging.getLogger("moor")
_lines = weakref.WeakKeyDictionary()  # event loop -> reference to its _Line, which those who wait in it, and the loop, hold
os.register_at_fork(after_in_child=lambda: _lines.clear())
_watch = _unwatch = None


def use(watch, unwatch):
    """watch(what) -> a descriptor, unwatch(descriptor): libmoor's."""
    global _watch, _unwatch
    _watch, _unwatch = watch, unwatch


@functools.cache
def _say_once(text):
    _log.warning(text)


class _Watch:
    """Calls `told` in the loop when a look is worth while; without a descriptor, never."""

    def __init__(self, loop, what, told):
        self.told = told
        self.fd = None
        try:
            self.fd = _watch(what)
            loop.add_reader(self.fd, self._readable)
        except Exception as error:
            self._give_back()
            _say_once(f"moor: {error}: the gate is looked at {1 / _BEAT:g} times a second instead")

    def _readable(self):
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass
        self.told()

    def end(self, loop):
        if self.fd is not None:
            loop.remove_reader(self.fd)
            self._give_back()

    def _give_back(self):
        fd, self.fd = self.fd, None
        if fd is not None:
            _unwatch(fd)

    __del__ = _give_back  # of a loop that was closed while somebody waited


class _Line:
    """The requests that wait in one loop, in order of arrival. It is called in that loop only."""

    def __init__(self):
        self.waiters = OrderedDict()  # future -> (look, deadline)
        self.watch = self.timer = None
        self.walks = False

    def join(self, loop, look, deadline):
        future = loop.create_future()
        self.waiters[future] = look, deadline
        future.add_done_callback(self._gone)
        if self.watch is None:
            self.watch = _Watch(loop, _FOR_ENTER, self._told)
            self._beat()
        return future

    def _gone(self, future):
        """Answered, or cancelled because its client went."""
        self.waiters.pop(future, None)
        if not self.waiters and self.watch is not None:
            self.watch.end(future.get_loop())
            self.timer.cancel()
            self.watch = self.timer = None

    def _told(self):
        if not self.walks:
            self.walks = True
            asyncio.get_running_loop().call_soon(self._walk)

    def _beat(self):
        left = next(iter(self.waiters.values()))[1] - time.monotonic() if self.waiters else _BEAT
        self.timer = asyncio.get_running_loop().call_later(min(max(left, 0), _BEAT), self._beat_again)

    def _beat_again(self):
        self._beat()
        self._told()

    def _walk(self):
        """Looks for the first few; again when one of them went."""
        self.walks = False
        end = time.monotonic() + _LONGEST
        went = False
        for future in list(itertools.islice(self.waiters, _AT_ONCE)):
            if future.done():
                continue
            try:
                over = self.waiters[future][0]()
            except Exception as error:
                future.set_exception(error)
                over = True
            else:
                if over is False:
                    break
                if over:
                    future.set_result(None)
            if over:
                went = True
                del self.waiters[future]
            if time.monotonic() > end:
                break
        if went and self.waiters:
            self._told()


def join(look, deadline):
    """A future that ends when look() has said True (None: not yet; False: none behind it either), or raised.

    deadline: of time.monotonic(): it is looked for then, if not before."""
    loop = asyncio.get_running_loop()
    line = _lines[loop]() if loop in _lines else None
    if line is None:
        line = _Line()
        _lines[loop] = weakref.ref(line)
    return line.join(loop, look, deadline)


async def until(what, deadline):
    """Returns when gate_drain or gate_reopen (MOOR_GATE_FOR_*) is worth another look, and at the deadline."""
    loop = asyncio.get_running_loop()
    told = loop.create_future()

    def tell():
        if not told.done():
            told.set_result(None)

    watch = _Watch(loop, what, tell)
    left = max(deadline - time.monotonic(), 0)
    timer = loop.call_later(left if watch.fd is not None else min(left, _BEAT), tell)
    try:
        await told
    finally:
        timer.cancel()
        watch.end(loop)
