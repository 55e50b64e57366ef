# SPDX-License-Identifier: Apache-2.0
"""A process with as much of an engine as a test needs: small modules under the engine's names, and Moor preloaded."""
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

# A request that has begun: awaits the first of its answers; what it returns lets it end.
STARTED = """
    async def started(answers, end):
        await anext(answers)

        async def finish():
            end.set()
            async for _ in answers:
                pass
        return finish
    """
# Another front end of the same server, in a process of its own: does what it is told. Needs `outcome`; begins after what it uses.
SECOND = """
    import asyncio
    import subprocess
    import sys

    if sys.argv[1:] == ["second"]:
        for line in sys.stdin:
            print(asyncio.run(outcome(eval(line))), flush=True)
        sys.exit()

    class Second:
        def __enter__(self):
            self.process = subprocess.Popen([sys.executable, __file__, "second"], stdin=-1, stdout=-1, text=True)
            return self

        def __call__(self, call):
            print(call, file=self.process.stdin, flush=True)
            return self.process.stdout.readline().strip()

        def kill(self):
            self.process.kill()
            self.process.wait()

        def __exit__(self, *_):
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
    """
# How many deliveries were tried. Here there is no record: what is tried is an error.
TRIED = """
    def tried():
        return moor.attach("default", 10.0).stats()["counters"]["deliver_errors_total"]
    """
LIBRARY = os.path.join(os.environ["MOOR_BUILD_DIR"], "python", "moor", "libmoor.so.1")


# No thread is left for deliveries until `go` is set: what waits for one in the event loop instead is done before.
DELIVERING = """
    import asyncio
    import threading
    from moor import _delivery

    async def delivered(answer):
        go = threading.Event()
        blockers = [_delivery.later(go.wait) for _ in range(_delivery._THREADS)]
        task = asyncio.ensure_future(answer())
        for _ in range(20):
            await asyncio.sleep(0)
        print("the loop waits" if task.done() else "the loop goes on")
        go.set()
        await asyncio.gather(*blockers)
        return await task
    """


class Adapter(unittest.TestCase):
    package = None  # of the engine
    modules = {}  # path in the package: source
    start = ""  # of every program

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        for path, text in self.modules.items():
            self.write(path, text)

    def write(self, path, text):
        path = os.path.join(self.dir, self.package, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(textwrap.dedent(text))

    def execute(self, text, config="{}"):
        """A file, so that it can start itself a second time."""
        path = os.path.join(self.dir, "program.py")
        with open(path, "w", encoding="utf-8") as f:
            f.write(textwrap.dedent(self.start) + textwrap.dedent(text))
        before = os.environ.get("LD_PRELOAD", "")
        environ = {**os.environ, "LD_PRELOAD": f"{before} {LIBRARY}".strip(), "PYTHONPATH": self.dir + os.pathsep +
                   os.path.dirname(os.path.dirname(LIBRARY)), "MOOR_CONFIG": config, "MOOR_DIR": self.dir}
        ran = subprocess.run([sys.executable, path], env=environ, capture_output=True, text=True, timeout=100)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran

    def program(self, text, config="{}"):
        return self.execute(text, config).stdout.splitlines()


class Joining:
    """Of each engine: what a join that fails does to it. `front`: makes its front end, and prints the answers to a request."""
    front = None
    answers = None

    def refused(self, config):
        program = textwrap.indent(textwrap.dedent(self.front), " " * 4)
        ran = self.execute(f"try:\n{program}\nexcept RuntimeError as e:\n    print('refused:', e)\n", config)
        return ran.stdout.strip(), ran.stderr

    def test_a_join_that_fails_for_io_does_not_stop_the_engine(self):
        os.makedirs(os.path.join(self.dir, "default"), 0o700)
        os.mkdir(os.path.join(self.dir, "default", "state.new"))  # where its file should be
        out, err = self.refused('{"gate": {"mode": "enforce"}}')
        self.assertEqual(out, self.answers)
        self.assertEqual(err.count("off in process"), 1, err)
        self.assertRegex(err, r"/default/state.new cannot be made.*\(MOOR_E_IO\)")
        out, err = self.refused('{"on_error": "strict"}')
        self.assertRegex(out, r"^refused: moor: joining the instance: .*/default/state.new cannot be made.*\(MOOR_E_IO\)$")

    def test_what_a_person_must_mend_stops_it(self):
        self.assertRegex(self.refused('{"dir": "/proc/no/such"}')[0], r"^refused: .*/proc/no/such.*\(MOOR_E_NOT_FOUND\)$")
        open(os.path.join(self.dir, "file"), "x", encoding="utf-8").close()
        self.assertRegex(self.refused('{"dir": "%s/file"}' % self.dir)[0], r"^refused: .*/file.*\(MOOR_E_ACCESS\)$")
        self.assertRegex(self.refused('{"dir": "%s/%s"}' % (self.dir, 100 * "d"))[0], r"^refused: .*\(MOOR_E_INVALID\)$")
