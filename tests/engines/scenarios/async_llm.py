# SPDX-License-Identifier: Apache-2.0
"""A program that uses AsyncLLM itself: any text may be an id, and a request may have several inputs."""
from moorlab.scenario import Group, proves, require

SERVERLESS = True
GROUP = Group(engines=("vllm", "vllm024"))


def said(lab):
    if not hasattr(lab, "said"):
        lab.said = lab.program("moorlab.async_llm", lab.model())
    return lab.said


@proves("S1.1")
def check_an_id_is_what_the_front_end_was_given(lab):
    """Never what its look says: "3_17" is no fourth sample of "17", nor is "a-1" the second prompt of "a"."""
    for i, (id, got) in enumerate(said(lab)["ids"].items()):
        require(got["of"].startswith(id + "-") and got["rows"] == 6 + i and got["same"], f"{id}: {got}, {6 + i} rows expected")
    require(not any(said(lab)["never"].values()), f"ids that nobody gave have records: {said(lab)['never']}")


@proves("S1.1")
def check_samples_of_an_odd_id(lab):
    group = said(lab)["group"]
    require([g[0].split("-")[0] for g in group] == ["0_0_g", "1_0_g", "2_0_g"] and all(g[1] for g in group), f"{group}")


@proves("S4.2")
def check_no_ticket_is_left(lab):
    left = {k: v for k, v in said(lab).items() if k.startswith("left")}
    require(len(left) == 2 and not any(left.values()), f"tickets that nothing settles: {left}")


@proves("S1.20")
def check_each_turn_of_a_session_has_its_field(lab):
    """The last token of a turn is sampled and dropped: 4 + 5 tokens are 8 rows, 3 + 5 more are 15, 2 + 5 more 21."""
    whole = [[0, 8, True], [0, 15, True], [0, 21, True]]
    cut = whole if lab.engine.name == "vllm024" else [[2, 8, True], [3, 15, True], [0, 21, True]]  # 0.24 knows no start
    for id, turns in (("s_1", whole), ("s_2", whole), ("s_3", cut)):
        got = said(lab)[id]
        require(got == dict(turns=turns, rows=21, missing=[]), f"{id}: {got}, turns {turns} expected")


@proves("DESIGN: join points")
def check_no_hook_failed(lab):
    require(not any(said(lab)["counters"].values()), f"{said(lab)['counters']}")
