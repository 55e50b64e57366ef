# SPDX-License-Identifier: Apache-2.0
"""Pipeline stages: each records its own layers, and who reads a record gets those of all. One layer here and three
there, so that no stage passes for another; prompts come in chunks, and two steps are in flight. CMakeLists.txt runs
`record` and `preempt` on the same server."""
import numpy as np

from moorlab import compare, load, oracle
from moorlab.scenario import VLLM, Group, eventually, proves, require

GROUP = Group(tp=1, moor={}, engines=VLLM, prefix=True, updates=True, env={"VLLM_PP_LAYER_PARTITION": "1,3"},
              args=["--pipeline-parallel-size", "2", "--max-num-batched-tokens", "64", "--max-num-seqs", "8"],
              options={"vllm024": {"routes": False, "moor": {"record": {"always": True}}}})  # it refuses its switch with stages


def expect_text(lab, completions, which=0):
    """The server itself, without a word about Moor: its greedy text is the oracle's."""
    want = lab.oracle.rows(lab.model(which), {c.id: c.all_tokens for c in completions})
    agree = [oracle.greedy_agreement(want[c.id], c.all_tokens, len(c.prompt)) for c in completions]
    same, tokens = (sum(part) for part in zip(*agree))
    require(same == tokens, f"{same} of {tokens} tokens are the oracle's: the stages do not make one model")
    return tokens


@proves("S1.12")
def check_the_server_has_two_stages_and_talks_as_one_model(lab):
    titles = [title for _, title in lab.server.workers()]
    require(len(titles) == 2 and "PP0" in titles[0] and "PP1" in titles[1], f"workers {titles}")
    return f"{expect_text(lab, lab.send(12, 8))} tokens"


@proves("S1.12", "S1.2", "S1.20")
def check_rows_have_the_layers_of_both_stages(lab):
    done = lab.send(24, 8, shared=0, prompt_max=400)
    require(max(len(c.prompt) for c in done) > 3 * 64, "no prompt of several chunks")
    return f"{lab.expect_routes(done).pairs} pairs"


@proves("S1.12", "S1.15")
def check_cached_prefix_has_the_layers_of_both_stages(lab):
    prefix = load.make_jobs(1, 910, "p", shared=1, prefix_len=160, prefix_seed=910)[0].prompt[:160]
    first = lab.one(prefix, 4)
    with lab.prefix_rows(3 * 128):
        again = [lab.one(prefix + [7 + i, 8, 9], 6) for i in range(3)]
    require(all(c.cached_tokens >= 128 for c in again), f"cached tokens {[c.cached_tokens for c in again]}")
    return f"{lab.expect_routes([first, *again]).pairs} pairs"


@proves("S1.12", "S1.22")
def check_aborted_among_others(lab):
    """Clients go away while one step is in the first stage and another in the second: both cut at the same row."""
    prompts = [[21 + 7 * i, 22, 23, 24 + i] for i in range(4)]
    whole = [lab.one(prompt, 200) for prompt in prompts]
    jobs = load.make_jobs(40, 911, lab.label(), shared=0, tokens=(30, 60))
    flying = load.Load(lab.client, jobs, 4).start()
    require(flying.wait_done(1, 100), "the load did not get going")
    labels = [lab.label() for _ in prompts]
    seen = [lab.client.start_and_drop(prompt, 200, label, read_chunks=3 + 2 * i)
            for i, (prompt, label) in enumerate(zip(prompts, labels))]
    flying.enough()
    others = flying.finish()
    require(not others.failed, f"lost: {others.failed}")
    require(all(w.tokens[:len(s)] == s for w, s in zip(whole, seen)), "greedy text differs between two runs")
    want = lab.oracle.rows(lab.model(), {str(i): w.all_tokens for i, w in enumerate(whole)})
    total = lab.expect_routes(list(others.done.values()))
    for i, label in enumerate(labels):
        rid, least, routes = lab.client.record_id(label), len(prompts[i]) + len(seen[i]) - 1, want[str(i)]
        with eventually(lambda: lab.store.open(rid, 5.0), 10, f"the record of {label}") as record:
            rows = record.rows
            require(least <= rows < whole[i].rows, f"{label}: {rows} rows, the client saw {len(seen[i])} tokens")
            require(record.complete and not list(record.missing), f"{label}: missing {list(record.missing)}")
            total.add(compare.against_oracle(label, np.asarray(record.array()), routes.ids[:rows], routes.gap[:rows]))
    lab.expect_clean(total)
    return f"{total.pairs} pairs"


@proves("S1.12", "S1.6", "S4.7")
def check_both_stages_have_the_new_weights_at_the_same_row(lab):
    lab.client.prepare_update()
    for which, label in ((1, "one"), (0, "none")):  # and back, for the checks that follow
        lab.client.reset_prefix_cache()
        lab.client.update(lab.model(which), label)
        done = lab.send(8, 4)
        expect_text(lab, done, which)
        lab.expect_routes(done, which=which)
        for c in done:
            with lab.store.open(c.id, 10.0) as record:
                require(len(record.versions) == 1, f"{c.id}: versions {list(record.versions)}")
