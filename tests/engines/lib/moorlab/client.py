# SPDX-License-Identifier: Apache-2.0
"""HTTP clients of the engines: what all share, and vLLM's completions by token ids and RL routes.

Standard library only; one connection per thread, kept alive.  Every engine's client offers

  complete(prompt, max_tokens, request_id, temperature, ignore_eos=, stop_token_ids=, routes=) -> Completion
                             routes=False does not ask for the field; vLLM's requests cannot ask, its Server does
  start_and_drop(...)        a streaming request whose client goes away
  record_id(request_id)      the id under which Moor knows it
  prepare_update()           once, before the first update
  update(model, label)       the weights of that folder; returns [(phase, seconds)]
  update_begin(model), update_rest(model, label)   the same, with time to look in between
  sleep(), wake_weights(), wake_kv(), is_sleeping() (None: the engine cannot say)
  reset_prefix_cache()       where the engine can

Request ids in vLLM 0.32 and 0.24, as an HTTP client sees them:
  response.id                    cmpl-<id>         <id> = X-Request-Id, or body "request_id", or random
  external id (front end)        cmpl-<id>-<p>     p = index of the prompt in the request
  engine core's id               cmpl-<id>-<p>-<8 hex>
  with n > 1, one per sample     <i>_cmpl-<id>-<p>-<8 hex>, choices in order p * n + i
"""
import base64
import contextlib
import http.client
import io
import itertools
import json
import os
import threading
import time
from dataclasses import dataclass
from urllib.parse import urlencode


class HttpError(RuntimeError):
    def __init__(self, what, status, body):
        super().__init__(f"{what}: HTTP {status}: {body[:500]}")
        self.status, self.body = status, body


class Response:
    def __init__(self, status, body):
        self.status, self.body = status, body

    def json(self):
        return json.loads(self.body)


@dataclass
class Completion:
    """One choice of a response."""
    id: str                 # as the HTTP response shows it
    prompt: list
    tokens: list            # sampled ones only
    finish: str
    index: int = 0
    raw_routes: str = None  # the field as sent: base64 of a .npy, or a ref string
    cached_tokens: int = None  # None: the response does not say
    started: float = 0.0
    ended: float = 0.0
    size: int = None        # of the response as JSON, where its requests ask for routes
    decode: object = None   # raw_routes -> array, where it is not vLLM's base64 of a .npy

    @property
    def all_tokens(self):
        return [*self.prompt, *self.tokens]

    @property
    def rows(self):
        """SEMANTICS 1.1: every token but the last sampled one went through the model."""
        return len(self.prompt) + max(len(self.tokens) - 1, 0)

    def routes(self):
        """The response's own routed_experts as an array, None when the field is empty."""
        if self.raw_routes is None:
            return None
        if self.decode:
            return self.decode(self.raw_routes)
        import numpy as np

        return np.load(io.BytesIO(base64.b64decode(self.raw_routes)), allow_pickle=False)


class Http:
    """Requests over one connection a thread."""

    def __init__(self, port, host="127.0.0.1", timeout=300.0):
        self.host, self.port, self.timeout = host, port, timeout
        self._local = threading.local()

    # ---- plain
    def request(self, method, path, body=None, headers=None):
        """One request; a connection that the server closed meanwhile is opened once again."""
        data = None if body is None else json.dumps(body).encode()
        head = {"Content-Type": "application/json", **(headers or {})}
        for again in (True, False):
            conn = getattr(self._local, "conn", None)
            fresh = conn is None
            if fresh:
                conn = self._local.conn = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
            try:
                conn.request(method, path, body=data, headers=head)
                got = conn.getresponse()
                return Response(got.status, got.read().decode())
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                self.close()
                if fresh or not again:
                    raise
            except BaseException:
                self.close()
                raise
        raise AssertionError("unreachable")

    def close(self):
        conn = getattr(self._local, "conn", None)
        if conn is not None:
            conn.close()
            self._local.conn = None

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body=None, query=None, headers=None):
        """POST that must succeed; returns the decoded JSON answer ({} if empty)."""
        full = path + ("?" + urlencode(query, doseq=True) if query else "")
        got = self.request("POST", full, body, headers)
        if got.status != 200:
            raise HttpError(f"POST {full}", got.status, got.body)
        return json.loads(got.body) if got.body else {}

    def metrics(self):
        """{name with labels: value} of /metrics."""
        out = {}
        for line in self.get("/metrics").body.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                try:
                    out[name] = float(value)
                except ValueError:
                    pass
        return out

    def metric_sum(self, name):
        """Sum over all labels of one metric."""
        return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name)

    def events(self, path, body, headers=None):
        """The decoded "data:" events of a streaming POST; closing the generator closes the connection."""
        conn = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            conn.request("POST", path, body=json.dumps(body).encode(),
                         headers={"Content-Type": "application/json", **(headers or {})})
            got = conn.getresponse()
            if got.status != 200:
                raise HttpError(f"POST {path}, streaming", got.status, got.read().decode())
            while line := got.readline():
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])
        finally:
            conn.close()


class Timer:
    """The phases of something: `with timer("name"): ...` adds (name, seconds) to .phases."""

    def __init__(self):
        self.phases = []

    @contextlib.contextmanager
    def __call__(self, name):
        begin = time.monotonic()
        yield
        self.phases.append((name, time.monotonic() - begin))


class Client(Http):
    """vLLM."""

    # ---- completions
    def complete(self, prompt, max_tokens=16, request_id=None, temperature=0.0, **more):
        """One prompt, one sample."""
        return self.complete_many(prompt, max_tokens, request_id, temperature, **more)[0]

    def complete_many(self, prompt, max_tokens=16, request_id=None, temperature=0.0, **more):
        """`prompt`: token ids, or a list of such lists; `n=` for several samples.  All choices, in order."""
        body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "temperature": temperature,
                "return_token_ids": True, "detokenize": False, **more}
        headers = {"X-Request-Id": request_id} if request_id else None
        started = time.monotonic()
        got = self.post("/v1/completions", body, headers=headers)
        ended = time.monotonic()
        details = (got.get("usage") or {}).get("prompt_tokens_details") or {}
        return [Completion(id=got["id"], prompt=list(c["prompt_token_ids"]), tokens=list(c["token_ids"]),
                           finish=c["finish_reason"], index=c["index"], raw_routes=c.get("routed_experts"),
                           cached_tokens=details.get("cached_tokens") or 0, started=started, ended=ended)
                for c in got["choices"]]

    def start_and_drop(self, prompt, max_tokens, request_id, read_chunks=1):
        """A streaming request whose connection is closed after `read_chunks` events: an abort.
        Returns the tokens that the client saw until then."""
        body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "stream": True,
                "return_token_ids": True, "detokenize": False, "ignore_eos": True}
        seen = []
        with contextlib.closing(self.events("/v1/completions", body, {"X-Request-Id": request_id})) as events:
            for event in itertools.islice(events, read_chunks):
                for choice in event["choices"]:
                    seen += choice.get("token_ids") or []
        return seen

    @staticmethod
    def record_id(request_id):
        return f"cmpl-{request_id}"

    @staticmethod
    def from_row(row):
        """Arguments of a request whose field is to begin at this row."""
        return {"routed_experts_prompt_start": row}

    # ---- RL routes (VLLM_SERVER_DEV_MODE=1)
    def pause(self, mode="wait", clear_cache=True):
        return self.post("/pause", query={"mode": mode, "clear_cache": str(clear_cache).lower()})

    def resume(self):
        return self.post("/resume")

    def keep(self):
        """Pause so that requests in flight stay."""
        self.pause("keep")

    def is_paused(self):
        return self.get("/is_paused").json()["is_paused"]

    def init_weights(self):
        return self.post("/init_weight_transfer_engine", {"init_info": {}})

    def start_update(self):
        return self.post("/start_weight_update", {})

    def update_weights(self, path, **more):
        return self.post("/update_weights", {"update_info": {"path": path, **more}})

    def finish_update(self, version=None):
        return self.post("/finish_weight_update", {"weight_version": version} if version is not None else {})

    prepare_update = init_weights

    def update_begin(self, model):
        self.start_update()

    def update_rest(self, model, label=None):
        self.update_weights(os.path.join(model, "model.safetensors"))
        self.finish_update(label)

    def update(self, model, label=None):
        timer = Timer()
        with timer("drain"):
            self.update_begin(model)
        with timer("install"):
            self.update_rest(model, label)
        return timer.phases

    def weight_version(self):
        got = self.get("/weight_info")
        return got.json()["weight_version"] if got.status == 200 else None  # 0.24 has no such route

    def collective_rpc(self, method, **kwargs):
        return self.post("/collective_rpc", {"method": method, "kwargs": kwargs})

    def sleep(self, level=1, mode="abort"):
        return self.post("/sleep", query={"level": level, "mode": mode})

    def wake_up(self, *tags):
        return self.post("/wake_up", query={"tags": list(tags)} if tags else None)

    def wake_weights(self):
        self.wake_up("weights")

    def wake_kv(self):
        self.wake_up("kv_cache")

    def is_sleeping(self):
        return self.get("/is_sleeping").json()["is_sleeping"]

    def reset_prefix_cache(self):
        return self.post("/reset_prefix_cache")
