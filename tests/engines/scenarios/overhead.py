# SPDX-License-Identifier: Apache-2.0
"""With {"moor": {}} and nobody who reads, updates or trains: as fast as without Moor, and nothing waits."""
from moorlab import load
from moorlab.scenario import Group, proves, require

SERVERLESS = True
GROUP = Group(tp=2, moor={}, engines=("vllm",))
ROUNDS = 8


@proves("Done when: tokens/s is at least 0.98 of a run without Moor")
def check_throughput(lab):
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
        finally:
            bare.stop(check=False)
    ratio, (low, high) = load.overhead(speeds[bare.name], speeds[moor_server.name])
    text = f"tokens/s ratio {ratio:.3f}, paired {low:.3f} to {high:.3f}, {ROUNDS} interleaved rounds"
    require(ratio >= 0.98, text)
    return text
