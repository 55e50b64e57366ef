# SPDX-License-Identifier: Apache-2.0
"""Tokens/s of a real vLLM server with {"moor": {}} beside one without, as moorlab.versus measures it: four servers that take turns on
the same cores, two of each kind; a figure is the geometric mean of a kind's two.  engine_overhead.py ROUNDS"""
import json
import os
import signal
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "engines", "lib"))
from moorlab import load, models, paths, server, versus  # noqa: E402

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers stop on the way out
rounds = int(sys.argv[1])
build = paths.find_moor()
if build is None:
    sys.exit("no build of Moor found")
model = models.ensure("qwen3", 1)


def make(name, with_moor):
    return server.Server(model, sys.executable, name=f"bench-{name}", **(dict(moor={}, build=build) if with_moor else {}))


def jobs(r, name):
    return load.make_jobs(48, 100 + r, f"b{r}-{name}", tokens=(48, 96))


got = versus.measure(make, jobs, rounds)
for what, kind in (("without Moor", "without"), ("moor", "with")):
    values = [(a * b) ** 0.5 for a, b in zip(*(s for k, s in zip(versus.KINDS, got.speeds) if k == kind))]
    print(json.dumps(dict(name="vLLM, tokens/s (more is better)", what=what, unit="tok/s", values=values)), flush=True)
print(f"later servers : earlier servers = {got.noise}", file=sys.stderr)
