# SPDX-License-Identifier: Apache-2.0
"""A real LMDeploy server on a CPU (tests/engines/shims/lmdeploy), and a client for its /generate."""
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass

from . import paths, server

SHIM = os.path.join(os.path.dirname(paths.LIB), "shims", "lmdeploy")


def with_tokenizer(model):
    """The same model beside a tokenizer, which LMDeploy's server cannot do without; token n reads "tn"."""
    out = os.path.join(paths.cache_dir("lmdeploy"), os.path.basename(model))
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(model):
        if not os.path.lexists(os.path.join(out, name)):
            os.symlink(os.path.join(model, name), os.path.join(out, name))
    with open(os.path.join(model, "config.json")) as f:
        vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"t{i}": i for i in range(3, json.load(f)["vocab_size"])}}
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(os.path.join(out, "tokenizer.json"))
    with open(os.path.join(out, "tokenizer_config.json"), "w") as f:
        json.dump(dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
                       model_max_length=2048), f)
    return out


@dataclass
class Answer:
    prompt: list
    tokens: list
    routes: object  # nested lists, a reference, or None

    @property
    def all_tokens(self):
        return [*self.prompt, *self.tokens]

    @property
    def rows(self):
        return len(self.prompt) + len(self.tokens) - 1

    def array(self):
        import numpy as np

        return np.asarray(self.routes, dtype=np.uint16)


class Client:
    def __init__(self, port, timeout=120.0):
        self.port, self.timeout = port, timeout

    def call(self, path, body=None, method="POST"):
        """(status, decoded JSON or text)"""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method,
                                         data=None if method == "GET" else json.dumps(body or {}).encode(),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as f:
                status, text = f.status, f.read().decode()
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def generate(self, prompt, n, routes=True, **more):
        status, answer = self.call("/generate", dict(input_ids=list(prompt), max_tokens=n, ignore_eos=True, top_k=1,
                                                     temperature=0, return_routed_experts=routes, **more))
        if status != 200:
            raise server.ServerError(f"/generate: {status}: {answer}")
        return Answer(list(prompt), answer["output_ids"], answer["meta_info"].get("routed_experts"))


class Server(server.Server):
    """`lmdeploy serve api_server` with the engine in a process of its own; executor="ray": the model in Ray's workers."""

    def __init__(self, *args, executor="mp", capture=True, **more):
        super().__init__(*args, **more)
        self.executor, self.capture = executor, capture

    def _command(self):
        command = [self.python, "-m", "lmdeploy", "serve", "api_server", with_tokenizer(self.model), "--backend", "pytorch",
                   "--server-name", "127.0.0.1", "--server-port", str(self.port), "--eager-mode", "--session-len", "512",
                   "--max-batch-size", "8", "--num-gpu-blocks", "96", "--cache-block-seq-len", "16",
                   "--kernel-block-size", "16", "--max-prefill-token-num", "64", "--disable-metrics",
                   "--log-level", "WARNING"]
        if self.capture:
            command.append("--enable-return-routed-experts")
        if self.executor == "ray":
            command += ["--distributed-executor-backend", "ray"]
        return command + self.args

    def _env(self):
        env = super()._env()
        env.update(LMDCPU="1", OMP_NUM_THREADS="1", LMDEPLOY_SKIP_WARMUP="1", LMDCPU_DEVICES="2",
                   RAY_OVERRIDE_RESOURCES='{"GPU": 2}', RAY_USAGE_STATS_ENABLED="0",
                   RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES="200000000")
        if self.dtype == "float32":
            env["LMDCPU_DTYPE"] = "float32"
        if self.moor is not None:
            env["MOOR_CONFIG"] = json.dumps(self.moor)
        paths.add_to_pythonpath(env, SHIM)
        env["PYTHONPATH"] = os.pathsep.join(p for p in env["PYTHONPATH"].split(os.pathsep) if p != paths.PLUGIN)
        return env

    def client(self, timeout=120.0):
        return Client(self.port, timeout)


__all__ = ["Answer", "Client", "SHIM", "Server", "with_tokenizer"]
