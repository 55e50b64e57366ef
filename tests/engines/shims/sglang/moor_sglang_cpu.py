# SPDX-License-Identifier: Apache-2.0
"""Test-only: two paths of SGLang's CPU engine that still assume a CUDA driver, as an entry point of sglang.srt.plugins.

$MOOR_TEST_BREAK breaks what the capture is given, to prove that somebody notices: "shift" adds one to every id, "drop" loses
one layer."""
import os


def activate():
    import torch
    from sglang.srt.mem_cache.pool_host import common

    def plain(dims, dtype, device, pin_memory, allocator, registration_granularity_bytes=None):
        return allocator.allocate(dims, dtype=dtype, device=device)

    common.ALLOC_MEMORY_FUNCS["cpu"] = plain  # enable_return_routed_experts registers host memory with CUDA
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda *args, **kwargs: None  # release_memory_occupation synchronizes
    if how := os.environ.get("MOOR_TEST_BREAK"):
        _break_capture(how)


def _break_capture(how):
    from sglang.srt.layers.moe import topk

    if how not in ("shift", "drop"):
        raise ValueError(f"MOOR_TEST_BREAK={how}: shift or drop")
    select, outermost = topk.select_experts, [None]

    def around(capture):
        def broken(topk_config, layer_id, topk_ids):
            if how == "shift":
                return capture(topk_config, layer_id, (topk_ids + 1) % 16)
            return None if layer_id == 1 else capture(topk_config, layer_id, topk_ids)

        return broken

    def each_time(*args, **kwargs):
        """Moor may put its own around the capture later, when it joins: this has to be outside of that."""
        if topk.capture_routed_experts_if_allowed is not outermost[0]:
            outermost[0] = topk.capture_routed_experts_if_allowed = around(topk.capture_routed_experts_if_allowed)
        return select(*args, **kwargs)

    topk.select_experts = each_time
