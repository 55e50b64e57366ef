# SPDX-License-Identifier: Apache-2.0
"""Observe, the default: nothing is delayed, every way that weights change moves the epoch, rows carry versions."""
import time

from moorlab.scenario import ALL, Failure, Group, eventually, proves, require

GROUP = Group(tp=2, moor={}, engines=ALL, updates=True)


def epoch_of(lab):
    c = lab.one([5, 6, 7], 3)
    with lab.store.open(c.id, 10.0) as record:
        versions = [tuple(v[:2]) for v in record.versions]
    require(len(versions) == 1 and versions[0][0] == 0, f"versions {versions}")
    return versions[0][1]


@proves("S4.7", "S4.8")
def check_update_calls_move_the_epoch_and_rows_carry_it(lab):
    lab.client.prepare_update()
    before = epoch_of(lab)
    first = lab.send(8, 4)
    lab.expect_routes(first, which=0)
    if "reset" not in lab.engine.cannot:
        lab.client.reset_prefix_cache()  # an update without a pause keeps the cached prefixes of the old weights, and Moor only observes
    lab.client.update(lab.model(1), "seven")
    after = epoch_of(lab)
    require(after > before, f"epoch {before} before, {after} after the update")
    lab.expect_routes(lab.send(8, 4), which=1)
    for c in first:
        with lab.store.open(c.id, 10.0) as record:
            require([tuple(v[:2]) for v in record.versions] == [(0, before)], f"{c.id}: an old record's version moved")


@proves("S4.6", "S1.6")
def check_kept_requests_carry_both_versions(lab):
    """Paused so that the request stays: it is frozen over the update and goes on with new weights; a drain would never end."""
    lab.need("keep")
    before = epoch_of(lab)
    flying = lab.frozen(lab.client.keep, lab.client.resume)
    begin = time.monotonic()
    lab.client.update(lab.model(0), "eight")
    lab.client.resume()
    took = time.monotonic() - begin
    require(took < 60, f"the update took {took:.1f} s: it waited for a request that was frozen")
    result = flying.finish()
    require(not result.failed, f"{result.failed}")
    c = next(iter(result.done.values()))
    with lab.store.open(c.id, 10.0) as record:
        versions = [tuple(v[:2]) for v in record.versions]
        require(record.rows == c.rows and record.complete, f"{record.rows} rows of {c.rows}")
    require(len(versions) == 2 and versions[0] == (0, before) and versions[1][1] > before
            and 4 <= versions[1][0] < c.rows, f"versions {versions}")
    return f"versions {versions}"


@proves("S4.2")
def check_a_request_given_up_during_a_pause_is_settled(lab):
    """It never ran, and no record of it comes: nobody waits for one."""
    lab.need("keep")

    def in_flight(n):
        return lambda: lab.store.gate.status()["in_flight"] == n
    eventually(in_flight(0), 20, "nothing is in flight")
    lab.client.keep()
    impatient = type(lab.client)(lab.client.port, timeout=5.0)
    try:
        impatient.complete([5, 6, 7], 3, lab.label())
        raise Failure("a paused engine answered")
    except TimeoutError:
        pass  # the connection is closed with it
    lab.client.resume()
    eventually(in_flight(0), 30, "the request that was given up is settled")


@proves("S4.7")
def check_reload_by_rpc_moves_the_epoch(lab):
    lab.need("rpc")
    before = epoch_of(lab)
    lab.client.collective_rpc("reload_weights", weights_path=lab.model(1))
    lab.client.reset_prefix_cache()
    after = epoch_of(lab)
    require(after > before, f"reload_weights by collective_rpc did not move the epoch ({before})")


@proves("S4.8")
def check_nothing_waited(lab):
    require(lab.store.gate.status()["state"] == "open", f"{lab.store.gate.status()} in observe mode")
    updates = 1 + ("keep" not in lab.engine.cannot) + ("rpc" not in lab.engine.cannot)
    eventually(lambda: lab.number("weight_updates") >= updates, 20, f"weight_updates_total counts {updates} changes")
    require(lab.number("hook_errors") == 0, "a hook failed")
