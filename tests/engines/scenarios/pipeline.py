# SPDX-License-Identifier: Apache-2.0
"""Pipeline stages, whose rows are not put together: one clear line, no store. vLLM's CPU backend starts with two stages and fails at the
first request (its second stage has no intermediate tensors), with or without Moor: nothing is asked of the server."""
from moorlab.scenario import Group, proves, require

GROUP = Group(tp=1, moor={}, engines=("vllm",), args=("--pipeline-parallel-size", "2"))


@proves("S1.12", "S1.5")
def check_no_stage_records_its_layers_as_if_they_were_all(lab):
    lines = [x for x in lab.server.log_text().splitlines() if "recording is off" in x]
    require(len(lines) == 1 and "pipeline" in lines[0], f"{len(lines)} lines about recording being off: {lines[:3]}")
    stores = [x for x in lab.server.moor_dir_entries() if "store-" in x]
    require(not stores, f"there is a store: {stores}")
