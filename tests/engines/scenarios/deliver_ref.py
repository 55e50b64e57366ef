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


def rows_of_the_field(lab, c, start=0):
    """What the ref of a response names is what the engine's own field would be: of the tokens that the client knows, from a row on."""
    import numpy as np

    import moor
    from moorlab import compare

    with lab.store.open(c.id, 10.0) as direct, moor.resolve(c.raw_routes) as record:
        require((record.first_row, record.rows) == (start, c.rows - start),
                f"{c.id}: the ref names {record.rows} rows from {record.first_row} on, the field has {c.rows - start} from {start} on")
        wrong = compare.bit_for_bit(c.id, np.asarray(record.array()), np.asarray(direct.array(start, c.rows)))
        require(wrong is None, wrong)
        return direct.rows


@proves("S1.27", "S1.20")
def check_a_ref_leaves_out_what_the_request_leaves_out(lab):
    lab.need("prompt_start")
    c = lab.one([5, 6, 7, 8, 9, 10], 5, **lab.client.from_row(4))
    require(rows_of_the_field(lab, c, 4) == c.rows, "the record is not whole")


@proves("S1.27", "S1.18")
def check_a_ref_ends_where_the_client_does(lab):
    """A stop token that the response does not show has a row in the record, and none in the field."""
    whole = lab.one([31, 32, 33], 12)
    stop = whole.tokens[5]
    cut = lab.one([31, 32, 33], 12, stop_token_ids=[stop], ignore_eos=False)
    require(cut.finish == "stop", f"{cut.finish}")
    rows = rows_of_the_field(lab, cut)
    require(rows == cut.rows + lab.engine.hides_stop, f"the record has {rows} rows, the field {cut.rows}")


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
