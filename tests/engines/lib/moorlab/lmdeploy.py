# SPDX-License-Identifier: Apache-2.0
"""A real LMDeploy server on a CPU (tests/engines/shims/lmdeploy), and a client for its /generate and its RL routes.

LMDeploy has no place of its own for a plugin's configuration: Moor's travels in $MOOR_CONFIG.  Its responses name no request;
one that was sent with `session_id` N is found by Moor as "session-N", so this client sends one with each.
"""
import base64
import contextlib
import importlib.metadata
import itertools
import json
import os
import pickle
import time
import zlib
from collections import OrderedDict

from . import client, models, paths, server

SHIM = os.path.join(os.path.dirname(paths.LIB), "shims", "lmdeploy")
BUCKETS = 3  # an update comes in so many


def bucket(tensors, finished):
    """Body of /update_weights: LMDeploy rebuilds each tensor with arguments whose seventh it overwrites with its device."""
    import torch

    def plain(t):
        t = t.contiguous()
        storage = torch.storage.TypedStorage(wrap_storage=t.untyped_storage(), dtype=t.dtype, _internal=True)
        return torch._utils._rebuild_tensor_v2, (storage, 0, tuple(t.shape), tuple(t.stride()), False, OrderedDict(), None)

    named = [(name, plain(t)) for name, t in tensors]
    return dict(serialized_named_tensors=base64.b64encode(pickle.dumps(named)).decode(), finished=finished)


class Client(client.Http):
    @staticmethod
    def session(request_id):
        """The number that LMDeploy's session_id may be; far from its own, which count from 0."""
        return (1 << 40) + zlib.crc32(request_id.encode())

    @classmethod
    def record_id(cls, request_id):
        return f"session-{cls.session(request_id)}"

    @staticmethod
    def _routes(raw):
        import numpy as np

        return np.asarray(raw, dtype=np.uint16)

    def _body(self, prompt, max_tokens, request_id, temperature, routes=True, **more):
        body = dict(input_ids=list(prompt), max_tokens=max_tokens, temperature=temperature, return_routed_experts=routes, **more)
        if temperature == 0:
            body["top_k"] = 1
        if request_id:
            body["session_id"] = self.session(request_id)
        return body

    def complete(self, prompt, max_tokens=16, request_id=None, temperature=0.0, **more):
        """One prompt, one sample."""
        started = time.monotonic()
        got = self.post("/generate", self._body(prompt, max_tokens, request_id, temperature, **more))
        meta = got["meta_info"]
        return client.Completion(id=self.record_id(request_id) if request_id else None, prompt=list(prompt),
                                 tokens=list(got["output_ids"]), finish=meta["finish_reason"]["type"],
                                 raw_routes=meta.get("routed_experts"), decode=self._routes, size=len(json.dumps(got)), started=started,
                                 ended=time.monotonic())

    def start_and_drop(self, prompt, max_tokens, request_id, read_chunks=1):
        body = self._body(prompt, max_tokens, request_id, 0.0, ignore_eos=True, stream=True)
        seen = []
        with contextlib.closing(self.events("/generate", body)) as events:
            for event in itertools.islice(events, read_chunks):
                seen += event["output_ids"] or []
        return seen

    @staticmethod
    def from_row(row):
        if row:
            raise ValueError("LMDeploy's field begins at row 0")
        return {}

    # ---- RL routes
    def prepare_update(self):
        import torch  # noqa: F401  an update's time is not to hold its import
        from safetensors import torch as _  # noqa: F401

    @staticmethod
    def _buckets(model):
        from safetensors.torch import load_file

        weights = list(load_file(models.weights_file(model)).items())
        return [bucket(weights[i::BUCKETS], finished=i == BUCKETS - 1) for i in range(BUCKETS)]

    def update_begin(self, model):
        self.post("/update_weights", self._buckets(model)[0])

    def update_rest(self, model, label=None):
        for part in self._buckets(model)[1:]:
            self.post("/update_weights", part)

    def update(self, model, label=None):
        """LMDeploy knows no labels."""
        timer = client.Timer()
        with timer("drain and first bucket"):
            self.update_begin(model)
        with timer("install"):
            self.update_rest(model)
        return timer.phases

    def weight_version(self):
        return None

    def sleep(self, level=1):
        self.post("/sleep", {}, query={"level": level})

    def wake_weights(self):
        self.post("/wakeup", {}, query={"tags": "weights"})

    def wake_kv(self):
        self.post("/wakeup", {}, query={"tags": "kv_cache"})

    def is_sleeping(self):
        return self.get("/is_sleeping").json()["is_sleeping"]


class Server(server.EngineProcess):
    """`lmdeploy serve api_server` with the engine in a process of its own; ray: the model in Ray's workers, which is what an
    update over HTTP needs.

    capture         LMDeploy's own, on its command line
    prefix_cache    LMDeploy's own
    """

    CLIENT = Client
    LOADING = "preload"

    def __init__(self, *args, ray=False, capture=False, prefix_cache=False, **more):
        super().__init__(*args, **more)
        self.ray, self.capture, self.prefix_cache = ray, capture, prefix_cache

    def _command(self):
        command = [self.python, "-m", "lmdeploy", "serve", "api_server", models.with_tokenizer(self.model), "--backend", "pytorch",
                   "--server-name", "127.0.0.1", "--server-port", str(self.port), "--eager-mode",
                   "--session-len", str(self.max_model_len), "--max-batch-size", "8",
                   "--cache-block-seq-len", "16",
                   "--kernel-block-size", "16", "--max-prefill-token-num", "64",
                   "--log-level", "WARNING", "--tp", str(self.tp)]
        if importlib.metadata.version("lmdeploy") >= "0.18":  # 0.16 takes a share of the memory instead
            command += ["--num-gpu-blocks", str((self.kv_tokens or 4096) // 16)]
        if self.capture:
            command.append("--enable-return-routed-experts")
        if self.prefix_cache:
            command.append("--enable-prefix-caching")
        if self.ray:
            command += ["--distributed-executor-backend", "ray"]
        return command

    def engine_env(self, env):
        env.update(LMDCPU="1", OMP_NUM_THREADS="1")
        return paths.add_to_pythonpath(env, SHIM)

    def _env(self):
        env = self.engine_env(super()._env())
        env.update(LMDEPLOY_SKIP_WARMUP="1", LMDCPU_DEVICES="2",
                   RAY_OVERRIDE_RESOURCES='{"GPU": 2}', RAY_USAGE_STATS_ENABLED="0",
                   RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES="200000000")
        if self.dtype == "float32":
            env["LMDCPU_DTYPE"] = "float32"
        if self.moor is not None:
            env["MOOR_CONFIG"] = json.dumps(self.moor)
        return env


__all__ = ["Client", "SHIM", "Server", "bucket"]
