# SPDX-License-Identifier: Apache-2.0
"""What LMDeploy's adapter does with steps that a real engine makes only when it is broken (tests/engines has the real one)."""
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

BUILD = os.environ["MOOR_BUILD_DIR"]
LIBRARY = os.path.join(BUILD, "python", "moor", "libmoor.so.1")

ENGINE = """
    from types import SimpleNamespace as Namespace

    class Engine:
        def __init__(self, engine_config):
            self.engine_config = engine_config
            self.model_config = Namespace(model_paradigm="ar", hf_config=Namespace(
                num_experts=8, num_experts_per_tok=2, num_hidden_layers=2))
            self.cache_config = Namespace(max_prefill_token_num=64, max_batches=4)
    """
LOOP = """
    from types import SimpleNamespace as Namespace

    class EngineLoop:
        def _make_infer_outputs(self, batched_outputs, running, model_inputs, delta):
            return {s.session_id: Namespace(finish=True) for s in running}
    """
STEPS = """
    import moor
    from types import SimpleNamespace as Namespace
    from lmdeploy.pytorch.engine.engine import Engine
    from lmdeploy.pytorch.engine.engine_loop import EngineLoop

    engine, loop = Engine(Namespace()), EngineLoop()
    store = moor.attach("default", 10.0)

    class Lengths(list):
        def tolist(self):
            return list(self)

    def step(tokens, *counts):
        # [tokens][2 layers][2 experts]; behind them in memory lie more: who reads too far finds ids that look like some
        memory = memoryview(bytes([1, 0, 2, 0]) * 2 * 64).cast("B", (64, 2 * 2 * 2))[:tokens]
        ids = memory.cast("B").cast("H", (tokens, 2, 2))
        batch = [Namespace(session_id=n, status=Namespace(name="RUNNING"), num_history_ids=0, num_valid_ids=count + 1)
                 for n, count in enumerate(counts, 1)]
        loop._make_infer_outputs(Namespace(all_routed_experts=ids), batch, Namespace(seq_length=Lengths(counts)), None)
        for sequence in batch:
            with store.open(str(sequence.session_id), 10.0) as record:
                print(record.rows, record.missing, record.array(allow_missing=True).tolist()[:1])
    """


class Steps(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        for path, text in (("__init__.py", ""), ("pytorch/__init__.py", ""), ("pytorch/engine/__init__.py", ""),
                           ("pytorch/engine/engine.py", ENGINE), ("pytorch/engine/engine_loop.py", LOOP)):
            path = os.path.join(self.dir, "lmdeploy", path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(textwrap.dedent(text))

    def steps(self, text):
        before = os.environ.get("LD_PRELOAD", "")
        environ = {**os.environ, "LD_PRELOAD": f"{before} {LIBRARY}".strip(), "PYTHONPATH": self.dir + os.pathsep +
                   os.path.dirname(os.path.dirname(LIBRARY)), "MOOR_CONFIG": "{}", "MOOR_DIR": self.dir}
        ran = subprocess.run([sys.executable, "-c", textwrap.dedent(STEPS) + textwrap.dedent(text)], env=environ,
                             capture_output=True, text=True, timeout=100)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran

    def test_a_step(self):
        self.assertEqual(self.steps("step(7, 3, 4)").stdout.splitlines(), ["3 [] [[[1, 2], [1, 2]]]", "4 [] [[[1, 2], [1, 2]]]"])

    def test_ids_of_fewer_tokens_than_the_batch(self):
        """The rows are missing; what lies behind the ids in memory is not read."""
        ran = self.steps("step(5, 3, 4)")
        self.assertEqual(ran.stdout.splitlines(), ["3 [(0, 3)] [[[0, 0], [0, 0]]]", "4 [(0, 4)] [[[0, 0], [0, 0]]]"])
        self.assertIn("all_routed_experts has 5 tokens, the batch goes on to 7", ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
