# SPDX-License-Identifier: Apache-2.0
"""torch.compile: the capture is inside the graph (a late binding records nothing, silently)."""
from moorlab.scenario import VLLM, Group, proves

GROUP = Group(tp=1, moor={}, eager=False, engines=VLLM, env={"VLLM_CPU_CI_ENV": "0"})


@proves("S1.2", "S1.4")
def check_routes_under_compilation(lab):
    t = lab.expect_routes(lab.send(16, 4))
    return f"{t.pairs} pairs"


@proves("S1.4")
def check_no_step_without_captures(lab):
    from moorlab.scenario import require

    require(lab.number("steps_never_fired") == 0, "steps in which no layer captured")
