# SPDX-License-Identifier: Apache-2.0
"""Threads that deliver records while an engine's event loop goes on (hooks/engine/deliver.c)."""
import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

_THREADS = 8
_pool = None


def _forget():
    global _pool
    _pool = None  # a forked child has none of its threads


os.register_at_fork(after_in_child=_forget)


def later(function, *args):
    """An awaitable of function(*args), which may wait."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_THREADS, "moor-deliver")
    return asyncio.get_running_loop().run_in_executor(_pool, function, *args)
