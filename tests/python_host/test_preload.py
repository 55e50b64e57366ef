# SPDX-License-Identifier: Apache-2.0
"""LD_PRELOAD=libmoor.so.1 in a real Python (issue 3, "Loading"): what happens at an engine's import, and what does not."""
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

BUILD = os.environ["MOOR_BUILD_DIR"]
PACKAGE = os.path.join(BUILD, "python", "moor")
LIBRARY = os.path.join(PACKAGE, "libmoor.so.1")


class Preloaded(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        for name in ("vllm", "sglang", "lmdeploy", "other"):
            self.file(f"{name}/__init__.py", "")
            self.file(f"{name}/sub.py", "import sys; moor_here = 'moor' in sys.modules")
            # import_module raises no audit event for its target; what the target imports does
            self.file(f"{name}/deep.py", f"import {name}.sub")
            self.file(f"{name}/__main__.py", "import sys; print('moor' in sys.modules)")

    def file(self, path, text):
        path = os.path.join(self.dir, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(textwrap.dedent(text))
        return path

    def python(self, *args, library=LIBRARY, rc=0, stderr="", **env):
        """stdout of a preloaded interpreter; stderr must be exactly as given (None: not looked at)."""
        before = os.environ.get("LD_PRELOAD", "")
        environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MOOR_DISABLE")}
        environ.update(LD_PRELOAD=f"{before} {library}".strip(), PYTHONPATH=self.dir, **env)
        ran = subprocess.run([sys.executable, *args], env=environ, capture_output=True, text=True, timeout=100)
        if stderr is not None:
            self.assertEqual(ran.stderr, stderr)
        self.assertEqual(ran.returncode, rc, ran.stderr)
        return ran.stdout.strip()

    def code(self, text, *args, **kwargs):
        return self.python("-c", textwrap.dedent(text), *args, **kwargs)

    # ---- when ----

    def test_without_an_engine_nothing_is_imported(self):
        out = self.code("""
            import sys, json, importlib.util, other.sub
            print([m for m in sys.modules if m.startswith(('moor', '_moor'))], sys.flags.interactive,
                  [f for f in sys.meta_path if 'moor' in repr(f)])
            """)
        self.assertEqual(out, "[] 0 []")

    def test_first_import_of_an_engine(self):
        for engine in ("vllm", "sglang", "lmdeploy"):
            for statement in (f"import {engine}", f"import {engine}.sub", f"from {engine} import sub",
                              f"import importlib; importlib.import_module('{engine}.deep')"):
                out = self.code(f"""
                    import sys
                    before = list(sys.path)
                    {statement}
                    import moor
                    print(moor.__file__, sys.path == before, type(sys.meta_path[0]).__name__, moor._moor.bootstrap(),
                          sum('moor' in repr(f) for f in sys.meta_path))
                    """)
                self.assertEqual(out, f"{PACKAGE}/__init__.py True Finder True 1", statement)

    def test_names_that_only_look_like_an_engine(self):
        self.file("vllmx.py", "")
        self.file("vllm_extra/__init__.py", "")
        self.assertEqual(self.code("import vllmx, vllm_extra, sys; print('moor' in sys.modules)"), "False")

    def test_moor_is_there_before_the_engines_modules(self):
        self.assertEqual(self.code("import vllm.sub; print(vllm.sub.moor_here)"), "True")

    def test_run_as_a_module(self):
        self.assertEqual(self.python("-m", "vllm"), "True")
        self.assertEqual(self.python("-m", "other"), "False")

    def test_isolated_interpreter(self):
        """-I ignores PYTHONPATH: the package is still found beside the library."""
        out = self.python("-I", "-c", f"import sys; sys.path.insert(0, {self.dir!r}); import vllm, moor; print(moor.__file__)")
        self.assertEqual(out, f"{PACKAGE}/__init__.py")

    def test_through_a_link(self):
        link = os.path.join(self.dir, "libmoor.so.1")
        os.symlink(LIBRARY, link)
        self.assertEqual(self.code("import vllm, moor; print(moor.__file__)", library=link), f"{PACKAGE}/__init__.py")

    def test_disabled(self):
        self.assertEqual(self.code("import vllm, sys; print('moor' in sys.modules)", MOOR_DISABLE="1"), "False")
        self.assertEqual(self.code("import vllm, sys; print('moor' in sys.modules)", MOOR_DISABLE="0"), "True")

    def test_from_a_thread(self):
        out = self.code("""
            import threading, sys
            def work():
                import vllm.sub
            threads = [threading.Thread(target=work) for _ in range(8)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            print('moor' in sys.modules, sum('moor' in repr(f) for f in sys.meta_path))
            """)
        self.assertEqual(out, "True 1")

    # ---- trouble ----

    def test_odd_audit_events(self):
        self.assertEqual(self.code("import sys; sys.audit('import'); sys.audit('import', 5); sys.audit('import', None, 1);"
                                   "sys.audit('importx', 'vllm'); print('moor' in sys.modules)"), "False")

    def test_an_engines_own_error_passes(self):
        self.file("vllm/__init__.py", "raise RuntimeError('engine is broken')")
        out = self.code("""
            try:
                import vllm
            except RuntimeError as exc:
                print(exc, exc.__context__)
            """)
        self.assertEqual(out, "engine is broken None")

    def test_package_missing_beside_the_library(self):
        alone = os.path.join(self.dir, "alone")
        os.makedirs(alone)
        copy = shutil.copy(LIBRARY, alone)
        out = self.code("import vllm; print('went on')", library=copy,
                        stderr=f"moor: cannot import the package moor: no Python package beside libmoor in {alone}; "
                               "this process runs without Moor\n")
        self.assertEqual(out, "went on")

    def test_package_broken(self):
        broken = os.path.join(self.dir, "broken", "moor")
        os.makedirs(broken)
        copy = shutil.copy(LIBRARY, broken)
        self.file("broken/moor/__init__.py", "raise SystemExit('three\\nlines')")
        self.code("import vllm, sys; assert 'moor' not in sys.modules; print('went on')", library=copy,
                  stderr="moor: cannot import the package moor: three; this process runs without Moor\n")

    def test_subinterpreter(self):
        out = self.python("-c", textwrap.dedent(f"""
            import os, sys
            try:
                import _interpreters as interpreters
            except ImportError:
                import _xxsubinterpreters as interpreters
            interpreter = interpreters.create()
            interpreters.run_string(interpreter, "import sys; sys.path.insert(0, {self.dir!r}); import vllm, sys; "
                                    "assert 'moor' not in sys.modules")
            interpreters.run_string(interpreter, '''if True:
                sys.path.insert(0, {os.path.dirname(PACKAGE)!r})
                try:
                    import moor._moor
                except ImportError as exc:
                    assert 'subinterpreter' in str(exc), exc
                else:
                    raise AssertionError("a subinterpreter was not refused")
                ''')
            interpreters.destroy(interpreter)
            import vllm
            print('moor' in sys.modules)
            """), stderr="moor: an engine is imported in a subinterpreter, which is not supported; "
                         "this process runs without Moor\n")
        self.assertEqual(out, "True")

    # ---- both ways ----

    def test_both_ways_are_one_moor(self):
        """Preload and an installed package: the second finds the first."""
        site = os.path.join(self.dir, "site")
        shutil.copytree(PACKAGE, os.path.join(site, "moor"))
        for first in ("import vllm", "import moor.plugin"):
            out = self.code(f"""
                import sys
                sys.path.insert(0, {site!r})
                {first}
                import moor.plugin, vllm
                moor.plugin.vllm()
                moor.plugin.sglang()
                maps = {{line.split()[-1] for line in open('/proc/self/maps') if 'moor' in line and '.so' in line}}
                print(len(maps), sum('moor' in repr(f) for f in sys.meta_path), len([m for m in sys.modules if m.endswith('_moor')]))
                """)
            self.assertEqual(out, "2 1 1", first)  # libmoor and _moor, once each

    # ---- children ----

    def test_an_engine_that_came_past_the_finder(self):
        """A finder in front finds the engine's package itself and asks nobody, as typeguard's does."""
        out = self.code("""
            import sys
            from importlib.machinery import PathFinder
            sys.path.append({!r})
            from moor import _moor
            _moor.bootstrap()
            class Hiding:
                find_spec = staticmethod(lambda name, path=None, target=None:
                                         PathFinder.find_spec(name, path) if name.startswith('vllm') else None)
            sys.meta_path.insert(0, Hiding)
            import vllm
            print(len(_moor.joinpoints()), end=' ')
            try:
                import no_such_module_of_anybody
            except ImportError:
                print(len(_moor.joinpoints()) > 10)
            """.format(os.path.join(BUILD, "python")))
        self.assertEqual(out, "0 True")

    def test_children(self):
        self.file("job.py", """
            import multiprocessing as mp
            import subprocess
            import sys

            def child(queue):
                here = 'moor' in sys.modules
                import vllm.sub
                queue.put((here, 'moor' in sys.modules, sum('moor' in repr(f) for f in sys.meta_path)))

            if __name__ == '__main__':
                import vllm
                for method in ('spawn', 'fork', 'forkserver'):
                    context = mp.get_context(method)
                    queue = context.SimpleQueue()
                    process = context.Process(target=child, args=(queue,))
                    process.start()
                    print(method, *queue.get())
                    process.join()
                    assert process.exitcode == 0
                print(subprocess.run([sys.executable, '-m', 'vllm'], capture_output=True, text=True))  # vfork
            """)
        out = self.python(os.path.join(self.dir, "job.py")).splitlines()
        self.assertEqual(out[:3], ["spawn False True 1", "fork True True 1", "forkserver False True 1"])
        self.assertIn("returncode=0, stdout='True\\n', stderr=''", out[3])

    def test_fork_300_under_allocation_load(self):
        out = self.code("""
            import os, sys, threading, vllm
            from moor import _moor
            _moor.selftest()
            sys.setswitchinterval(1e-4)
            stop = False
            def allocate():
                while not stop:
                    [bytearray(n) for n in (10, 1000, 100000, 2000000)]
            threads = [threading.Thread(target=allocate) for _ in range(2)]
            [t.start() for t in threads]
            bad = 0
            for _ in range(int(sys.argv[1])):
                pid = os.fork()
                if pid == 0:
                    try:
                        import vllm.sub
                        ok = _moor.selftest()['method'] is None and _moor.bootstrap() and bytearray(100000)
                    finally:
                        os._exit(0 if ok else 1)
                bad += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
            stop = True
            [t.join() for t in threads]
            print(bad)
            """, "30" if os.environ.get("MOOR_SANITIZE") else "300", stderr=None)  # a sanitizer's fork takes 100 times longer
        self.assertEqual(out, "0")

    def test_a_forked_child_counts_from_zero(self):
        out = self.code("""
            import gc, os, vllm
            from moor import _moor
            def fired():
                return [p['fired'] for p in _moor.joinpoints() if 'gc:collect' in p['targets']][0]
            gc.collect()
            before = fired()
            pid = os.fork()
            if pid == 0:
                zero = fired() == 0
                gc.collect()
                os._exit(0 if zero and fired() == 1 else 1)
            print(before >= 1, os.waitpid(pid, 0)[1], fired() == before)
            """)
        self.assertEqual(out, "True 0 True")

    def test_threads_exit_after_use(self):
        out = self.code("""
            import threading, vllm
            from moor import _moor
            def use():
                _moor.joinpoints(); _moor.rescan()
            for _ in range(50):
                threads = [threading.Thread(target=use) for _ in range(8)]
                [t.start() for t in threads]
                [t.join() for t in threads]
            print(threading.active_count())
            """)
        self.assertEqual(out, "1")


if __name__ == "__main__":
    unittest.main()
