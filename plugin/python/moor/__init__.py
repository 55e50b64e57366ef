# SPDX-License-Identifier: Apache-2.0
"""Moor: routed-expert records, the request gate and the KV-resume barrier of MoE rollout servers.

A trainer reads what an engine on the same host recorded:

    import moor
    store = moor.attach()                        # the server's instance: its name, $MOOR_INSTANCE or "default"
    with store.open("cmpl-42", timeout=5) as record:
        ids = record.array()                     # [rows, layers, top_k], zero-copy, read-only
"""
from moor._moor import (
    AccessError, Ambiguous, Barrier, Broken, Closed, ConfigError, Corrupt, Error, Exists, Forked, Full, Gate, Gone, Hold, Incomplete,
    Invalid, NotFound, OutOfMemory, Poisoned, RangeError, Record, Segment, Session, Stale, StateError, Store, SystemFailure,
    Timeout, Trace, Unsupported, VersionError, attach, concat, hold, pad_rows, resolve, status_text,
)

__version__ = "0.1.0"
__all__ = [
    "AccessError", "Ambiguous", "Barrier", "Broken", "Closed", "ConfigError", "Corrupt", "Error", "Exists", "Forked", "Full", "Gate",
    "Gone", "Hold", "Incomplete", "Invalid", "NotFound", "OutOfMemory", "Poisoned", "RangeError", "Record", "Segment", "Session",
    "Stale", "StateError", "Store", "SystemFailure", "Timeout", "Trace", "Unsupported", "VersionError", "attach", "concat", "hold", "pad_rows", "resolve",
    "status_text",
]
