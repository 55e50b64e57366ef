# SPDX-License-Identifier: Apache-2.0
"""Model families that differ in what a router is, each against transformers' own: one engine start each."""
from moorlab import models
from moorlab.scenario import ALL, Group, Skipped, proves

SERVERLESS = True
GROUP = Group(moor={"record": {"validate": "seal"}}, engines=ALL, prefix=True)


TIE = 2e-4  # of scores: the kernels of engine and oracle differ by that much where attention is sharp

# Further options of its server. vLLM, latent attention twice: as it is, without cached prefixes (a CPU has none with it),
# and spread out into plain attention, with them. With AMX it takes a kernel that refuses float32: another is named.
LATENT = {"args": ["--attention-backend", "CPU_MLA"], "block_size": None}
OPTIONS = {
    "vllm": {"deepseek_v2": {"env": {"VLLM_MLA_DISABLE": "1"}}, "deepseek_v3": LATENT},
    "sglang": dict.fromkeys(("deepseek_v2", "deepseek_v3"), {"env": {"MOOR_TEST_LATENT": "1"}}),
}
NO_PREFIX = {"vllm": ("deepseek_v3",)}

# What an engine cannot show, and why.
NO_ROUTES = "LMDeploy 0.18's class for it hands out no routes"
NO_MODEL = "LMDeploy 0.18 has no such model"
UNABLE = {
    "vllm": {"minimax_m2": "vLLM 0.32's router for CPUs has sigmoid with groups only (cpu_router.py: an assertion)"},
    "sglang": {"dots1": "SGLang 0.5.23 has no such model",
               "gptoss": "SGLang 0.5.23 refuses its plain attention for it, and the others need kernels that are not here"},
    "lmdeploy": {**dict.fromkeys(("qwen2", "mixtral", "deepseek_v2", "deepseek_v3", "glm4", "phimoe"), NO_ROUTES),
                 **dict.fromkeys(("olmoe", "dots1", "granite", "ernie45", "minimax_m2"), NO_MODEL)},
}


def compare(lab, family):
    """Every record against the oracle, rows from cached prefixes among them; and the layout, whatever layers are dense."""
    layers, moe, _, _ = models.shape(models.ensure(family, lab.group.seed, lab.python))
    cached = 0 if family in NO_PREFIX.get(lab.engine.name, ()) else 1
    with lab.of_family(family, TIE, **OPTIONS.get(lab.engine.name, {}).get(family, {})) as it:
        done = it.send(8, 4, seed=40)
        t = it.expect_routes(done)
        with it.prefix_rows(cached):
            t.add(it.expect_routes(it.send(8, 4, seed=41)))
        with it.store.open(done[0].id, 10.0) as record:
            it.expect_dense_layers_empty(record)
    return f"{t.pairs} pairs, {t.ties} ties, MoE layers {moe} of {layers}"


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
