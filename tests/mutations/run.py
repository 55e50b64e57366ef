#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks each guard of docs/mutations.md once, and expects its test to fail.

    tests/mutations/run.py                 every mutation whose test needs no engine
    tests/mutations/run.py -k barrier      only lines that match
    tests/mutations/run.py --check         builds nothing: is every line still an edit of its file?
    tests/mutations/run.py --engines       those that start an engine too ($MOOR_VENV_* as for the tests)

Works on a copy of the tracked files (mutation.py says how a line is read), built in a directory of its own that --dir keeps for the next
run. One edit, the test's targets rebuilt, the test run, the file restored. Results: killed (the test failed), survived (it passed: the guard has no
test), stale (the edit does not apply, or there is no such test), prose (no edit), broken (it does not compile, or the test fails without it), skipped (an engine, or
nothing to run). Exit status 1 when one survived, is stale or broken.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from mutation import Stale, read

SOURCE = Path(__file__).resolve().parents[2]
# Python tests are named by their file in the list: the ctest test that runs it.
BY_FILE = {
    "test_joinpoints.py": "joinpoints_3.11",
    "test_joinpoint_places.py": "joinpoints_3.11",
    "joinpoints_*": "joinpoints_3.11",
    "test_preload.py": "preload_3.11",
    "test_quiet.py": "preload_quiet",
    "test_api_rows": "api_python_3.11",
    "test_api_store": "api_python_3.11",
    "test_api_command": "api_command",
}
NEEDS_ENGINE = re.compile(r"\bengine_|the engine's own")
# What a test that is no program of its own may load or start: all that is installed, and what the tests in Python and in processes need.
SHIPPED = {"moor", "moor_tool", "moor_python", "moor_package", "moor_actor", "jphost", "fake_python", "api_server"}
READS_SOURCES = {"house_layers", "house_rules", "house_mutations"}
# Little optimised: compiling is most of the time that a mutation takes. An unused variable of a mutated function is no error. house_abi reads types.
HOW = ["-G", "Ninja", "-DMOOR_WERROR=OFF", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1 -g"]


class Tree:
    """The copy that is mutated, and its build."""

    def __init__(self, root, jobs):
        self.source, self.build, self.jobs = root / "source", root / "build", jobs
        self.tests = {}

    def sync(self):
        """Copies what changed; what was mutated by a run that was killed is restored by this as well."""
        names = subprocess.run(
            ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"], cwd=SOURCE, check=True, capture_output=True
        ).stdout.decode()
        wanted = {n for n in names.split("\0") if n and (SOURCE / n).is_file()}
        for name in wanted:
            here, there = SOURCE / name, self.source / name
            if not there.exists() or here.read_bytes() != there.read_bytes():
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(here, there)
        for there in [p for p in self.source.rglob("*") if p.is_file() and not p.is_symlink()]:
            if str(there.relative_to(self.source)) not in wanted:
                there.unlink()
        cache = self.source / ".cache"
        if (SOURCE / ".cache").exists() and not cache.exists():
            cache.symlink_to((SOURCE / ".cache").resolve())

    def configure(self):
        self._run(["cmake", "-S", self.source, "-B", self.build, *HOW])
        self.shipped = [t for t in sorted(SHIPPED) if f"build {t}: phony" in (self.build / "build.ninja").read_text()]
        # From CMake's files: ctest tells the program of a test only once it is built.
        for file in self.build.rglob("CTestTestfile.cmake"):
            self.tests.update(re.findall(r'^add_test\(\[=\[(.+?)\]=\] "([^"]+)"', file.read_text(), re.MULTILINE))

    @staticmethod
    def _run(command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def targets(self, test):
        """What to build for a test: its own program where it is one, and what the tests with processes start."""
        if test in READS_SOURCES:
            return ["build.ninja"]
        program = Path(self.tests[test])
        if self.build not in program.parents:
            return self.shipped
        own = str(program.relative_to(self.build))
        return [own, "moor_actor"] if own.startswith("tests/integration/") else [own]

    def make(self, test):
        done = subprocess.run(
            ["ninja", "-C", self.build, f"-j{self.jobs}", *self.targets(test)], capture_output=True, text=True
        )
        return done.returncode == 0, done.stdout

    def run(self, test, limit_s=None):
        """(outcome, output): "passes", "fails" or "skips"."""
        test = subprocess.Popen(
            ["ctest", "--test-dir", self.build, "-R", f"^{re.escape(test)}$", "--output-on-failure", "--no-tests=error"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = test.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(test.pid, signal.SIGKILL)
            return "fails", f"does not end in {limit_s:.0f} s"
        outcome = "fails" if test.returncode else "skips" if "***Skipped" in output else "passes"
        return outcome, output


def ctest_name(mutation, tests):
    word = mutation.test.split()[0].rstrip(",")
    name = BY_FILE.get(word, word)
    if mutation.file.startswith("hooks/engine/") and name.startswith("api_"):
        name = word
    return name if name in tests else None


def try_one(tree, mutation, baseline):
    """(result, what there is to say)"""
    name = ctest_name(mutation, tree.tests)
    if not name:
        return "stale", f"no test of this build: {mutation.test}"
    if name not in baseline:
        built, output = tree.make(name)
        if not built:
            sys.exit(f"{name} does not build:\n{output[-3000:]}")
        begin = time.monotonic()
        baseline[name] = tree.run(name)[0], time.monotonic() - begin
    outcome, took_s = baseline[name]
    if outcome != "passes":
        return "skipped" if outcome == "skips" else "broken", f"{name} {outcome} without the mutation"
    path = tree.source / mutation.file
    original = path.read_text()
    try:
        mutated = mutation.apply(original)
        if mutated == original:
            return "stale", "the edit changes nothing"
        path.write_text(mutated)
        built, output = tree.make(name)
        if not built:
            error = re.search(r"error: .*", output)
            return "broken", error[0] if error else output[-200:]
        outcome, output = tree.run(name, 4 * took_s + 30)
    except Stale as e:
        return "stale", str(e)
    except FileNotFoundError as e:
        return "stale", str(e)
    finally:
        path.write_text(original)
    if outcome != "fails":
        return "survived", name
    if output.startswith("does not end"):
        return "killed", f"{name} {output}"
    named = [w for w in re.findall(r"\w{8,}", mutation.test) if w != name]
    failed = re.findall(r"^(?:\d+: )?(?:\[  FAILED  \]|FAIL:|ERROR:) (\w+)", output, re.MULTILINE)
    elsewhere = named and failed and not any(f.startswith(w) for f in failed for w in named)
    return "killed", f"{name}, but by {failed[0]}, not {named[0]}" if elsewhere else name


def names_of_tests():
    """Of the build that runs this as its test, or nothing: without Python, or with a sanitizer, it has no engine tests."""
    build = os.environ.get("MOOR_BUILD_DIR")
    if not build or os.environ.get("MOOR_SANITIZE"):
        return set()
    listed = subprocess.run(["ctest", "--test-dir", build, "-N"], check=True, capture_output=True, text=True).stdout
    names = set(re.findall(r"^ *Test +#\d+: (\S+)", listed, re.MULTILINE))
    return names if "engine_demo" in names else set()


def check(mutations):
    """Without a build: does every edit still apply, and is there such a test?"""
    tests = names_of_tests()
    for m in mutations:
        if m.prose:
            yield m, "prose", m.prose
            continue
        try:
            text = (SOURCE / m.file).read_text()
            if tests and not ctest_name(m, tests):
                yield m, "stale", f"no test of this build: {m.test}"
                continue
            yield (m, "applies", "") if m.apply(text) != text else (m, "stale", "changes nothing")
        except (Stale, FileNotFoundError) as e:
            yield m, "stale", str(e)


def run_all(mutations, options):
    root = Path(options.dir or tempfile.mkdtemp(prefix="moor-mutations-"))
    tree, baseline = Tree(root, options.jobs), {}
    (root / "source").mkdir(parents=True, exist_ok=True)
    tree.sync()
    tree.configure()
    until = time.monotonic() + options.minutes * 60 if options.minutes else None
    # File by file: what restores one mutation and what makes the next is then compiled once.
    for m in sorted(mutations, key=lambda m: (m.file, m.test)):
        if m.prose:
            yield m, "prose", m.prose
        elif NEEDS_ENGINE.search(m.test) and not options.engines:
            yield m, "skipped", "needs an engine"
        elif until and time.monotonic() > until:
            yield m, "skipped", "no time left"
        else:
            yield (m, *try_one(tree, m, baseline))
    if not options.dir:
        shutil.rmtree(root)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", metavar="REGEX", help="only lines that match")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--engines", action="store_true")
    parser.add_argument("--dir", help="where copy and build are kept")
    parser.add_argument("--list", default=SOURCE / "docs" / "mutations.md")
    parser.add_argument("--minutes", type=float, help="starts no mutation after so many")
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    mutations = [m for m in read(options.list) if not options.k or re.search(options.k, f"{m.rule} | {m.file} | {m.test}")]
    totals = Counter()
    for m, result, text in check(mutations) if options.check else run_all(mutations, options):
        totals[result] += 1
        if result != "applies":
            print(f"{result:9} {m.number:4}  {m.rule} | {m.file}: {text}", flush=True)
    print(", ".join(f"{n} {result}" for result, n in sorted(totals.items())) or "no mutation matches")
    return 1 if not totals or totals["survived"] or totals["stale"] or totals["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
