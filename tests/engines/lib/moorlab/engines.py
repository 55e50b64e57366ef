# SPDX-License-Identifier: Apache-2.0
"""The engines side by side: what a scenario or the demo must know beyond their common Server and Client."""
from dataclasses import dataclass, field

from . import lmdeploy, models, server, sglang


@dataclass(frozen=True)
class Engine:
    name: str                 # as in scripts/engine-env
    title: str
    Server: type
    options: dict = field(default_factory=dict)       # of its Server, in every run
    updating: dict = field(default_factory=dict)      # of its Server, where weights change over HTTP
    prefix: dict = field(default_factory=dict)        # of its Server, where cached prefixes are wanted
    cleanup: tuple = ("before_weights", 2)  # where the light cleanup empties a rank's cache, how often in update + update_begin, _rest
    banned: tuple = ()        # tokens that it does not sample under ignore_eos
    hides_stop: bool = False    # a response does not show the stop token
    ends_by_kill: bool = False  # it ends its own processes with SIGKILL: Moor's files stay until the next start
    outlives_worker: bool = False  # its HTTP server stays when a worker is gone
    refusal_poisons: bool = False  # a refused wake-up of the KV cache leaves the gate poisoned
    cannot: dict = field(default_factory=dict)        # what -> why: a check that needs it is skipped with that text


ENGINES = {e.name: e for e in (
    Engine("vllm", "vLLM", server.Server, options={"args": ["--enable-prompt-tokens-details"], "block_size": 32},
           cannot={"n": "its samples share one id in the response", "ask": "its requests cannot ask for the field, its server does"}),
    Engine("vllm024", "vLLM 0.24", server.Server, options={"args": ["--enable-prompt-tokens-details"], "block_size": 32},
           cannot={"n": "its samples share one id in the response", "ask": "its requests cannot ask for the field, its server does",
                   "capture": "the MoE for CPUs passes by its capture"}),
    Engine("sglang", "SGLang", sglang.Server, ends_by_kill=True, refusal_poisons=True,
           cleanup=("before_weights", 1), cannot={  # update() leaves torch_empty_cache off, and so does Moor
        "reject": "no call of it makes one rank refuse",
        "rpc": "it has no collective_rpc",
        "shared_id": "each of its samples has an id of its own in the response",
    }),
    Engine("lmdeploy", "LMDeploy", lmdeploy.Server, banned=(models.BASE["eos_token_id"],), updating={"ray": True},
           outlives_worker=True, hides_stop=True, cleanup=("transfer", 2), prefix={"prefix_cache": True}, cannot={
        "reject": "no call of it makes one rank refuse",
        "rpc": "it has no collective_rpc",
        "keep": "it has no pause that keeps requests",
        "shared_id": "its /generate gives one sample of one prompt",
        "n": "its /generate gives one sample of one prompt",
        "prompt_start": "it has no such parameter",
        "reset": "it has no call that empties its prefix cache",
    }),
)}


def get(name):
    return ENGINES[name]
