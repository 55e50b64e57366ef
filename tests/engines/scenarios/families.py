# SPDX-License-Identifier: Apache-2.0
"""More than 256 experts (two bytes an id) and a dense first layer (no column)."""
from moorlab import models
from moorlab.scenario import ALL, Group, proves

GROUP = Group(**models.QWEN3_300, moor={"record": {"validate": "seal"}}, engines=(*ALL, "vllm024"))


@proves("S1.3", "S1.20", "DESIGN: a row")
def check_two_byte_ids_and_dense_layer(lab):
    done = lab.send(12, 4)
    t = lab.expect_routes(done)
    with lab.store.open(done[0].id, 10.0) as record:
        lab.expect_dense_layers_empty(record)
    return f"{t.pairs} pairs"
