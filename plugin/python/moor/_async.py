# SPDX-License-Identifier: Apache-2.0
"""Store.open_async: waits in the event loop. No thread is held while a record is not sealed yet, so any number can wait."""
import asyncio
import concurrent.futures
import os
import time

from moor import _moor

_FIRST_NAP, _LONGEST_NAP = 0.0005, 0.02
_threads = None
_threads_pid = 0


def _executor():
    """A few threads of our own: a round trip to the store is short, but it is a system call and must not stop the loop."""
    global _threads, _threads_pid
    if _threads is None or _threads_pid != os.getpid():  # a forked child has the object but none of its threads
        _threads = concurrent.futures.ThreadPoolExecutor(4, thread_name_prefix="moor-open")
        _threads_pid = os.getpid()
    return _threads


async def open_async(store, request_id, timeout):
    loop = asyncio.get_running_loop()
    deadline = time.monotonic() + timeout
    nap = _FIRST_NAP
    while True:
        try:
            return await loop.run_in_executor(_executor(), store.open, request_id, 0.0)
        except _moor.Timeout:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
        await asyncio.sleep(min(nap, left))
        nap = min(nap * 2, _LONGEST_NAP)
