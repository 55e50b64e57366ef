# SPDX-License-Identifier: Apache-2.0
"""Preloaded into what is not an engine, libmoor costs nothing that can be seen: measured with strace, with and without."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ["MOOR_BUILD_DIR"]
LIBRARY = os.path.join(BUILD, "python", "moor", "libmoor.so.1")
FAKE = os.path.join(BUILD, "tests", "python_host", "fake_python")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def trace(command, preload, cwd, **env):
    """(stdout, stderr, {files opened}, threads and processes made, system calls that change the process)"""
    environ = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH")}
    environ.update(env, PYTHONDONTWRITEBYTECODE="1")
    logs = tempfile.mkdtemp()
    # one file a process: in a common one, a call that another process interrupts is two half lines, and its failure is not seen
    strace = ["strace", "-ff", "-qq", "-s", "4096", "-o", os.path.join(logs, "trace"), "-e", "signal=none"]
    if preload:
        strace += ["-E", f"LD_PRELOAD={LIBRARY}"]
    ran = subprocess.run([*strace, "--", *command], env=environ, cwd=cwd, capture_output=True, text=True, timeout=100)
    lines = []
    for log in os.scandir(logs):
        with open(log.path, encoding="utf-8", errors="replace") as f:
            lines += f.read().splitlines()
    shutil.rmtree(logs)
    opened, made, changed = set(), 0, 0
    for line in lines:
        call = re.match(r"(\w+)\((.*)", line)
        if not call:
            continue
        name, rest = call.groups()
        if name in ("open", "openat", "creat") and not re.search(r"= -1 E", rest):
            path = re.search(r'"([^"]*)"', rest)
            opened.add(re.sub(r"/tmp/cc\w+|/proc/\d+", "TMP", path.group(1)) if path else rest)
        elif name in ("clone", "clone3", "vfork", "fork"):
            made += 1
        elif name in ("rt_sigaction", "prctl", "socket", "memfd_create", "timer_create", "eventfd2", "epoll_create1"):
            changed += 1
    return ran.stdout, ran.stderr, opened, made, changed, ran.returncode


class Quiet(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)

    def same(self, *command):
        for kind in ("warm", "measured"):
            without = trace(command, False, self.dir)
        preloaded = trace(command, True, self.dir)
        self.assertEqual(preloaded[:2], without[:2], "output")
        self.assertEqual(preloaded[2] - without[2], {LIBRARY}, "files opened")
        self.assertEqual(without[2] - preloaded[2], set(), "files not opened")
        self.assertEqual(preloaded[3:], without[3:], "threads and processes, calls that change the process, exit status")
        self.assertEqual(kind, "measured")
        return without

    def test_bash(self):
        self.assertEqual(self.same("bash", "-c", "echo hello; (exit 3)")[0], "hello\n")

    def test_make(self):
        with open(os.path.join(self.dir, "Makefile"), "w", encoding="utf-8") as f:
            f.write("all:\n\t@echo made\n")
        self.assertEqual(self.same("make", "-s")[0], "made\n")

    def test_gcc(self):
        with open(os.path.join(self.dir, "a.c"), "w", encoding="utf-8") as f:
            f.write("int main(void) { return 0; }\n")
        self.same(shutil.which("gcc") or os.environ["MOOR_CC"], "-c", "a.c", "-o", "a.o")

    def test_python_without_an_engine(self):
        """Static and shared libpython, whichever are here."""
        script = "import sys, json, threading; print('moor' in sys.modules, threading.active_count(), len(sys.meta_path))"
        for python in {os.path.realpath(p) for p in ("/usr/bin/python3", sys.executable) if os.path.exists(p)}:
            out = self.same(python, "-c", script)[0].split()
            self.assertEqual(out[:2], ["False", "1"])

    def test_no_error_is_left_for_dlerror(self):
        source = os.path.join(self.dir, "d.c")
        with open(source, "w", encoding="utf-8") as f:
            f.write('#include <dlfcn.h>\n#include <stdio.h>\nint main(void) { const char *e = dlerror(); puts(e ? e : "none"); }\n')
        program = os.path.join(self.dir, "d")
        subprocess.run([os.environ["MOOR_CC"], source, "-o", program, "-ldl"], check=True)
        self.assertEqual(self.same(program)[0], "none\n")

    def fake(self, **env):
        ran = subprocess.run([FAKE], env={**os.environ, "LD_PRELOAD": LIBRARY, **env}, capture_output=True, text=True, timeout=20)
        return ran.stdout.strip(), ran.stderr

    def test_hook_is_added_once_in_a_python(self):
        self.assertEqual(self.fake(), ("1", ""))

    def test_disabled(self):
        self.assertEqual(self.fake(MOOR_DISABLE="1"), ("0", ""))

    def test_running_python_gets_no_hook(self):
        """`import moor` loads the same library: there the entry points call bootstrap()."""
        self.assertEqual(self.fake(FAKE_INITIALIZED="1"), ("0", ""))

    def test_free_threaded_build_is_refused(self):
        for version in ("3.13.0 experimental free-threading build (main)", "3.14.0 free-threading build (main)"):
            self.assertEqual(self.fake(FAKE_VERSION=version),
                             ("0", "moor: free-threaded builds of Python are not supported; this process runs without Moor\n"))


if __name__ == "__main__":
    if os.environ.get("MOOR_SANITIZE"):
        skip("a sanitizer's runtime changes what this test looks at")
    if not shutil.which("strace"):
        skip("no strace on this machine")
    probe = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        skip(f"strace does not work here: {probe.stderr.strip()}")
    unittest.main()
