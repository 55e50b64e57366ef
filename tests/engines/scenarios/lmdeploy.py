# SPDX-License-Identifier: Apache-2.0
"""LMDeploy's HTTP server with its engine process, Moor by LD_PRELOAD and $MOOR_CONFIG: 300 experts, the first layer dense."""
import contextlib
import threading
import time

from moorlab import compare, lmdeploy, load, models, paths
from moorlab.scenario import Group, eventually, proves, require

GROUP = Group(family="qwen3_300", engines=("lmdeploy",))
SERVERLESS = True
PROMPTS = [job.prompt for job in load.make_jobs(8, 77, "p")] + [load.make_jobs(1, 78, "q", shared=1, prefix_len=150,
                                                                                  prefix_seed=78)[0].prompt]


@contextlib.contextmanager
def serving(lab, name, moor, **more):
    with lmdeploy.Server(lab.model(), lab.python, moor=moor, build=lab.build, name=f"lmdeploy-{name}", echo=paths.say,
                         **more) as server:
        lab.server = None
        yield server, server.client(), lab.attach(server)


def answers(client, n=7):
    """All prompts at once: batches of several, chunks of a prompt longer than 64 tokens."""
    got = [None] * len(PROMPTS)

    def one(i):
        got[i] = client.generate(PROMPTS[i], n + i)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(PROMPTS))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    require(all(got), "a request was lost")
    return got


def records(store, wanted):
    """Records by LMDeploy's own session numbers, which the HTTP response does not show: {rows: [record]}."""
    import moor

    found = []
    for number in range(400):
        try:
            found.append(store.open(str(number), 0.0))
        except (moor.NotFound, moor.Timeout):
            if len(found) >= wanted:
                break
    return found


def against_oracle(lab, answer, got):
    model = lab.model()
    layers, moe_layers, top_k, experts = models.shape(model)
    want = lab.oracle.rows(model, {"w": answer.all_tokens})["w"]
    return compare.against_oracle("w", got[:, moe_layers], want.ids, want.gap, experts)


@proves("S1.20", "S1.3")
def check_native_is_the_engines_own_and_the_oracles(lab):
    """The same prompts twice: once the engine fills its field (Moor records beside it), once Moor does, with the engine's
    capture off on its command line. Bit for bit equal where the model routes; 0, not memory's rest, where it does not."""
    import numpy as np

    model = lab.model()
    layers, moe_layers, top_k, experts = models.shape(model)
    with serving(lab, "own", {"record": {"deliver": "none"}}) as (server, client, store):
        own = answers(client)
        kept = {tuple(np.asarray(r.array(layers="moe", dtype="uint16")).ravel().tolist()) for r in records(store, len(own))}
        for a in own:
            require(a.routes is not None, "the engine's own field is empty")
            require(tuple(a.array()[:, moe_layers].ravel().tolist()) in kept, "no record equals the engine's own array")
    with serving(lab, "native", {}, capture=False) as (server, client, store):
        native = answers(client)
        total = compare.Tally()
        for a, b in zip(own, native):
            require(a.tokens == b.tokens, "greedy text differs between two servers")
            require(b.routes is not None, "Moor's field is empty")
            wrong = compare.bit_for_bit("field", b.array()[:, moe_layers], a.array()[:, moe_layers])
            require(wrong is None, wrong)
            dense = [i for i in range(layers) if i not in moe_layers]
            require(not b.array()[:, dense].any(), "a dense layer's column is not 0")
            total.add(against_oracle(lab, b, b.array()))
        stats = store.stats()["counters"]
        require(stats["hook_errors_total"] == 0 and stats["rows_missing_total"] == 0, f"{stats}")
        require(stats["delivered_total"] == len(PROMPTS), f"{stats['delivered_total']} deliveries")
    require(not total.errors and total.mismatches == 0 and total.pairs > 0,
            f"{total.mismatches} of {total.pairs} pairs differ from the oracle: {total.errors[:2]} {total.shown[:2]}")
    return f"{total.pairs} pairs"


@proves("DESIGN: delivery, ref", "S4", "S5")
def check_ref_sleep_and_barrier(lab):
    """References resolve to the oracle's rows; the gate closes with sleep and opens when the KV cache is back, which waits
    for a trainer that still holds memory of the device."""
    import numpy as np

    import moor

    moor_config = {"record": {"deliver": "ref"}, "gate": {"mode": "enforce"}, "barrier": {"mode": "enforce", "timeout_s": 60}}
    with serving(lab, "ref", moor_config, args=["--enable-prefix-caching"]) as (server, client, store):
        for a in [*answers(client), *answers(client)]:
            require(str(a.routes).startswith("moor1:"), f"the field is {str(a.routes)[:60]!r}")
            record = moor.resolve(a.routes)
            require(record.complete and record.rows == a.rows, f"{record.rows} rows of {a.rows}, missing {record.missing}")
            tally = against_oracle(lab, a, np.asarray(record.array(layers="model")))
            require(not tally.errors and not tally.mismatches, f"{tally.errors[:2]} {tally.shown[:2]}")
        require(store.stats()["counters"]["rows_prefix_total"] > 0, "no row came from a cached prefix")
        # Less than a block: LMDeploy 0.18 keeps its prefix cache across a sleep that drops the KV cache it describes.
        before = client.generate(PROMPTS[0][:10], 5)
        require(client.call("/sleep?level=1")[0] == 200, "/sleep")
        require(store.gate.status()["state"] != "open", "the gate is open while the engine sleeps")
        require(client.call("/wakeup?tags=weights")[0] == 200, "/wakeup?tags=weights")
        require(store.gate.status()["state"] != "open", "the gate opened before the KV cache is back")
        hold = store.hold("cpu:0", "late trainer")
        hold.__enter__()
        begin, released = time.monotonic(), []

        def release():
            time.sleep(2.0)
            released.append(time.monotonic() - begin)
            hold.__exit__(None, None, None)

        thread = threading.Thread(target=release)
        thread.start()
        require(client.call("/wakeup?tags=kv_cache")[0] == 200, "/wakeup?tags=kv_cache")
        took = time.monotonic() - begin
        thread.join()
        require(released and took >= released[0], f"the KV cache was back after {took:.2f} s, before the trainer let go")
        require(store.stats()["counters"]["barrier_passed_total"] >= 1, "no barrier was passed")
        eventually(lambda: store.gate.status()["state"] == "open", 5, "the gate opens")
        require(client.generate(PROMPTS[0][:10], 5).tokens == before.tokens, "other tokens after the sleep")
        require(store.stats()["counters"]["hook_errors_total"] == 0, "a hook failed")
    return f"resume waited {took:.1f} s"
