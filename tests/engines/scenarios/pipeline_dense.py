# SPDX-License-Identifier: Apache-2.0
"""A pipeline stage without a router: its one layer is dense. It has nothing to record, the other's rows are whole.
Of the families here, vLLM 0.32 starts only Ernie 4.5 so ("No Qwen3MoE layer found", says another)."""
from moorlab.scenario import Group, proves

SERVERLESS = True
GROUP = Group(moor={}, engines=("vllm",), prefix=True, env={"VLLM_PP_LAYER_PARTITION": "1,3"},
              args=["--pipeline-parallel-size", "2"])

TIE = 2e-4  # as in families_all.py


@proves("S1.12", "S1.3", "DESIGN: a row")
def check_a_stage_without_routers_misses_nothing(lab):
    with lab.of_family("ernie45", TIE) as it:
        done = it.send(8, 4, seed=40)
        t = it.expect_routes(done)
        with it.prefix_rows(1):
            t.add(it.expect_routes(it.send(8, 4, seed=41)))
        with it.store.open(done[0].id, 10.0) as record:
            it.expect_dense_layers_empty(record)
    return f"{t.pairs} pairs, {t.ties} ties"
