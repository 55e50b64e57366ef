# SPDX-License-Identifier: Apache-2.0
"""A pipeline stage without a router: its one layer is dense. It has no store that could say so to a consumer, and no record would ever be
whole: recording is off in all stages. Of the families here, vLLM 0.32 starts only Ernie 4.5 so ("No Qwen3MoE layer found", says another)."""
import moor

from moorlab.scenario import Group, proves, require

GROUP = Group(family="ernie45", moor={}, engines=("vllm",), env={"VLLM_PP_LAYER_PARTITION": "1,3"},
              args=["--pipeline-parallel-size", "2"])


@proves("S1.12", "S1.21")
def check_a_stage_without_routers_turns_recording_off_everywhere(lab):
    c = lab.one([5, 6, 7], 8)
    require(len(c.tokens) == 8 and c.raw_routes is None, "a response of a model whose first stage is dense")
    lines = [x for x in lab.server.log_text().splitlines() if "recording is off" in x]
    require(len(lines) == 1 and "pipeline stage" in lines[0], f"{len(lines)} lines about recording being off: {lines[:3]}")
    stores = [x for x in lab.server.moor_dir_entries() if "store-" in x]
    require(not stores, f"there is a store: {stores}")
    try:
        lab.store.open(c.id, 600.0)
        require(False, "a record of some layers was opened")
    except moor.Unsupported as e:  # at once: 600 s are more than the test has
        require("pipeline stage" in str(e), f"the open says {e}")
    require(lab.number("deliver_errors") == 0, "deliveries were tried")
