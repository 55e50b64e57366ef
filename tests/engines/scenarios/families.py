# SPDX-License-Identifier: Apache-2.0
"""More than 256 experts (two bytes an id) and a dense first layer (no column)."""
from moorlab.scenario import ALL, Group, proves, require

GROUP = Group(family="qwen3_300", moor={"record": {"validate": "seal"}}, engines=ALL)


@proves("S1.3", "S1.20", "DESIGN: a row")
def check_two_byte_ids_and_dense_layer(lab):
    import numpy as np

    done = lab.send(12, 4)
    t = lab.expect_routes(done)
    with lab.store.open(done[0].id, 10.0) as record:
        require(list(record.layer_ids) == [1, 2, 3], f"layers {list(record.layer_ids)}")
        full = np.asarray(record.array(layers="model"))
        require(full.shape[1] == 4 and not full[:, 0].any(), "the dense layer's column is not 0 in the model's layout")
    return f"{t.pairs} pairs"
