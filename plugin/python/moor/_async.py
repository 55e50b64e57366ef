# SPDX-License-Identifier: Apache-2.0
"""Store.open_async: one thread for each store asks for all records that coroutines wait for.

A round trip to the store is short, but it is system calls and must not stop the event loop; and a thread for each waiter, or a
hop through the loop for each attempt, would not carry hundreds of them. The thread ends when it has been idle for a while.
"""
import asyncio
import heapq
import itertools
import os
import threading
import time
import weakref

from moor import _moor

_FIRST_NAP, _LONGEST_NAP = 0.0005, 0.02
_NAP_EACH = 0.001  # and this much for every waiter: attempts a second stay bounded however many wait
_IDLE = 2.0

_pollers = weakref.WeakKeyDictionary()  # store -> _Poller
_pollers_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: (_pollers.clear(), globals().update(_pollers_lock=threading.Lock())))


class _Wait:
    def __init__(self, store, request_id, timeout):
        self.store = store
        self.request_id = request_id
        self.deadline = time.monotonic() + timeout
        self.nap = _FIRST_NAP
        self.loop = asyncio.get_running_loop()
        self.future = self.loop.create_future()

    def attempt(self):
        """Seconds until the next attempt, or None: settled."""
        if self.future.cancelled():
            return None
        try:
            self._settle(_Wait._succeed, self.store.open(self.request_id, 0.0))
        except (_moor.Timeout, _moor.NotFound) as error:  # not sealed, or not known yet
            left = self.deadline - time.monotonic()
            if left > 0:
                nap, self.nap = self.nap, min(self.nap * 2, _LONGEST_NAP)
                return min(nap, left)
            self._settle(_Wait._fail, error)
        except BaseException as error:
            self._settle(_Wait._fail, error)
        return None

    def _settle(self, how, value):
        try:
            self.loop.call_soon_threadsafe(how, self, value)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more, and a record is released with its last reference

    def _succeed(self, record):
        if not self.future.done():
            self.future.set_result(record)

    def _fail(self, error):
        if not self.future.done():
            self.future.set_exception(error)


class _Poller:
    def __init__(self):
        self.changed = threading.Condition()
        self.heap = []  # (when, serial, wait)
        self.serial = itertools.count()
        self.running = False

    def add(self, wait):
        with self.changed:
            heapq.heappush(self.heap, (0.0, next(self.serial), wait))
            if not self.running:
                threading.Thread(target=self._run, name="moor-open", daemon=True).start()
                self.running = True
            self.changed.notify()

    def _next(self):
        """The next wait that is due; None: idle for long enough, the thread has to end."""
        with self.changed:
            while True:
                if not self.heap:
                    if not self.changed.wait(_IDLE) and not self.heap:
                        self.running = False
                        return None
                    continue
                left = self.heap[0][0] - time.monotonic()
                if left <= 0:
                    return heapq.heappop(self.heap)[2]
                self.changed.wait(left)

    def _run(self):
        while (wait := self._next()) is not None:
            nap = wait.attempt()
            if nap is not None:
                with self.changed:
                    nap = min(max(nap, _NAP_EACH * len(self.heap)), max(wait.deadline - time.monotonic(), 0))
                    heapq.heappush(self.heap, (time.monotonic() + nap, next(self.serial), wait))
            del wait  # not kept, with its store, while idle


async def open_async(store, request_id, timeout):
    wait = _Wait(store, request_id, timeout)
    with _pollers_lock:
        poller = _pollers.get(store)
        if poller is None:
            poller = _pollers[store] = _Poller()
    poller.add(wait)
    return await wait.future
