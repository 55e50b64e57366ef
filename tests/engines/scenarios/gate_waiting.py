# SPDX-License-Identifier: Apache-2.0
"""10,000 requests that wait: what they cost the front end, and what /health takes meanwhile, beside the engine's own pause.

The figures are printed; the verdicts are ratios. $MOOR_TEST_WAITING: how many requests."""
import contextlib
import os
import statistics
import time
from concurrent import futures

from moorlab import crowd
from moorlab.scenario import Group, eventually, proves, require

SERVERLESS = True
GROUP = Group(engines=("vllm",), moor={"gate": {"mode": "enforce", "drain_timeout_s": 60}, "weights": {"timeout_s": 3000}})
MANY = int(os.environ.get("MOOR_TEST_WAITING", "10000"))
WATCHED_S = 20
BODY = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0.0}


def quiet(pid):
    """Nothing more to do for the front end: what was sent has got as far as it can."""
    cpu, begin = crowd.cpu_seconds(pid), time.monotonic()
    time.sleep(1)
    return crowd.cpu_seconds(pid) - cpu < 0.05 * (time.monotonic() - begin)


def measure(lab, srv, waiting, release):
    """{phase: (cores, times)}: idle, with everybody waiting, and while they are admitted and answered."""
    pid, client, got = srv.proc.pid, srv.client(), {}
    client.complete([5, 6, 7], 1, "warm")
    got["idle"] = crowd.watch_health(pid, srv.port, WATCHED_S)
    client.post("/pause", query={"mode": "wait"})
    begin, cpu = time.monotonic(), crowd.cpu_seconds(pid)
    people = crowd.Crowd(srv.port, MANY, "/v1/completions", BODY, lambda i: f"{lab.name}-{i}")
    try:
        eventually(lambda: waiting() >= MANY and quiet(pid), 600, f"{MANY} wait, {waiting()} are seen")
        got["arrival"] = (crowd.cpu_seconds(pid) - cpu) / MANY, time.monotonic() - begin
        got["waiting"] = crowd.watch_health(pid, srv.port, WATCHED_S)
        require(people.gather(0.1) == MANY, f"answered during the pause: {people.answers}")
        begin, cpu = time.monotonic(), crowd.cpu_seconds(pid)
        client.post("/resume")
        got["release"] = crowd.watch_health(pid, srv.port, 900, lambda: people.gather(0.05))
        release()
        require(people.answers == {"200": MANY}, f"answers: {people.answers}, {people.open} open")
        got["answered"] = (crowd.cpu_seconds(pid) - cpu) / MANY, time.monotonic() - begin
    finally:
        people.leave()
    return got


def tell(name, got):
    return (f"{name}: idle {crowd.told(*got['idle'])}; {MANY} waiting {crowd.told(*got['waiting'])}; "
            f"answering {crowd.told(*got['release'])}; arrival {got['arrival'][0] * 1e3:.2f} ms of CPU each, "
            f"answer {got['answered'][0] * 1e3:.2f}, all after {got['answered'][1]:.1f} s")


@proves("S4.1", "S4.8", "S4.14", "Done when: 10,000 waiting requests, CPU of the front end and /health latency")
def check_waiting_costs_nothing(lab):
    bare, srv = lab.new_server(name="bare", moor=None, build=None), lab.new_server(name="gate")
    with futures.ThreadPoolExecutor() as both, contextlib.ExitStack() as servers:  # a server dies with the thread that started it
        list(both.map(servers.enter_context, (bare, srv)))
        srv.freeze()  # who is not measured costs nothing
        own = measure(lab, bare, lambda: MANY, lambda: None)  # what waits in its own pause the engine does not count
        bare.freeze()
        srv.thaw()
        store = lab.attach(srv)

        def all_gone():
            now = store.gate.status()
            require(now["waiting"] == 0, f"{now['waiting']} wait at the open gate")

        got = measure(lab, srv, lambda: store.gate.status()["waiting"], all_gone)
        metric = srv.client().metric_sum("moor_gate_waiting")
        require(metric == 0, f"moor_gate_waiting is {metric} at the end")
        full = store.stats()["counters"]["gate_full_total"]
        # records are sealed a little after the answers
        eventually(lambda: store.gate.status()["in_flight"] == 0, 60, "all tickets are settled")
        del store
    for phase in ("idle", "waiting", "release"):
        print(f"    {phase}: gate {crowd.told(*got[phase])}; the engine's own pause {crowd.told(*own[phase])}", flush=True)
    idle, waits = (statistics.median(got[phase][1]) for phase in ("idle", "waiting"))
    require(waits <= 2 * idle, f"/health takes {waits * 1e3:.1f} ms with {MANY} waiting, {idle * 1e3:.1f} ms idle")
    more = got["waiting"][0] - got["idle"][0]
    require(more <= 0.05, f"{MANY} waiting requests cost {more:.3f} of a core")
    return f"{tell('gate', got)}; {tell('own pause', own)}; {full} found no ticket free at first"
