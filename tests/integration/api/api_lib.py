# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python API share: a server process with a store, and the rows it must have recorded."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

import moor

try:
    import numpy
except ImportError:
    numpy = None

LAYERS, MODEL_LAYERS, TOP_K = 3, 6, 2
LAYER_IDS = (1, 2, 5)
BUILD = os.environ["MOOR_BUILD_DIR"]


def ids(start, stop, seed=0, experts=256):
    """[stop-start][LAYERS][TOP_K] as api_server records them."""
    return [[[(13 * r + 5 * c + k + seed) % experts for k in range(TOP_K)] for c in range(LAYERS)] for r in range(start, stop)]


def model_layout(rows):
    out = []
    for row in rows:
        full = [[0] * TOP_K for _ in range(MODEL_LAYERS)]
        for column, layer in enumerate(LAYER_IDS):
            full[layer] = row[column]
        out.append(full)
    return out


class Server:
    """The api_server program, driven line by line."""

    def __init__(self, base, experts=256, arena=16 << 20, stores=(0,), config=None):
        config = dict({"instance": "api", "dir": base, "log": "error"}, **(config or {}))
        env = {k: v for k, v in os.environ.items() if k not in ("MOOR_INSTANCE", "MOOR_DIR", "LD_PRELOAD")}
        self.process = subprocess.Popen([os.path.join(BUILD, "tests/integration/api_server"), json.dumps(config)], env=env,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer("start")
        self("open", stores[0], LAYERS, MODEL_LAYERS, TOP_K, experts, arena)

    def _answer(self, what):
        line = self.process.stdout.readline()
        if not line.startswith("ok"):
            raise AssertionError(f"api_server: {what}: {line!r}")

    def __call__(self, *words):
        line = " ".join(str(w) for w in words)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self._answer(line)

    def record(self, id, rows, seed=0, missing=None, seal=True, aliases=()):
        """rows 0…rows-1, those of missing=(start, stop) without their last layer."""
        start, stop = missing or (rows, rows)
        if start:
            self("record", id, 0, start, seed)
        if start < stop:
            self("record", id, start, stop, seed, "missing")
        if stop < rows:
            self("record", id, stop, rows, seed)
        for alias, index in aliases:
            self("alias", id, alias, index)
        if seal:
            self("seal", id, rows, 0)

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.write("close\n")
            self.process.stdin.close()
            self.process.wait(20)
        else:
            self.process.stdin.close()
        self.process.stdout.close()


class ApiTest(unittest.TestCase):
    """A server of its own for each test, attached as self.store."""

    server_args = {}

    def setUp(self):
        base = tempfile.TemporaryDirectory(prefix="moor-api-")
        self.addCleanup(base.cleanup)
        self.base = base.name
        os.environ["MOOR_HOLDS_DIR"] = self.base  # no other test's holds
        self.server = Server(self.base, **self.server_args)
        self.addCleanup(self.server.close)
        self.store = moor.attach("api", dir=self.base)

    def stat(self, name):
        """A number of this store, out of stats()."""
        return self.store.stats()["stores"][0][name]

    def wait_for(self, condition, what, seconds=5):
        """Releases travel to the store without an answer."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.005)

    def assertLeases(self, n):
        self.wait_for(lambda: self.stat("leases") == n, f"leases never became {n}")

    def python(self, program, *args, **kwargs):
        """Another Python with the same moor."""
        return subprocess.Popen([sys.executable, "-c", program, self.base, *args], text=True, **kwargs)


def needs_numpy(test):
    return unittest.skipIf(numpy is None, "numpy is not installed in this Python")(test)
