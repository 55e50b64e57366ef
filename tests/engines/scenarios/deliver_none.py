# SPDX-License-Identifier: Apache-2.0
"""record.deliver = none: by request id only; the response stays as the engine made it."""
from moorlab.scenario import VLLM, Group, proves, require

GROUP = Group(moor={"record": {"deliver": "none"}}, engines=VLLM)  # own_field is that of the others


@proves("DESIGN: delivery, none")
def check_the_response_is_untouched_and_the_record_is_there(lab):
    done = lab.send(8, 4)
    require(all(c.raw_routes is None for c in done), "a response carries routes")
    t = lab.expect_routes(done, http=False)
    return f"{t.pairs} pairs"
