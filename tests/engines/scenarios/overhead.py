# SPDX-License-Identifier: Apache-2.0
"""With {"moor": {}} and nobody who reads, updates or trains: nothing waits. The throughput beside a bare server is a figure, not a verdict."""
from moorlab import load, versus
from moorlab.scenario import Group, proves, require

SERVERLESS = True
GROUP = Group(tp=1, moor={}, engines=("vllm",))
ROUNDS = 10


@proves("Done when: with an empty configuration nothing waits; tokens/s beside a run without Moor")
def check_nothing_waits(lab):
    def make(name, with_moor):
        return lab.new_server(name=name, **({} if with_moor else dict(moor=None, build=None)))

    got = versus.measure(make, lambda r, name: load.make_jobs(48, 300 + r, f"o{r}-{name}", tokens=(48, 96)), ROUNDS)
    waits = {name: value for name, value in got.metrics.items() if name.startswith("moor_") and "wait" in name and value}
    require(not waits, f"something waited: {waits}")
    return (f"tokens/s with Moor : without = {got.ratio}; of the later servers : of the earlier, for comparison = {got.noise}; "
            f"{ROUNDS} interleaved rounds")
