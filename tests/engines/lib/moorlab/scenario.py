# SPDX-License-Identifier: Apache-2.0
"""Scenarios: one server start, several checks, each naming the SEMANTICS rule that it proves.

A scenario file has

    GROUP = Group(tp=1, moor={})

    @proves("S1.1")
    def check_rows(lab): ...

and is run by run_scenario.py.  Checks run in file order on the same server; a check that fails does not stop the
others, unless the server is gone.  Several files may share one server, if what they want of it fits together: then each
finds it as the one before has left it.  A file may set SERVERLESS = True and start servers itself.
"""
import contextlib
import copy
import json
import os
import subprocess
import sys
import tempfile
import time

from . import client, compare, engines, load, models, numbers, oracle, paths, server


class Failure(AssertionError):
    """A check's verdict, without a traceback of the harness."""


class Skipped(Exception):
    """The engine cannot do what the check needs; the text says what."""


def proves(*rules):
    def mark(function):
        function.rules = rules
        return function

    return mark


def require(condition, text):
    if not condition:
        raise Failure(text)


def eventually(ask, timeout, text):
    """Ask until it is true; the last value is returned."""
    end = time.monotonic() + timeout
    while True:
        got = ask()
        if got:
            return got
        if time.monotonic() > end:
            raise Failure(f"not within {timeout:g} s: {text}")
        time.sleep(0.02)


VLLM = ("vllm", "vllm024")
ALL = ("vllm", "sglang", "lmdeploy")


class Group:
    """How the server of a scenario file is started.

    engines     that the file is for
    family      of the model; families: {engine: another one}
    options     {engine: further keywords of its Server}
    args        further arguments of vLLM
    updates     weights change over HTTP
    prefix      cached prefixes are wanted
    The rest as EngineProcess says.
    """

    def __init__(self, *, family="qwen3", families=None, seed=0, moor=None, engines=VLLM, options=None, args=(), updates=False,
                 prefix=False, **common):
        self.family, self.families, self.seed, self.moor = family, families or {}, seed, moor if moor is not None else {}
        self.engines, self.options, self.args = engines, options or {}, list(args)
        self.updates, self.prefix, self.common = updates, prefix, common

    @classmethod
    def together(cls, groups):
        """One server for all of them. What one leaves open another decides; that two disagree is an error."""
        first = groups[0]
        for g in groups[1:]:
            if (g.family, g.families, g.seed) != (first.family, first.families, first.seed):
                raise ValueError(f"no common model: {first.family} {first.seed}, {g.family} {g.seed}")
        return cls(family=first.family, families=first.families, seed=first.seed, moor=united(*(g.moor for g in groups)),
                   engines=tuple(e for e in first.engines if all(e in g.engines for g in groups)),
                   options=united(*(g.options for g in groups)), args=[a for g in groups for a in g.args],
                   updates=any(g.updates for g in groups), prefix=any(g.prefix for g in groups),
                   **united(*(g.common for g in groups)))

    @property
    def tp(self):
        return self.common.get("tp", 1)

    def server_options(self, engine):
        given = {"moor": self.moor, **self.common, **engine.options}
        if self.updates:
            given.update(engine.updating)
        if self.prefix:
            given.update(engine.prefix)
        given["args"] = [*given.get("args", ()), *(self.args if engine.name in VLLM else ())]
        return {**given, **self.options.get(engine.name, {})}


def united(*dicts):
    """One dict with the entries of all, dicts in them united as well."""
    out = {}
    for d in dicts:
        for key, value in d.items():
            if isinstance(value, dict) and isinstance(out.get(key, {}), dict):
                out[key] = united(out.get(key, {}), value)
            elif out.setdefault(key, value) != value:
                raise ValueError(f"{key} cannot be both {out[key]!r} and {value!r}")
    return out


class Lab:
    """What a check works with."""

    def __init__(self, group, engine, name):
        self.group, self.engine, self.name = group, engines.get(engine), name
        self.python = paths.engine_python(engine)
        self.dtype = "float32"
        self.tie = 1e-5  # compare.against_oracle's: nearer scores are told apart by rounding, which goes with the batch
        self.build = paths.find_moor()
        self.server = self._store = None
        self._count = self._restarts = 0

    # ---- life
    def model(self, which=0):
        family = self.group.families.get(self.engine.name, self.group.family)
        return models.ensure(family, self.group.seed + which, self.python)

    def new_server(self, name=None, **change):
        """A Server as the group says, with changes; not started."""
        given = {"build": self.build, "dtype": self.dtype, "echo": paths.say, **self.group.server_options(self.engine), **change}
        return self.engine.Server(given.pop("model", None) or self.model(), self.python,
                                  name=f"{self.engine.name}-{name or self.name}", **given)

    def need(self, *what):
        """Skip the check where the engine cannot do this."""
        for w in what:
            if w in self.engine.cannot:
                raise Skipped(self.engine.cannot[w])

    @contextlib.contextmanager
    def running(self):
        with oracle.Oracle(self.python, banned=self.engine.banned) as self.oracle:
            self.oracle.start()
            self._serve(self.new_server())
            try:
                yield self
            except BaseException:
                self.server.stop(check=False)  # its error must not hide this one
                raise
            self.detach()
            self.server.stop()

    def _serve(self, srv):
        srv.start()
        self.server, self.client = srv, srv.client()

    def restart(self):
        """The server is gone: the next one starts in its place, same MOOR_DIR and same name."""
        old = self.server
        old.keep_dir = True  # it is the next one's now
        self.detach()
        old.stop(check=False)
        self._restarts += 1
        new = self.new_server(name=f"{self.name}-again{self._restarts}")
        new.start_in = old.dir
        self._serve(new)

    @property
    def native(self):
        """The engine's own field carries routes."""
        return self.group.moor.get("record", {}).get("deliver", "native") == "native"

    @contextlib.contextmanager
    def of_family(self, family, tie, args=(), **change):
        """A lab like this one with a server of its own for another model family, `args` added; the oracle is shared."""
        group = copy.copy(self.group)
        group.family = family
        lab = Lab(group, self.engine.name, f"{self.name}-{family}")
        lab.tie = tie
        lab.oracle = self.oracle if self.oracle.proc else self.oracle.start()
        args = [*group.server_options(self.engine)["args"], *args]
        with lab.new_server(args=args, **change) as lab.server:
            lab.client = lab.server.client()
            yield lab
            lab.detach()

    def attach(self, srv=None):
        """A Store of that server (default: the group's, kept)."""
        import moor

        os.environ["MOOR_DIR"] = (srv or self.server).dir
        return moor.attach((srv or self.server).moor.get("instance", "default"), 10.0)

    @property
    def store(self):
        if self._store is None:
            self._store = self.attach()
        return self._store

    def detach(self):
        self._store = None

    # ---- requests
    def label(self):
        self._count += 1
        return f"{self.name}{self._count}"

    def send(self, n=16, threads=4, seed=None, **more):
        """A load of mixed requests; a lost one is a failure."""
        jobs = load.make_jobs(n, seed if seed is not None else 40 + self._count, self.label(), **more)
        result = load.run(self.client, jobs, threads)
        require(not result.failed, f"lost requests: {result.failed}")
        return list(result.done.values())

    def one(self, prompt, max_tokens=16, **more):
        more.setdefault("ignore_eos", True)
        return self.client.complete(prompt, max_tokens, self.label(), **more)

    def recording(self, record_id):
        """It has a record, which is not sealed: the request is neither before its first row nor at its end."""
        import moor

        try:
            self.store.open(record_id, 0.0).release()
        except moor.Timeout:
            return True
        except moor.NotFound:
            pass
        return False

    def frozen(self, freeze, thaw, tokens=300, ends=False):
        """A Load of one request that `freeze` has stopped in the middle: it has rows, and more are to come. One that was at its end before this
        process came to stop it is let go by `thaw`, and another one is sent. ends: what was stopped ends; who asks must look at its answer."""
        for _ in range(20):
            label, rows = self.label(), self.number("rows_total")
            flying = load.Load(self.client, [load.Job([5, 6, 7, 8], tokens, label, more=dict(ignore_eos=True))], 1).start()
            eventually(lambda: self.number("rows_total") > rows + 8, 60, "the request runs")
            freeze()
            if ends or self.recording(self.client.record_id(label)):
                return flying
            thaw()
            flying.finish()
        raise Failure("twenty requests were at their end before they could be stopped")

    def update_under_load(self, which, label, jobs, started=4, threads=16):
        """Weights `which` while `jobs` are on their way, more than are wanted: none starts any more once some were done after the update.
        Returns those that were done; none was lost."""
        flying = load.Load(self.client, jobs, threads).start()
        require(flying.wait_done(started, 200), "the load did not get going")
        self.client.update(self.model(which), label)
        require(flying.wait_done(flying.done_count() + 8, 200), "the load stands still after the update")
        flying.enough()
        result = flying.finish()
        require(not result.failed, f"lost: {result.failed}")
        return list(result.done.values())

    # ---- truth
    def expect_routes(self, completions, *, which=0, ids=None, http=None, rows=None):
        """Every record of `completions` is there, whole, and the oracle's; returns the records' Tally.
        ids: the id to open instead of the HTTP one.  rows: {completion id: expected rows} where not SEMANTICS 1.1's.
        http: the response's own field must be the record (None: where it carries routes)."""
        import numpy as np

        http = self.native if http is None else http
        model = self.model(which)
        layers, moe_layers, top_k, experts = models.shape(model)
        keys = [f"{c.id}/{c.index}" for c in completions]
        want = self.oracle.rows(model, {k: c.all_tokens if len(c.all_tokens) > 1 else c.all_tokens * 2
                                        for k, c in zip(keys, completions)})
        total = compare.Tally()
        for n, (key, c) in enumerate(zip(keys, completions)):
            with self.store.open(ids[n] if ids else c.id, 10.0) as record:
                expected = (rows or {}).get(c.id, c.rows)
                require(record.rows == expected, f"{key}: {record.rows} rows, {expected} expected")
                require(record.complete and not list(record.missing), f"{key}: missing {list(record.missing)}")
                require(list(record.layer_ids) == moe_layers, f"{key}: layers {list(record.layer_ids)}, the model's are {moe_layers}")
                require((record.top_k, record.num_experts) == (top_k, experts), f"{key}: top_k {record.top_k} of {record.num_experts}")
                got = np.asarray(record.array())
                require(got.dtype == (np.uint8 if experts <= 256 else np.uint16), f"{key}: dtype {got.dtype} for {experts} experts")
                total.add(compare.against_oracle(key, got, want[key].ids[:expected], want[key].gap[:expected], experts, self.tie))
                if http:
                    require(c.raw_routes is not None, f"{key}: the response carries no routed_experts")
                    wrong = compare.bit_for_bit(f"{key}: HTTP against record", c.routes(), self.as_field(record, c))
                    require(wrong is None, wrong)
        self.expect_clean(total)
        return total

    @staticmethod
    def as_field(record, completion, **span):
        """The record in the layout and type of the response's own field."""
        import numpy as np

        return np.asarray(record.array(layers="model", dtype=str(completion.routes().dtype), **span))

    @contextlib.contextmanager
    def prefix_rows(self, at_least, what="the engine had no prefix hits"):
        """Inside, at least so many rows must come from cached prefixes."""
        before = self.number("rows_prefix")
        yield
        got = self.number("rows_prefix") - before
        require(got >= at_least, f"{what}: {got} rows from the prefix cache, at least {at_least} expected")

    def beside(self, code):
        """What this Python code prints in a process of the engine's own environment, preloaded, with an instance of its own."""
        with tempfile.TemporaryDirectory(prefix="moor-t-") as place:
            env = self.server.engine_env(paths.lab_env())
            env.update(MOOR_DIR=place, MOOR_CONFIG="{}", LD_PRELOAD=self.build.preload)
            got = subprocess.run([self.python, "-c", code], env=env, capture_output=True, text=True, timeout=300)
        require(got.returncode == 0, f"{got.stdout[-500:]}{got.stderr[-1500:]}")
        return got.stdout

    def program(self, module, *args, moor="{}", **env):
        """Runs a module of moorlab that uses the engine without a server; what it has said (its line SAID), as a dict."""
        srv = self.new_server()
        with tempfile.TemporaryDirectory(prefix="moor-t-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as srv.dir:
            given = srv.engine_env(paths.lab_env(srv._env()))
            paths.add_to_pythonpath(given, paths.LIB)
            given.update(MOOR_CONFIG=moor, LD_PRELOAD=self.build.preload, **env)
            got = subprocess.run([self.python, "-m", module, *args], env=given, capture_output=True, text=True, timeout=600)
        lines = [line[5:] for line in got.stdout.splitlines() if line.startswith("SAID ")]
        require(got.returncode == 0 and lines, f"{module}: {got.returncode}: {got.stdout[-800:]}{got.stderr[-2500:]}")
        return {**json.loads(lines[-1]), "log": got.stdout + got.stderr}

    def pids(self, role, srv=None):
        """[pid] of the processes that have joined in this role, rank order, as `moor status` tells."""
        store = self.attach(srv) if srv else self.store
        found = [(p.get("rank", 0), p["pid"]) for p in store.stats()["processes"] if role in p["roles"]]
        return [pid for _, pid in sorted(found)]

    def expect_clean(self, tally):
        detail = "; ".join(tally.errors[:3] + tally.shown[:3])
        require(not tally.errors and not tally.missing_rows, f"{tally.missing_rows} rows missing: {detail}")
        require(tally.pairs > 0, "nothing was compared")
        require(tally.mismatches == 0, f"{tally.mismatches} of {tally.pairs} pairs differ: {detail}")
        require(tally.ties * 1000 <= tally.pairs, f"{tally.ties} of {tally.pairs} pairs differ by ties: too many to be such")

    def expect_dense_layers_empty(self, record):
        """In the model's layout every layer has its column, and a dense layer's is 0."""
        import numpy as np

        layers, moe, _, _ = models.shape(self.model())
        full = np.asarray(record.array(layers="model"))
        require(full.shape[1] == layers, f"the model's layout has {full.shape[1]} layers, not {layers}")
        dense = [i for i in range(layers) if i not in moe]
        require(not full[:, dense].any(), f"the columns of the dense layers {dense} are not 0 in the model's layout")

    # ---- numbers
    def stats(self):
        return self.store.stats()

    def number(self, word):
        """Sum of the numbers in stats() whose name contains `word`; a name that is not there is a failure."""
        got = numbers.total(self.stats(), word)
        require(got is not None, f"stats() has no number named *{word}*")
        return got


def run_files(modules, engine, only=None):
    """Run the checks of files that share one server: {name: (module, word)}, the word in a check's name or None for all.
    Returns (passed, failed, skipped)."""
    import traceback

    checks = [(name, n, f) for name, (module, word) in modules.items() for n, f in vars(module).items()
              if n.startswith("check_") and (word or "") in n and (only or "") in n]
    counts = [0, 0, 0]

    def run_checks(lab):
        for lab.name, check, function in checks:
            begin = time.monotonic()
            rules = " ".join(function.rules)
            try:
                if lab.server is not None and not lab.server.is_up():
                    raise Failure(f"the server is gone\n{lab.server.log_tail(2000)}")
                said = function(lab)
                verdict, at = f"ok    {rules}  {check}" + (f": {said}" if said else ""), 0
            except Skipped as e:
                verdict, at = f"skip  {rules}  {check}: {e}", 2
            except Failure as e:
                verdict, at = f"FAIL  {rules}  {check}: {e}", 1
            except Exception as e:
                verdict, at = f"FAIL  {rules}  {check}: {type(e).__name__}: {e}\n{traceback.format_exc()}", 1
            counts[at] += 1
            paths.say(f"{verdict}  ({time.monotonic() - begin:.1f} s)")

    lab = Lab(Group.together([module.GROUP for module, _ in modules.values()]), engine, "+".join(modules))
    sys.path.insert(0, lab.build.pythonpath)
    try:
        if all(getattr(module, "SERVERLESS", False) for module, _ in modules.values()):
            with oracle.Oracle(lab.python, banned=lab.engine.banned) as lab.oracle:
                run_checks(lab)
        else:
            with lab.running():
                run_checks(lab)
    except server.ServerError as e:
        paths.say(f"FAIL  the server: {e}")
        counts[1] += 1
    return counts


__all__ = ["ALL", "VLLM", "Failure", "Group", "Lab", "Skipped", "client", "eventually", "proves", "require", "run_files", "united"]
