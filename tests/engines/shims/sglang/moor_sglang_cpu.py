# SPDX-License-Identifier: Apache-2.0
"""Test-only: two paths of SGLang's CPU engine that still assume a CUDA driver, as an entry point of sglang.srt.plugins.

$MOOR_TEST_LATENT: for DeepSeek's attention. SGLang has no choice of method for its plain backend and takes Triton's: keys
spread out, for which that backend looks in a cache of latent ones. With the other method, as in decoding, it works.
$MOOR_TEST_BREAK breaks what the capture is given, to prove that somebody notices: "shift" adds one to every id, "drop" loses
one layer."""
import inspect
import os


def activate():
    import torch
    from sglang.srt.mem_cache.pool_host import common

    def plain(dims, dtype, device, pin_memory, allocator, registration_granularity_bytes=None):
        return allocator.allocate(dims, dtype=dtype, device=device)

    common.ALLOC_MEMORY_FUNCS["cpu"] = plain  # enable_return_routed_experts registers host memory with CUDA
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda *args, **kwargs: None  # release_memory_occupation synchronizes
    if os.environ.get("MOOR_TEST_LATENT"):
        from sglang.srt.models.deepseek_common import attention_backend_handler as choice

        choice.AttentionBackendRegistry.register("torch_native", lambda attn, batch: choice.AttnForwardMethod.MLA)
    if how := os.environ.get("MOOR_TEST_BREAK"):
        _break_capture(how)


def _break_capture(how):
    if how not in ("shift", "drop"):
        raise ValueError(f"MOOR_TEST_BREAK={how}: shift or drop")
    from sglang.srt.layers.moe import topk
    from sglang.srt.managers.scheduler import Scheduler

    loop = Scheduler.run_event_loop

    def run_event_loop(self, *args, **kwargs):
        """Late, so that this is outside of what Moor puts around the function when it joins; and Moor, which looks again whenever a
        module is imported, must take it for its own, or it would go around this as well."""
        capture, caller = topk.capture_routed_experts_if_allowed, topk._post_process_topk_ids
        inside = inspect.unwrap(caller)

        def broken(topk_config, layer_id, topk_ids):
            if how == "shift":
                topk_ids = (topk_ids + 1).remainder(16)
            elif layer_id == 1:
                return None
            return capture(topk_config, layer_id, topk_ids)

        def bare(*args, **kwargs):
            """Moor is around the caller as well, which older releases capture in, and would see the ids there."""
            return inside(*args, **kwargs)

        broken.__moor_wrapper__, bare.__moor_wrapper__ = capture, caller
        topk.capture_routed_experts_if_allowed, topk._post_process_topk_ids = broken, bare
        return loop(self, *args, **kwargs)

    Scheduler.run_event_loop = run_event_loop
