# SPDX-License-Identifier: Apache-2.0
"""Observe, the default: nothing is delayed, every way that weights change moves the epoch, rows carry versions."""
import time

from moorlab import load, models
from moorlab.scenario import Group, eventually, proves, require

GROUP = Group(tp=2, moor={}, engines=("vllm",))


def epoch_of(lab):
    c = lab.one([5, 6, 7], 3)
    with lab.store.open(c.id, 10.0) as record:
        versions = [tuple(v[:2]) for v in record.versions]
    require(len(versions) == 1 and versions[0][0] == 0, f"versions {versions}")
    return versions[0][1]


@proves("S4.7", "S4.8")
def check_update_calls_move_the_epoch_and_rows_carry_it(lab):
    client = lab.client
    client.init_weights()
    before = epoch_of(lab)
    first = lab.send(8, 4)
    lab.expect_routes(first, which=0)
    client.pause("wait")
    client.start_update()
    client.update_weights(models.weights_file(lab.model(1)))
    client.finish_update("seven")
    client.resume()
    after = epoch_of(lab)
    require(after > before, f"epoch {before} before, {after} after the update")
    lab.expect_routes(lab.send(8, 4), which=1)
    for c in first:
        with lab.store.open(c.id, 10.0) as record:
            require([tuple(v[:2]) for v in record.versions] == [(0, before)], f"{c.id}: an old record's version moved")


@proves("S4.6", "S1.6")
def check_kept_requests_carry_both_versions(lab):
    """pause?mode=keep: the request is frozen over the update and goes on with new weights; a drain would never end."""
    before = epoch_of(lab)
    jobs = [load.Job([5, 6, 7, 8], 300, lab.label(), more=dict(ignore_eos=True))]
    flying = load.Load(lab.client, jobs, 1).start()
    time.sleep(0.5)
    begin = time.monotonic()
    lab.client.pause("keep")
    lab.client.start_update()
    lab.client.update_weights(models.weights_file(lab.model(0)))
    lab.client.finish_update("eight")
    lab.client.resume()
    require(time.monotonic() - begin < 10, "the update waited for a request that was frozen")
    result = flying.finish()
    require(not result.failed, f"{result.failed}")
    c = next(iter(result.done.values()))
    with lab.store.open(c.id, 10.0) as record:
        versions = [tuple(v[:2]) for v in record.versions]
        require(record.rows == c.rows and record.complete, f"{record.rows} rows of {c.rows}")
    require(len(versions) == 2 and versions[0] == (0, before) and versions[1][1] > before
            and 4 <= versions[1][0] < c.rows, f"versions {versions}")
    return f"versions {versions}"


@proves("S4.7")
def check_reload_by_rpc_moves_the_epoch(lab):
    before = epoch_of(lab)
    lab.client.collective_rpc("reload_weights", weights_path=lab.model(1))
    lab.client.reset_prefix_cache()
    after = epoch_of(lab)
    require(after > before, f"reload_weights by collective_rpc did not move the epoch ({before})")


@proves("S4.8")
def check_nothing_waited(lab):
    status = lab.store.gate.status()
    state = status["state"] if isinstance(status, dict) else status.state
    require(str(state) in ("open", "0"), f"the gate is {state} in observe mode")
    eventually(lambda: lab.number("weight_updates") >= 3, 2, "weight_updates_total counts the three changes")
