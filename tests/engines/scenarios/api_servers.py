# SPDX-License-Identifier: Apache-2.0
"""Two front-end processes, one engine: they share the gate, and either delivers."""
import re

from moorlab import load
from moorlab.scenario import Failure, Group, proves, require

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
