# SPDX-License-Identifier: Apache-2.0
"""Two front-end processes, one engine: they share the gate, and either delivers."""
import os
import re

from moorlab import load
from moorlab.client import HttpError
from moorlab.scenario import Failure, Group, eventually, proves, require

FRONT_ENDS = 2
GROUP = Group(args=["--api-server-count", str(FRONT_ENDS), "--enable-log-requests"], engines=("vllm",), updates=True, moor={
    "gate": {"mode": "enforce", "drain_timeout_s": 60}, "weights": {"timeout_s": 60}})


@proves("S1.2", "S1.20", "S4.11")
def check_either_front_end_delivers(lab):
    """They accept from one socket: connections are made until both have had one."""
    pairs = 0
    for _ in range(10):
        pairs += lab.expect_routes(lab.send(16, 16)).pairs
        answered = set(re.findall(r"\(ApiServer_(\d+) [^\n]*request cmpl-", lab.server.log_text()))
        if len(answered) == FRONT_ENDS:
            return f"{pairs} pairs"
    raise Failure(f"front ends that answered: {answered} of {FRONT_ENDS}")


@proves("S4.1", "S4.5", "S4.11")
def check_an_update_waits_for_the_requests_of_both(lab):
    done = lab.update_under_load(1, "one", load.make_jobs(500, 6, lab.label(), tokens=(30, 60)), started=8)
    by_epoch = {}
    for c in done:
        with lab.store.open(c.id, 10.0) as record:
            versions = [tuple(v[:2]) for v in record.versions]
        require(len(versions) == 1, f"{c.id}: versions {versions}: it straddled the update")
        by_epoch.setdefault(versions[0][1], []).append(c)
    require(len(by_epoch) == 2, f"epochs {sorted(by_epoch)}")
    for which, epoch in enumerate(sorted(by_epoch)):
        lab.expect_routes(by_epoch[epoch], which=which)
    return ", ".join(f"{len(of)} at epoch {epoch}" for epoch, of in sorted(by_epoch.items()))


def over_a_new_connection(lab, call, *args):
    lab.client.close()
    return call(*args)


@proves("S4.6", "S4.11")
def check_each_call_of_a_keeping_update_may_come_to_either(lab):
    """Five calls over connections of their own, four times: whoever accepts one."""
    lab.client.prepare_update()
    before = lab.store.gate.status()["epoch"]
    for n in range(4):
        flying = load.Load(lab.client, [load.Job([5, 6, 7, 8], 300, lab.label(), more=dict(ignore_eos=True))], 1).start()
        rows = lab.number("rows_total")
        eventually(lambda: lab.number("rows_total") > rows + 8, 60, "the request runs")
        over_a_new_connection(lab, lab.client.keep)
        require(lab.store.gate.status()["kept"], "the gate does not say that requests are kept")
        over_a_new_connection(lab, lab.client.start_update)
        over_a_new_connection(lab, lab.client.update_weights, os.path.join(lab.model(n % 2), "model.safetensors"))
        over_a_new_connection(lab, lab.client.finish_update, f"kept-{n}")
        over_a_new_connection(lab, lab.client.resume)
        result = flying.finish()
        require(not result.failed, f"{result.failed}")
        status = lab.store.gate.status()
        require((status["state"], status["kept"], status["label"]) == ("open", False, f"kept-{n}"), f"{status}")
    require(status["epoch"] >= before + 4, f"epoch {before} before four updates, {status['epoch']} after")


@proves("S4.4")
def check_a_trainer_that_knows_only_the_engine(lab):
    """One died inside an update, the next one begins: it is told what happened and each way out, and one of them is HTTP."""
    lab.client.prepare_update()
    lab.client.start_update()
    for call in (lab.client.start_update, lab.client.resume):
        try:
            over_a_new_connection(lab, call)
            raise Failure("an update inside an update, and a resume after it, succeeded")
        except HttpError as e:
            told = e.body if isinstance(e.body, str) else e.body.decode()
    for way in ("s ago: weight update failed", "moor gate acknowledge", ".gate.acknowledge()", "POST /collective_rpc"):
        require(way in told, f"the error does not say {way!r}: {told}")
    answer = over_a_new_connection(lab, lab.client.collective_rpc, "moor_gate_acknowledge")
    require("weight update failed" in str(answer), f"{answer}")
    status = lab.store.gate.status()
    require(not status["poisoned"] and status["state"] != "open", f"{status}")
    over_a_new_connection(lab, lab.client.update_weights, os.path.join(lab.model(0), "model.safetensors"))
    over_a_new_connection(lab, lab.client.finish_update, "again")
    over_a_new_connection(lab, lab.client.resume)
    require(lab.store.gate.status()["state"] == "open", "the gate is closed after a whole update and a resume")
    lab.expect_routes(lab.send(4, 4), which=0)
