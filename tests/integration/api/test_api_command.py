# SPDX-License-Identifier: Apache-2.0
"""The `moor` command, as a user calls it. Exit codes are those of `moor --help`."""
import ast
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import moor as package
from api_lib import BUILD, LAYER_IDS, LAYERS, TOP_K, ApiTest, ids

MOOR = os.path.join(BUILD, "bin/moor")
LIBRARY = os.path.join(BUILD, "python/moor/libmoor.so.1")
SANITIZER = os.environ.get("MOOR_SAN_PRELOAD", "")  # its runtime must come first in every LD_PRELOAD
BEFORE = SANITIZER + ":" if SANITIZER else ""


def moor(*args, env=None, program=MOOR):
    full = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "MOOR_CONFIG", "MOOR_INSTANCE", "MOOR_DIR", "MOOR_PYTHON", "VIRTUAL_ENV")}
    full.update({"LD_PRELOAD": SANITIZER} if SANITIZER else {})
    full.update(env or {})
    return subprocess.run([program, *map(str, args)], env=full, capture_output=True, timeout=60)


class Usage(unittest.TestCase):
    def test_help_and_wrong_usage(self):
        for args in (["--help"], ["run", "--help"], ["status", "--help"], ["dump", "--help"], ["gate", "--help"], ["check", "--help"], ["path", "--help"]):
            out = moor(*args)
            self.assertEqual((out.returncode, out.stderr), (0, b""))
            self.assertIn(b"usage: moor", out.stdout)
            self.assertLessEqual(max(map(len, out.stdout.decode().splitlines())), 80, args)
            self.assertIn(b"exit codes" if args[0] != "path" else b"PYTHONPATH", out.stdout)
        for args in ([], ["fly"], ["run"], ["run", "-x"], ["dump"], ["dump", "a", "b"], ["dump", "--json", "--npy", "f", "a"], ["dump", "-t", "x", "a"],
                     ["status", "a", "b"], ["status", "--json", "--prometheus"], ["status", "--watch=0"], ["gate"], ["gate", "open"], ["gate", "status", "a", "b"], ["path", "x"], ["check", "a", "b"]):
            out = moor(*args)
            self.assertEqual((out.returncode, out.stdout), (2, b""), args)
            self.assertNotEqual(out.stderr, b"")

    def test_path(self):
        self.assertEqual(moor("path", "--library").stdout.decode(), os.path.realpath(LIBRARY) + "\n")
        self.assertEqual(moor("path", "--package").stdout.decode(), os.path.dirname(os.path.realpath(LIBRARY)) + "\n")


class Run(unittest.TestCase):
    def preload(self, **env):
        out = moor("run", "--", "sh", "-c", 'printf %s "$LD_PRELOAD"', env=env)
        self.assertEqual((out.returncode, out.stderr), (0, b""))
        return out.stdout.decode()

    def test_appends_once(self):
        libm = BEFORE + "libm.so.6"
        self.assertEqual(self.preload(), BEFORE + os.path.realpath(LIBRARY))
        both = self.preload(LD_PRELOAD=libm)
        self.assertEqual(both, f"{libm}:{os.path.realpath(LIBRARY)}")
        self.assertEqual(self.preload(LD_PRELOAD=both), both)

    def test_becomes_the_program(self):
        out = moor("run", "sh", "-c", "echo $$; exit 7")
        self.assertEqual(out.returncode, 7)
        out = moor("run", "/nonexistent")
        self.assertEqual(out.returncode, 127)
        self.assertIn(b'"/nonexistent": No such file', out.stderr)
        self.assertEqual(moor("run", "/").returncode, 126)

    def test_configuration(self):
        show = ("--", "sh", "-c", 'printf %s "$MOOR_CONFIG"')
        inline = '{"gate": {"mode": "enforce"}}'
        self.assertEqual(moor("run", "-c", inline, *show).stdout.decode(), inline)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(inline)
            file.flush()
            relative = os.path.relpath(file.name)
            self.assertEqual(moor("run", "-c", relative, *show).stdout.decode(), os.path.realpath(file.name))
        out = moor("run", "-c", '{"gate": {"mod": "enforce"}}', *show)
        self.assertEqual((out.returncode, out.stdout), (2, b""))
        self.assertIn(b"gate.mode", out.stderr)
        out = moor("run", "-c", "/nonexistent.json", *show)
        self.assertEqual(out.returncode, 2)
        self.assertIn(b"/nonexistent.json", out.stderr)

    def test_refuses_a_path_that_ld_preload_cuts(self):
        for name in ("with space", "with:colon"):
            with tempfile.TemporaryDirectory() as base:
                folder = os.path.join(base, name)
                os.mkdir(folder)
                shutil.copy(LIBRARY, folder)
                os.symlink(name, os.path.join(base, "link"))
                # A colon cuts LD_LIBRARY_PATH, too: be in that folder.
                args = ["env", "-C", folder, "LD_LIBRARY_PATH=.", MOOR, "run", "--", "true"]
                out = subprocess.run(args, capture_output=True, timeout=60)
                self.assertEqual((out.returncode, out.stdout), (1, b""))
                self.assertIn(name.split(name[4])[1].encode(), out.stderr)
                self.assertIn(os.path.realpath(folder).encode(), out.stderr)
                link = os.path.join(base, "link")
                out = moor("run", "--", "sh", "-c", 'printf %s "$LD_PRELOAD"', env={"LD_LIBRARY_PATH": link})
                self.assertEqual((out.returncode, out.stdout.decode()), (0, f"{BEFORE}{link}/libmoor.so.1"))


class Check(unittest.TestCase):
    def test_runs_the_package_beside_the_library(self):
        out = moor("check", "--python", sys.executable, "nosuchengine")
        self.assertEqual(out.returncode, 2)
        self.assertIn(b"nosuchengine", out.stderr)
        out = moor("check", "--python", sys.executable, "vllm")  # which this Python has not
        self.assertEqual(out.returncode, 2)
        self.assertIn(f"not installed in {sys.executable} (Python 3.", out.stderr.decode())
        self.assertEqual(moor("check", env={"MOOR_PYTHON": "/nonexistent"}).returncode, 127)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def read_npy(data):
    assert data[:8] == b"\x93NUMPY\x01\x00"
    (n,) = struct.unpack("<H", data[8:10])
    assert (10 + n) % 64 == 0 and data[9 + n:10 + n] == b"\n"
    return ast.literal_eval(data[10:10 + n].decode()), data[10 + n:]


class Dump(ApiTest):
    def dump(self, *args):
        return moor("dump", "-i", "api", "--dir", self.base, "-t", "3", *args)

    def test_json(self):
        self.server.record("cmpl-1-0-abcd", 9, aliases=[("cmpl-1", 0)])
        out = self.dump("--json", "cmpl-1")
        self.assertEqual((out.returncode, out.stderr), (0, b""))
        record = json.loads(out.stdout)
        self.assertEqual((record["request_id"], record["rows"], record["layer_ids"], record["dtype"], record["owner"]),
                         ("cmpl-1-0-abcd", 9, list(LAYER_IDS), "uint8", "rollout"))
        self.assertEqual(record["ids"], ids(0, 9))
        self.assertEqual(record["versions"][0]["start"], 0)

    def test_npy(self):
        self.server.record("a", 9)
        for to_file in (True, False):
            path = os.path.join(self.base, "a.npy") if to_file else "-"
            out = self.dump("--npy", path, "a")
            self.assertEqual((out.returncode, out.stderr), (0, b""))
            data = read(path) if to_file else out.stdout
            header, rows = read_npy(data)
            self.assertEqual(header, {"descr": "|u1", "fortran_order": False, "shape": (9, LAYERS, TOP_K)})
            self.assertEqual(list(rows), [k for row in ids(0, 9) for layer in row for k in layer])
        out = self.dump("--npy", "/nonexistent/x", "a")
        self.assertEqual(out.returncode, 1)
        self.assertIn(b"/nonexistent/x", out.stderr)

    def test_text(self):
        self.server.record("a", 3)
        out = self.dump("a")
        self.assertEqual(out.returncode, 0)
        self.assertEqual(out.stdout.decode().splitlines()[-1], "2: " + " ".join(",".join(map(str, layer)) for layer in ids(2, 3)[0]))

    def test_missing_rows(self):
        """S1.5: a hole is an exit code, null, or zeros that were asked for."""
        self.server.record("a", 9, missing=(2, 4))
        out = self.dump("--json", "a")
        self.assertEqual((out.returncode, json.loads(out.stdout)["ids"]), (6, ids(0, 2) + [None] * 2 + ids(4, 9)))
        path = os.path.join(self.base, "a.npy")
        out = self.dump("--npy", path, "a")
        self.assertEqual((out.returncode, os.path.exists(path)), (6, False))
        self.assertIn(b"2 of the 9 rows", out.stderr)
        out = self.dump("--npy", path, "--allow-missing", "a")
        self.assertEqual(out.returncode, 0)
        rows = list(read_npy(read(path))[1])
        self.assertEqual(rows[2 * LAYERS * TOP_K:4 * LAYERS * TOP_K], [0] * (2 * LAYERS * TOP_K))
        self.assertEqual(self.dump("--json", "--allow-missing", "a").returncode, 0)
        self.assertIn(b"2-3: missing", self.dump("a").stdout)

    def test_exit_codes(self):
        self.assertEqual(moor("dump", "-i", "api", "--dir", self.base, "-t", "0", "nobody").returncode, 3)
        self.assertEqual(moor("dump", "-i", "nowhere", "--dir", self.base, "-t", "0", "a").returncode, 3)
        self.server.record("live", 3, seal=False)
        self.assertEqual(moor("dump", "-i", "api", "--dir", self.base, "-t", "0.1", "live").returncode, 5)
        for i in range(2):
            self.server.record(f"x-{i}-ab", 3, aliases=[("x", i)])
        out = self.dump("x")
        self.assertEqual(out.returncode, 4)
        self.assertIn(b"  x-0-ab\n  x-1-ab\n", out.stderr)
        self.assertLeases(0)


class Gate(ApiTest):
    def gate(self, *args):
        return moor("gate", *args, "--dir", self.base, "api")

    def test_acknowledge(self):
        """SEMANTICS 4.4: explicitly, and told what for."""
        self.assertEqual(self.gate("status").stdout, b"open, 0 in flight, 0 waiting\n")
        self.assertIn(b"nothing done", self.gate("acknowledge").stdout)
        self.server("poison", "lost-one")
        self.store.gate.seal()
        self.assertIn(b"sealed, 0 in flight, 0 waiting, poisoned: lost-one", self.gate("status").stdout)
        with self.assertRaises(package.Error) as refused:
            self.store.gate.reopen(1)
        for word in ("poisoned", " s ago: lost-one", "moor gate acknowledge api", 'moor.attach("api").gate.acknowledge()'):
            self.assertIn(word, str(refused.exception))
        out = self.gate("acknowledge")
        self.assertEqual(out.stdout, b"acknowledged: lost-one\nsealed, 0 in flight, 0 waiting\n")
        self.assertEqual(self.store.gate.reopen(1)["state"], "open")

    def test_no_such_instance(self):
        out = moor("gate", "acknowledge", "--dir", self.base, "nowhere")
        self.assertEqual((out.returncode, out.stdout), (3, b""))


class Status(ApiTest):
    def status(self, *args):
        return moor("status", "--dir", self.base, *args)

    def test_formats(self):
        self.server.record("a", 9)
        r = self.store.open("a", 5)
        self.assertIn(b"api", self.status("api").stdout)
        with self.store.hold("cpu:0", "a trainer", 3 << 20):
            self.assertIn(f"hold on cpu:0  a trainer (pid {os.getpid()}, 3.0 MiB)", self.status("api").stdout.decode())
            self.assertIn(b"moor_holds 1\n", self.status("--prometheus", "api").stdout)
        data = json.loads(self.status("--json", "api").stdout)
        self.assertEqual(data["instance"], "api")
        lines = self.status("--prometheus", "api").stdout.decode().splitlines()
        self.assertEqual([float(l.split()[-1]) for l in lines if l.startswith("moor_rows_total")], [9.0])
        for line in lines:
            self.assertRegex(line, r'^(# (HELP|TYPE) moor_|moor_[a-z_]+(\{.*\})? [-+0-9.e]+$)')
        self.assertEqual(moor("status", env={"MOOR_INSTANCE": "api", "MOOR_DIR": self.base}).returncode, 0)
        del r

    def test_not_there(self):
        out = self.status("nowhere")
        self.assertEqual((out.returncode, out.stdout), (3, b""))
        self.assertIn(b"nowhere", out.stderr)

    def test_watch(self):
        child = subprocess.Popen([MOOR, "status", "--dir", self.base, "--json", "--watch=0.1", "api"], stdout=subprocess.PIPE, text=True)
        seen = 0
        while seen < 3:
            seen += child.stdout.readline().count('"instance"')
        child.send_signal(signal.SIGTERM)
        child.wait(10)
        child.stdout.close()


if __name__ == "__main__":
    unittest.main()
