# SPDX-License-Identifier: Apache-2.0
"""Run LMDeploy's PyTorch engine on CPU (tests only).

LMDeploy asks non-CUDA vendors to "patch the canonical cuda device path" before
the engine; this does it for CPU:  (1) torch.cuda runtime calls become no-ops and
'cuda' devices become cpu, (2) one ops backend (DefaultOpsBackend + 2 ops).
"""
import contextlib, functools, os, sys, types
import torch

# ---------------------------------------------------------------- torch.cuda
class Stream:
    def __init__(self, device=None, priority=0, **kw): self.device = torch.device('cpu'); self.device_index = 0
    def wait_event(self, e): pass
    def wait_stream(self, s): pass
    def record_event(self, e=None): return e or Event()
    def query(self): return True
    def synchronize(self): pass
    def __enter__(self): return self
    def __exit__(self, *a): return False

class Event:
    def __init__(self, *a, **kw): pass
    def record(self, stream=None): pass
    def wait(self, stream=None): pass
    def query(self): return True
    def synchronize(self): pass
    def elapsed_time(self, o): return 0.0

_DEFAULT = Stream()
_CALLS = {'empty_cache': 0, 'synchronize': 0}

def _is_cuda(d):
    if isinstance(d, torch.device): return d.type == 'cuda'
    if isinstance(d, str): return d.startswith('cuda')
    return isinstance(d, int) and not isinstance(d, bool)

def _kw(kw):
    if _is_cuda(kw.get('device')): kw['device'] = torch.device('cpu')
    return kw

def _factory(fn):
    @functools.wraps(fn)
    def w(*a, **kw):
        if kw:
            _kw(kw)
            if kw.get('pin_memory'): kw['pin_memory'] = False
        return fn(*a, **kw)
    return w

def patch_torch():
    c = torch.cuda
    if getattr(c, '_lmdcpu', False): return
    c._lmdcpu = True
    total = 1 << 30
    c.is_available = lambda: True
    c.device_count = lambda: int(os.getenv('LMDCPU_DEVICES', '1'))
    c.current_device = lambda: 0
    c.set_device = lambda d: None
    c.is_initialized = lambda: False
    c.init = c._lazy_init = lambda: None
    c.get_device_name = lambda *a: 'cpu'
    c.get_device_capability = lambda *a: (8, 0)
    c.mem_get_info = lambda *a: (total, total)
    c.get_device_properties = lambda *a: types.SimpleNamespace(
        name='cpu', major=8, minor=0, total_memory=total, multi_processor_count=1, uuid='0', warp_size=32)
    def synchronize(*a): _CALLS['synchronize'] += 1
    def empty_cache(): _CALLS['empty_cache'] += 1
    c.synchronize, c.empty_cache = synchronize, empty_cache
    c.ipc_collect = lambda: None
    c.Stream, c.Event = Stream, Event
    c.stream = lambda s: contextlib.nullcontext(s)
    c.current_stream = c.default_stream = lambda *a: _DEFAULT
    c.device = lambda d: contextlib.nullcontext()
    c.graph_pool_handle = lambda: None
    torch._C._cuda_clearCublasWorkspaces = lambda: None
    for n in ('empty zeros ones full arange tensor as_tensor rand randn randint randperm linspace eye '
              'empty_strided empty_like zeros_like ones_like full_like rand_like randn_like').split():
        setattr(torch, n, _factory(getattr(torch, n)))
    T = torch.Tensor
    for n in 'new_empty new_zeros new_ones new_full new_tensor new_empty_strided'.split():
        setattr(T, n, _factory(getattr(T, n)))
    _to = T.to
    def to(self, *a, **kw):
        if a and not isinstance(a[0], (torch.dtype, torch.Tensor)) and _is_cuda(a[0]):
            a = (torch.device('cpu'),) + a[1:]
        return _to(self, *a, **_kw(kw))
    T.to = to
    T.cuda = lambda self, *a, **kw: self
    T.pin_memory = lambda self, *a, **kw: self
    T.record_stream = lambda self, s: None
    M = torch.nn.Module
    _mto = M.to
    def mto(self, *a, **kw):
        if a and not isinstance(a[0], (torch.dtype, torch.Tensor)) and _is_cuda(a[0]):
            a = (torch.device('cpu'),) + a[1:]
        return _mto(self, *a, **_kw(kw))
    M.to = mto

# ------------------------------------------------------------------- backend
def make_backend():
    from lmdeploy.pytorch.backends.attention import AttentionImpl, AttentionMetadata, PagedAttentionBuildSpec
    from lmdeploy.pytorch.backends.default.op_backend import DefaultOpsBackend
    from lmdeploy.pytorch.backends.moe import FusedMoEBuildSpec, FusedMoEImpl
    import torch.nn.functional as F

    class CpuAttention(AttentionImpl):
        window = 0  # how many tokens it looks back, 0: all

        def forward(self, query, key, value, k_cache, v_cache, attn_metadata, k_scales_zeros=None,
                    v_scales_zeros=None, learnable_sink=None, nsa_indices=None, inplace=False):
            m, bs = attn_metadata, k_cache.shape[1]
            out = query.new_empty(query.shape[:-1] + (self.v_head_size,))
            g = self.num_heads // self.num_kv_heads
            q0 = 0
            for i, (ql, kl) in enumerate(zip(m.q_seqlens.tolist(), m.kv_seqlens.tolist())):
                blocks = m.block_offsets[i].long()
                pos = torch.arange(kl - ql, kl)
                b, o = blocks[pos // bs], pos % bs
                k_cache[b, o], v_cache[b, o] = key[q0:q0 + ql], value[q0:q0 + ql]
                n = (kl + bs - 1) // bs
                k = k_cache[blocks[:n]].flatten(0, 1)[:kl].repeat_interleave(g, 1).transpose(0, 1)
                v = v_cache[blocks[:n]].flatten(0, 1)[:kl].repeat_interleave(g, 1).transpose(0, 1)
                q = query[q0:q0 + ql].transpose(0, 1)
                mask = torch.arange(kl)[None] <= pos[:, None]
                if self.window:
                    mask &= torch.arange(kl)[None] > pos[:, None] - self.window
                if learnable_sink is None:
                    got = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=self.scale)[0]
                else:  # a score beside the keys' that has no value
                    scores = (q @ k.transpose(1, 2) * self.scale).masked_fill(~mask, float('-inf'))
                    sink = learnable_sink.to(scores.dtype)[:, None, None].expand(-1, ql, 1)
                    got = torch.cat((scores, sink), -1).softmax(-1)[..., :-1] @ v
                out[q0:q0 + ql] = got.transpose(0, 1)
                q0 += ql
            return out

    class CpuFusedMoE(FusedMoEImpl):
        def __init__(self, spec): self.spec = spec
        def forward(self, hidden_states, topk_weights, topk_ids, gate_up_weights, down_weights,
                    gate_up_bias=None, down_bias=None, expert_list=None, act_func=None):
            w = topk_weights
            if self.spec.renormalize: w = w / w.sum(-1, keepdim=True)
            out = torch.zeros_like(hidden_states)
            for e in topk_ids.unique().tolist():
                t, s = (topk_ids == e).nonzero(as_tuple=True)
                gu = hidden_states[t] @ gate_up_weights[e].T
                if gate_up_bias is not None: gu = gu + gate_up_bias[e]
                a, b = gu.chunk(2, -1)
                y = (act_func(gu) if act_func else F.silu(a) * b) @ down_weights[e].T
                if down_bias is not None: y = y + down_bias[e]
                out.index_add_(0, t, y * w[t, s, None].to(y.dtype))
            return out

    class CpuOpsBackend(DefaultOpsBackend):
        @staticmethod
        def get_name(): return 'cpu'
        @classmethod
        def build_op(cls, spec, *, enable_deterministic=False):
            if isinstance(spec, PagedAttentionBuildSpec):
                op = CpuAttention(spec.num_heads, spec.head_dim, scale=spec.scale, num_kv_heads=spec.num_kv_heads,
                                  v_head_size=spec.v_head_dim, causal=spec.causal)
                window = spec.sliding_window
                op.window = max(0, (window[0] if isinstance(window, tuple) else window) or 0)
                return op
            if isinstance(spec, FusedMoEBuildSpec):
                return CpuFusedMoE(spec)
            return super().build_op(spec, enable_deterministic=enable_deterministic)
        @staticmethod
        def get_attention_metadata_cls(): return AttentionMetadata
        @classmethod
        def update_step_context(cls, ctx):
            ctx.attn_metadata = AttentionMetadata(
                is_decoding=ctx.is_decoding, block_offsets=ctx.block_offsets, q_start_loc=ctx.q_start_loc,
                q_seqlens=ctx.q_seqlens, kv_seqlens=ctx.kv_seqlens, quant_policy=ctx.kv_quant_policy)
            return ctx
        @staticmethod
        def ccl_backend(): return 'gloo'
        @staticmethod
        def device_count(): return torch.cuda.device_count()
        @staticmethod
        def support_ray(): return True
    return CpuOpsBackend

def patch_lmdeploy():
    from lmdeploy.pytorch.backends import selector
    B = []
    def _get_backend():
        if not B: B.append(make_backend())
        return B[0]
    selector._get_backend = _get_backend

def patch_dtype(config):
    """Another data type than the arguments offer, from $LMDCPU_DTYPE."""
    wanted, update = os.getenv('LMDCPU_DTYPE'), config._update_torch_dtype
    if wanted:
        config._update_torch_dtype = lambda c, dtype, *a, **kw: update(c, wanted, *a, **kw)

_done = False
def install():
    global _done
    if _done: return
    _done = True
    os.environ.setdefault('LMDEPLOY_ENABLE_CHECK_ENV', '0')   # skips the CUDA/triton probe
    os.environ.setdefault('TORCHDYNAMO_DISABLE', '1')
    patch_torch()
    patch_lmdeploy()
    from lmdeploy.pytorch import config
    patch_dtype(config)
