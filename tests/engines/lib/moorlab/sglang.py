# SPDX-License-Identifier: Apache-2.0
"""A real SGLang server on a CPU (tests/engines/shims/sglang), and a client for its /generate and its RL routes.

SGLang has no place of its own for a plugin's configuration: Moor's travels in $MOOR_CONFIG.  A request's id is the rid that
the client sends, or what meta_info["id"] says.
"""
import base64
import contextlib
import io
import itertools
import json
import os
import time
from urllib.parse import urlencode

from . import client, models, paths, server

SHIM = os.path.join(os.path.dirname(paths.LIB), "shims", "sglang")


class Client(client.Http):
    def __init__(self, *args, model=None, tp=1, **more):
        super().__init__(*args, **more)
        self.tp = tp
        layers, _, top_k, _ = models.shape(model)
        self._shape = (-1, layers, top_k)

    def _routes(self, raw):
        import numpy as np

        return np.frombuffer(base64.b64decode(raw), np.int32).reshape(self._shape)

    def _body(self, prompt, max_tokens, request_id, temperature, ignore_eos=False, stop_token_ids=None, n=1, routes=True, **more):
        params = dict(max_new_tokens=max_tokens, temperature=temperature, ignore_eos=ignore_eos)
        if stop_token_ids:
            params["stop_token_ids"] = stop_token_ids
        if n > 1:
            params["n"] = n
        return {"input_ids": prompt, "sampling_params": params, **({"rid": request_id} if request_id else {}),
                **({"return_routed_experts": True} if routes else {}), **more}

    def complete(self, prompt, max_tokens=16, request_id=None, temperature=0.0, **more):
        return self.complete_many(prompt, max_tokens, request_id, temperature, **more)[0]

    def complete_many(self, prompt, max_tokens=16, request_id=None, temperature=0.0, **more):
        """`prompt`: token ids, or a list of such lists with a list of ids; `n=` for several samples.  All choices, in order."""
        body = self._body(prompt, max_tokens, request_id, temperature, **more)
        started = time.monotonic()
        got = self.post("/generate", body)
        ended = time.monotonic()
        got = got if isinstance(got, list) else [got]
        prompts = prompt if isinstance(prompt[0], list) else [prompt]
        return [client.Completion(id=c["meta_info"]["id"], prompt=list(prompts[i * len(prompts) // len(got)]),
                                  tokens=list(c["output_ids"]), finish=c["meta_info"]["finish_reason"]["type"], index=i,
                                  raw_routes=c["meta_info"].get("routed_experts"), decode=self._routes, size=len(json.dumps(c)),
                                  cached_tokens=c["meta_info"]["cached_tokens"], started=started, ended=ended)
                for i, c in enumerate(got)]

    def start_and_drop(self, prompt, max_tokens, request_id, read_chunks=1):
        body = self._body(prompt, max_tokens, request_id, 0.0, ignore_eos=True, stream=True)
        seen = []
        with contextlib.closing(self.events("/generate", body)) as events:
            for event in itertools.islice(events, read_chunks):
                seen = event["output_ids"]
        return seen

    @staticmethod
    def record_id(request_id):
        return request_id

    @staticmethod
    def from_row(row):
        return {"routed_experts_start_len": row}

    # ---- RL routes
    def prepare_update(self):
        import torch.multiprocessing  # noqa: F401  an update's time is not to hold its import

        torch.multiprocessing.set_sharing_strategy("file_system")  # the receiver is no child of ours

    def update(self, model, label=None):
        timer = client.Timer()
        with timer("drain and install"):
            self.post("/update_weights_from_disk", {"model_path": model, **({"weight_version": label} if label else {})})
        return timer.phases

    def update_begin(self, model):
        """A session, as a trainer opens that sends tensors."""
        self.post("/begin_weight_update", {})

    def update_tensors(self, model, label=None):
        from multiprocessing.reduction import ForkingPickler

        from safetensors.torch import load_file

        weights = list(load_file(models.weights_file(model)).items())
        out = io.BytesIO()
        ForkingPickler(out).dump(weights)
        self.post("/update_weights_from_tensor", {
            "serialized_named_tensors": [base64.b64encode(out.getvalue()).decode()] * self.tp,
            **({"weight_version": label} if label else {})})

    def update_rest(self, model, label=None):
        self.update_tensors(model, label)
        self.post("/end_weight_update", {})

    def weight_version(self):
        return self.get("/model_info").json().get("weight_version")

    def pause(self, mode="in_place"):
        self.post("/pause_generation", {"mode": mode})

    def keep(self):
        """Requests go back to the queue: with "in_place" their KV cache stays, which an update must flush, and cannot."""
        self.pause("retract")

    def resume(self):
        self.post("/continue_generation", {})

    def sleep(self):
        self.post("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})

    def wake_weights(self):
        self.post("/resume_memory_occupation", {"tags": ["weights"]})

    def wake_kv(self):
        self.post("/resume_memory_occupation", {"tags": ["kv_cache"]})

    def is_sleeping(self):
        return None

    def reset_prefix_cache(self):
        got = self.request("POST", "/flush_cache?" + urlencode({"timeout": 10}))
        if got.status != 200:
            raise client.HttpError("POST /flush_cache", got.status, got.body)


class Server(server.EngineProcess):
    """`python -m sglang.launch_server`: HTTP and tokenizer process, one scheduler a rank, detokenizer.

    overlap   SGLang's overlap scheduler
    capture   SGLang's own capture, on its command line
    """

    LOADING = "run"

    def __init__(self, *args, overlap=True, capture=False, **more):
        super().__init__(*args, **more)
        self.overlap, self.capture = overlap, capture

    def _command(self):
        while self.port > 55000:  # older releases want the port 10000 higher for gRPC
            self.port = server.free_port()
        model, skip = self._served()
        command = [self.python, "-m", "sglang.launch_server", "--model-path", model, "--host", "127.0.0.1",
                   "--port", str(self.port), "--device", "cpu", *skip, "--skip-server-warmup",
                   "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none",
                   "--disable-cuda-graph", "--mem-fraction-static", "0.3", "--dtype", self.dtype, "--random-seed", "1",
                   "--max-total-tokens", str(self.kv_tokens or 2048), "--chunked-prefill-size", "128",
                   "--max-running-requests", "8", "--context-length", str(self.max_model_len), "--tp-size", str(self.tp),
                   "--enable-metrics", "--log-level", "warning", "--sleep-on-idle"]  # else it takes a whole core for nothing
        if not self.overlap:
            command.append("--disable-overlap-schedule")
        if self.capture:
            command.append("--enable-return-routed-experts")
        return command

    def engine_env(self, env):
        env.update(SGLANG_USE_CPU_ENGINE="1", OMP_NUM_THREADS="1", TORCHDYNAMO_DISABLE="1")
        return paths.add_to_pythonpath(env, SHIM)

    def _env(self):
        env = self.engine_env(super()._env())
        if self.tp > 1:
            cpus = sorted(os.sched_getaffinity(0))[:self.tp]
            env.update(SGLANG_CPU_OMP_THREADS_BIND="|".join(map(str, cpus)), SGLANG_NCCL_SO_PATH="/nonexistent/libnccl.so")
        if self.moor is not None:
            env["MOOR_CONFIG"] = json.dumps(self.moor)
        return env

    def client(self, timeout=300.0):
        return Client(self.port, timeout=timeout, model=self.model, tp=self.tp)

    def workers(self):
        """[(pid, title)] of the schedulers, rank order: each is core and worker in one."""
        found = [(t, p) for p, t in self.processes().items() if "sglang::scheduler" in t]
        return [(p, t) for t, p in sorted(found)]


__all__ = ["Client", "SHIM", "Server"]
