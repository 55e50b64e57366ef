# SPDX-License-Identifier: Apache-2.0
"""The oracle: which experts transformers' own routers choose, in float32.

It runs in a process of its own (`python -m moorlab.oracle`), so that nothing of
an engine or of Moor can reach it, and stays up so that its start is paid once.

`Oracle.rows(model, {key: token ids})` gives for each key a `Routes`:
  ids     [rows, moe layers, K] uint16, sorted within (row, layer); rows = len(tokens) - 1
  gap     [rows, moe layers] float32: router score of rank K minus that of rank K+1 (how near a tie)
  argmax  [rows] int32: the token that greedy decoding takes after this row
"""
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import namedtuple

from . import paths

Routes = namedtuple("Routes", "ids gap argmax")

BATCH = 8


# ---- the process ----------------------------------------------------------
class _Model:
    def __init__(self, folder):
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                          attn_implementation="eager").eval()
        self.k = self.model.config.num_experts_per_tok
        self.seen = []
        found = [m for n, m in self.model.named_modules() if self._is_router(n, m)]
        if not found:
            raise RuntimeError(f"{folder}: no router found, the oracle knows nothing about this model")
        for module in found:
            module.register_forward_hook(self._hook)

    @staticmethod
    def _is_router(name, module):
        linear = type(module).__name__ == "Linear"
        if linear:  # older transformers: the gate is a plain Linear
            return name.endswith("mlp.gate") or name.endswith("block_sparse_moe.gate")
        return name.endswith((".gate", ".router"))

    def _hook(self, module, args, out):
        torch = self.torch
        out = out if isinstance(out, tuple) else (out,)
        ids = [x for x in out if torch.is_tensor(x) and not x.is_floating_point() and x.shape[-1] == self.k]
        logits = max((x for x in out if torch.is_tensor(x) and x.is_floating_point()), key=lambda x: x.shape[-1])
        logits = logits.float().reshape(-1, logits.shape[-1])
        chosen = ids[0].reshape(-1, self.k) if ids else logits.topk(self.k, -1).indices
        self.seen.append((chosen, self._gap(module, args, logits)))

    def _gap(self, module, args, logits):
        """How near the choice was: what decides it, of the last one taken minus of the first one left."""
        if logits.shape[-1] <= self.k:
            return self.torch.full((logits.shape[0],), float("nan"))

        def edge(scores, k):
            top = scores.topk(k + 1, -1).values
            return top[:, k - 1] - top[:, k]

        # a bias that only chooses: the module's own, in a module of its own (Ernie 4.5), an argument (MiniMax-M2)
        bias = next((t for n, t in [*module.named_buffers(), *module.named_parameters()]
                     if n.endswith("e_score_correction_bias")), args[1] if len(args) > 1 else None)
        scores = logits
        if bias is not None:
            scores = (logits.softmax(-1) if hasattr(module, "moe_statics") else logits.sigmoid()) + bias.reshape(-1)
        groups = getattr(module, "num_group", None) or 1
        if groups == 1:
            return edge(scores, self.k)
        inside = scores.view(len(scores), groups, -1)
        of_group = inside.max(-1).values if bias is None else inside.topk(2, -1).values.sum(-1)
        taken = self.torch.zeros_like(of_group, dtype=self.torch.bool)
        taken.scatter_(1, of_group.topk(module.topk_group, -1).indices, True)
        left = inside.masked_fill(~taken.unsqueeze(-1), float("-inf")).view_as(scores)
        return self.torch.minimum(edge(of_group, module.topk_group), edge(left, self.k))

    def rows(self, requests, banned):
        """requests: list of token lists -> list of (ids, gap, argmax) arrays."""
        import numpy as np

        torch = self.torch
        out = [None] * len(requests)
        order = sorted(range(len(requests)), key=lambda i: len(requests[i]))
        with torch.no_grad():
            for at in range(0, len(order), BATCH):
                part = order[at:at + BATCH]
                width = max(len(requests[i]) for i in part) - 1
                # padded on the right: a causal model's earlier positions cannot see it
                batch = torch.zeros((len(part), width), dtype=torch.long)
                for b, i in enumerate(part):
                    n = len(requests[i]) - 1
                    batch[b, :n] = torch.tensor(requests[i][:-1])
                self.seen.clear()
                logits = self.model(batch, use_cache=False).logits
                logits[..., banned] = float("-inf")
                best = logits.argmax(-1)
                ids = torch.stack([c for c, _ in self.seen], 1).reshape(len(part), width, -1, self.k)
                gaps = torch.stack([g for _, g in self.seen], 1).reshape(len(part), width, -1)
                ids = ids.sort(-1).values
                for b, i in enumerate(part):
                    n = len(requests[i]) - 1
                    out[i] = (ids[b, :n].numpy().astype(np.uint16), gaps[b, :n].numpy().astype(np.float32),
                              best[b, :n].numpy().astype(np.int32))
        return out


def _serve():
    import numpy as np

    models = {}
    print(json.dumps({"ready": True}), flush=True)
    import transformers.models.auto.modeling_auto  # noqa: F401  slow: while the asker starts its engine
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            with open(ask["tokens"]) as f:
                tokens = json.load(f)
            model = models.get(ask["model"]) or models.setdefault(ask["model"], _Model(ask["model"]))
            arrays = {}
            for n, (ids, gap, best) in enumerate(model.rows(list(tokens.values()), ask["banned"])):
                arrays[f"{n}.ids"], arrays[f"{n}.gap"], arrays[f"{n}.argmax"] = ids, gap, best
            np.savez(ask["out"], **arrays)
            answer = {"ok": True}
        except Exception as e:  # the asker must see it, whatever it is
            answer = {"ok": False, "error": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), flush=True)


# ---- the asker ------------------------------------------------------------
class Oracle:
    """`with Oracle(python) as oracle: oracle.rows(folder, {"id": [5, 6, 7]})`"""

    def __init__(self, python=None, threads=1, banned=()):
        """banned: tokens that the engine never samples, so that they are not its greedy choice."""
        self.python = python or sys.executable
        self.banned = list(banned)
        self.threads = threads
        self.proc = None
        self._ready = False
        self._lock = threading.Lock()

    def __enter__(self):
        self._dir = tempfile.TemporaryDirectory(prefix="moor-oracle-")
        return self

    def start(self):
        """Begin now: its imports take as long as a small server's. Without this it begins when it is first asked."""
        env = paths.lab_env({"OMP_NUM_THREADS": str(self.threads)})
        env.pop("LD_PRELOAD", None)
        self._log = open(os.path.join(self._dir.name, "log"), "w+")
        self.proc = subprocess.Popen([self.python, "-m", "moorlab.oracle"], env=env, text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        return self

    def __exit__(self, *exc):
        if self.proc:
            self._end()
        self._dir.cleanup()

    def _end(self):
        self.proc.stdin.close()
        try:
            self.proc.wait(10)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        self.proc.stdout.close()
        self._log.close()

    def _answer(self):
        line = self.proc.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError("the oracle's process died:\n" + self._log.read()[-2000:])
        return json.loads(line)

    def rows(self, model, requests, keep=None):
        """{key: tokens} -> {key: Routes}; also left as a .npz at `keep` for another process."""
        import numpy as np

        short = [k for k, t in requests.items() if len(t) < 2]
        if short:
            raise ValueError(f"requests with fewer than two tokens have no row: {short}")
        with self._lock:
            if not self.proc:
                self.start()
            if not self._ready:
                self._answer()  # it says so when its imports are done
                self._ready = True
            ask = {"model": model, "tokens": os.path.join(self._dir.name, "tokens.json"), "banned": self.banned,
                   "out": keep or os.path.join(self._dir.name, "rows.npz")}
            with open(ask["tokens"], "w") as f:
                json.dump(requests, f)
            self.proc.stdin.write(json.dumps(ask) + "\n")
            self.proc.stdin.flush()
            answer = self._answer()
            if not answer["ok"]:
                raise RuntimeError("oracle: " + answer["error"])
            with np.load(ask["out"]) as z:
                return {k: Routes(z[f"{n}.ids"], z[f"{n}.gap"], z[f"{n}.argmax"])
                        for n, k in enumerate(requests)}


def greedy_agreement(routes, tokens, prompt_len):
    """(agreeing, compared): sampled tokens that are the oracle's own greedy choice."""
    want = routes.argmax[prompt_len - 1:]
    got = tokens[prompt_len:]
    return sum(int(a) == int(b) for a, b in zip(want, got)), len(got)


if __name__ == "__main__":
    _serve()
