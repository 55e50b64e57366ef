# SPDX-License-Identifier: Apache-2.0
"""Loading into a real vLLM, without starting a server: after `import torch`, preloaded, and `moor check vllm`."""
import os
import subprocess
import sys
import unittest

BUILD = os.environ["MOOR_BUILD_DIR"]
PYTHON_DIR = os.path.join(BUILD, "python")
LIBRARY = os.path.join(PYTHON_DIR, "moor", "libmoor.so.1")


def run(*args, **env):
    environ = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    environ.update(HF_HUB_OFFLINE="1", **env)
    return subprocess.run([sys.executable, *args], env=environ, capture_output=True, text=True, timeout=400)


class Loading(unittest.TestCase):
    def ok(self, ran):
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def test_after_torch(self):
        """Both binaries still load when torch has taken its share of static TLS."""
        out = self.ok(run("-c", "import torch; from moor import _moor; print(_moor.selftest())", PYTHONPATH=PYTHON_DIR))
        self.assertEqual(set(eval(out).values()), {None})

    def test_preloaded(self):
        out = self.ok(run("-c", "import vllm.v1.engine.core, json; from moor import _moor\n"
                          "print(json.dumps([p for p in _moor.joinpoints() if p['name'] == 'core.init']))",
                          LD_PRELOAD=LIBRARY))
        point = __import__("json").loads(out.splitlines()[-1])[0]
        self.assertEqual((point["state"], point["sites"]), ("installed", 1))

    def test_check(self):
        ran = run("-m", "moor", "check", "vllm", PYTHONPATH=PYTHON_DIR)
        out = self.ok(ran)
        self.assertIn("none of the required ones missing", out)
        head = f"moor check: vllm in {sys.executable} (Python "  # behind what vLLM itself may say
        self.assertTrue(any(line.startswith(head) for line in out.splitlines()), out)
        self.assertRegex(out, r"core.free_request +core +installed")

    def test_check_of_an_unknown_engine(self):
        ran = run("-m", "moor", "check", "nosuch", PYTHONPATH=PYTHON_DIR)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))
        self.assertIn("nosuch", ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
