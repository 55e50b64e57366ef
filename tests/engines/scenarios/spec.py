# SPDX-License-Identifier: Apache-2.0
"""N-gram speculation: rejected tokens leave no row."""
import json

from moorlab.scenario import Group, proves, require

GROUP = Group(tp=1, moor={}, engines=("vllm",), args=["--no-async-scheduling", "--speculative-config", json.dumps(
    {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1})])


@proves("S1.11", "S1.6")
def check_only_accepted_rows(lab):
    def counts():
        return (lab.client.metric_sum("vllm:spec_decode_num_draft_tokens_total"),
                lab.client.metric_sum("vllm:spec_decode_num_accepted_tokens_total"))

    drafted, accepted = counts()
    # a small vocabulary of long prompts: n-grams repeat, some guesses are right and most are wrong
    done = lab.send(24, 8, vocab=24, tokens=(40, 90))
    drafted, accepted = (b - a for a, b in zip((drafted, accepted), counts()))
    require(drafted > accepted > 0, f"{drafted:.0f} drafted, {accepted:.0f} accepted: the check needs both kinds")
    t = lab.expect_routes(done)
    return f"{drafted:.0f} drafted, {accepted:.0f} accepted, {t.pairs} pairs"
