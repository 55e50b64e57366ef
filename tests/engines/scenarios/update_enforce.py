# SPDX-License-Identifier: Apache-2.0
"""Enforce, two ranks: the gate at an update, the barrier before the KV cache resumes."""
import os
import signal
import subprocess
import sys
import threading
import time

from moorlab import load, models, oracle
from moorlab.client import HttpError
from moorlab.scenario import ALL, Group, eventually, proves, require

TIMEOUT_S = 8  # of the barrier: a trainer that lets go while it is waited for must be heard of within it, on a busy machine too
GROUP = Group(tp=2, engines=(*ALL, "vllm024"), updates=True, moor={
    "weights": {"timeout_s": 20},  # how long a request waits at a closed gate
    "gate": {"mode": "enforce", "drain_timeout_s": 60}, "barrier": {"mode": "enforce", "timeout_s": TIMEOUT_S},
    "cleanup": {"mode": "light"}})


def gate_state(lab):
    return lab.store.gate.status()["state"]


@proves("S1.2", "DESIGN: one recorder of two ranks")
def check_two_ranks_one_record(lab):
    lab.client.prepare_update()
    t = lab.expect_routes(lab.send(16, 8))
    return f"{t.pairs} pairs"


@proves("S4.1", "S4.5", "S1.6")
def check_update_under_load(lab):
    """16 in flight finish, none is aborted, new ones wait; each record's one version is the weights that made it."""
    done = lab.update_under_load(1, "one", load.make_jobs(500, 5, lab.label(), prompt_max=32, tokens=(16, 32)))
    require(all(c.finish == "length" for c in done), "a request did not run to its end")
    routes = [lab.oracle.rows(lab.model(w), {c.id: c.all_tokens for c in done}) for w in (0, 1)]
    by_weights, epochs = ([], []), {}
    for c in done:
        agree = [oracle.greedy_agreement(r[c.id], c.all_tokens, len(c.prompt)) for r in routes]
        whole = [w for w in (0, 1) if agree[w][0] == agree[w][1]]
        require(len(whole) == 1, f"{c.id}: tokens of no one weight set: {agree}")
        by_weights[whole[0]].append(c)
        with lab.store.open(c.id, 10.0) as record:
            versions = [tuple(v[:2]) for v in record.versions]
        require(len(versions) == 1, f"{c.id}: versions {versions}: it straddled the update")
        epochs.setdefault(versions[0][1], set()).add(whole[0])
    require(by_weights[0] and by_weights[1], f"{len(by_weights[0])} and {len(by_weights[1])}: the update was not in the middle")
    require(len(epochs) == 2 and epochs[min(epochs)] == {0} and epochs[max(epochs)] == {1}, f"epochs {epochs}")
    for w in (0, 1):
        lab.expect_routes(by_weights[w], which=w)
    require(gate_state(lab) == "open", f"the gate is {gate_state(lab)} after the update")
    return f"{len(by_weights[0])} before, {len(by_weights[1])} after, epochs {sorted(epochs)}"


@proves("S4.1", "S4.3")
def check_arrivals_wait_while_the_gate_is_sealed(lab):
    lab.client.update_begin(lab.model(0))
    flying = load.Load(lab.client, [load.Job([5, 6, 7], 4, lab.label())], 1).start()
    time.sleep(1.0)
    require(flying.done_count() == 0, "a request was answered in the middle of an update")
    lab.client.update_rest(lab.model(0), "two")
    result = flying.finish(60)
    require(not result.failed, f"{result.failed}")
    lab.expect_routes(list(result.done.values()), which=0)


@proves("S6.1", "S6.2")
def check_light_cleanup_is_counted(lab):
    """One empty_cache a rank where the engine does one per bucket or none; no collection."""
    phase, empties = lab.engine.cleanup
    got = lab.stats()["cleanup"][phase]
    want = {"gc": 0, "empty_cache": empties * GROUP.tp, "synchronize": 0, "retry": 0}
    require(all(got[k] == v for k, v in want.items()), f"{phase}: {got}, expected {want}")


class Holder:
    """A trainer in a process of its own that holds cpu:0."""

    def __init__(self, lab, label):
        code = ("import moor,sys\ns=moor.attach('default',10.0)\nh=s.hold('cpu:0',sys.argv[1])\nh.__enter__()\n"
                "print('held',flush=True)\nsys.stdin.readline()\nh.__exit__(None,None,None)\n"
                "print('released',flush=True)\nsys.stdin.readline()\n")
        env = dict(os.environ, MOOR_DIR=lab.server.dir, PYTHONPATH=lab.build.pythonpath)
        self.p = subprocess.Popen([sys.executable, "-c", code, label], env=env, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        require(self.p.stdout.readline().strip() == "held", "the trainer could not take its hold")

    def release(self):
        self.p.stdin.write("\n")
        self.p.stdin.flush()
        require(self.p.stdout.readline().strip() == "released", "the trainer could not release its hold")

    def end(self, sig=signal.SIGTERM):
        self.p.send_signal(sig)
        self.p.wait()
        self.p.stdin.close()
        self.p.stdout.close()


def wake_in_thread(lab):
    out = {}

    def work():
        try:
            lab.client.wake_kv()
            out["error"] = None
        except Exception as e:
            out["error"] = e
        out["at"] = time.monotonic()

    thread = threading.Thread(target=work)
    thread.start()
    return thread, out


def put_to_sleep(lab):
    lab.client.sleep()
    lab.client.wake_weights()


@proves("S5.1", "S4.8")
def check_no_hold_no_wait(lab):
    put_to_sleep(lab)
    begin = time.monotonic()
    lab.client.wake_kv()  # refused where the barrier waited to its deadline
    took = time.monotonic() - begin
    lab.expect_routes([lab.one([5, 6, 7], 6)], which=0)
    return f"awake in {took * 1e3:.0f} ms"


@proves("S5.1")
def check_kv_waits_for_the_trainers_hold(lab):
    put_to_sleep(lab)
    holder = Holder(lab, "actor-update")
    try:
        thread, out = wake_in_thread(lab)
        time.sleep(1.0)
        require("at" not in out, "the KV cache woke while a trainer held the device")
        before = time.monotonic()
        holder.release()
        thread.join(TIMEOUT_S + 60)
        require(out.get("error", 1) is None, f"the wake-up failed: {out.get('error')}")
        late = out["at"] - before
    finally:
        holder.end()
    lab.expect_routes([lab.one([5, 6, 7], 6)], which=0)
    return f"awake {late * 1e3:.0f} ms after the release"


@proves("S5.1", "S5.3")
def check_a_killed_trainers_hold_ends(lab):
    put_to_sleep(lab)
    holder = Holder(lab, "actor-killed")
    thread, out = wake_in_thread(lab)
    time.sleep(0.5)
    holder.end(signal.SIGKILL)
    killed = time.monotonic()
    thread.join(TIMEOUT_S + 60)
    require(out.get("error", 1) is None, f"the wake-up failed: {out.get('error')}")  # at its deadline it would have
    return f"awake {(out['at'] - killed) * 1e3:.0f} ms after the holder's death"


@proves("S5.3")
def check_deadline_names_the_holder_and_refuses(lab):
    put_to_sleep(lab)
    holder = Holder(lab, "actor-forgot")
    try:
        begin = time.monotonic()
        thread, out = wake_in_thread(lab)
        thread.join(TIMEOUT_S + 60)
        require("at" in out, "the wake-up did not come back")
        took = out["at"] - begin
        require(isinstance(out["error"], HttpError), f"the KV cache woke beside a hold after {took:.1f} s")
        require(TIMEOUT_S - 1 < took < TIMEOUT_S + 60, f"the deadline of {TIMEOUT_S} s came after {took:.1f} s")
        text = lab.server.log_text() + str(out["error"])
        require("actor-forgot" in text and str(holder.p.pid) in text, "the error names neither label nor pid of the holder")
        require(lab.client.is_sleeping() in (True, None), "the engine says it is awake after a refused wake-up")
        require(gate_state(lab) != "open", "the gate is open after a refused wake-up")
    finally:
        holder.end()
    if lab.engine.refusal_poisons:
        status = lab.store.gate.status()
        require(status["poisoned"] and "actor-forgot" in status["poison_reason"], f"{status}")
        lab.store.gate.acknowledge()
    lab.client.wake_kv()
    lab.expect_routes([lab.one([5, 6, 7], 6)], which=0)
    eventually(lambda: lab.number("barrier_timeouts") >= 1, 20, "barrier_timeouts_total")


@proves("S4.10")
def check_doubled_calls_are_harmless(lab):
    """Waking and resuming what is awake."""
    lab.client.wake_kv()
    lab.client.wake_weights()
    if hasattr(lab.client, "resume"):
        lab.client.resume()
        lab.client.resume()
    lab.expect_routes([lab.one([5, 6, 7], 6)], which=0)


@proves("S4.4", "S4.9")
def check_update_that_one_rank_rejects(lab):
    """All report the error, the gate stays closed and says why, the label stays, nobody is served. Last: vLLM's ranks are
    left with different weights, and the one that loaded them cannot run before a full reload."""
    lab.need("reject")
    path, label = models.weights_file(lab.model(1)), lab.client.weight_version()
    lab.client.start_update()
    try:
        lab.client.update_weights(path, fail_rank=1)
        require(False, "an update that a rank rejected was reported as done")
    except HttpError:
        pass
    require(gate_state(lab) != "open", "the gate is open after a rejected update")
    require(lab.client.weight_version() == label, "the label moved")
    eventually(lambda: not lab.client.is_paused(), 60, "Moor's own pause outlives the update that failed")
    impatient = type(lab.client)(lab.client.port, timeout=1.5)
    try:
        impatient.complete([5, 6, 7], 4, lab.label())
        require(False, "a request ran on weights that were installed in part")
    except TimeoutError:
        impatient.close()
    try:
        lab.client.resume()
        require(False, "the gate reopened although the version of the weights is unknown")
    except HttpError as e:
        require("poisoned" in str(e) and "refuses these weights" in str(e), f"the refusal does not say why: {e}")
