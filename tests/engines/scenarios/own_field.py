# SPDX-License-Identifier: Apache-2.0
"""The engine captures by itself and keeps its field; Moor records beside it: the two must agree bit for bit."""
import numpy as np

from moorlab import compare, models
from moorlab.scenario import Group, Skipped, proves, require

# vLLM 0.32 refuses its own capture on a CPU, 0.24 fills the field with zeros. 300 experts need two bytes; the first layer is dense.
GROUP = Group(**models.QWEN3_300, moor={"record": {"deliver": "none"}}, engines=("vllm024", "sglang", "lmdeploy"), prefix=True,
              options={"vllm024": {"routes": True}, "sglang": {"capture": True}, "lmdeploy": {"capture": True}})


@proves("S1.20", "S1.3", "S1.15")
def check_the_engines_own_field_is_the_record(lab):
    """In the layers that route: what a dense layer's column holds is the engine's affair."""
    lab.need("capture")
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


@proves("S1.20")
def check_a_field_without_routes_has_the_records_form(lab):
    """Where the MoE of a CPU passes by the engine's capture, its field says 0 everywhere, and nothing of it: only its form can be compared."""
    if "capture" not in lab.engine.cannot:
        raise Skipped("its own capture works: the field is compared bit for bit")
    done = lab.send(12, 4)
    for c in done:
        field = c.routes()
        require(field is not None and not field.any(), f"{c.id}: the engine's own field is {field}: compare it bit for bit")
        with lab.store.open(c.id, 10.0) as record:
            ours = np.asarray(record.array(layers="model"))
        require((field.shape, field.dtype) == (ours.shape, ours.dtype),
                f"{c.id}: the engine's field is {field.dtype} {field.shape}, the record {ours.dtype} {ours.shape}")
    t = lab.expect_routes(done, http=False)
    return f"{len(done)} fields of zeros, {t.pairs} pairs of the records"
