# SPDX-License-Identifier: Apache-2.0
"""Store, leases, errors, waits, processes."""
import asyncio
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import warnings
import weakref

import moor
from api_lib import ApiTest, Server, ids


class Open(ApiTest):
    def test_not_found_and_timeout(self):
        with self.assertRaises(moor.NotFound) as caught:
            self.store.open("nobody")
        self.assertIn("nobody", str(caught.exception))
        self.assertEqual(caught.exception.status, -4)
        self.server.record("live", 4, seal=False)
        for timeout in (0.0, 0.6):
            start = time.monotonic()
            with self.assertRaises(moor.Timeout) as caught:
                self.store.open("live", timeout)
            self.assertIn("live", str(caught.exception))
            self.assertGreaterEqual(time.monotonic() - start, timeout - 0.05)
        self.assertIsInstance(caught.exception, TimeoutError)

    def test_waits_for_the_seal(self):
        self.server.record("live", 4, seal=False)
        seal = threading.Timer(0.4, lambda: self.server("seal", "live", 4, 0))
        seal.start()
        r = self.store.open("live", 10)
        seal.join()
        self.assertEqual(r.array().tolist(), ids(0, 4))

    def test_waits_for_a_request_nobody_knows_yet(self):
        later = threading.Timer(0.4, lambda: self.server.record("late", 4))
        later.start()
        self.assertEqual(self.store.open("late", 10).rows, 4)
        later.join()

    def test_short_record_says_so(self):
        """Fewer rows than the core expected: INCOMPLETE with the exact range."""
        self.server("record", "a", 0, 7, 0)
        self.server("seal", "a", 9, 0)
        r = self.store.open("a", 5)
        self.assertEqual((r.rows, r.missing, "short" in r.reasons), (9, [(7, 9)], True))

    def test_ambiguous_lists_ids_in_index_order(self):
        for index in (2, 0, 1):
            self.server.record(f"http-{index}-abcd", 5 + index, aliases=[("http", index)])
        with self.assertRaises(moor.Ambiguous) as caught:
            self.store.open("http", 5)
        want = ["http-0-abcd", "http-1-abcd", "http-2-abcd"]
        self.assertEqual(caught.exception.ids, want)
        self.assertEqual(pickle.loads(pickle.dumps(caught.exception)).ids, want)
        for id in want:
            self.assertIn(id, str(caught.exception))
        self.assertEqual([r.request_id for r in self.store.open_many("http", 5)], want)
        self.assertEqual([r.rows for r in self.store.open_many(["http-1-abcd", "http"], 5)], [6, 5, 6, 7])
        self.assertLeases(0)

    def test_one_alias_is_as_good_as_the_id(self):
        self.server.record("cmpl-1-0-abcd", 5, aliases=[("cmpl-1-0", 0), ("cmpl-1", 0)])
        for id in ("cmpl-1-0-abcd", "cmpl-1-0", "cmpl-1"):
            self.assertEqual(self.store.open(id, 5).request_id, "cmpl-1-0-abcd")

    def test_open_many_all_or_none(self):
        self.server.record("a", 3)
        with self.assertRaises(moor.NotFound):
            self.store.open_many(["a", "nobody"])
        self.assertLeases(0)
        self.assertEqual(self.store.open_many([]), [])

    def test_bad_arguments(self):
        for call, error in ((lambda: self.store.open(7), TypeError), (lambda: self.store.open(""), moor.Invalid), (lambda: self.store.open("a", -1), ValueError),
                            (lambda: self.store.open("a", float("nan")), moor.Invalid), (lambda: self.store.reset("a"), TypeError),
                            (lambda: self.store.truncate("a", -1), moor.Invalid), (lambda: moor.resolve("x"), moor.Invalid),
                            (lambda: moor.Record(), TypeError), (lambda: self.store.barrier("b", 0), moor.Invalid)):
            with self.assertRaises(error):
                call()

    def test_resolve(self):
        self.server.record("a", 6)
        ref = self.store.open("a", 5).ref
        self.assertTrue(ref.startswith("moor1:"))
        with unittest.mock.patch.dict(os.environ, MOOR_DIR=self.base):
            start = time.monotonic()
            r = moor.resolve(ref, timeout=20)
            self.assertLess(time.monotonic() - start, 20)
        self.assertEqual(r.array().tolist(), ids(0, 6))
        self.assertLeases(1)
        del r
        self.assertLeases(0)
        program = ("import moor, sys; r = moor.resolve(sys.argv[2]); print(r.request_id, r.array().tolist())")
        env = dict(os.environ, MOOR_DIR=self.base)
        out = self.python(program, ref, env=env, stdout=subprocess.PIPE).communicate(timeout=30)[0]
        self.assertEqual(out.strip(), f"a {ids(0, 6)}")

    def test_a_ref_of_a_part(self):
        """S1.27: R rows from row START on; rows, missing ranges and versions are those of the part, in a copy that travels, too."""
        self.server("record", "a", 0, 10, 0)
        self.server("touch", "two")
        self.server("record", "a", 10, 20, 0, "missing")
        self.server("record", "a", 20, 30, 0)
        self.server("seal", "a", 30, 0)
        whole = self.store.open("a", 5)
        named, _, shape = whole.ref.rpartition(":30x")

        def epochs(record):
            starts = [start for start, _ in record.versions] + [record.rows]
            return [epoch for (_, epoch), start, stop in zip(record.versions, starts, starts[1:]) for _ in range(start, stop)]

        def ref_of(start, stop):
            return f"{named}:{stop - start}x{shape}" + (f"@{start}" if start else "")

        want, mask, by_row = whole.array(allow_missing=True).tolist(), list(whole.mask), epochs(whole)
        with unittest.mock.patch.dict(os.environ, MOOR_DIR=self.base):
            for start, stop in ((0, 30), (0, 8), (4, 10), (4, 12), (10, 20), (12, 18), (12, 30), (20, 30), (15, 16), (30, 30)):
                opened = moor.resolve(ref_of(start, stop))
                self.assertEqual(opened.ref, ref_of(start, stop))
                for r in (opened, pickle.loads(pickle.dumps(opened, 5)), pickle.loads(pickle.dumps(opened, 4))):
                    with self.subTest(start=start, stop=stop, copy=r is not opened):
                        self.assertEqual((r.first_row, r.rows), (start, stop - start))
                        self.assertEqual(r.array(allow_missing=True).tolist(), want[start:stop])
                        self.assertEqual((list(r.mask), epochs(r)), (mask[start:stop], by_row[start:stop]))
                        self.assertEqual([epoch for _, epoch in r.versions], sorted(set(by_row[start:stop]), key=by_row.index))
                        self.assertEqual((r.complete, r.missing_rows), (all(mask[start:stop]), mask[start:stop].count(False)))
                        self.assertEqual(r.reasons, [] if r.complete else ["layer_missing"])
            self.assertEqual(moor.resolve(ref_of(25, 35)).rows, 5)  # it was cut since
            with self.assertRaises(moor.RangeError) as caught:
                moor.resolve(ref_of(31, 32))
            self.assertIn("31", str(caught.exception))
            with self.assertRaises(moor.Invalid):
                moor.concat(whole, moor.resolve(ref_of(4, 30)))
        del opened, r
        self.assertLeases(1)

    def test_attach_not_found_waits_and_names(self):
        start = time.monotonic()
        with self.assertRaises(moor.NotFound) as caught:
            moor.attach("elsewhere", timeout=0.5, dir=self.base)
        self.assertIn("elsewhere", str(caught.exception))
        self.assertIn("api", str(caught.exception))  # what is there instead
        self.assertGreater(time.monotonic() - start, 0.4)

    def test_stats(self):
        self.server.record("a", 6)
        self.store.open("a", 5)
        stats = self.store.stats()
        self.assertIsInstance(stats, dict)
        self.assertEqual(self.store.instance, "api")


class Snapshots(ApiTest):
    """SEMANTICS 2.6."""

    def test_a_new_server_begins_with_it(self):
        self.server("touch", "step-1")
        self.server.record("a", 10, aliases=[("http", 0)])
        self.server.record("b", 6, seed=3, missing=(2, 4), aliases=[("http", 1)])
        before = self.store.open("a", 5)
        self.store.claim(self.store.open("b", 5), "trace_store")
        target = os.path.join(self.base, "kept")
        self.store.snapshot(target, timeout=30)
        self.assertEqual(os.listdir(target), ["store-0.moor"])
        self.server.process.kill()
        self.server.process.wait(20)
        server = Server(self.base, config={"record": {"restore": target}})
        self.addCleanup(server.close)
        store = moor.attach("api", dir=self.base)
        r = store.open("a", 5)
        self.assertEqual((r.handle, r.owner, r.rows, r.versions), (before.handle, before.owner, before.rows, before.versions))
        self.assertEqual(r.array().tolist(), ids(0, 10))
        b = store.open_many("http")[1]
        self.assertEqual((b.request_id, b.owner, b.missing), ("b", "trace_store", [(2, 4)]))
        server.record("c", 3)
        self.assertGreater(store.open("c", 5).versions[-1][1], r.versions[-1][1])

    def test_what_is_open_is_named(self):
        self.server.record("done", 4)
        self.server.record("running", 4, seal=False)
        with self.assertRaises(moor.StateError) as caught:
            self.store.snapshot(os.path.join(self.base, "kept"))
        self.assertIn("running", str(caught.exception))
        self.assertNotIn("done", str(caught.exception))
        self.assertFalse(os.path.exists(os.path.join(self.base, "kept")))

    def test_paths(self):
        import pathlib

        here = os.getcwd()
        os.chdir(self.base)  # the server's is another
        self.addCleanup(os.chdir, here)
        self.store.snapshot(pathlib.Path("relative"))
        self.assertTrue(os.path.exists(os.path.join(self.base, "relative", "store-0.moor")))
        with self.assertRaises(moor.Error):
            self.store.snapshot("/proc/no/such")
        with self.assertRaises(TypeError):
            self.store.snapshot(7)
        with self.assertRaises(moor.Error):
            self.store.snapshot("x" * 5000)

    def test_a_wrong_one_is_a_wrong_configuration(self):
        self.server.close()
        with self.assertRaisesRegex(AssertionError, "record.restore.*no-such"):
            Server(self.base, config={"record": {"restore": os.path.join(self.base, "no-such")}})
        with self.assertRaisesRegex(AssertionError, "record.restore.*absolute path"):
            Server(self.base, config={"record": {"restore": "relative"}})


class Leases(ApiTest):
    def test_end_with_the_last_view(self):
        self.server.record("a", 10)
        r = self.store.open("a", 5)
        views = r.segments() + [r.array()]
        part = memoryview(views[0])[3:5]
        r.release()
        r.release()
        self.assertTrue(r.released)
        with self.assertRaises(moor.Closed):
            r.array()
        self.assertLeases(1)
        del views
        gc.collect()
        self.assertLeases(1)
        self.assertEqual(part.tolist(), ids(3, 5))
        del part
        self.assertLeases(0)
        self.assertEqual((r.rows, r.request_id), (10, "a"))

    def test_with_block(self):
        self.server.record("a", 10)
        with self.store.open("a", 5) as r:
            self.assertLeases(1)
        self.assertLeases(0)
        with self.assertRaises(moor.Closed):
            r.__enter__()
        with self.assertRaises(RuntimeError), self.store.open("a", 5):
            raise RuntimeError("the step failed")  # S2.5
        self.assertLeases(0)

    def test_released_while_its_arguments_are_read(self):
        """An argument's __index__ is the caller's code: it may release the very record that is being read."""

        class Releasing:
            __name__ = property(lambda self: self.released("uint8"))

            def __init__(self, record):
                self.record = record

            def released(self, value):
                self.record.release()
                return value

            def __index__(self):
                return self.released(1)

        self.server.record("a", 10)
        for read in (
            lambda r, late: r.array(start=late, dtype="int64").tolist(),
            lambda r, late: r.array(start=1, stop=None, dtype=late).tolist(),
            lambda r, late: r.array(start=1, stop=late).tolist(),
            lambda r, late: r.copy_into(bytearray(9 * 3 * 2), late, None, "moe", "uint8"),
            lambda r, late: self.store.session("s").insert("k", r, tokens=[late]),
        ):
            r = self.store.open("a", 5)
            read(r, Releasing(r))
            self.assertTrue(r.released)
        self.assertEqual(self.store.session("s").search("k").request_id, "a")
        self.assertLeases(0)

    def test_garbage_collected(self):
        self.server.record("a", 10)
        r = self.store.open("a", 5)
        gone = weakref.ref(r)
        del r
        self.assertIsNone(gone())
        self.assertLeases(0)

    def test_store_outlives_its_last_name(self):
        self.server.record("a", 10)
        other = moor.attach("api", dir=self.base)
        gone, a = weakref.ref(other), other.open("a", 5).array()
        del other
        self.assertIsNotNone(gone())
        self.assertLeases(1)
        self.assertEqual(a.tolist(), ids(0, 10))
        del a
        self.assertIsNone(gone())
        self.assertLeases(0)

    def test_freed_while_leased_stays_readable_then_is_gone(self):
        """S2.2: reset frees a rollout's record; the lease defers it."""
        self.server.record("a", 10)
        r = self.store.open("a", 5)
        other = self.store.open("a", 5)
        ref = r.ref
        self.store.reset(r)
        self.assertEqual(r.array().tolist(), ids(0, 10))
        del r, other
        self.assertLeases(0)
        with self.assertRaises((moor.NotFound, moor.Stale)):
            self.store.open("a")
        program = ("import moor, sys\ntry: moor.resolve(sys.argv[2])\nexcept moor.Stale as e: print(e.status)")
        out = self.python(program, ref, env=dict(os.environ, MOOR_DIR=self.base), stdout=subprocess.PIPE).communicate(timeout=30)[0]
        self.assertEqual(out.strip(), "-7")

    def test_claim_changes_what_reset_does(self):
        """S2: trace_store is detached by a reset, not freed."""
        self.server.record("a", 10)
        r = self.store.open("a", 5)
        self.store.claim(r, "trace_store")
        self.assertEqual(r.owner, "trace_store")
        with self.assertRaises(moor.Invalid):
            self.store.claim(r, "me")

    def test_truncate(self):
        self.server.record("a", 10)
        before = self.store.open("a", 5)
        self.store.truncate("a", 6)
        self.assertEqual(self.store.open("a", 5).array().tolist(), ids(0, 6))
        self.assertEqual(before.array().tolist(), ids(0, 10))

    def test_kill_9_ends_them(self):
        self.server.record("a", 10)
        program = ("import moor, sys, time\nr = moor.attach('api', dir=sys.argv[1]).open('a', 5)\nv = r.array()\nprint('holding', flush=True)\ntime.sleep(60)")
        child = self.python(program, stdout=subprocess.PIPE)
        self.addCleanup(child.stdout.close)
        self.assertEqual(child.stdout.readline(), "holding\n")
        self.assertLeases(1)
        child.kill()
        child.wait()
        self.assertLeases(0)
        self.assertEqual(self.store.open("a", 5).array().tolist(), ids(0, 10))

    def test_server_death_leaves_views_readable(self):
        self.server.record("a", 10)
        r = self.store.open("a", 5)
        self.server.process.kill()
        self.server.process.wait()
        self.assertEqual(r.array().tolist(), ids(0, 10))
        with self.assertRaises(moor.Error):
            self.store.open("a", 0.2)


class Processes(ApiTest):
    def test_fork_in_a_consumer(self):
        """The child may read what the parent leased, owns nothing, attaches for itself; its end ends nothing of the parent."""
        self.server.record("a", 10)
        r = self.store.open("a", 5)
        a = r.array()

        async def wait(store):
            return (await store.open_async("a", 5)).rows

        self.assertEqual(asyncio.run(wait(self.store)), 10)  # the thread that does this is not in the child
        self.assertLeases(1)  # what it opened is released: a fork now would keep that, too
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            said = ""
            try:
                said += str(a.tolist() == ids(0, 10))
                try:
                    self.store.open("a")
                except moor.Forked as error:
                    said += f" forked {error.status}"
                mine = moor.attach("api", dir=self.base)
                said += f" {mine.open('a', 5).rows}"
                said += f" {asyncio.run(wait(mine))}"
                try:
                    asyncio.run(asyncio.wait_for(wait(self.store), 5))
                except moor.Forked:
                    said += " forked"
                del mine
                r.release()
                gc.collect()
            except BaseException as error:
                said += repr(error)
            os.write(into, said.encode())
            os._exit(0)
        os.close(into)
        with os.fdopen(out) as pipe:
            self.assertEqual(pipe.read(), "True forked -19 10 10 forked")
        os.waitpid(child, 0)
        self.assertLeases(1)
        self.assertEqual(a.tolist(), ids(0, 10))
        self.assertEqual(self.store.open("a", 5).rows, 10)

    def test_S2_8_loaders_read_their_rows_whatever_the_parent_does(self):
        """Forked workers, as multiprocessing and data loaders start them: the parent lets go, the record is freed, the arena is full of others."""
        self.server.record("a", 10)
        record = self.store.open("a", 5)
        array = record.array()
        fork = multiprocessing.get_context("fork")
        freed, said = fork.Event(), fork.SimpleQueue()

        def work():
            freed.wait(30)
            said.put((array.tolist() == ids(0, 10), record.array().tolist() == ids(0, 10), record.rows))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads, from CPython 3.12 on
            workers = [fork.Process(target=work) for _ in range(3)]
            for worker in workers:
                worker.start()
        del array
        self.store.discard(record)
        record.release()
        for i in range(200):
            self.server.record(f"b{i}", 10, seed=i + 1)
        self.assertEqual(self.stat("leases"), 1)
        freed.set()
        for worker in workers:
            worker.join(30)
            self.assertEqual(said.get(), (True, True, 10))
        self.assertLeases(0)

    def test_threads_open_in_parallel(self):
        for i in range(20):
            self.server.record(f"r{i}", i + 1, seed=i)
        wrong = []

        def work(offset):
            for n in range(100):
                i = (n + offset) % 20
                with self.store.open(f"r{i}", 5) as r:
                    if r.array().tolist() != ids(0, i + 1, i):
                        wrong.append(i)

        threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
        slow = threading.Thread(target=lambda: self.assertRaises(moor.NotFound, self.store.open, "never", 1.5))
        slow.start()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        slow.join()
        self.assertEqual(wrong, [])
        self.assertLeases(0)

    def test_a_wait_releases_the_gil(self):
        self.server.record("late", 4, seal=False)

        def seal():
            time.sleep(0.1)
            self.server("seal", "late", 4, 0)

        thread = threading.Thread(target=seal)
        thread.start()
        self.assertEqual(self.store.open("late", 30).rows, 4)
        thread.join()


class Async(ApiTest):
    def test_waits_in_the_loop(self):
        for i in range(50):
            self.server.record(f"r{i}", i + 1, seal=False)
        ticks = [0]

        async def tick():
            while True:
                await asyncio.sleep(0.01)
                ticks[0] += 1

        async def seal():
            for i in range(50):
                await asyncio.sleep(0.005)
                self.server("seal", f"r{i}", i + 1, 0)

        async def run():
            ticker = asyncio.ensure_future(tick())
            opened = await asyncio.gather(seal(), *(self.store.open_async(f"r{i}", 20) for i in range(50)))
            ticker.cancel()
            return [r.rows for r in opened[1:]]

        self.assertEqual(asyncio.run(run()), list(range(1, 51)))
        self.assertGreater(ticks[0], 0)
        self.assertLeases(0)

    def test_errors_and_cancellation(self):
        self.server.record("live", 4, seal=False)

        async def run():
            with self.assertRaises(moor.Timeout):
                await self.store.open_async("live", 0.2)
            with self.assertRaises(moor.NotFound):
                await self.store.open_async("nobody")
            task = asyncio.ensure_future(self.store.open_async("live", 30))
            await asyncio.sleep(0.1)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.1)
            for _ in range(10):  # a wait is out of the heap only while it is tried
                self.assertEqual(moor._async._pollers[self.store].heap, [])
                await asyncio.sleep(0.007)
            self.server("seal", "live", 4, 0)
            await asyncio.sleep(0.2)

        asyncio.run(run())
        self.assertLeases(0)
        with self.assertRaises(moor.Invalid):
            self.store.open_async("live", -1)


class Signals(ApiTest):
    """Ctrl-C ends every wait, whichever thread the kernel gives it to, and leaves nothing half done."""

    WAIT = 60  # no wait may be over before; the tests say nothing else of time

    def interrupted(self, call, *args):
        """Runs it until a SIGINT that comes meanwhile; the exception's notes."""
        done = threading.Event()

        def press():
            while not done.wait(0.15):
                os.kill(os.getpid(), signal.SIGINT)
                return

        ctrl_c = threading.Thread(target=press)
        start = time.monotonic()
        ctrl_c.start()
        try:
            with self.assertRaises(KeyboardInterrupt) as caught:
                call(*args)
        finally:
            done.set()
            ctrl_c.join()
        self.assertLess(time.monotonic() - start, self.WAIT)
        return " ".join(getattr(caught.exception, "__notes__", ()))

    def stopped(self):
        self.server.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.server.process.pid, os.WSTOPPED)
        self.addCleanup(self.server.process.send_signal, signal.SIGCONT)

    def test_waits_for_what_may_come(self):
        self.server.record("live", 4, seal=False)
        self.assertIn("live", self.interrupted(self.store.open, "live", self.WAIT))
        self.interrupted(self.store.open, "never", self.WAIT)
        self.interrupted(self.store.open_many, ["never"], self.WAIT)
        self.interrupted(self.store.open_many, "never", self.WAIT)
        self.assertIn("attach", self.interrupted(moor.attach, "nobody", self.WAIT, self.base))
        nobody = f"moor1:{socket.gethostname()}:nobody:0.00000001:0000000100000001:u8:1x3x2"
        self.interrupted(moor.resolve, nobody, self.WAIT)
        self.server("seal", "live", 4, 0)
        self.assertEqual(self.store.open("live", 5).rows, 4)
        self.assertLeases(0)

    def test_a_drain_leaves_the_gate_sealed_and_says_so(self):
        gate = self.store.gate
        self.server("enter", "q")
        gate.seal()
        note = self.interrupted(gate.drain, self.WAIT)
        self.assertIn("1 request not settled: q", note)
        self.assertIn("stays sealed", note)
        self.assertEqual(gate.status()["state"], "sealed")
        self.assertEqual(self.store.stats()["counters"]["gate_drain_timeouts_total"], 0)
        self.server("leave")
        self.assertEqual(gate.drain(5)["state"], "drained")
        self.server("begin")
        self.assertIn("stays closed", self.interrupted(gate.reopen, self.WAIT))
        self.assertEqual(gate.status()["state"], "drained")
        self.server("end")
        self.assertEqual(gate.reopen(5)["state"], "open")

    def test_a_barrier_is_broken_for_all(self):
        """Nobody passes a rank that is not there any more, and nobody waits for it (S5.3)."""
        broken = []

        def arrive():
            try:
                moor.attach("api", dir=self.base).barrier("b", 3).arrive(1, self.WAIT)
            except moor.Broken as error:
                broken.append(str(error))

        other = threading.Thread(target=arrive)
        other.start()
        self.assertIn("broken", self.interrupted(self.store.barrier("b", 3).arrive, 0, self.WAIT))
        other.join()
        self.assertIn("rank 0 was interrupted", "".join(broken))

    def test_a_store_that_does_not_answer(self):
        """Each call is left; its answer, and the leases in it, are dropped when they come, and the connection goes on."""
        self.server.record("a", 10)
        record = self.store.open("a", 5)
        ref = record.ref
        session = self.store.session("s")
        session.insert("k", record, tokens=list(range(10)))
        calls = [
            (self.store.stats,), (self.store.open, "a", self.WAIT), (self.store.open_many, "a", self.WAIT), (moor.resolve, ref),
            (self.store.claim, record, "trace_store"), (self.store.truncate, "a", 10), (self.store.snapshot, self.base + "/snap", self.WAIT),
            (self.store.session, "t", True), (session.keys,), (session.search, "k"), (session.export, "k"), (session.rollback, "k", list(range(10)), 10),
            (moor.status_text, "api", self.base),
        ]
        with unittest.mock.patch.dict(os.environ, MOOR_DIR=self.base):
            self.assertEqual(moor.resolve(ref).rows, 10)
            self.stopped()
            for call, *args in calls:
                with self.subTest(call=call.__name__):
                    self.interrupted(call, *args)
            self.server.process.send_signal(signal.SIGCONT)
        self.assertEqual(session.keys(), ["k"])  # of a session that ends with its connection
        self.assertEqual(self.store.open("a", 5).rows, 10)
        with self.assertRaises(moor.NotFound):  # reads what came late over resolve()'s connection
            moor.resolve(f"moor1:{socket.gethostname()}:nobody:0.00000001:0000000100000001:u8:1x3x2", 0)
        self.assertEqual(record.array().tolist(), ids(0, 10))

    def test_late_leases_are_given_back(self):
        self.server.record("a", 10)
        self.store.open("a", 5).release()
        self.stopped()
        self.interrupted(self.store.open, "a", self.WAIT)
        self.interrupted(self.store.open_many, "a", self.WAIT)
        self.server.process.send_signal(signal.SIGCONT)
        self.assertLeases(0)
        self.assertGreater(self.stat("records"), 0)

    def test_a_handler_that_returns_lets_the_wait_go_on(self):
        """And may ask the same store itself."""
        self.server.record("late", 4, seal=False)
        seen = []

        def handle(*_):
            seen.append(self.stat("records"))
            self.server("seal", "late", 4, 0)

        before = signal.signal(signal.SIGALRM, handle)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        self.assertEqual(self.store.open("late", self.WAIT).rows, 4)
        self.assertEqual(seen, [1])

    def test_asyncio(self):
        self.server.record("live", 4, seal=False)
        self.interrupted(asyncio.run, self.wait_for_live())
        self.server("seal", "live", 4, 0)
        self.assertEqual(self.store.open("live", 5).rows, 4)
        self.assertLeases(0)

    async def wait_for_live(self):
        return await self.store.open_async("live", self.WAIT)


class ALife(ApiTest):
    def test_a_store_is_of_one_servers_life(self):
        """Its ids may mean other requests in the next one, whose gate is open."""
        self.server.record("0", 10)
        for end in (self.server.process.kill, self.server.close):
            store, gate = self.store, self.store.gate
            gate.seal()
            end()
            self.server.close()
            asked = (store.stats, gate.status, gate.drain, lambda: store.open("0"), lambda: store.truncate("0", 1), lambda: store.session("s").keys(),
                     lambda: store.barrier("b", 1).arrive(0), lambda: store.snapshot(self.base))
            for life in ("gone", "the next one lives"):
                for ask in asked:
                    with self.subTest(life), self.assertRaises(moor.Closed) as caught:
                        ask()
                    self.assertIn("the server of instance \"api\"", str(caught.exception))
                    self.assertIn("is gone", str(caught.exception))
                if life == "gone":
                    self.server = Server(self.base)
                    self.addCleanup(self.server.close)
                    self.server.record("0", 10, seed=3)
            self.store = moor.attach("api", dir=self.base)
            self.assertEqual(self.store.open("0", 5).array().tolist(), ids(0, 10, 3))


class Expired(ApiTest):
    server_args = {"config": {"record": {"keep_s": 0.05}}}

    def test_an_id_that_expired_says_so(self):
        self.server.record("old", 10, aliases=[("http", 0)])
        self.wait_for(lambda: self.stat("records") == 0, "it never expired")
        for id in ("old", "http"):
            with self.assertRaises(moor.NotFound) as caught:
                self.store.open(id)
            self.assertIn("the keep policy freed it", str(caught.exception))
            self.assertIn("record.keep_s is 0.05", str(caught.exception))
        with self.assertRaises(moor.NotFound) as caught:
            self.store.open("never")
        self.assertEqual(str(caught.exception), "no record of request never")


class Freed(ApiTest):
    def test_an_id_that_was_freed_says_so(self):
        self.server.record("a", 10)
        with self.store.open("a", 5) as record:
            self.store.discard(record)
        with self.assertRaises(moor.NotFound) as caught:
            self.store.open("a")
        self.assertIn("it was freed", str(caught.exception))


class GateHoldBarrier(ApiTest):
    def test_gate_from_a_trainer(self):
        gate = self.store.gate
        before = gate.status()
        self.assertEqual((before["state"], before["poisoned"], before["in_flight"]), ("open", False, 0))
        self.server("enter", "q")
        self.assertEqual(gate.seal()["state"], "sealed")
        with self.assertRaises(moor.Timeout) as caught:
            gate.drain(0.3)
        self.assertIn("q", str(caught.exception))  # S4.3
        with self.assertRaises(moor.StateError):
            gate.install("v2")  # S4.5: only when drained
        self.server("leave")
        self.assertEqual(gate.drain(5)["state"], "drained")
        after = gate.install("v2")
        self.assertEqual((after["epoch"], after["label"]), (before["epoch"] + 1, "v2"))
        self.assertEqual(gate.reopen(5)["state"], "open")
        self.assertEqual(gate.reopen(5)["state"], "open")  # S4.10: says so, does no harm

    def test_a_long_label_of_many_bytes_is_cut_and_read(self):
        gate = self.store.gate
        gate.seal()
        gate.drain(5)
        self.assertEqual(gate.install("\u20ac" * 30)["label"], "\u20ac" * 21)
        gate.reopen(5)

    def test_hold_ends_with_block_object_and_process(self):
        with self.store.hold("cpu:0", "trainer", 1 << 30) as hold:
            self.assertIn("trainer", repr(hold))
        hold.release()
        with self.assertRaises(moor.Closed):
            hold.__enter__()
        self.store.hold("cpu:0", "again").release()

    def test_S5_1_a_hold_is_seen_whatever_the_environment(self):
        program = ("import moor, sys\nwith moor.hold(sys.argv[2], 'elsewhere', 7):\n print(flush=True)\n sys.stdin.readline()\n")
        device = f"test:{os.getpid()}"

        def holds():
            return [(h["label"], h["pid"], h["bytes"]) for h in self.store.stats()["holds"] if h["device"] == device]

        env = {k: v for k, v in os.environ.items() if k not in ("MOOR_DIR", "MOOR_HOLDS_DIR", "XDG_RUNTIME_DIR")}
        with tempfile.TemporaryDirectory() as runtime, unittest.mock.patch.dict(os.environ, env, clear=True):
            for change in ({"XDG_RUNTIME_DIR": runtime}, {"MOOR_DIR": runtime}, {}):
                other = self.python(program, device, env={**env, **change}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                other.stdout.readline()
                self.assertEqual(holds(), [("elsewhere", other.pid, 7)], change)
                other.communicate("\n", timeout=30)
                self.assertEqual(holds(), [])

    def test_a_hold_says_who_sees_it(self):
        with self.store.hold("cpu:1", "own") as own:
            self.assertEqual(own.seen_by, (f"{self.base}/api",))
            self.assertEqual([h["label"] for h in self.store.stats()["holds"]], ["own"])
            self.server.close()
            self.assertEqual(own.seen_by, ())
        with self.assertRaises(moor.Closed):
            own.seen_by

    def test_barrier(self):
        results = {}

        def arrive(rank):
            results[rank] = moor.attach("api", dir=self.base).barrier("b", 3).arrive(rank, 10)

        for round in range(2):
            threads = [threading.Thread(target=arrive, args=(rank,)) for rank in range(3)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(len({r["generation"] for r in results.values()}), 1)
        with self.assertRaises((moor.Timeout, moor.Broken)) as caught:
            self.store.barrier("b", 3).arrive(0, 0.3)
        self.assertIn("1", str(caught.exception))  # S5.3: a missing rank by its number
        with self.assertRaises(moor.RangeError):
            self.store.barrier("b", 3).arrive(3)


class Metrics(ApiTest):
    def test_collector(self):
        try:
            import prometheus_client
        except ImportError:
            self.skipTest("prometheus_client is not installed in this Python")
        import moor.metrics
        registry = prometheus_client.CollectorRegistry()
        first = moor.metrics.register(registry, "api", self.base)
        self.assertIs(moor.metrics.register(registry, "api", self.base), first)
        self.server.record("a", 6)
        self.store.open("a", 5)
        text = prometheus_client.generate_latest(registry).decode()
        rows = [line for line in text.splitlines() if line.startswith("moor_rows_total")]
        self.assertEqual([float(line.split()[-1]) for line in rows], [6.0])
        self.server.close()
        with self.assertLogs("moor", "WARNING"):
            self.assertNotIn("moor_", prometheus_client.generate_latest(registry).decode())


if __name__ == "__main__":
    unittest.main()
