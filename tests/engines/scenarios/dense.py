# SPDX-License-Identifier: Apache-2.0
"""A model without routers: one clear line, recording off, the server runs, and nobody waits for records that never come."""
from moorlab.scenario import VLLM, Group, proves, require

GROUP = Group(family="dense", tp=1, engines=VLLM, moor={"gate": {"mode": "enforce", "drain_timeout_s": 20}})


@proves("S1.21")
def check_the_server_runs_and_says_why_nothing_is_recorded(lab):
    c = lab.one([5, 6, 7], 8)
    require(len(c.tokens) == 8 and c.raw_routes is None, "a dense model's response")
    lines = [x for x in lab.server.log_text().splitlines() if "moor" in x.lower() and "recording" in x.lower()]
    require(len(lines) == 1, f"{len(lines)} lines about recording being off: {lines[:3]}")
    why = lab.stats()["recording_off"]
    require(why and why in lines[0], f"status says {why!r}, the log {lines[0]!r}")


@proves("S1.21", "S4.2")
def check_nothing_waits_for_a_record(lab):
    """Neither a response for its routes (a second each, with the server's other responses behind it), nor a drain."""
    for i in range(4):
        lab.one([9, 8, i], 4)
    require(lab.number("deliver_errors") == 0, f"{lab.number('deliver_errors'):.0f} deliveries were tried")
    gate = lab.store.gate
    gate.seal()
    gate.drain(5.0)
    gate.install("dense-2")
    gate.reopen(5.0)
    require(len(lab.one([1, 2, 3], 4).tokens) == 4, "no response after the update")
