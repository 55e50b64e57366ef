# SPDX-License-Identifier: Apache-2.0
"""Tokens/s of a real vLLM server with {"moor": {}} against one without Moor: both are up, take turns on the same cores, and
the idle one is stopped.  engine_overhead.py ROUNDS"""
import json
import os
import signal
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "engines", "lib"))
from moorlab import load, models, paths, server  # noqa: E402

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers stop on the way out
rounds = int(sys.argv[1])
build = paths.find_moor()
if build is None:
    sys.exit("no build of Moor found")
model = models.ensure("qwen3", 1)
bare = server.Server(model, sys.executable, name="bench-without")
moor = server.Server(model, sys.executable, moor={}, build=build, name="bench-with")


def jobs(r, name):
    return load.make_jobs(32, 100 + r, f"b{r}-{name}", tokens=(24, 64))


with bare, moor:
    for s in (bare, moor):
        load.run(s.client(), jobs(99, s.name))  # warm
    speeds = load.interleaved([bare, moor], jobs, rounds)
for what, s in (("without Moor", bare), ("moor", moor)):
    print(json.dumps(dict(name="vLLM, tokens/s (more is better)", what=what, unit="tok/s", values=speeds[s.name])), flush=True)
