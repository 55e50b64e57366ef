# SPDX-License-Identifier: Apache-2.0
"""Sessions and their trace tries through a real second process (SEMANTICS 3, 2, 1.9, 1.10)."""
import array
import gc
import os
import socket
import struct
import subprocess
import threading
import time
import unittest

import moor
from api_lib import ApiTest, Server, ids, needs_numpy, numpy


class SessionTest(ApiTest):
    def turns(self, session="s"):
        """Turn 1: 10 tokens, rows 0…8; turn 2 starts from them: 16 tokens, rows 0…14."""
        self.server.record("one", 9, seed=1)
        self.server.record("two", 15, seed=2)
        s = self.store.session(session)
        s.insert("turn1 ", self.store.open("one", 5), tokens=list(range(10)))
        s.insert("turn1 turn2 ", self.store.open("two", 5), tokens=range(10, 16))
        return s


class Trie(SessionTest):
    def test_S3_2_example(self):
        s = self.store.session("s")
        for key in ("", "z", "a", "ab", "abc", "ax"):
            s.insert(key, tokens=[len(key)], start=0)
        self.assertEqual(s.keys(), ["", "z", "a", "ab", "abc", "ax"])
        s.release("ab")
        self.assertEqual(s.keys(), ["", "z", "a", "abc", "ax"])
        s.release("abc")
        s.release("abc")
        s.release("nothing")
        self.assertEqual(s.keys(), ["", "z", "a", "ax"])
        self.assertIsNone(s.search(""))
        self.assertIsNone(s.search("b"))
        self.assertEqual(s.search("abcd").key, "a")
        s.release("a")
        self.assertIsNone(s.search("abcd"))
        s.release()
        s.release()
        with self.assertRaises(moor.Gone):
            s.keys()

    def test_S3_3_search(self):
        s = self.turns()
        found = s.search("turn1 turn2 and more")
        self.assertEqual((found.key, found.start, found.length, found.request_id), ("turn1 turn2 ", 10, 6, "two"))
        self.assertEqual(found.tokens.tolist(), list(range(10, 16)))
        self.assertEqual(found.handle, self.store.open("two").handle)
        self.assertEqual(tuple(found)[:3], ("turn1 turn2 ", 10, 6))
        self.assertIsNone(s.search("turn"))

    def test_keys_are_text(self):
        s = self.store.session("Sitzung ☃")
        keys = ["schön", "schöne Grüße", "日本", "日本語", "🙂", "🙂🙃"]
        for key in keys:
            s.insert(key, tokens=[1], start=0)
        self.assertEqual(s.keys(), ["schön", "schöne Grüße", "日本", "日本語", "🙂", "🙂🙃"])
        self.assertEqual(s.search("schöne Grüß").key, "schön")
        self.assertEqual(s.search("日本語です").key, "日本語")
        with self.assertRaises(UnicodeEncodeError):
            s.search("\ud800")
        with self.assertRaises(TypeError):
            s.search(b"bytes")

    def test_large_keys_and_tokens_travel_in_pieces(self):
        s = self.store.session("s")
        self.server.record("big", 1000)
        n = 300_000
        tokens = array.array("i", range(n))
        key = "é" * 700_000
        s.insert(key, tokens=tokens, start=0)
        s.insert(key + "!", tokens=array.array("q", [n]))
        found = s.search(key + "?" * 100_000)
        self.assertEqual((len(found.key), found.length), (700_000, n))
        self.assertEqual(found.tokens[n - 1], n - 1)
        self.assertEqual([len(k) for k in s.keys()], [700_000, 700_001])
        trace = s.export(key + "!")
        self.assertEqual((len(trace.tokens), trace.tokens[-1], trace.record), (n + 1, n, None))
        with self.assertRaises(moor.Invalid):
            s.search("x" * (65 << 20))
        self.assertEqual(len(s.keys()), 2)  # the connection lives

    def test_S3_1_a_chain_of_1600(self):
        s = self.store.session("s")
        for i in range(1, 1601):
            s.insert("x" * i, tokens=[i])
        self.assertEqual([len(k) for k in s.keys()], list(range(1, 1601)))
        self.assertEqual(s.export("x" * 1600).tokens.tolist(), list(range(1, 1601)))
        s.release()
        self.assertEqual(self.stat("session_keys"), 0)

    def test_tokens_of_any_kind(self):
        s = self.store.session("s")
        kinds = [[1, 2, 3], (1, 2, 3), array.array("i", [1, 2, 3]), array.array("q", [1, 2, 3]), memoryview(array.array("i", [1, 2, 3]))]
        if numpy is not None:
            kinds += [numpy.array([1, 2, 3]), numpy.array([1, 2, 3], dtype="int16"), numpy.array([1, 0, 2, 0, 3])[::2]]
        for i, tokens in enumerate(kinds):
            s.insert(f"k{i}", tokens=tokens, start=0)
            self.assertEqual(s.search(f"k{i}").tokens.tolist(), [1, 2, 3])
        for bad, error in ((["a"], TypeError), ([1.5], TypeError), (5, TypeError), ([1 << 31], moor.RangeError), (array.array("d", [1.0]), TypeError)):
            with self.assertRaises(error):
                s.insert("bad", tokens=bad)
        self.assertIsNone(s.search("bad"))


class Export(SessionTest):
    def test_S1_9_turn_boundary(self):
        s = self.turns()
        trace = s.export("turn1 turn2 ")
        self.assertEqual(trace.tokens.tolist(), list(range(16)))
        self.assertEqual(trace.segments, [("turn1 ", 0, 10), ("turn1 turn2 ", 10, 6)])
        r = trace.record
        self.assertEqual((r.rows, r.complete, r.session_id, r.owner, r.request_id), (15, True, "s", "trace_store", "two"))
        self.assertEqual(r.array().tolist(), ids(0, 9, 1) + ids(9, 15, 2))
        self.assertEqual([len(v) for v in r.segments()], [9, 6])
        first = s.export("turn1 ")
        self.assertEqual((len(first.tokens), first.record.rows), (10, 9))
        self.assertLeases(3)
        view = trace.record.segments()[1]
        del trace, first, r
        gc.collect()
        self.assertLeases(2)  # the view keeps the whole trace
        del view
        self.assertLeases(0)

    def test_S3_3_holes(self):
        s = self.turns()
        self.server.record("three", 20)
        s.insert("turn1 turn2 turn3", self.store.open("three", 5), tokens=range(16, 21))
        s.release("turn1 turn2 ")
        with self.assertRaises(moor.Incomplete) as caught:
            s.export("turn1 turn2 turn3")
        self.assertIn("tokens 10 to 16 are missing", str(caught.exception))
        with self.assertRaises(moor.RangeError) as caught:
            s.insert("turn1 turn2 ", self.store.open("one"), tokens=range(6))
        self.assertIn("9 rows", str(caught.exception))
        with self.assertRaises(moor.NotFound):
            s.export("turn2")

    def test_missing_rows_and_versions_travel(self):
        self.server.record("one", 9, missing=(3, 5))
        self.server("touch", "v2")
        self.server.record("two", 15, seed=2)
        s = self.store.session("s")
        s.insert("a", self.store.open("one", 5), length=10)
        s.insert("ab", self.store.open("two", 5), length=6)
        trace = s.export("ab")
        self.assertIsNone(trace.tokens)
        self.assertEqual(trace.record.missing, [(3, 5)])
        self.assertEqual([start for start, _ in trace.record.versions], [0, 9])
        with self.assertRaises(moor.Incomplete):
            trace.record.array()
        self.assertEqual(trace.record.array(9).tolist(), ids(9, 15, 2))

    def test_an_export_outlives_the_session(self):
        s = self.turns()
        trace = s.export("turn1 turn2 ")
        handle = trace.record.handle
        s.release()
        with self.assertRaises(moor.NotFound):
            self.store.open("two")
        self.server.record("other", 200)
        self.assertEqual(trace.record.array().tolist(), ids(0, 9, 1) + ids(9, 15, 2))
        self.assertEqual(handle, 0)  # of no record: of several
        self.assertEqual(self.stat("records"), 3)
        del trace
        self.wait_for(lambda: self.stat("records") == 1, "the records are freed with the last lease")


class Rollback(SessionTest):
    def test_S1_10_tokens_and_rows_together(self):
        s = self.turns()
        tokens = list(range(13)) + [-1, -2]
        with self.assertRaises(moor.RangeError) as caught:
            s.rollback("turn1 turn2 ", tokens, min_tokens=14)
        self.assertIn("13", str(caught.exception))
        self.assertEqual(len(s.export("turn1 turn2 ").tokens), 16)
        self.assertEqual(s.rollback("turn1 turn2 ", tokens, min_tokens=13), (13, "turn1 turn2 "))
        trace = s.export("turn1 turn2 ")
        self.assertEqual((len(trace.tokens), trace.record.rows), (13, 13))
        self.assertEqual(self.store.open("two").rows, 13)
        self.assertEqual(s.rollback("turn1 turn2 ", range(10)), (10, "turn1 "))
        self.assertEqual(s.keys(), ["turn1 "])
        s.insert("turn1 other", tokens=[7])
        with self.assertRaises(moor.StateError):
            s.rollback("turn1 ", range(4))
        self.assertEqual(s.rollback("turn1 other", range(4)), (4, "turn1 "))

    def test_S1_10_truncate_within(self):
        self.server.record("a", 10)
        with self.assertRaises(moor.RangeError) as caught:
            self.store.truncate("a", 5, min_rows=6)
        self.assertIn("6 to 10", str(caught.exception))
        self.assertEqual(self.store.open("a").rows, 10)
        self.store.truncate("a", 6, min_rows=6)
        self.assertEqual(self.store.open("a").rows, 6)
        s = self.turns()
        self.store.truncate("two", 12)
        self.assertEqual(len(s.export("turn1 turn2 ").tokens), 12)
        with self.assertRaises(moor.StateError):
            self.store.truncate("one", 5)


class Life(SessionTest):
    def test_S3_4_a_read_never_creates(self):
        s = self.store.session("s")
        for read in (s.keys, lambda: s.search("x"), lambda: s.export("x"), lambda: s.release("x"), lambda: s.rollback("x", [1]), s.release):
            with self.assertRaises(moor.NotFound):
                read()
        with self.assertRaises(moor.Invalid):
            s.insert("x")
        with self.assertRaises(moor.NotFound):
            s.keys()
        self.assertEqual((self.stat("sessions"), self.stat("sessions_gone")), (0, 0))

    def test_S3_4_gone_until_started(self):
        s = self.turns()
        s.release()
        for use in (s.keys, lambda: s.search("x"), lambda: s.insert("x", tokens=[1]), lambda: self.store.session("s").keys()):
            with self.assertRaises(moor.Gone) as caught:
                use()
        self.assertIn("session s was released", str(caught.exception))
        self.assertEqual(self.store.session("s", create=True).keys(), [])
        s.insert("x", tokens=[1])
        self.assertEqual(self.store.session("s", create=True).keys(), ["x"])  # lives: left as it is

    def test_S2_5_released_when_the_step_raised(self):
        with self.assertRaises(ZeroDivisionError):
            with self.turns():
                1 / 0
        with self.assertRaises(moor.NotFound):
            self.store.open("one")
        with self.store.session("unused"):
            pass
        self.assertEqual((self.stat("sessions"), self.stat("live_bytes")), (0, 0))

    def test_S2_5_kill_9_releases_its_sessions(self):
        for name in ("a", "b"):
            self.server.record(name, 10)
        program = ("import moor, sys, time\nstore = moor.attach('api', dir=sys.argv[1])\nstore.session('mine').insert('k', store.open('a', 5))\n"
                   "store.session('kept', create=True, keep=True).insert('k', store.open('b', 5))\nprint('there', flush=True)\ntime.sleep(60)")
        child = self.python(program, stdout=subprocess.PIPE)
        self.addCleanup(child.stdout.close)
        self.assertEqual(child.stdout.readline(), "there\n")
        self.assertEqual(self.store.session("mine").keys(), ["k"])
        child.kill()
        child.wait()
        self.wait_for(lambda: self.stat("sessions") == 1, "its session never went")
        with self.assertRaises(moor.Gone):
            self.store.session("mine").keys()
        with self.assertRaises(moor.NotFound):
            self.store.open("a")
        self.assertEqual(self.store.session("kept").export("k").record.rows, 10)

    def test_S2_owner_and_events(self):
        self.server.record("a", 10)
        r = self.store.open("a", 5)
        s = self.store.session("s")
        s.insert("k", r)
        self.assertEqual((r.owner, r.session_id, self.store.open("a").session_id), ("trace_store", "s", "s"))
        with self.assertRaises(moor.StateError):
            self.store.claim(r, "rollout")
        self.store.reset(r)
        self.store.discard(r)
        self.assertEqual(self.store.open("a").rows, 10)
        with self.assertRaises(moor.StateError):
            self.store.session("other").insert("k", r)
        s.insert("k", tokens=[1])  # overwritten: parked
        self.assertEqual(self.store.open("a").rows, 10)
        s.release()
        with self.assertRaises(moor.NotFound):
            self.store.open("a")

    def test_arguments(self):
        for wrong, error in ((lambda: self.store.session(""), moor.Invalid), (lambda: self.store.session(5), TypeError),
                             (lambda: self.store.session("s", keep=True), moor.Invalid), (lambda: self.store.session("x" * 2000, create=True), moor.Invalid),
                             (lambda: self.store.session("s").insert("k", "record"), TypeError),
                             (lambda: self.store.session("s").insert("k", tokens=[1, 2], length=3), moor.Invalid),
                             (lambda: self.store.session("s").insert("k", length=-1), moor.Invalid)):
            with self.assertRaises(error):
                wrong()
        self.assertEqual(repr(self.store.session("s")), "<moor.Session 's'>")
        self.assertEqual(self.store.session("s").id, "s")
        self.server.record("a", 10)
        r = self.store.open("a", 5)
        r.release()
        with self.assertRaises(moor.Closed):
            self.store.session("s").insert("k", r)

    def test_threads_share_a_session(self):
        s = self.store.session("s", create=True)

        def insert(i):
            for j in range(50):
                s.insert(f"{i} {j}", tokens=[i, j], start=0)
                self.assertEqual(s.search(f"{i} {j}!").tokens.tolist(), [i, j])

        threads = [threading.Thread(target=insert, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(s.keys()), 200)


class Stores(SessionTest):
    """Two data-parallel replicas: a session is in the store of its first record."""

    def setUp(self):
        super().setUp()
        second = Server.__new__(Server)
        env = dict(os.environ, MOOR_INSTANCE="api", MOOR_DIR=self.base)
        second.process = subprocess.Popen([os.path.join(os.environ["MOOR_BUILD_DIR"], "tests/integration/api_server"), '{"log": "error"}'],
                                          env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        second._answer("start")
        second("open", 1, 3, 6, 2, 256, 16 << 20)
        self.addCleanup(second.close)
        self.second = second

    def test_a_session_is_in_the_store_of_its_record(self):
        self.server.record("zero", 9)
        self.second.record("one", 9)
        self.second.record("two", 15)
        s = self.store.session("s", create=True)
        s.insert("a", self.store.open("one", 5), tokens=range(10))
        s.insert("ab", self.store.open("two", 5), tokens=range(10, 16))
        self.assertEqual(s.keys(), ["a", "ab"])
        self.assertEqual(s.export("ab").record.store_index, 1)
        self.assertEqual(s.search("abc").request_id, "two")
        with self.assertRaises(moor.StateError) as caught:
            s.insert("abc", self.store.open("zero", 5))
        self.assertIn("store 1", str(caught.exception))
        s.insert("x", tokens=[5], start=0)
        self.assertEqual(s.keys(), ["a", "ab", "x"])
        s.release("x")
        self.assertEqual(s.rollback("ab", range(12)), (12, "ab"))
        s.release()
        with self.assertRaises(moor.Gone):
            s.insert("abc", self.store.open("zero", 5))
        with self.assertRaises(moor.NotFound):
            self.store.session("never").keys()
        never = self.store.session("later")
        never.insert("k", self.store.open("zero", 5))
        self.assertEqual(never.export("k").record.store_index, 0)


class Between:
    """Stands between clients and their store, and may change what the store answers to a request of one type."""

    def __init__(self, directory, type, change):
        self.type, self.change = type, change
        self.path = os.path.join(directory, "store-0.sock")
        os.rename(self.path, self.path + ".real")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.threads = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with self.listener:
            while True:
                client, _ = self.listener.accept()
                store = socket.socket(socket.AF_UNIX)
                store.connect(self.path + ".real")
                self.threads += [threading.Thread(target=to, args=(client, store), daemon=True) for to in (self.back, self.forth)]
                for thread in self.threads[-2:]:
                    thread.start()

    def back(self, client, store):
        with client, store:
            while True:
                data, fds, _, _ = socket.recv_fds(store, 65536, 4)
                if not data:
                    return
                length, type = struct.unpack_from("=IH", data)
                if type == self.type and length == len(data):
                    data = data[:16] + self.change(data[16:])
                socket.send_fds(client, [data], fds)
                for fd in fds:
                    os.close(fd)

    def forth(self, client, store):
        while data := client.recv(65536):
            store.sendall(data)
        store.shutdown(socket.SHUT_RDWR)

    def join(self):
        for thread in self.threads:
            thread.join(5)


class Untrusted(SessionTest):
    def test_a_rollback_to_more_than_the_key(self):
        """moor_wire_rollback = kept, key_len; a key_len beyond the key's end would be read behind it."""
        self.turns()
        between = Between(os.path.join(self.base, "api"), 17, lambda answer: answer[:8] + struct.pack("=II", 4096, 0))
        store = moor.attach("api", dir=self.base)
        with self.assertRaises(moor.Corrupt):
            store.session("s").rollback("turn1 turn2 ", list(range(12)))
        del store
        gc.collect()
        between.join()


if __name__ == "__main__":
    unittest.main()
