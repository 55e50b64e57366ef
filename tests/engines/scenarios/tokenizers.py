# SPDX-License-Identifier: Apache-2.0
"""SGLang with several tokenizer workers: front-end processes behind one socket, which share the gate, and each delivers."""
from moorlab.scenario import Group, proves, require

WORKERS = 2
# uvicorn kills a worker that is busy importing for longer than 10 s
GROUP = Group(engines=("sglang",), options={"sglang": {"args": ["--tokenizer-worker-num", str(WORKERS)],
                                                       "env": {"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "120"}}})


@proves("S1.2", "S4.11")
def check_each_worker_is_a_front_end(lab):
    pairs = lab.expect_routes(lab.send(24, 12)).pairs
    joined = lab.pids("frontend")
    require(len(joined) == WORKERS + 2, f"front ends {joined}: the launcher, its detokenizer and {WORKERS} workers expected")
    return f"{pairs} pairs"


@proves("S4.2", "S4.11")
def check_a_pause_closes_the_gate_whichever_worker_is_asked(lab):
    """A worker's pause and continue are methods of its own. Each call comes over a connection of its own, to whoever accepts it."""
    for _ in range(6):
        for call, opens in ((lambda: lab.client.pause("in_place"), False), (lab.client.resume, True)):
            lab.client.close()
            call()
            state = lab.store.gate.status()["state"]
            require((state == "open") == opens, f"the gate is {state} after {'continue' if opens else 'pause'}_generation")
    lab.expect_routes(lab.send(4, 4))
