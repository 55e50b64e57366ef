# SPDX-License-Identifier: Apache-2.0
"""Preemption: too few KV blocks, so that running requests are put back and recomputed."""
from moorlab.scenario import Group, proves, require

GROUP = Group(tp=1, moor={}, args=["--num-gpu-blocks-override", "14", "--max-num-seqs", "8"], max_model_len=320)


@proves("S1.6", "S1.7", "S1.15")
def check_recomputed_rows_keep_their_first_value(lab):
    before = lab.client.metric_sum("vllm:num_preemptions_total")
    done = lab.send(24, 8, prompt_max=60, prefix_len=64, tokens=(60, 120))
    preempted = lab.client.metric_sum("vllm:num_preemptions_total") - before
    require(preempted > 0, "nothing was preempted: the check proves nothing")
    t = lab.expect_routes(done)
    return f"{preempted:.0f} preemptions, {t.pairs} pairs, {lab.number('rows_dropped'):.0f} recomputed rows dropped"


@proves("S1.15")
def check_reused_slots_never_give_the_earlier_occupants_rows(lab):
    """Few blocks, many prompts: the cache is overwritten all the time, hits and misses mix."""
    for seed in (1, 2, 1, 2, 3, 1):
        lab.expect_routes(lab.send(8, 4, seed=70 + seed, shared=4, prefix_seed=70 + seed, prefix_len=96))
