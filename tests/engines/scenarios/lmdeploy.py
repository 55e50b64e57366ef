# SPDX-License-Identifier: Apache-2.0
"""LMDeploy alone: an executor that cannot update, and a prefix cache that outlives the KV cache it describes."""
from moorlab import client
from moorlab.scenario import Group, proves, require

GROUP = Group(engines=("lmdeploy",), prefix=True, moor={"gate": {"mode": "enforce"}})


@proves("S4.4")
def check_an_executor_that_cannot_update_poisons_nothing(lab):
    """Without Ray /update_weights is not implemented, and nothing was touched."""
    lab.client.prepare_update()
    try:
        lab.client.update_begin(lab.model(1))
        require(False, "an executor without Ray took weights")
    except client.HttpError:
        pass
    status = lab.store.gate.status()
    require(status["state"] == "open" and not status["poisoned"], f"{status}")
    lab.expect_routes([lab.one([5, 6, 7], 6)])


@proves("S1.15", "S1.5")
def check_prefix_hits_after_a_sleep_are_missing(lab):
    """LMDeploy 0.18 keeps its prefix cache across a sleep that drops the KV cache: what such a hit reads is nobody's, and so
    its rows are missing, never those that once were."""
    prompt = list(range(20, 84))
    first = lab.one(prompt, 4)
    lab.expect_routes([first])
    lab.client.sleep()
    require(lab.store.gate.status()["state"] != "open", "the gate is open while the engine sleeps")
    lab.client.wake_weights()
    lab.client.wake_kv()
    again = lab.one(prompt, 4, routes=False)
    with lab.store.open(again.id, 10.0) as record:
        missing = [tuple(m) for m in record.missing]
        require(not record.complete and missing and missing[0][0] == 0, f"complete {record.complete}, missing {missing}")
    lab.expect_routes([lab.one([5, 6, 7], 6)])
