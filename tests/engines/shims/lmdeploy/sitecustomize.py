# SPDX-License-Identifier: Apache-2.0
"""Tests only: with LMDCPU=1 in the environment, LMDeploy runs on the CPU in any process that has this folder in PYTHONPATH.
LMDCPU_DTYPE=float32: a data type that its arguments do not offer; routes then equal the oracle's exactly.

$MOOR_TEST_BREAK breaks what the engine's loop is given, to prove that somebody notices: "shift" adds one to every id, "drop"
loses the ids of every fifth step."""
import importlib.util
import multiprocessing.managers
import os
import sys
import time


class _Finder:
    names = {"lmdeploy", "lmdeploy.tokenizer", "lmdeploy.pytorch.backends.selector", "lmdeploy.pytorch.config",
             "lmdeploy.pytorch.engine.engine_loop"}

    def find_spec(self, name, path=None, target=None):
        if name not in self.names:
            return None
        self.names.discard(name)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            import lmdcpu

            if name == "lmdeploy":
                os.environ.setdefault("LMDEPLOY_ENABLE_CHECK_ENV", "0")
                os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
                lmdcpu.patch_torch()
            run(module)
            if name.endswith("selector"):
                lmdcpu.patch_lmdeploy()
            elif name.endswith("config"):
                lmdcpu.patch_dtype(module)
            elif name.endswith("tokenizer"):
                module.GptOssTokenizer = module.HuggingFaceTokenizer  # its own downloads a vocabulary
            elif name.endswith("engine_loop"):
                _break_capture(module, os.environ.get("MOOR_TEST_BREAK"))

        spec.loader.exec_module = exec_module
        return spec


def _break_capture(module, how):
    if not how:
        return
    if how not in ("shift", "drop"):
        raise ValueError(f"MOOR_TEST_BREAK={how}: shift or drop")
    init, steps = module.EngineLoop.__init__, [0]

    def __init__(self, *args, **kwargs):
        """Late, so that this is outside of what Moor puts around the method when it joins."""
        init(self, *args, **kwargs)
        outputs = type(self)._make_infer_outputs

        def broken(self, batched_outputs, *args, **kwargs):
            steps[0] += 1
            ids = batched_outputs.all_routed_experts
            if how == "shift" and ids is not None:
                batched_outputs.all_routed_experts = (ids.int() + 1).remainder(16).to(ids.dtype)
            elif how == "drop" and steps[0] % 5 == 0:
                batched_outputs.all_routed_experts = None
            return outputs(self, batched_outputs, *args, **kwargs)

        type(self)._make_infer_outputs = broken

    module.EngineLoop.__init__ = __init__


def _wait_before_shutdown(self, *args):
    # LMDeploy leaves `with Manager()` while its child still releases a Condition: EOFError in the child on a slow machine
    time.sleep(1)
    self.shutdown()


if os.environ.get("LMDCPU") == "1":
    sys.meta_path.insert(0, _Finder())
    multiprocessing.managers.BaseManager.__exit__ = _wait_before_shutdown
