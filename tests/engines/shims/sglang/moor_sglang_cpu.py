# SPDX-License-Identifier: Apache-2.0
"""Test-only: two paths of SGLang's CPU engine that still assume a CUDA driver, as an entry point of sglang.srt.plugins."""


def activate():
    import torch
    from sglang.srt.mem_cache.pool_host import common

    def plain(dims, dtype, device, pin_memory, allocator, registration_granularity_bytes=None):
        return allocator.allocate(dims, dtype=dtype, device=device)

    common.ALLOC_MEMORY_FUNCS["cpu"] = plain  # enable_return_routed_experts registers host memory with CUDA
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda *args, **kwargs: None  # release_memory_occupation synchronizes
