# SPDX-License-Identifier: Apache-2.0
"""The harness's own checks: a comparer, a load or an oracle that cannot fail proves nothing.

Plain unittest, no engine.  test_oracle needs torch and transformers and is skipped without them.
"""
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "lib"))

import numpy as np  # noqa: E402

from moorlab import client, compare, load, models, numbers, oracle, procs, scenario, server, versus  # noqa: E402


def routes(rows=6, layers=3, k=4, experts=16, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([[rng.permutation(experts)[:k] for _ in range(layers)] for _ in range(rows)]).astype(np.uint8)


class OneServerForSeveral(unittest.TestCase):
    def test_what_they_want_is_united(self):
        both = scenario.Group.together([
            scenario.Group(moor={"gate": {"mode": "enforce"}}, engines=("vllm", "sglang"), prefix=True),
            scenario.Group(moor={"gate": {"drain_timeout_s": 9}}, engines=("sglang",), kv_tokens=448, args=["--a"],
                           options={"sglang": {"env": {"A": "1"}}})])
        self.assertEqual(both.moor, {"gate": {"mode": "enforce", "drain_timeout_s": 9}})
        self.assertEqual((both.engines, both.prefix, both.common, both.args), (("sglang",), True, {"kv_tokens": 448}, ["--a"]))
        self.assertEqual(both.options, {"sglang": {"env": {"A": "1"}}})

    def test_what_does_not_fit_is_refused(self):
        enforce = scenario.Group(moor={"gate": {"mode": "enforce"}})
        for other in (scenario.Group(moor={"gate": {"mode": "observe"}}), scenario.Group(family="qwen3_300")):
            with self.assertRaises(ValueError):
                scenario.Group.together([enforce, other])
        with self.assertRaises(ValueError):
            scenario.Group.together([scenario.Group(tp=2), scenario.Group(tp=1)])


class Comparer(unittest.TestCase):
    def setUp(self):
        self.got = routes()
        self.want = np.sort(self.got, -1)

    def against(self, got, **more):
        return compare.against_oracle("r", got, self.want, num_experts=16, **more)

    def test_right_is_clean_in_any_order(self):
        t = self.against(self.got)
        self.assertTrue(t.clean)
        self.assertEqual((t.rows, t.pairs, t.mismatches), (6, 18, 0))

    def test_one_wrong_id_is_found_and_located(self):
        bad = self.got.copy()
        bad[4, 1, 2] = next(e for e in range(16) if e not in bad[4, 1])
        t = self.against(bad)
        self.assertEqual((t.mismatches, t.clean), (1, False))
        self.assertIn("row 4 layer 1", t.shown[0])

    def test_a_tie_explains_one_exchange_and_what_comes_behind_it(self):
        gap = np.ones(self.want.shape[:2], np.float32)
        gap[2, 1] = 1e-6
        bad = self.got.copy()

        def exchange(row, layer, slot=0):
            bad[row, layer, slot] = next(e for e in range(16) if e not in bad[row, layer] and e not in self.want[row, layer])

        exchange(2, 1)  # the tie
        exchange(4, 2)  # a later row, a later layer
        t = self.against(bad, gap=gap, tie=1e-4)
        self.assertEqual((t.mismatches, t.ties, t.clean), (0, 2, True))
        self.assertEqual(self.against(bad, gap=gap).mismatches, 2)
        exchange(1, 2)  # an earlier row
        exchange(3, 1)  # no later layer
        self.assertEqual(self.against(bad, gap=gap, tie=1e-4).mismatches, 2)
        bad = self.got.copy()
        exchange(2, 1)
        exchange(2, 1, 1)  # more than one expert: nothing that a near choice does
        self.assertEqual(self.against(bad, gap=gap, tie=1e-4).mismatches, 1)

    def test_ids_shifted_by_one_expert(self):
        self.assertGreater(self.against((self.got + 1) % 16).mismatches, 12)

    def test_rows_shifted_by_one(self):
        self.assertGreater(self.against(np.roll(self.got, 1, axis=0)).mismatches, 12)

    def test_layers_swapped(self):
        self.assertGreater(self.against(self.got[:, [1, 0, 2]]).mismatches, 8)

    def test_a_layer_dropped_is_an_error(self):
        self.assertTrue(self.against(self.got[:, :2]).errors)

    def test_a_layer_of_zeros_is_an_error(self):
        bad = self.got.copy()
        bad[:, 2] = 0
        t = self.against(bad)
        self.assertTrue(t.errors and t.mismatches == 6)

    def test_a_short_record_is_a_loss(self):
        t = self.against(self.got[:5])
        self.assertEqual((t.missing_rows, t.clean), (1, False))

    def test_a_long_record_is_an_error(self):
        self.assertTrue(self.against(np.concatenate([self.got, self.got[:1]])).errors)

    def test_an_id_out_of_range_is_an_error(self):
        bad = self.got.astype(np.uint16)
        bad[0, 0, 0] = 300
        self.assertTrue(self.against(bad).errors)

    def test_nothing_compared_is_not_clean(self):
        self.assertFalse(self.against(self.got[:0]).clean)

    def test_tallies_add_up_and_keep_the_bad_news(self):
        total = compare.Tally().add(self.against(self.got)).add(self.against(self.got[:5]))
        self.assertEqual((total.requests, total.pairs, total.missing_rows), (2, 33, 1))
        self.assertEqual(compare.Tally.from_dict(total.as_dict()), total)

    def test_bit_for_bit_sees_order_dtype_shape(self):
        self.assertIsNone(compare.bit_for_bit("r", self.got, self.got.copy()))
        self.assertIn("differ", compare.bit_for_bit("r", self.got, np.sort(self.got, -1)))
        self.assertIn("dtype", compare.bit_for_bit("r", self.got, self.got.astype(np.uint16)))
        self.assertIn("shape", compare.bit_for_bit("r", self.got, self.got[:5]))

    def test_model_layers(self):
        full = compare.to_model_layers(self.got, [1, 2, 4], 5)
        self.assertEqual(full.shape, (6, 5, 4))
        self.assertFalse(full[:, [0, 3]].any())
        self.assertTrue((full[:, 4] == self.got[:, 2]).all())

    def test_version_of_row(self):
        versions = [(0, 1), (40, 2)]
        self.assertEqual([compare.version_of_row(versions, r) for r in (0, 39, 40, 99)], [1, 1, 2, 2])


class Numbers(unittest.TestCase):
    def test_found_by_name_at_any_depth(self):
        stats = {"counters": {"moor_rows_total": 5}, "stores": [{"leases": 2}, {"leases": 3, "name": "leases"}], "ok": True}
        self.assertEqual(numbers.total(stats, "leases"), 5)
        self.assertEqual(numbers.find(stats, "rows"), {"counters.moor_rows_total": 5})
        self.assertIsNone(numbers.total(stats, "nothing"))


class FakeEngine:
    """Enough HTTP to test the client and the load without an engine."""

    def __init__(self, fail=()):
        outer = self
        self.seen, self.lock, self.busy, self.most = [], threading.Lock(), 0, 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                rid = self.headers.get("X-Request-Id")
                with outer.lock:
                    outer.seen.append(rid)
                    outer.busy += 1
                    outer.most = max(outer.most, outer.busy)
                time.sleep(0.02)
                with outer.lock:
                    outer.busy -= 1
                ok = rid not in fail
                data = json.dumps({"id": f"cmpl-{rid}", "choices": [{
                    "index": 0, "prompt_token_ids": body["prompt"], "token_ids": [9] * body["max_tokens"],
                    "finish_reason": "length"}], "usage": {}} if ok else {"error": "planted"}).encode()
                self.send_response(200 if ok else 500)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *a):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


class Load(unittest.TestCase):
    def run_load(self, fail=()):
        engine = FakeEngine(fail)
        try:
            jobs = load.make_jobs(20, 5, "t")
            return jobs, load.run(client.Client(engine.port, timeout=10), jobs, threads=4, timeout=30), engine
        finally:
            engine.close()

    def test_every_job_once_and_in_parallel(self):
        jobs, result, engine = self.run_load()
        self.assertEqual(sorted(engine.seen), sorted(j.request_id for j in jobs))
        self.assertEqual(len(result.done), 20)
        self.assertGreater(engine.most, 1)
        self.assertEqual(result.tokens, sum(j.max_tokens for j in jobs))

    def test_a_lost_request_is_reported_not_dropped(self):
        _, result, _ = self.run_load(fail=("t-3",))
        self.assertEqual(list(result.failed), ["t-3"])
        self.assertEqual(len(result.done), 19)

    def test_jobs_are_reproducible_mixed_and_share_a_prefix(self):
        a, b = load.make_jobs(32, 5, "t"), load.make_jobs(32, 5, "t")
        self.assertEqual([j.prompt for j in a], [j.prompt for j in b])
        self.assertGreater(len({len(j.prompt) for j in a}), 16)
        other = load.make_jobs(32, 6, "t")
        prefix = max((j.prompt[:96] for j in a if len(j.prompt) > 96), key=len)
        self.assertGreaterEqual(sum(j.prompt[:96] == prefix for j in a), 8)
        self.assertGreaterEqual(sum(j.prompt[:96] == prefix for j in other), 8)
        self.assertTrue(all(min(j.prompt) >= 3 for j in a))

    def test_rows_of_a_completion(self):  # SEMANTICS 1.1
        def rows(prompt, sampled):
            return client.Completion("c", [5] * prompt, [6] * sampled, "length").rows

        self.assertEqual((rows(5, 3), rows(5, 0), rows(5, 1)), (7, 5, 5))

    def test_routes_field_decodes(self):
        import base64
        import io

        want = routes()
        out = io.BytesIO()
        np.save(out, want)
        c = client.Completion("c", [], [], "stop", raw_routes=base64.b64encode(out.getvalue()).decode())
        self.assertIsNone(compare.bit_for_bit("r", c.routes(), want))

    def test_balanced_cancels_the_place(self):
        # The later server of each kind is twice as fast; with Moor 0.9 of without, everywhere.
        got = versus.balanced([[100.0, 110.0], [200.0, 220.0]], [[90.0, 99.0], [180.0, 198.0]])
        self.assertAlmostEqual(got.median, 0.9)
        self.assertEqual((got.rounds, str(got)), (2, "0.900 (rounds 0.900 to 0.900)"))
        self.assertRaises(ValueError, versus.balanced, [[1.0]], [[1.0, 2.0]])
        self.assertRaises(ValueError, versus.balanced, [[1.0], [1.0]], [[1.0]])

    def test_overhead_pairs_rounds(self):
        ratio, (low, high) = load.overhead([100.0, 200.0], [90.0, 220.0])
        self.assertAlmostEqual(ratio, 155 / 150)
        self.assertAlmostEqual(low, 0.9)
        self.assertAlmostEqual(high, 1.1)
        self.assertRaises(ValueError, load.overhead, [1.0], [1.0, 2.0])


class Servers(unittest.TestCase):
    def fake(self, script, **more):
        """A Server whose command is a Python script of ours instead of vLLM."""
        class Fake(server.Server):
            def _command(self):
                return [sys.executable, "-c", script, str(self.port)]

        return Fake("no-model", sys.executable, name=f"selftest-{self.id().split('.')[-1]}", **more)

    HEALTHY = ("import http.server,sys\n"
               "class H(http.server.BaseHTTPRequestHandler):\n"
               "    def do_GET(s): s.send_response(200); s.send_header('Content-Length','0'); s.end_headers()\n"
               "    def log_message(s,*a): pass\n")
    SERVE = "http.server.HTTPServer(('127.0.0.1',int(sys.argv[1])),H).serve_forever()\n"

    def test_starts_and_stops(self):
        with self.fake(self.HEALTHY + self.SERVE) as s:
            sid = s.proc.pid
            self.assertTrue(procs.in_session(sid))
        self.assertFalse(procs.in_session(sid))
        self.assertFalse(os.path.exists(s.dir))

    def test_death_at_start_shows_the_root_cause(self):
        with self.assertRaises(server.ServerError) as e:
            self.fake("raise ValueError('planted cause')").start()
        self.assertIn("planted cause", str(e.exception))

    def test_never_healthy_is_stopped_at_the_deadline(self):
        s = self.fake("import time; time.sleep(60)", start_timeout=1.0)
        with self.assertRaises(server.ServerError):
            s.start()
        self.assertIsNone(s.proc)

    def test_dies_with_a_test_that_is_killed(self):
        code = ("import sys,time\nsys.path.insert(0,%r)\nfrom moorlab import server\n"
                "class Fake(server.Server):\n"
                "    def _command(self): return [sys.executable,'-c',%r,str(self.port)]\n"
                "s=Fake('m',sys.executable,name='selftest-orphan').start()\nprint(s.proc.pid,s.dir,flush=True)\ntime.sleep(60)\n"
                % (os.path.join(os.path.dirname(HERE), "lib"), self.HEALTHY + self.SERVE))
        p = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        sid, folder = p.stdout.readline().split()
        p.kill()
        p.wait()
        p.stdout.close()
        self.assertFalse(procs.wait_gone(int(sid), 10))
        os.rmdir(folder)

    def test_a_process_left_behind_is_an_error_and_is_ended(self):
        s = self.fake("import subprocess,sys\nsubprocess.Popen([sys.executable,'-c',"
                      "'import signal,time; signal.signal(signal.SIGINT,signal.SIG_IGN); time.sleep(60)'])\n"
                      + self.HEALTHY + self.SERVE).start()
        sid = s.proc.pid
        with self.assertRaises(server.ServerError):
            s.stop(grace=0.5)
        self.assertFalse(procs.in_session(sid))


class Models(unittest.TestCase):
    def test_unknown_family_is_refused_with_the_known_ones(self):
        with self.assertRaisesRegex(ValueError, "qwen3"):
            models.ensure("nonsense")

    def test_shape(self):
        import tempfile

        with tempfile.TemporaryDirectory() as d:
            with open(os.path.join(d, "config.json"), "w") as f:
                json.dump({"num_hidden_layers": 4, "num_experts": 300, "num_experts_per_tok": 6, "mlp_only_layers": [0]}, f)
            self.assertEqual(models.shape(d), (4, [1, 2, 3], 6, 300))


def have_torch():
    return all(importlib.util.find_spec(m) for m in ("torch", "transformers"))


@unittest.skipUnless(have_torch(), "needs torch and transformers")
class Oracle(unittest.TestCase):
    def test_batching_does_not_change_the_answer_and_weights_do(self):
        a, b = models.ensure("qwen3", 0), models.ensure("qwen3", 1)
        jobs = load.make_jobs(9, 3, "o", prompt_max=30)
        tokens = {j.request_id: j.prompt + [7] for j in jobs}
        with oracle.Oracle() as o:
            together = o.rows(a, tokens)
            for rid in list(tokens)[:3]:
                alone = o.rows(a, {rid: tokens[rid]})[rid]
                self.assertIsNone(compare.bit_for_bit(rid, together[rid].ids, alone.ids))
                self.assertEqual(len(alone.ids), len(tokens[rid]) - 1)
            other = o.rows(b, tokens)
            t = compare.Tally()
            for rid in tokens:
                t.add(compare.against_oracle(rid, other[rid].ids, together[rid].ids))
            self.assertGreater(t.mismatches, t.pairs * 0.9)  # the second weights are really other weights
            self.assertRaises(ValueError, o.rows, a, {"short": [5]})


if __name__ == "__main__":
    unittest.main(verbosity=2)
