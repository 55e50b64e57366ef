# SPDX-License-Identifier: Apache-2.0
"""Preemption (SGLang: retraction, LMDeploy: eviction): too few KV blocks, so that running requests are put back and recomputed."""
from moorlab import load
from moorlab.scenario import ALL, Group, Skipped, eventually, proves, require

GROUP = Group(moor={}, engines=(*ALL, "vllm024"), prefix=True, kv_tokens=544, args=["--max-num-seqs", "8"],
              options={"sglang": {"env": {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "20"}}})  # it plans too well


@proves("S1.6", "S1.7", "S1.15")
def check_recomputed_rows_keep_their_first_value(lab):
    before = lab.number("rows_dropped")
    # Any two of these that run side by side are too many for the cache at their end, however slowly they are sent. SGLang runs only
    # what it has room for to the end; it retracts from a batch of two or more, each so many steps.
    tokens = (40, 80) if lab.engine.name == "sglang" else (280, 320)
    done = lab.send(12, 12, prompt_max=60, prefix_len=64, tokens=tokens)
    again = lab.number("rows_dropped") - before
    require(again > 0, "no row was computed twice: nothing was preempted, the check proves nothing")
    t = lab.expect_routes(done)
    return f"{t.pairs} pairs, {again:.0f} recomputed rows dropped"


@proves("S1.15")
def check_reused_slots_never_give_the_earlier_occupants_rows(lab):
    """Few blocks, many prompts: the cache is overwritten all the time, hits and misses mix."""
    with lab.prefix_rows(1):
        for seed in (1, 2, 1, 3):
            lab.expect_routes(lab.send(8, 4, seed=70 + seed, shared=4, prefix_seed=70 + seed, prefix_len=96))


@proves("S1.22")
def check_an_abort_before_the_first_token_has_nothing_to_deliver(lab):
    """A pause aborts what runs and what waits in line. The latter have no token: a response each, and nobody looks for routes."""
    if lab.engine.name != "vllm":
        raise Skipped("its pause is another one, or its field stays empty by itself")
    before = lab.number("deliver_errors")
    jobs = load.make_jobs(96, 90, lab.label(), prompt_max=40, tokens=(190, 200))
    flying = load.Load(lab.client, jobs, threads=24).start()
    eventually(lambda: lab.stats()["gate"]["in_flight"] >= 12, 60, "12 requests on their way, of which 8 run")
    flying.enough()
    lab.client.pause("abort")
    lab.client.resume()  # whoever came late runs
    result = flying.finish()
    require(not result.failed, f"lost requests: {result.failed}")
    idle = [c for c in result.done.values() if not c.tokens]
    require(idle, "every request had a token: the check proves nothing")
    require(all(c.raw_routes is None for c in idle), "routes of a request that never ran")
    failed = lab.number("deliver_errors") - before
    require(failed == 0, f"{failed:.0f} deliveries of {len(result.done)} failed")
    lab.expect_routes([c for c in result.done.values() if c.tokens])
    return f"{len(idle)} of {len(result.done)} without a token"
