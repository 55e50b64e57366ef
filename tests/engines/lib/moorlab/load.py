# SPDX-License-Identifier: Apache-2.0
"""Work for a server: prompts of mixed length, and clients that send them in parallel."""
import contextlib
import queue
import random
import threading
import time
from dataclasses import dataclass, field


@dataclass
class Job:
    prompt: list
    max_tokens: int
    request_id: str
    temperature: float = 0.0
    more: dict = field(default_factory=dict)


def make_jobs(n, seed, label, *, vocab=512, shared=8, prefix_len=96, prefix_seed=1, prompt_max=64, tokens=(8, 40),
              **more):
    """`n` jobs of mixed length, the first `shared` of them with one common prefix of `prefix_len` tokens.

    The prefix depends on `prefix_seed` alone: batches share it, so that KV that outlived a weight update would show.
    Lengths run over their range; shuffled, so that neighbours in the queue differ.
    Token ids 0-2 are left out (padding, begin, end)."""
    rng = random.Random(seed)

    def word(k, r=rng):
        return [r.randrange(3, vocab) for _ in range(k)]

    prefix = word(prefix_len, random.Random(prefix_seed))
    jobs = []
    for i in range(n):
        own = word(1 + (i * 37) % prompt_max)
        out = tokens[0] + (i * 13) % (tokens[1] - tokens[0] + 1)
        jobs.append(Job(prefix + own if i < shared else own, out, f"{label}-{i}", more=dict(ignore_eos=True, **more)))
    rng.shuffle(jobs)
    return jobs


@dataclass
class LoadResult:
    done: dict            # request id -> Completion
    failed: dict          # request id -> exception
    seconds: float

    @property
    def tokens(self):
        return sum(len(c.tokens) for c in self.done.values())

    @property
    def tokens_per_s(self):
        return self.tokens / self.seconds if self.seconds else 0.0


class Load:
    """Jobs on their way: `start`, look at `done_count()`, then `finish`.

    A check that needs requests in flight gives more jobs than it wants done, and says `enough()`: so that it
    does not depend on who is faster, the load or the check."""

    def __init__(self, client, jobs, threads=8, on_done=None):
        self.client, self.jobs, self.on_done = client, jobs, on_done
        self._queue = queue.SimpleQueue()
        for job in jobs:
            self._queue.put(job)
        self._lock = threading.Lock()
        self._done, self._failed = {}, {}
        self._threads = [threading.Thread(target=self._work, name=f"client-{i}") for i in range(threads)]

    def _work(self):
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            try:
                got = self.client.complete(job.prompt, job.max_tokens, job.request_id, job.temperature, **job.more)
            except Exception as e:  # a lost request is a result, not a crash of the client thread
                with self._lock:
                    self._failed[job.request_id] = e
                continue
            with self._lock:
                self._done[job.request_id] = got
            if self.on_done:
                self.on_done(got)
        self.client.close()

    def start(self):
        self._begin = time.monotonic()
        for t in self._threads:
            t.start()
        return self

    def done_count(self):
        with self._lock:
            return len(self._done) + len(self._failed)

    def wait_done(self, count, timeout):
        """Wait until `count` jobs ended; False at the deadline."""
        end = time.monotonic() + timeout
        while self.done_count() < count:
            if time.monotonic() > end:
                return False
            time.sleep(0.002)
        return True

    def enough(self):
        """No further job is started."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()

    def finish(self, timeout=300.0):
        end = time.monotonic() + timeout
        for t in self._threads:
            t.join(max(0.0, end - time.monotonic()))
        if any(t.is_alive() for t in self._threads):
            open_ids = [j.request_id for j in self.jobs if j.request_id not in self._done and j.request_id not in self._failed]
            raise TimeoutError(f"requests without an answer after {timeout:.0f} s: {open_ids}")
        return LoadResult(self._done, self._failed, time.monotonic() - self._begin)


def run(client, jobs, threads=8, timeout=300.0):
    return Load(client, jobs, threads).start().finish(timeout)


# ---- overhead -------------------------------------------------------------
def interleaved(servers, jobs_of_round, rounds, threads=8, settle=0.3):
    """Measure several servers that are all up, in turn, on the same cores.

    Only the measured one runs; the others' processes are stopped (SIGSTOP), so that they cost nothing.
    The order alternates from round to round.  Returns {server name: [tokens/s, ...]}.
    """
    speeds = {s.name: [] for s in servers}
    for server in servers:
        server.freeze()
    try:
        for r in range(rounds):
            for server in (servers if r % 2 == 0 else servers[::-1]):
                server.thaw()
                time.sleep(settle)
                result = run(server.client(), jobs_of_round(r, server.name), threads)
                if result.failed:
                    raise RuntimeError(f"{server.name}: lost requests while measuring: {result.failed}")
                speeds[server.name].append(result.tokens_per_s)
                server.freeze()
    finally:
        for server in servers:
            server.thaw()
    return speeds


def overhead(base, other):
    """(ratio of medians other/base, spread of the paired ratios as (low, high))."""
    import statistics

    if not base or len(base) != len(other):
        raise ValueError(f"unpaired rounds: {len(base)} and {len(other)}")
    pairs = sorted(o / b for b, o in zip(base, other))
    return statistics.median(other) / statistics.median(base), (pairs[0], pairs[-1])
