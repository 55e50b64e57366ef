# SPDX-License-Identifier: Apache-2.0
"""record.deliver = ref: the engine's own field carries a short string that names the record."""
from moorlab.scenario import ALL, Group, proves, require

GROUP = Group(moor={"record": {"deliver": "ref"}}, engines=ALL,
              options={"sglang": {"overlap": False}})  # everywhere else the overlap scheduler runs


@proves("DESIGN: delivery, ref", "S1.20")
def check_refs_resolve_to_the_records(lab):
    import numpy as np

    import moor
    from moorlab import compare

    store = lab.store  # attaching sets $MOOR_DIR, which is also where resolve() looks
    done = lab.send(8, 4)
    for c in done:
        require(c.raw_routes and c.raw_routes.startswith("moor1:"), f"{c.id}: the field is {str(c.raw_routes)[:60]!r}")
        record = moor.resolve(c.raw_routes)
        with store.open(c.id, 10.0) as direct:
            require(record.handle == direct.handle, f"{c.id}: the ref leads to another record")
            wrong = compare.bit_for_bit(c.id, np.asarray(record.array()), np.asarray(direct.array()))
            require(wrong is None, wrong)
        record.release()
    lab.expect_routes(done, http=False)


@proves("DESIGN: delivery, ref")
def check_a_stale_ref_is_refused(lab):
    import moor

    c = lab.one([5, 6, 7], 4)
    with lab.store.open(c.id, 10.0) as record:
        lab.store.discard(record)
    try:
        moor.resolve(c.raw_routes)
        require(False, "a ref to a discarded record resolved")
    except moor.Error:
        pass
