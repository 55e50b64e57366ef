# SPDX-License-Identifier: Apache-2.0
"""Model families that differ in what a router is, each against transformers' own: one engine start each."""
from moorlab import models
from moorlab.scenario import Group, Skipped, proves

SERVERLESS = True
GROUP = Group(moor={"record": {"validate": "seal"}}, engines=("vllm",), prefix=True)


TIE = 2e-4  # of scores: the kernels of engine and oracle differ by that much where attention is sharp


def compare(lab, family):
    """Every record against the oracle, rows from cached prefixes among them; and the layout, whatever layers are dense."""
    layers, moe, _, _ = models.shape(models.ensure(family, lab.group.seed, lab.python))
    with lab.of_family(family, TIE) as it:
        done = it.send(8, 4, seed=40)
        t = it.expect_routes(done)
        with it.prefix_rows(1):
            t.add(it.expect_routes(it.send(8, 4, seed=41)))
        with it.store.open(done[0].id, 10.0) as record:
            it.expect_dense_layers_empty(record)
    return f"{t.pairs} pairs, {t.ties} ties, MoE layers {moe} of {layers}"


# What an engine cannot show, and why.
NOT_LIKE = "the engine's own greedy text is not transformers' for this model on this CPU: there is no oracle"
UNABLE = {
    "vllm": {"deepseek_v2": NOT_LIKE, "deepseek_v3": NOT_LIKE, "phimoe": NOT_LIKE,
             "minimax_m2": "vLLM 0.32 refuses transformers' configuration: no attribute 'scoring_func'"},
}


def one_family(family):
    @proves("S1.3", "S1.20", "DESIGN: a row")
    def check(lab):
        why = UNABLE.get(lab.engine.name, {}).get(family)
        if why:
            raise Skipped(why)
        return compare(lab, family)

    return check


for _family in models.FAMILIES:
    if not _family.startswith("qwen3") and _family != "dense":  # those have scenarios of their own
        globals()[f"check_{_family}"] = one_family(_family)
