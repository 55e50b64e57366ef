# SPDX-License-Identifier: Apache-2.0
"""Recording with the default configuration: one rank, records read from another process."""
import json
import os
import signal
import subprocess
import sys
import time

from moorlab import compare, load, paths
from moorlab.scenario import ALL, Group, eventually, proves, require

GROUP = Group(moor={}, engines=(*ALL, "vllm024"), prefix=True)


@proves("S1.1")
def check_rows_are_the_tokens_that_went_through(lab):
    cases = [([5, 6, 7, 8, 9], 3, 7), ([5, 6, 7, 8, 9], 1, 5), ([11], 1, 1), ([11], 2, 2)]
    for prompt, sampled, rows in cases:
        c = lab.one(prompt, sampled)
        with lab.store.open(c.id, 10.0) as record:
            require(record.rows == rows, f"prompt {len(prompt)} + {sampled} sampled: {record.rows} rows, {rows} expected")


@proves("S1.2", "S1.3", "S1.20")
def check_routes_are_the_oracles_and_the_responses(lab):
    t = lab.expect_routes(lab.send(24, 8))
    return f"{t.pairs} pairs"


@proves("S1.20")
def check_prompt_start_cuts_the_response_only(lab):
    """A request may leave out the first rows of the field; the record keeps them."""
    lab.need("prompt_start")
    c = lab.one([5, 6, 7, 8, 9, 10], 5, **lab.client.from_row(4))
    start = 0 if lab.engine.name == "vllm024" else 4  # 0.24 does not know the parameter, and sends every row
    with lab.store.open(c.id, 10.0) as record:
        wrong = compare.bit_for_bit(c.id, c.routes(), lab.as_field(record, c, start=start))
        require(wrong is None, wrong)
        require(record.rows == c.rows, f"{record.rows} rows of {c.rows}")


@proves("S1.26")
def check_who_did_not_ask_gets_no_field(lab):
    """The response is then what the engine made; the record is there all the same. (vLLM's server asks: `config`.)"""
    lab.need("ask")
    prompt = list(range(40, 240))
    asked, silent = lab.one(prompt, 4), lab.one(prompt, 4, routes=False)
    require(asked.raw_routes and not silent.raw_routes, f"fields {str(asked.raw_routes)[:40]}, {str(silent.raw_routes)[:40]}")
    field = len(json.dumps(asked.raw_routes))
    require(silent.size < asked.size - 0.9 * field and silent.size < 0.2 * field,
            f"a response of {silent.size} bytes, {asked.size} with a field of {field}")
    lab.expect_routes([silent], http=False)


@proves("S1.15")
def check_cached_prefix_has_its_rows(lab):
    prefix = load.make_jobs(1, 900, "p", shared=1, prefix_len=160, prefix_seed=900)[0].prompt
    first = lab.one(prefix, 4)
    with lab.prefix_rows(3 * 128):
        again = [lab.one(prefix + [7 + i, 8, 9], 6) for i in range(3)]
    t = lab.expect_routes([first, *again])
    return f"{t.pairs} pairs"


@proves("S1.15")
def check_whole_prompt_cached(lab):
    """The engine recomputes the last token of a fully cached prompt: that row is not doubled, none is missing."""
    prompt = load.make_jobs(1, 901, "p", shared=1, prefix_len=128, prefix_seed=901)[0].prompt[:128]
    a = lab.one(prompt, 4)
    with lab.prefix_rows(96):
        b = lab.one(prompt, 4)
    lab.expect_routes([a, b])


@proves("S1.15")
def check_reset_empties_the_index(lab):
    lab.need("reset")
    prompt = load.make_jobs(1, 902, "p", shared=1, prefix_len=128, prefix_seed=902)[0].prompt
    first = lab.one(prompt, 4)
    lab.client.reset_prefix_cache()
    second = lab.one(prompt, 4)
    require(second.cached_tokens == 0, "the reset did not empty the engine's cache")
    lab.expect_routes([first, second])


@proves("S1.1", "S1.16")
def check_ids_of_a_group(lab):
    """n samples share an id: Ambiguous with the full ids, open_many gives all in index order."""
    import moor

    lab.need("shared_id")

    label = lab.label()
    group = lab.client.complete_many([5, 6, 7, 8, 9, 10], 6, label, temperature=1.0, n=3, ignore_eos=True, seed=3)
    try:
        lab.store.open(group[0].id, 10.0)
        require(False, f"{group[0].id} means three records, and opened as one")
    except moor.Ambiguous as e:
        text = str(e)
    for i in range(3):
        require(f"{i}_cmpl-{label}-0-" in text, f"Ambiguous does not name sample {i}: {text}")
    records = lab.store.open_many([group[0].id], 10.0)
    require(len(records) == 3, f"open_many gives {len(records)} records of 3")
    for i, record in enumerate(records):
        require(record.request_id.startswith(f"{i}_cmpl-{label}-0-"), f"record {i} of open_many is {record.request_id}")
    lab.expect_routes(group, ids=[r.request_id for r in records])
    for record in records:
        record.release()


@proves("S1.1")
def check_ids_of_several_prompts(lab):
    lab.need("shared_id")
    label = lab.label()
    both = lab.client.complete_many([[5, 6, 7], [8, 9, 10, 11]], 5, label, ignore_eos=True)
    lab.expect_routes(both, ids=[f"cmpl-{label}-{i}" for i in range(2)])


@proves("S1.1")
def check_samples_with_ids_of_their_own(lab):
    """n samples, each with an id of its own in the response."""
    lab.need("n")
    group = lab.client.complete_many([5, 6, 7, 8, 9, 10], 6, None, temperature=1.0, n=3, ignore_eos=True)
    require(len({c.id for c in group}) == 3, f"ids {[c.id for c in group]}")
    lab.expect_routes(group)


@proves("S1.1")
def check_repeated_id_is_ambiguous(lab):
    import moor

    label = lab.label()
    for _ in range(2):
        c = lab.client.complete([5, 6, 7], 3, label)
    try:
        lab.store.open(c.id, 10.0)
        require(False, "an id that two requests used opened as one record")
    except moor.Ambiguous:
        pass


@proves("S1.22")
def check_unknown_id(lab):
    import moor

    begin = time.monotonic()
    try:
        lab.store.open("nobody-ever-sent-this", 0.3)
        require(False, "a record of a request that never was")
    except (moor.NotFound, moor.Timeout) as e:
        require("nobody-ever-sent-this" in str(e), f"the error does not name the id: {e}")
    require(time.monotonic() - begin < 30, "the deadline of open() was not kept")


@proves("S1.22")
def check_open_waits_for_the_seal(lab):
    import moor

    jobs = [load.Job([5, 6, 7], 400, lab.label(), more=dict(ignore_eos=True))]
    flying = load.Load(lab.client, jobs, 1).start()
    rid = lab.client.record_id(jobs[0].request_id)
    time.sleep(0.3)
    try:
        with lab.store.open(rid, 0.05) as record:  # on a busy machine it is over before the answer comes
            require(record.rows == 402, f"a record of a running request was opened: {record.rows} rows")
    except (moor.Timeout, moor.NotFound):
        pass
    with lab.store.open(rid, 120.0) as record:
        rows = record.rows
    result = flying.finish()
    require(not result.failed, f"{result.failed}")
    require(rows == 402, f"{rows} rows, 402 expected")


@proves("S1.22", "S1.1")
def check_abort_seals_once_with_right_rows(lab):
    """The client goes away in the middle: one seal; the rows that are there are the oracle's for the same greedy text."""
    import numpy as np

    prompt = [21, 22, 23, 24, 25]
    whole = lab.one(prompt, 400)
    want = lab.oracle.rows(lab.model(), {"w": whole.all_tokens})["w"]
    for _ in range(10):  # a busy server hears of it when all is done
        label = lab.label()
        seen = lab.client.start_and_drop(prompt, 400, label, read_chunks=5)
        require(whole.tokens[:len(seen)] == seen, "greedy text differs between two runs")
        with lab.store.open(lab.client.record_id(label), 60.0) as record:
            rows = record.rows
            require(len(prompt) + len(seen) - 1 <= rows <= whole.rows, f"{rows} rows, the client saw {len(seen)} tokens")
            lab.expect_clean(compare.against_oracle(label, np.asarray(record.array()), want.ids[:rows], want.gap))
        if rows < whole.rows:
            return f"{rows} rows"
    require(False, "ten requests whose client went away ran to their end")


@proves("S1.18", "S1.22")
def check_stop_token(lab):
    whole = lab.one([31, 32, 33], 12)
    stop = whole.tokens[5]
    first = whole.tokens.index(stop)
    cut = lab.one([31, 32, 33], 12, stop_token_ids=[stop], ignore_eos=False)
    hidden = lab.engine.hides_stop  # the response ends before the stop token; it was sampled all the same
    require(cut.finish == "stop" and len(cut.tokens) == first + (not hidden), f"{cut.finish}, {len(cut.tokens)} tokens")
    if hidden:
        with lab.store.open(cut.id, 10.0) as record:
            wrong = compare.bit_for_bit(f"{cut.id}: HTTP against record", cut.routes(), lab.as_field(record, cut, stop=cut.rows))
            require(wrong is None, wrong)
        cut.tokens.append(stop)
    lab.expect_routes([cut], http=not hidden)


@proves("S2.2", "S2.5")
def check_killed_consumer_leaks_no_lease(lab):
    c = lab.one([5, 6, 7, 8], 8)
    eventually(lambda: lab.number("leases") == 0, 20, "the leases of what delivered the fields end")
    code = ("import moor,sys,time\ns=moor.attach(sys.argv[1],10.0)\nr=s.open(sys.argv[2],10.0)\nv=r.segments()\n"
            "print('held',flush=True)\ntime.sleep(60)\n")
    env = dict(os.environ, MOOR_DIR=lab.server.dir, PYTHONPATH=lab.build.pythonpath)
    p = subprocess.Popen([sys.executable, "-c", code, "default", c.id], env=env, stdout=subprocess.PIPE, text=True)
    try:
        require(p.stdout.readline().strip() == "held", "the consumer could not open the record")
        require(lab.number("leases") > 0, "a held record is not counted as a lease")
        p.send_signal(signal.SIGKILL)
        p.wait()
        eventually(lambda: lab.number("leases") == 0, 20, "the killed consumer's lease ends")
    finally:
        p.kill()
        p.wait()
        p.stdout.close()
    lab.expect_routes([lab.one([5, 6, 7, 8], 8)])


@proves("S1.20", "S1.22")
def check_dump_command(lab):
    """`moor dump` is a third process that knows only the C ABI: the same rows, bit for bit."""
    import io

    import numpy as np

    c = lab.one([41, 42, 43], 5)
    env = dict(os.environ, MOOR_DIR=lab.server.dir)
    got = subprocess.run([lab.build.command, "dump", "--npy", "-", c.id], env=env, capture_output=True, timeout=60)
    require(got.returncode == 0, f"moor dump: {got.returncode}: {got.stderr[-500:]}")
    with lab.store.open(c.id, 10.0) as record:
        wrong = compare.bit_for_bit(c.id, np.load(io.BytesIO(got.stdout)), np.asarray(record.array()))
    require(wrong is None, f"moor dump against the record: {wrong}")
    got = subprocess.run([lab.build.command, "dump", "-t", "0.2", "nobody-sent-this"], env=env, capture_output=True, timeout=60)
    require(got.returncode != 0 and b"nobody-sent-this" in got.stderr, f"moor dump of an unknown id: {got.returncode}, {got.stderr}")


@proves("DESIGN: status")
def check_status_command(lab):
    import json

    env = dict(os.environ, MOOR_DIR=lab.server.dir)
    got = subprocess.run([lab.build.command, "status", "--json"], env=env, capture_output=True, timeout=60)
    require(got.returncode == 0, f"moor status: {got.returncode}: {got.stderr[-500:]}")
    json.loads(got.stdout)
    got = subprocess.run([lab.build.command, "status", "--prometheus"], env=env, capture_output=True, text=True, timeout=60)
    require("moor_rows_total" in got.stdout, f"moor status --prometheus has no moor_rows_total: {got.stdout[:300]}")


@proves("S1.20")
def check_metrics_are_in_the_engines_own(lab):
    rows = lab.client.metric_sum("moor_rows_total")
    c = lab.one([301, 302, 303], 8)  # nobody has sent that: nothing comes from a prefix
    got = lab.client.metric_sum("moor_rows_total") - rows
    require(got >= c.rows, f"moor_rows_total in /metrics moved by {got:g}, {c.rows} rows were recorded")


@proves("DESIGN: join points")
def check_no_hook_failed(lab):
    require(lab.number("hook_errors") == 0, "a hook failed")
    require(lab.number("capture_errors") == 0, "a capture failed")
    paths.say(f"      {lab.server.log_text().count('moor')} lines of the log name moor")
