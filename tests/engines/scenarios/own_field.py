# SPDX-License-Identifier: Apache-2.0
"""The engine captures by itself and keeps its field; Moor records beside it: the two must agree bit for bit."""
from moorlab import compare, models
from moorlab.scenario import Group, proves, require

# vLLM refuses its own capture on a CPU. 300 experts need two bytes; the first layer is dense.
GROUP = Group(**models.QWEN3_300, moor={"record": {"deliver": "none"}}, engines=("sglang", "lmdeploy"), prefix=True,
              options={"sglang": {"capture": True}, "lmdeploy": {"capture": True}})


@proves("S1.20", "S1.3", "S1.15")
def check_the_engines_own_field_is_the_record(lab):
    """In the layers that route: what a dense layer's column holds is the engine's affair."""
    _, moe_layers, _, _ = models.shape(lab.model())
    done = [*lab.send(12, 4, **lab.client.from_row(0)), *lab.send(6, 2, shared=6, **lab.client.from_row(0))]
    for c in done:
        require(c.raw_routes is not None, f"{c.id}: the engine's own field is empty")
        with lab.store.open(c.id, 10.0) as record:
            wrong = compare.bit_for_bit(f"{c.id}: the engine's field against the record", c.routes()[:, moe_layers],
                                        lab.as_field(record, c)[:, moe_layers])
        require(wrong is None, wrong)
    t = lab.expect_routes(done, http=False)
    return f"{len(done)} fields, {t.pairs} pairs"
