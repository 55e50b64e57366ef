# SPDX-License-Identifier: Apache-2.0
"""The demo: one rollout-train-update cycle of an MoE model on a real engine, with every claim checked as it is made.

Run through run.sh.  `--without-moor` runs the same flow on the bare engine: what is checked then is the demo itself
(tokens against the oracle, nothing lost), and what Moor would have prevented is shown.

Exit code: 0 everything right; 1 a mismatch, a loss, or anything else that is wrong; 77 the environment is absent.
"""
import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "lib"))

from moorlab import compare, engines, load, models, numbers, oracle, paths  # noqa: E402

FIRST, SECOND = "first", "second"
ENGINES = ("vllm", "sglang", "lmdeploy")
MIN_PAIRS = 3000


def clock():
    return f"{time.monotonic() - START:7.2f}"


START = time.monotonic()


def say(text):
    print(f"[{clock()}] {text}", flush=True)


class TrainerProcess:
    """The second process: asks go down its stdin, answers come back as JSON lines."""

    def __init__(self, python, build, moor_dir):
        env = paths.lab_env({"MOOR_DIR": moor_dir})
        env.pop("LD_PRELOAD", None)
        paths.add_to_pythonpath(env, build.pythonpath)
        self.lock = threading.Lock()
        self.proc = subprocess.Popen([python, os.path.join(HERE, "trainer.py")], env=env, text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        hello = self._answer()
        self.where = hello["moor"]

    def _answer(self):
        line = self.proc.stdout.readline()
        if not line:
            raise RuntimeError(f"the trainer's process ended with {self.proc.wait()}")
        return json.loads(line)

    def ask(self, do, **args):
        with self.lock:
            self.proc.stdin.write(json.dumps({"do": do, **args}) + "\n")
            self.proc.stdin.flush()
            answer = self._answer()
        if not answer.pop("ok"):
            raise RuntimeError(f"trainer, {do}: {answer['error']}\n{answer.get('trace', '')}")
        return answer

    def close(self):
        self.proc.stdin.close()
        try:
            self.proc.wait(10)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()


class Watch:
    """Opens every record in the trainer as soon as its response is there, while others are still generated."""

    def __init__(self, trainer, problems, name):
        self.trainer, self.problems, self.name = trainer, problems, name
        self.opened, self._queue = {}, queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work)
        if trainer:
            self._thread.start()

    def put(self, completion):
        if self.trainer:
            self._queue.put(completion)

    def _work(self):
        while (c := self._queue.get()) is not None:
            try:
                got = self.trainer.ask("open", id=c.id, timeout=10.0)
            except Exception as e:
                self.problems.append(f"{c.id}: {e}")
                continue
            self.opened[c.id] = got
            if got["rows"] != c.rows:
                self.problems.append(f"{c.id}: {got['rows']} rows, {c.rows} expected")
            if not got["zero_copy"]:
                self.problems.append(f"{c.id}: a segment is not a view of the arena")
            if len(self.opened) % 8 == 1:
                say(f"  trainer opened {c.id}: {got['rows']} rows x {got['layers']} layers x {got['top_k']} {got['dtype']}, "
                    f"{got['bytes']} bytes in {got['segments']} segment(s), versions {got['versions']}")

    def finish(self):
        if self.trainer:
            self._queue.put(None)
            self._thread.join()
        return self.opened


class Demo:
    def __init__(self, args):
        self.args = args
        self.engine = engines.get(args.engine)
        self.python = paths.engine_python(args.engine)
        self.build = None if args.without_moor else paths.find_moor()
        self.problems = []
        self.tally = {FIRST: compare.Tally(), SECOND: compare.Tally()}
        self.versions = {}      # epoch -> rows
        self.http_equal = 0
        self.requests = self.lost = 0
        self.gate, self.barrier, self.times = [], [], {}
        self.greedy = [0, 0]
        self.speeds = None
        self.trainer = None

    # ---- pieces
    def server(self, name, with_moor):
        moor = {"instance": "demo", "gate": {"mode": "enforce", "drain_timeout_s": 60},
                "barrier": {"mode": "enforce", "timeout_s": 30}, "cleanup": {"mode": "light"}}
        broken = self.args.broken if with_moor else None
        if broken in ("gate", "barrier"):
            moor[broken]["mode"] = "off"
        return self.engine.Server(self.model[FIRST], self.python, tp=self.args.tp, name=f"demo-{self.engine.name}-{name}",
                                  echo=say, moor=moor if with_moor else None, build=self.build if with_moor else None,
                                  loading=self.args.loading, **({"capture": True} if self.args.capture else {}),
                                  env={"MOOR_TEST_BREAK": broken} if broken in ("shift", "drop") else None,
                                  **self.engine.options, **self.engine.updating)

    def batch(self, title, seed, label, during=None, epochs=None):
        """Send 32 requests, run `during(load)` while they fly, then compare everything.
        `epochs`: the weight set of each epoch; None: whatever the tokens say (see judge)."""
        jobs = load.make_jobs(self.args.requests, seed, label)
        say(f"{title}: {len(jobs)} requests from {self.args.clients} clients, prompts of "
            f"{min(len(j.prompt) for j in jobs)} to {max(len(j.prompt) for j in jobs)} tokens")
        watch = Watch(self.trainer, self.problems, label)
        try:
            flying = load.Load(self.client, jobs, self.args.clients, on_done=watch.put).start()
            try:
                if during:
                    during(flying)
            finally:
                result = flying.finish()
        finally:
            self.all_opened.update(watch.finish())
        say(f"  {len(result.done)} answered, {len(result.failed)} lost, {result.tokens} tokens "
            f"in {result.seconds:.2f} s; {sum((c.cached_tokens or 0) > 0 for c in result.done.values())} hit the prefix cache")
        for rid, error in result.failed.items():
            self.problems.append(f"{rid}: lost: {error}")
        self.requests += len(jobs)
        self.lost += len(result.failed)
        made_by = self.judge(list(result.done.values()), label, epochs)
        if during and len(set(made_by.values())) < 2:
            self.problems.append("all requests were made by the same weights: that the update waits for them was not seen")
        return result

    def judge(self, done, label, epochs):
        """The oracle's word on one batch: tokens against both weight sets, then routes."""
        tokens = {c.id: c.all_tokens for c in done}
        sets = sorted(set(epochs.values())) if epochs else [FIRST, SECOND]
        begin = time.monotonic()
        files = {s: os.path.join(self.work, f"{label}-{s}.npz") for s in sets}
        routes = {s: self.oracle.rows(self.model[s], tokens, keep=files[s]) for s in sets}
        say(f"  oracle: transformers' routers on {len(done)} requests, {len(sets)} weight set(s), {time.monotonic() - begin:.2f} s")

        # Greedy tokens tell which weights made them, without Moor: that decides what each version must be.
        made_by = {}
        for c in done:
            agree = {s: oracle.greedy_agreement(routes[s][c.id], c.all_tokens, len(c.prompt)) for s in sets}
            best = max(sets, key=lambda s: agree[s][0])
            made_by[c.id] = best
            self.greedy[0] += agree[best][0]
            self.greedy[1] += agree[best][1]
            if agree[best][0] != agree[best][1]:
                self.problems.append(f"{c.id}: {agree[best][1] - agree[best][0]} of {agree[best][1]} tokens are not "
                                     f"greedy under any one weight set")
        say("  by their tokens: " + ", ".join(f"{sum(m == s for m in made_by.values())} made by the {s} weights" for s in sets))
        if self.trainer:
            self.compare_records(done, files, made_by, epochs)
        else:
            for c in done:
                self.tally[made_by[c.id]].requests += 1
                self.tally[made_by[c.id]].rows += c.rows
        return made_by

    def compare_records(self, done, files, made_by, epochs):
        import numpy as np

        items = []
        for n, c in enumerate(done):
            routes = c.routes()
            path = None
            if routes is None:
                self.problems.append(f"{c.id}: the HTTP response carries no routed_experts")
            else:
                path = os.path.join(self.work, f"{n}-http.npy")
                np.save(path, routes)
            items.append({"id": c.id, "oracle": files, "index": n, "http": path})
        known = {str(e): s for e, s in (epochs or self.epochs).items()}
        # What the record says and what the tokens say must be the same weights.
        got = self.trainer.ask("compare", items=items, epochs=known)
        for s, t in got["tallies"].items():
            self.tally[s].add(compare.Tally.from_dict(t))
        self.problems += got["problems"]
        self.http_equal += got["http_equal"]
        for epoch, rows in got["rows_of_epoch"].items():
            self.versions[epoch] = self.versions.get(epoch, 0) + rows
        for c in done:
            said = {known.get(str(e)) for _, e in self.opened_versions(c.id)}
            if said != {made_by[c.id]}:
                self.problems.append(f"{c.id}: made by the {made_by[c.id]} weights, its versions say {said}")
        pairs = sum(t["pairs"] for t in got["tallies"].values())
        wrong = sum(t["mismatches"] for t in got["tallies"].values())
        say(f"  trainer compared {pairs} (token, layer) pairs: {wrong} mismatches; "
            f"{got['http_equal']}/{len(done)} HTTP responses equal bit for bit")
        self.trainer.ask("release", ids=[c.id for c in done])

    def opened_versions(self, rid):
        return self.all_opened.get(rid, {}).get("versions", [])

    # ---- the cycle
    def update(self, flying):
        """Second weights, while requests are in flight."""
        c = self.client
        if not flying.wait_done(self.args.requests // 4, 120):
            self.problems.append(f"{flying.done_count()} of {self.args.requests} requests were answered in 120 s")
        before = flying.done_count()
        say(f"  update begins: {before} requests answered, {min(self.args.clients, self.args.requests - before)} clients have one in flight")
        if not self.trainer:
            c.pause("wait")  # what a framework without Moor must remember; with Moor the gate does it
        phases = c.update(self.model[SECOND], "step-2")
        after = flying.done_count()
        if not self.trainer:
            c.resume()
        self.gate.append(phases)
        say("  " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in phases)
            + f" ({after - before} finished meanwhile, {self.args.requests - after} were still to come); "
            f"the engine says version {c.weight_version()!r}")
        if self.trainer:
            say(f"  gate: {self.trainer.ask('gate')['gate']}")

    def sleep_and_wake(self):
        c = self.client
        c.sleep()
        c.wake_weights()
        say("asleep, weights awake again")
        if self.trainer:
            self.trainer.ask("hold", device="cpu:0", label="trainer", seconds=self.args.hold_s)
            say(f"trainer holds cpu:0 for {self.args.hold_s:.1f} s; the KV cache is asked to wake now")
        begin = time.monotonic()
        c.wake_kv()
        end = time.monotonic()
        self.barrier.append(end - begin)
        if self.trainer:
            hold = self.trainer.ask("hold_times")["holds"][-1]
            late = end - hold["released"]
            say(f"  KV cache awake after {end - begin:.3f} s, {late * 1e3:.1f} ms after the trainer let go")
            if end < hold["released"]:
                self.problems.append(f"the KV cache woke {-late:.3f} s before the trainer let go")
        else:
            say(f"  KV cache awake after {end - begin:.3f} s; nothing would have kept it from waking beside a trainer's memory")
        if c.is_sleeping():
            self.problems.append("the engine still says that it sleeps after both tags woke")

    def run(self):
        a = self.args
        say(f"models: {a.family}, seeds {a.seed} and {a.seed + 1}")
        self.model = {FIRST: models.ensure(a.family, a.seed, self.python),
                      SECOND: models.ensure(a.family, a.seed + 1, self.python)}
        with tempfile.TemporaryDirectory(prefix="moor-demo-") as self.work, oracle.Oracle(self.python, banned=self.engine.banned) as self.oracle:
            self.oracle.start()
            say(f"starting {self.engine.title}, {a.tp} tensor-parallel rank(s), " + ("without Moor" if a.without_moor else
                f"Moor from {os.path.relpath(self.build.pythonpath)} ({a.loading or self.engine.Server.LOADING})"))
            main = self.server("bare" if a.without_moor else "moor", not a.without_moor)
            with main:
                self.times["server start"] = main.started_s
                self.client = main.client()
                try:
                    self.cycle(main)
                finally:
                    if self.trainer:
                        self.trainer.close()
                if not a.no_overhead and not a.without_moor:
                    self.measure(main)
            if main.moor_left and not self.engine.ends_by_kill:
                self.problems.append(f"files left in MOOR_DIR after the server's end: {main.moor_left}")
        return self.report()

    def cycle(self, main):
        if not self.args.without_moor:
            self.trainer = TrainerProcess(self.python, self.build, main.dir)
            self.trainer.ask("attach", instance="demo", timeout=10.0)
            say(f"trainer attached (a process of its own, moor from {os.path.relpath(self.trainer.where)})")
        self.client.prepare_update()
        begin = time.monotonic()
        self.learn_epochs()
        self.batch("first weights", 11, "a", epochs=self.epochs_now(FIRST))
        self.batch("weights change in flight", 12, "b", during=self.update_and_learn)
        self.sleep_and_wake()
        self.batch("second weights", 13, "c", epochs=self.epochs_now(SECOND))
        self.times["cycle"] = time.monotonic() - begin
        if self.trainer:
            self.stats = self.trainer.ask("stats")["stats"]
            left = numbers.total(self.stats, "leases")
            if left:
                self.problems.append(f"{left} leases are left after every record was released: {numbers.find(self.stats, 'leases')}")

    # Epochs are Moor's own numbers: read them from a request of which we know the weights.
    def learn_epochs(self):
        self.epochs = {}
        self.all_opened = {}
        self.probe(FIRST, "probe-1")

    def probe(self, weights, rid):
        got = self.client.complete([5, 6, 7, 8], 4, rid, ignore_eos=True)
        if not self.trainer:
            return
        opened = self.trainer.ask("open", id=got.id, timeout=10.0)
        self.trainer.ask("release", ids=[got.id])
        if len(opened["versions"]) != 1:
            raise RuntimeError(f"{got.id}: versions {opened['versions']}, one was expected")
        epoch = opened["versions"][0][1]
        if epoch in self.epochs and self.epochs[epoch] != weights or any(e >= epoch for e, w in self.epochs.items() if w != weights):
            self.problems.append(f"epoch {epoch} for the {weights} weights, known: {self.epochs}: it must move forward")
        self.epochs[epoch] = weights

    def update_and_learn(self, flying):
        self.update(flying)
        self.probe(SECOND, "probe-2")

    def epochs_now(self, weights):
        if not self.trainer:
            return {0: weights}
        return {e: w for e, w in self.epochs.items() if w == weights}

    def measure(self, main):
        """Overhead against the same run without Moor: both servers up, in turn on the same cores."""
        say("overhead: a second server without Moor; the two take turns, the idle one is stopped (SIGSTOP)")
        main.freeze()
        try:
            bare = self.server("bare", False).start()
        finally:
            main.thaw()
        try:
            def jobs(r, name):
                return load.make_jobs(self.args.requests, 100 + r, f"m{r}-{name}")

            load.interleaved([main, bare], jobs, 1, self.args.clients)  # warm both
            self.speeds = load.interleaved([main, bare], jobs, self.args.rounds, self.args.clients)
        finally:
            bare.stop(check=False)

    # ---- the end
    def report(self):
        total = compare.Tally()
        for t in self.tally.values():
            total.add(t)
            self.problems += t.errors + t.shown
        if self.trainer:
            for s, t in self.tally.items():
                if t.pairs < MIN_PAIRS:
                    self.problems.append(f"only {t.pairs} pairs compared for the {s} weights, {MIN_PAIRS} are needed")
            if total.missing_rows or total.mismatches:
                self.problems.append(f"{total.mismatches} mismatches, {total.missing_rows} missing rows")
        lines = [("requests", f"{self.requests} sent, {self.lost} lost"),
                 ("rows", f"{total.rows}"),
                 ("greedy tokens", f"{self.greedy[0]} of {self.greedy[1]} as the oracle's")]
        if self.trainer:
            lines += [("bytes", f"{total.bytes}"),
                      ("pairs compared", ", ".join(f"{self.tally[s].pairs} {s} weights" for s in (FIRST, SECOND))),
                      ("mismatches", f"{total.mismatches}"),
                      ("missing rows", f"{total.missing_rows}"),
                      ("HTTP responses", f"{self.http_equal} equal to the record bit for bit"),
                      ("versions", ", ".join(f"epoch {e} ({self.epochs.get(int(e))}): {n} rows"
                                             for e, n in sorted(self.versions.items())))]
        lines += [("gate", ", ".join(f"{name} {seconds * 1e3:.0f} ms" for phases in self.gate for name, seconds in
                                     [*phases, ("closed", sum(s for _, s in phases))])),
                  ("barrier", ", ".join(f"KV resume took {b * 1e3:.0f} ms" for b in self.barrier)
                   + (f", trainer held for {self.args.hold_s * 1e3:.0f} ms" if self.trainer else ", no barrier"))]
        if self.trainer:
            lines.append(("by Moor's counters", ", ".join(f"{text} {numbers.total(self.stats, name) / 1e6:.1f} ms" for text, name in (
                ("gate sealed", "gate_sealed_ns"), ("drains", "gate_drain_ns"), ("ranks waited in barriers", "barrier_wait_ns"))
                if numbers.total(self.stats, name) is not None)))
        if self.speeds:
            main, bare = self.speeds
            ratio, (low, high) = load.overhead(self.speeds[bare], self.speeds[main])
            lines.append(("overhead", f"{(1 - ratio) * 100:+.1f} % (tokens/s ratio {ratio:.3f}, paired {low:.3f} to {high:.3f}, "
                                      f"{self.args.rounds} interleaved rounds of {self.args.requests} requests)"))
        lines += [(k, f"{v:.1f} s") for k, v in self.times.items()]
        width = max(len(k) for k, _ in lines)
        print("\n" + "-" * 78)
        for k, v in lines:
            print(f"{k:<{width}}  {v}")
        print("-" * 78)
        for p in self.problems[:20]:
            print(f"WRONG  {p}")
        if len(self.problems) > 20:
            print(f"WRONG  and {len(self.problems) - 20} more")
        print("demo: " + ("FAILED" if self.problems else "all right"), flush=True)
        return 1 if self.problems else 0


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--engine", choices=ENGINES, default="vllm")
    p.add_argument("--tp", type=int, default=2, help="tensor-parallel ranks")
    p.add_argument("--loading", choices=("entry", "preload", "both", "run"), help="how Moor gets into the engine")
    p.add_argument("--capture", action="store_true", help="the engine's own capture is on, and Moor takes its place (not vLLM)")
    p.add_argument("--without-moor", action="store_true", help="the same flow on the bare engine (vLLM)")
    p.add_argument("--family", choices=[f for f in models.FAMILIES if f != "dense"], default="qwen3")
    p.add_argument("--requests", type=int, default=32)
    p.add_argument("--clients", type=int, default=8)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--hold-s", type=float, default=1.5, help="how long the trainer keeps its memory")
    p.add_argument("--rounds", type=int, default=4, help="interleaved rounds of the overhead measurement")
    p.add_argument("--no-overhead", action="store_true")
    p.add_argument("--broken", choices=("shift", "drop", "gate", "barrier"),
                   help="break Moor on purpose: the demo must then fail")
    paths.end_on_sigterm()
    paths.alone_on_this_machine()
    args = p.parse_args()
    if args.without_moor and args.engine != "vllm":
        p.error("--without-moor knows how to pause vLLM only")
    if args.capture and args.engine == "vllm":
        p.error("vLLM refuses its own capture on a CPU")
    args.no_overhead |= args.engine != "vllm"
    demo = Demo(args)
    if demo.python is None:
        print(f"demo: no engine environment (scripts/engine-env {args.engine} makes it)")
        return 77
    if not demo.args.without_moor and demo.build is None:
        print("demo: Moor is not built (build/python/moor is missing)", file=sys.stderr)
        return 1
    return demo.run()


if __name__ == "__main__":
    sys.exit(main())
