# SPDX-License-Identifier: Apache-2.0
"""More than 256 experts (two bytes an id) and a dense first layer (no column)."""
from moorlab import models
from moorlab.scenario import ALL, Group, proves, require

# SGLang takes every layer of a Qwen3-MoE for sparse, whatever the model's mlp_only_layers say.
GROUP = Group(family="qwen3_300", families={"sglang": "qwen3_300_sparse"}, moor={"record": {"validate": "seal"}}, engines=ALL)


@proves("S1.3", "S1.20", "DESIGN: a row")
def check_two_byte_ids_and_dense_layer(lab):
    import numpy as np

    layers, moe_layers, _, _ = models.shape(lab.model())
    done = lab.send(12, 4)
    t = lab.expect_routes(done)
    with lab.store.open(done[0].id, 10.0) as record:
        full = np.asarray(record.array(layers="model"))
        dense = [i for i in range(layers) if i not in moe_layers]
        require(full.shape[1] == layers and not full[:, dense].any(), "a dense layer's column is not 0 in the model's layout")
    return f"{t.pairs} pairs"
