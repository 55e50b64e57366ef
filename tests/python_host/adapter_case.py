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
LIBRARY = os.path.join(os.environ["MOOR_BUILD_DIR"], "python", "moor", "libmoor.so.1")


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
