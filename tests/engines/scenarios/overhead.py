# SPDX-License-Identifier: Apache-2.0
"""With {"moor": {}} and nobody who reads, updates or trains: nothing waits. The throughput beside a bare server is a figure, not a verdict."""
from moorlab import load
from moorlab.scenario import Group, proves, require

SERVERLESS = True
GROUP = Group(tp=2, moor={}, engines=("vllm",))
ROUNDS = 8


@proves("Done when: with an empty configuration nothing waits; tokens/s beside a run without Moor")
def check_nothing_waits(lab):
    with lab.new_server(name="overhead-moor") as moor_server:
        moor_server.freeze()
        try:
            bare = lab.new_server(name="overhead-bare", moor=None, build=None).start()
        finally:
            moor_server.thaw()
        try:
            def jobs(r, name):
                return load.make_jobs(32, 300 + r, f"o{r}-{name}", tokens=(24, 48))

            servers = [moor_server, bare]
            load.interleaved(servers, jobs, 1)
            speeds = load.interleaved(servers, jobs, ROUNDS)
            metrics = moor_server.client().metrics()
        finally:
            bare.stop(check=False)
    ratio, (low, high) = load.overhead(speeds[bare.name], speeds[moor_server.name])
    waits = {name: value for name, value in metrics.items() if name.startswith("moor_") and "wait" in name and value}
    require(not waits, f"something waited: {waits}")
    return f"tokens/s ratio {ratio:.3f}, paired {low:.3f} to {high:.3f}, {ROUNDS} interleaved rounds"
