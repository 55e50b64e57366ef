# SPDX-License-Identifier: Apache-2.0
"""Several `LLM`s in one process: Moor serves one at a time, whichever came first; the next, when it is gone."""
from moorlab import models
from moorlab.scenario import Group, proves, require

SERVERLESS = True
GROUP = Group(engines=("vllm", "vllm024"))
ROWS = [75, 8] * 2  # 70 + 6 - 1, 3 + 6 - 1


def said(lab):
    if not hasattr(lab, "said"):
        moe, other, dense, second = [models.ensure(family, seed, lab.python)
                                     for family, seed in (("qwen3", 0), ("mixtral", 0), ("dense", 0), ("qwen3", 1))]
        lab.said = lab.program("moorlab.two_llms", moe, other, dense, second, "+", other, VLLM_ENABLE_V1_MULTIPROCESSING="0")
    return lab.said


def expect_own(what, got, experts):
    want = [dict(id=str(i), field=rows, records=[[rows, 0, experts, True]]) for i, rows in enumerate(ROWS)]
    require(got == want, f"{what}: {got}, {want} expected")


@proves("S1.2", "S1.21")
def check_one_after_the_other_has_its_own(lab):
    moe, other, dense, second = said(lab)["after"]
    expect_own("the first", moe, 16)
    expect_own("another model", other, 8)
    require(not any(x["field"] for x in dense), f"a dense model's fields: {dense}")
    expect_own("a model after a dense one", second, 16)


@proves("S1.1", "S1.21")
def check_one_beside_the_other_says_that_it_has_none(lab):
    got = said(lab)
    lines = [line for line in got["log"].splitlines() if "another engine of this process is served by Moor" in line]
    require(len(lines) == 1, f"{len(lines)} lines say that the other one is not served: {lines}")
    for when in ("beside", "again"):
        require(not any(x["field"] for x in got[when]), f"fields of an engine that is not served: {got[when]}")
        for x in got[when]:
            require(len(x["records"]) == 1 and x["records"][0][2] == 16, f"records of id {x['id']}, which the first engine gave too: {x}")
    for i, x in enumerate(got["first"]):
        require(x["field"] == ROWS[i] and x["id"] == str(4 + i), f"the first engine beside the other: {x}")
        require(x["records"] == [[ROWS[i], 0, 16, True]], f"the first engine beside the other: {x}")
    require(not any(got["counters"].values()), f"{got['counters']}")
