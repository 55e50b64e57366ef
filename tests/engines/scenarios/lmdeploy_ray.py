# SPDX-License-Identifier: Apache-2.0
"""LMDeploy with the model in a Ray worker: the ids come by Ray to the engine's process, which records them; weights are
updated over HTTP, which LMDeploy offers with Ray only."""
import base64
import pickle
from collections import OrderedDict

import numpy as np

from moorlab import compare, lmdeploy, load, models, paths
from moorlab.scenario import Group, proves, require

GROUP = Group(family="qwen3", engines=("lmdeploy",))
SERVERLESS = True
PROMPTS = [job.prompt for job in load.make_jobs(6, 79, "r", shared=2)]


def bucket(tensors, finished):
    """Body of /update_weights: LMDeploy rebuilds each tensor with arguments whose seventh it overwrites with its device."""
    import torch

    def plain(t):
        t = t.contiguous()
        storage = torch.storage.TypedStorage(wrap_storage=t.untyped_storage(), dtype=t.dtype, _internal=True)
        return torch._utils._rebuild_tensor_v2, (storage, 0, tuple(t.shape), tuple(t.stride()), False, OrderedDict(), None)

    named = [(name, plain(t)) for name, t in tensors]
    return dict(serialized_named_tensors=base64.b64encode(pickle.dumps(named)).decode(), finished=finished)


def expect_oracle(lab, answer, which):
    import moor

    record = moor.resolve(answer.routes)
    require(record.complete and record.rows == answer.rows, f"{record.rows} rows of {answer.rows}, missing {record.missing}")
    want = lab.oracle.rows(lab.model(which), {"w": answer.all_tokens})["w"]
    tally = compare.against_oracle("w", np.asarray(record.array()), want.ids, want.gap, models.shape(lab.model(which))[3])
    require(not tally.errors and not tally.mismatches and tally.pairs, f"weights {which}: {tally.errors[:2]} {tally.shown[:2]}")
    return record, tally.pairs


@proves("S1.3", "S1.6", "S4", "S6")
def check_record_and_update(lab):
    from safetensors.torch import load_file

    moor_config = {"record": {"deliver": "ref"}, "gate": {"mode": "enforce"}, "cleanup": {"mode": "light"}}
    with lmdeploy.Server(lab.model(), lab.python, moor=moor_config, build=lab.build, name="lmdeploy-ray", executor="ray",
                         echo=paths.say) as server:
        client, store = server.client(), lab.attach(server)
        before = [client.generate(p, 6) for p in PROMPTS]
        pairs = sum(expect_oracle(lab, a, 0)[1] for a in before)
        weights = list(load_file(models.weights_file(lab.model(1))).items())
        cut = len(weights) // 3
        for i, part in enumerate((weights[:cut], weights[cut:2 * cut], weights[2 * cut:])):
            status, text = client.call("/update_weights", bucket(part, finished=i == 2))
            require(status == 200, f"/update_weights: {status}: {text}")
            require((store.gate.status()["state"] == "open") == (i == 2), f"after bucket {i}: {store.gate.status()}")
        after = [client.generate(p, 6) for p in PROMPTS]
        epochs = set()
        for a in after:
            record, n = expect_oracle(lab, a, 1)
            pairs += n
            epochs |= {v[1] for v in record.versions}
        old = {v[1] for a in before for v in expect_oracle(lab, a, 0)[0].versions}
        require(len(epochs) == 1 and len(old) == 1 and max(old) < min(epochs), f"versions {old}, after the update {epochs}")
        transfer = store.stats()["cleanup"]["transfer"]
        require(transfer["empty_cache_skipped"] >= 2, f"the cache was emptied after every bucket: {transfer}")
        require(store.stats()["counters"]["hook_errors_total"] == 0, "a hook failed")
        roles = [p["roles"] for p in store.stats()["processes"]]
        require(any("worker" in r and "core" not in r for r in roles), f"no Ray worker joined: {roles}")
    return f"{pairs} pairs"
