# SPDX-License-Identifier: Apache-2.0
"""A model without routers: one clear line, recording off, the server runs."""
from moorlab.scenario import Group, proves, require

GROUP = Group(family="dense", tp=1, moor={}, engines=("vllm",))


@proves("S1.21")
def check_the_server_runs_and_says_why_nothing_is_recorded(lab):
    c = lab.one([5, 6, 7], 8)
    require(len(c.tokens) == 8 and c.raw_routes is None, "a dense model's response")
    lines = [x for x in lab.server.log_text().splitlines() if "moor" in x.lower() and "recording" in x.lower()]
    require(len(lines) == 1, f"{len(lines)} lines about recording being off: {lines[:3]}")
