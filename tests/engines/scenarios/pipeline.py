# SPDX-License-Identifier: Apache-2.0
"""Pipeline stages, whose rows are not put together: one clear line, recording off, the server runs."""
from moorlab.scenario import Group, proves, require

GROUP = Group(tp=1, moor={}, engines=("vllm",), args=("--pipeline-parallel-size", "2"))


@proves("S1.12", "S1.5")
def check_no_record_has_the_layers_of_one_stage_only(lab):
    c = lab.one([5, 6, 7], 8)
    require(len(c.tokens) == 8, f"{len(c.tokens)} tokens")
    require(c.raw_routes is None, "routes of some layers were delivered as if they were all")
    lines = [x for x in lab.server.log_text().splitlines() if "moor" in x.lower() and "recording is off" in x.lower()]
    require(len(lines) == 1 and "pipeline" in lines[0], f"{len(lines)} lines about recording being off: {lines[:3]}")
