#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make bench: runs Moor and what it is compared with in turns on the same machine and prints one table of ratios.

    bench.py [--rounds N] [--engine] [--write-docs] [--only NAME]

--engine adds tokens/s of a real vLLM server with and without Moor (two server starts).  --write-docs puts the table into
docs/performance.md.  A ratio is Moor's median by the peer's within one round; the table shows the median of the rounds' and
their smallest and largest.  Absolute figures are of this machine and this hour; the ratios are what is claimed."""
import argparse
import collections
import json
import os
import platform
import signal
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def program(name="moor-bench"):
    build = os.environ.get("MOOR_BUILD_DIR", os.path.join(ROOT, "build"))
    path = os.path.join(build, "bench", name)
    if not os.access(path, os.X_OK):
        sys.exit(f"{path} is not there: `make` first, or set MOOR_BUILD_DIR")
    return path


def engine_python():
    """The engine environment's interpreter, or None."""
    for path in (os.environ.get("MOOR_PYTHON_VLLM"), os.path.join(os.environ.get("MOOR_VENV_VLLM", ""), "bin", "python"),
                 os.path.join(ROOT, ".venv-vllm", "bin", "python")):
        if path and os.path.isabs(path) and os.access(path, os.X_OK):
            return path
    return None


def has(python, module):
    return subprocess.run([python, "-c", f"import importlib.util, sys; sys.exit(not importlib.util.find_spec('{module}'))"],
                          stderr=subprocess.DEVNULL).returncode == 0


def plan(python, only):
    """[(group, command)], and why others are left out."""
    c, skipped = program(), []
    todo = [("decode", [c, "decode"]), ("prefill", [c, "prefill"]), ("lease", [c, "lease"]), ("gate", [c, "gate"]),
            ("open", [c, "open"])] + [("barrier", [c, "barrier", n]) for n in ("2", "4", "8")]
    peers = [("decode prefill open", "vllm_record.py", "vllm", []), ("open", "base64_json.py", "numpy", [])]
    peers += [("barrier", "gloo_barrier.py", "torch", [n]) for n in ("2", "4", "8")]
    for groups, script, module, args in peers:
        if python and has(python, module):
            todo.append((groups, [python, os.path.join(HERE, "peers", script), *args]))
        else:
            skipped.append(f"{' '.join([script, *args])}: no {module} (no engine environment)")
    todo += [("trie", [program("bench_trie")]), ("trie", [sys.executable, os.path.join(HERE, "peers", "dict_trie.py")])]
    return [cmd for groups, cmd in todo if not only or only in groups.split()], skipped


def run(command, env=None, timeout=540):
    clean = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "MOOR_INSTANCE", "MOOR_CONFIG", "MOOR_DIR")}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**clean, **(env or {})})
    try:
        out, err = child.communicate(timeout=timeout)
    except BaseException:
        child.terminate()  # it has servers of its own to stop
        child.wait(60)
        raise
    if child.returncode:
        sys.exit(f"{' '.join(command)}: exit {child.returncode}\n{err[-3000:]}")
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def measure(commands, rounds):
    """{name: {what: (unit, [median of each round])}}"""
    out = collections.defaultdict(dict)
    for r in range(rounds):
        for command in commands if r % 2 == 0 else commands[::-1]:
            for sample in run(command):
                unit, medians = out[sample["name"]].setdefault(sample["what"], (sample["unit"], []))
                medians.append(statistics.median(sample["values"]))
        print(f"round {r + 1} of {rounds} done", file=sys.stderr)
    return out


def engine(rounds, python):
    env = {"MOOR_BUILD_DIR": os.environ.get("MOOR_BUILD_DIR", os.path.join(ROOT, "build"))}
    out = {}
    for sample in run([python, os.path.join(HERE, "peers", "engine_overhead.py"), str(rounds)], env, timeout=1800):
        out.setdefault(sample["name"], {})[sample["what"]] = (sample["unit"], sample["values"])
    return out


def number(x):
    return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def rows(results):
    for name, whats in results.items():
        if "moor" not in whats:
            continue
        unit, moor = whats["moor"]
        for what, (_, peer) in whats.items():
            if what == "moor":
                continue
            pairs = sorted(m / p for m, p in zip(moor, peer))
            yield (name, f"{number(statistics.median(moor))} {unit}", what, f"{number(statistics.median(peer))} {unit}",
                   f"{number(statistics.median(pairs))} ({number(pairs[0])}–{number(pairs[-1])})")


def table(results):
    lines = [("work", "Moor", "compared with", "its figure", "Moor / it: median (min–max)"), *rows(results)]
    width = [max(len(line[i]) for line in lines) for i in range(5)]
    text = ["| " + " | ".join(cell.ljust(width[i]) for i, cell in enumerate(line)) + " |" for line in lines]
    text.insert(1, "|" + "|".join("-" * (w + 2) for w in width) + "|")
    return "\n".join(text)


def machine():
    model = "unknown CPU"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"{len(os.sched_getaffinity(0))} CPUs ({model}), Linux {platform.release()}"


def write_docs(text, skipped, rounds):
    path = os.path.join(ROOT, "docs", "performance.md")
    with open(path) as f:
        old = f.read()
    head, rest = old.split(BEGIN)
    left_out = "".join(f"\nLeft out: {s}.\n" for s in skipped)
    body = f"{BEGIN}\n{machine()}; {rounds} rounds.\n\n{text}\n{left_out}{END}"
    with open(path, "w") as f:
        f.write(head + body + rest.split(END)[1])
    print(f"wrote {os.path.relpath(path, ROOT)}", file=sys.stderr)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--engine", action="store_true", help="tokens/s of a real vLLM server, with and without Moor")
    p.add_argument("--engine-rounds", type=int, default=8)
    p.add_argument("--write-docs", action="store_true")
    p.add_argument("--only", choices=("decode", "prefill", "lease", "gate", "open", "barrier", "trie", "engine"))
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    python = engine_python()
    results, skipped = {}, []
    if a.only != "engine":
        commands, skipped = plan(python, a.only)
        results = measure(commands, a.rounds)
    if (a.engine or a.only == "engine") and python:
        results.update(engine(a.engine_rounds, python))
    text = table(results)
    print(f"{machine()}; {a.rounds} rounds\n\n{text}")
    for s in skipped:
        print(f"left out: {s}")
    if a.write_docs:
        write_docs(text, skipped, a.rounds)


if __name__ == "__main__":
    main()
