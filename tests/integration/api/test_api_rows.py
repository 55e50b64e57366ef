# SPDX-License-Identifier: Apache-2.0
"""Reading rows: values, dtypes, layouts, zero-copy, missing rows, pickles, concatenation."""
import array
import copy
import gc
import os
import pickle
import subprocess
import sys
import unittest
import unittest.mock
import warnings

import moor
from api_lib import LAYER_IDS, LAYERS, MODEL_LAYERS, TOP_K, ApiTest, ids, model_layout, needs_numpy, numpy

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        import torch
except ImportError:
    torch = None

CODES = {"uint8": "B", "uint16": "H", "int16": "h", "int32": "i", "int64": "q"}


def address(buffer):
    return numpy.asarray(buffer).__array_interface__["data"][0]


class Rows(ApiTest):
    def test_attributes(self):
        self.server.record("a", 40)
        r = self.store.open("a", 5)
        self.assertEqual((r.request_id, r.session_id, r.owner, r.rows, r.layers, r.layer_ids, r.model_layers, r.top_k, r.num_experts),
                         ("a", "", "rollout", 40, LAYERS, LAYER_IDS, MODEL_LAYERS, TOP_K, 256))
        self.assertEqual((r.dtype, r.complete, r.missing, r.missing_rows, r.reasons, r.released), ("uint8", True, [], 0, [], False))
        self.assertEqual(r.nbytes, 40 * LAYERS * TOP_K)
        self.assertEqual([start for start, _ in r.versions], [0])
        self.assertGreater(r.handle, 0)
        self.assertEqual(list(r.mask), [True] * 40)

    def test_array_values_and_ranges(self):
        self.server.record("a", 40, seed=3)
        r = self.store.open("a", 5)
        self.assertEqual(r.array().tolist(), ids(0, 40, 3))
        self.assertEqual(r.array(7, 9).tolist(), ids(7, 9, 3))
        self.assertEqual(r.array(stop=5).tolist(), ids(0, 5, 3))  # S1.18
        self.assertEqual(r.array(40).tolist(), [])
        for start, stop in ((0, 41), (-1, 3), (5, 4), (0, -1), (2**70, None)):
            with self.assertRaises((moor.RangeError, OverflowError)):
                r.array(start, stop)
        self.assertEqual(sum((m.tolist() for m in r.segments()), []), ids(0, 40, 3))

    def test_every_dtype_and_layout(self):
        """S1.3: ids survive in every dtype that holds them."""
        self.server.record("a", 30, seed=250)
        r = self.store.open("a", 5)
        for dtype, code in CODES.items():
            for layout in ("moe", "model"):
                want = ids(4, 25, 250) if layout == "moe" else model_layout(ids(4, 25, 250))
                with self.subTest(dtype=dtype, layout=layout):
                    self.assertEqual(r.array(4, 25, layers=layout, dtype=dtype).tolist(), want)
                    flat = array.array(code, [7] * (21 * (LAYERS if layout == "moe" else MODEL_LAYERS) * TOP_K))
                    self.assertEqual(r.copy_into(flat, 4, 25, layers=layout), 21)
                    self.assertEqual(list(flat), [k for row in want for layer in row for k in layer])
                    raw = bytearray(len(flat) * flat.itemsize)
                    r.copy_into(raw, 4, 25, layers=layout, dtype=dtype)
                    self.assertEqual(bytes(raw), flat.tobytes())

    def test_copy_into_refuses(self):
        self.server.record("a", 10)
        r = self.store.open("a", 5)
        for buffer, kwargs in ((bytearray(59), {}), (bytearray(61), {}), (array.array("f", [0.0] * 60), {}),
                               (array.array("i", [0] * 60), {"dtype": "int64"}), (bytearray(60), {"dtype": "float32"}),
                               (bytearray(60), {"layers": "all"})):
            with self.subTest(kwargs=kwargs), self.assertRaises(moor.Invalid):
                r.copy_into(buffer, **kwargs)
        with self.assertRaises(BufferError):
            r.copy_into(bytes(60))

    def test_views_are_read_only(self):
        self.server.record("a", 10)
        r = self.store.open("a", 5)
        (m,) = r.segments()
        self.assertTrue(m.readonly and m.c_contiguous)
        self.assertEqual((m.shape, m.format, m.itemsize), ((10, LAYERS, TOP_K), "B", 1))
        with self.assertRaises(TypeError):
            m[0, 0, 0] = 1

    def test_missing_rows_are_never_zeros(self):
        """S1.4, S1.5."""
        self.server.record("a", 20, missing=(5, 8))
        r = self.store.open("a", 5)
        self.assertEqual((r.missing, r.missing_rows, r.complete, r.reasons), ([(5, 8)], 3, False, ["layer_missing"]))
        self.assertEqual(list(r.mask), [not 5 <= i < 8 for i in range(20)])
        for read in (r.array, lambda: r.array(7, 9), lambda: r.array(dtype="int32"), lambda: r.copy_into(bytearray(120)),
                     lambda: r.array(layers="model")):
            with self.assertRaises(moor.Incomplete) as caught:
                read()
        self.assertEqual((caught.exception.missing, caught.exception.status), ([(5, 8)], -8))
        with self.assertRaises(moor.Incomplete) as caught:
            r.array(6, 7)
        self.assertEqual(caught.exception.missing, [(6, 7)])
        self.assertEqual(r.array(stop=5).tolist() + r.array(8).tolist(), ids(0, 5) + ids(8, 20))
        zeros = [[[0] * TOP_K] * LAYERS] * 3
        for dtype in CODES:
            self.assertEqual(r.array(allow_missing=True, dtype=dtype).tolist(), ids(0, 5) + zeros + ids(8, 20))
        self.assertEqual(sum((m.tolist() for m in r.segments()), []), ids(0, 5) + ids(8, 20))

    def test_large_record_in_pieces(self):
        """More than one block: values over the seams, and copies that span them."""
        rows = 20000
        self.server.record("big", rows)
        r = self.store.open("big", 10)
        self.assertEqual(sum(len(m) for m in r.segments()), rows)
        self.assertEqual(r.array().tolist(), ids(0, rows))
        seam = 0
        for m in r.segments()[:-1]:
            seam += len(m)
            self.assertEqual(r.array(seam - 2, seam + 2).tolist(), ids(seam - 2, seam + 2))

    def test_versions(self):
        """S1.6: rows carry the epoch that produced them, and the caller's label of it."""
        self.server("record", "a", 0, 6, 0)
        self.server("touch", "step-2")
        self.server("record", "a", 6, 10, 0)
        self.server("seal", "a", 10, 0)
        r = self.store.open("a", 5)
        (first, one), (second, two) = r.versions
        self.assertEqual((first, second, two - one), (0, 6, 1))
        self.assertEqual(r.version_labels[1], "step-2")

    @needs_numpy
    def test_numpy_zero_copy(self):
        self.server.record("a", 40)
        r = self.store.open("a", 5)
        (segment,) = r.segments()
        a = r.array()
        self.assertEqual(address(a), address(segment))
        self.assertFalse(a.flags.owndata or a.flags.writeable)
        b = r.array(10, 20)
        self.assertEqual(address(b), address(segment) + 10 * LAYERS * TOP_K)
        with self.assertRaises(ValueError):
            a.flags.writeable = True
        wide = r.array(dtype=numpy.int64)
        self.assertTrue(wide.flags.owndata and wide.flags.writeable)
        self.assertEqual((wide.dtype, r.mask.dtype), (numpy.int64, numpy.bool_))
        out = numpy.full((40, MODEL_LAYERS, TOP_K), 9, numpy.int16)
        r.copy_into(out, layers="model")
        self.assertEqual(out.tolist(), model_layout(ids(0, 40)))
        with self.assertRaises(moor.Invalid):
            r.copy_into(out.reshape(40, TOP_K, MODEL_LAYERS), layers="model")

    @unittest.skipIf(numpy is not None, "numpy is installed in this Python")
    def test_without_numpy_memoryviews(self):
        self.server.record("a", 4)
        r = self.store.open("a", 5)
        self.assertIsInstance(r.array(), memoryview)
        self.assertTrue(r.array().readonly)
        self.assertEqual((r.mask.format, r.mask.shape), ("?", (4,)))


class Wide(ApiTest):
    server_args = {"experts": 384}

    def test_u16(self):
        """S1.3: 255, 256, 383."""
        self.server.record("a", 60, seed=250)
        r = self.store.open("a", 5)
        self.assertEqual((r.dtype, r.nbytes), ("uint16", 60 * LAYERS * TOP_K * 2))
        want = ids(0, 60, 250, 384)
        self.assertTrue({255, 256, 383} <= {k for row in want for layer in row for k in layer})
        for dtype in ("uint16", "int16", "int32", "int64"):
            self.assertEqual(r.array(dtype=dtype).tolist(), want)
        for bad in (lambda: r.array(dtype="uint8"), lambda: r.copy_into(bytearray(360), dtype="uint8")):
            with self.assertRaises(moor.RangeError):
                bad()
        self.assertEqual(pickle.loads(pickle.dumps(r, 5)).array().tolist(), want)


ATTRIBUTES = ("request_id session_id handle owner rows layers layer_ids model_layers top_k num_experts dtype complete missing versions "
              "version_labels reasons store_index dropped_rows").split()


class Pickle(ApiTest):
    def same(self, a, b):
        for name in ATTRIBUTES:
            self.assertEqual(getattr(a, name), getattr(b, name), name)
        self.assertEqual(list(a.mask), list(b.mask))
        for layout in ("moe", "model"):
            self.assertEqual(a.array(layers=layout, allow_missing=True).tolist(), b.array(layers=layout, allow_missing=True).tolist())

    def test_every_protocol(self):
        self.server.record("a", 50)
        self.server.record("hole", 50, missing=(0, 3))
        for id in ("a", "hole"):
            r = self.store.open(id, 5)
            for protocol in range(2, 6):
                self.same(r, pickle.loads(pickle.dumps(r, protocol)))
            self.same(r, copy.deepcopy(r))

    def test_out_of_band_is_zero_copy_and_holds_the_lease(self):
        self.server.record("a", 50)
        r = self.store.open("a", 5)
        buffers = []
        data = pickle.dumps(r, 5, buffer_callback=buffers.append)
        self.assertLess(len(data), 1000)
        self.assertEqual(sum(len(b.raw()) for b in buffers), r.nbytes)
        other = pickle.loads(data, buffers=buffers)
        self.same(r, other)
        if numpy:
            self.assertEqual(address(other.array()), address(r.array()))
        del r
        self.assertLeases(1)
        del buffers, other
        self.assertLeases(0)

    def test_unpickles_where_no_server_is(self):
        self.server.record("a", 50, missing=(10, 12))
        r = self.store.open("a", 5)
        data = pickle.dumps(r, 5)
        want = r.array(allow_missing=True).tolist()
        del r
        self.server.close()
        program = "import pickle, sys; r = pickle.load(sys.stdin.buffer); print(r.missing, r.array(allow_missing=True).tolist())"
        out = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True, env=dict(self.clean_env()))
        self.assertEqual(out.stdout.decode().strip(), f"[(10, 12)] {want}")

    def clean_env(self):
        return {k: v for k, v in os.environ.items() if not k.startswith("MOOR_")}

    def test_a_copy_holds_no_lease(self):
        self.server.record("a", 5)
        r = pickle.loads(pickle.dumps(self.store.open("a", 5), 5))
        for act in (lambda: self.store.claim(r, "rollout"), lambda: self.store.reset(r), lambda: self.store.discard(r), lambda: r.ref):
            with self.assertRaises(moor.Invalid):
                act()

    def test_damaged_pickles_are_refused(self):
        self.server.record("a", 20)
        r = self.store.open("a", 5)
        rebuild, (state, buffers) = r.__reduce_ex__(4)
        for position, value in ((0, 99), (4, 21), (4, 2**63), (7, 0), (9, "float32"), (10, ()), (10, (1, 1, 5)), (10, (-1, 2, 5)), (10, (2**40,)),
                                (11, [(0, 1)] * 2), (16, [(0, 19, 1)]), (16, [(1, 20, 1)]), (16, [(0, 20, 1), (20, 2**60, 0)]), (16, [])):
            bad = state[:position] + (value,) + state[position + 1:]
            with self.subTest(position=position, value=value), self.assertRaises((moor.Corrupt, moor.VersionError, OverflowError)):
                rebuild(bad, buffers)
        rows = 2**58 + 20  # an array of them would wrap around
        huge = state[:4] + (rows,) + state[5:16] + ([(0, 20, 1), (20, rows - 20, 0)],) + state[17:]
        with self.assertRaises(moor.Corrupt):
            rebuild(huge, buffers)
        for bad in ((), (b"",), (bytes(119),), (bytes(121),)):
            with self.subTest(buffers=bad), self.assertRaises(moor.Corrupt):
                rebuild(state, bad)
        self.same(r, rebuild(state, buffers))


class Concat(ApiTest):
    def test_turns_and_resumptions(self):
        """S1.8, S1.9: history first, the rest from the current record, none twice."""
        for rows in (9, 19, 29):
            self.server.record(f"r{rows}", rows, seed=rows)
        total = self.store.open("r9", 5)
        for rows in (19, 29):
            total = moor.concat(total, self.store.open(f"r{rows}", 5))
        self.assertEqual(total.array().tolist(), ids(0, 9, 9) + ids(9, 19, 19) + ids(19, 29, 29))
        self.assertEqual((total.rows, total.request_id, total.complete), (29, "r29", True))
        self.assertLeases(3)
        view = total.array(0, 9)
        del total
        self.assertLeases(3)
        del view
        self.assertLeases(0)

    def test_short_by_one_is_fine_by_two_is_an_error(self):
        for rows in (8, 9, 10):
            self.server.record(f"r{rows}", rows, seed=rows)
        ten, nine, eight = (self.store.open(f"r{n}", 5) for n in (10, 9, 8))
        self.assertEqual(moor.concat(ten, nine).array().tolist(), ids(0, 10, 10))  # S1.7, too
        with self.assertRaises(moor.RangeError) as caught:
            moor.concat(ten, eight)
        self.assertIn("8 rows", str(caught.exception))
        self.assertIn("10", str(caught.exception))

    def test_missing_rows_and_versions_travel(self):
        self.server.record("h", 10, missing=(3, 5))
        self.server("touch", "two")
        self.server.record("c", 16, missing=(0, 12))
        c = moor.concat(self.store.open("h", 5), self.store.open("c", 5))
        self.assertEqual(c.missing, [(3, 5), (10, 12)])
        self.assertEqual(c.array(12).tolist(), ids(12, 16))
        (_, epoch), *_ = c.versions
        self.assertEqual(c.versions, [(0, epoch), (10, 0), (12, epoch + 1)])  # nothing produced rows 10 and 11
        self.assertEqual(c.version_labels[2], "two")
        self.assertEqual(pickle.loads(pickle.dumps(c)).missing, c.missing)


class Leaks(ApiTest):
    def test_nothing_stays_behind(self):
        """Every path that makes or refuses something, hundreds of times: no object and no memory is left."""
        self.server.record("a", 50, missing=(20, 30))
        self.server.record("b", 60)
        for i in range(2):
            self.server.record(f"x-{i}", 3, aliases=[("x", i)])
        a, b, copied = self.store.open("a", 5), self.store.open("b", 5), pickle.loads(pickle.dumps(self.store.open("b", 5)))

        def use():
            with self.store.open("a") as r:
                r.segments(), r.mask, r.missing, r.versions, r.layer_ids, r.ref, r.reasons, repr(r)
                r.array(0, 20), r.array(0, 20, "model", "int64"), r.array(allow_missing=True), r.copy_into(bytearray(120), 0, 20)
                pickle.loads(pickle.dumps(r, 5)), pickle.loads(pickle.dumps(r, 4))
                moor.concat(r, b).array(30)
            self.store.open_many(["x", "b"])
            moor.pad_rows(3, 2, 2, 8), self.store.gate.status()

        def refuse():
            for call in (lambda: a.array(), lambda: a.array(0, 99), lambda: a.array(dtype="float"), lambda: a.array(layers="x"), lambda: self.store.open("x"),
                         lambda: self.store.open("nobody"), lambda: a.copy_into(bytearray(7), 0, 20), lambda: moor.concat(b, a), lambda: moor.pad_rows(1, 1, 9, 3),
                         lambda: self.store.claim(copied, "none"), lambda: self.store.claim(a, "me"), lambda: moor.resolve("moor1:x"),
                         lambda: self.store.gate.install("v"), lambda: self.store.barrier("b", 1).arrive(1)):
                with self.assertRaises(moor.Error):
                    call()

        def rounds(n):
            for i in range(n):
                use()
                refuse()
                if i % 10 == 0:  # milliseconds each
                    self.store.stats(), self.store.hold("cpu:0", "t").release()
            gc.collect()
            return sys.getallocatedblocks(), resident()

        rounds(100)
        blocks, memory = rounds(100)
        for _ in range(3):
            more, grown = rounds(100)
        self.assertLess(more - blocks, 300)
        if not os.environ.get("MOOR_SANITIZE"):  # which keeps freed memory
            self.assertLess(grown - memory, 512 << 10)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class PadRows(unittest.TestCase):
    def test_balanced_and_distinct(self):
        for n, layers, top_k, experts, start in ((1, 1, 1, 1, 0), (7, 3, 2, 16, 0), (100, 2, 8, 60, 5), (33, 4, 6, 64, 1000), (9, 2, 4, 300, 0)):
            rows = moor.pad_rows(n, layers, top_k, experts, start).tolist()
            self.assertEqual((len(rows), len(rows[0]), len(rows[0][0])), (n, layers, top_k))
            for layer in range(layers):
                counts = [0] * experts
                for row in rows:
                    self.assertEqual(len(set(row[layer])), top_k)
                    for e in row[layer]:
                        counts[e] += 1
                self.assertLessEqual(max(counts) - min(counts), 1)

    def test_continues(self):
        self.assertEqual(moor.pad_rows(10, 2, 3, 7).tolist(), moor.pad_rows(4, 2, 3, 7).tolist() + moor.pad_rows(6, 2, 3, 7, start=4).tolist())

    def test_refuses(self):
        for args in ((-1, 1, 1, 1), (1, 0, 1, 1), (1, 1, 2, 1), (1, 1, 1, 70000), (2**62, 4, 4, 8)):
            with self.assertRaises(moor.Invalid):
                moor.pad_rows(*args)
        with self.assertRaises(moor.RangeError):
            moor.pad_rows(1, 1, 1, 300, dtype="uint8")


@unittest.skipIf(torch is None, "torch is not installed in this Python")
class Tensors(ApiTest):
    def test_a_write_is_the_callers_own(self):
        self.server.record("a", 10)
        record = self.store.open("a", 5)
        tensor = record.tensor()
        self.assertEqual((tensor.dtype, tuple(tensor.shape), tensor.device.type), (torch.uint8, (10, 3, 2), "cpu"))
        self.assertEqual(tensor.tolist(), ids(0, 10))
        tensor[:] = 0
        self.assertEqual(record.tensor().tolist(), ids(0, 10))
        self.assertEqual(record.array().tolist(), ids(0, 10))
        record.release()
        self.assertEqual(tensor.tolist(), [[[0] * 2] * 3] * 10)

    def test_ranges_layouts_and_dtypes(self):
        self.server.record("a", 10)
        self.server.record("m", 10, missing=(4, 6))
        record = self.store.open("a", 5)
        for name in ("uint8", "int16", "int32", "int64"):
            for dtype in (name, getattr(torch, name)):
                tensor = record.tensor(2, 5, dtype=dtype)
                self.assertEqual((tensor.dtype, tensor.tolist()), (getattr(torch, name), ids(2, 5)))
        self.assertEqual(record.tensor(layers="model").tolist(), model_layout(ids(0, 10)))
        self.assertEqual(tuple(record.tensor(3, 3).shape), (0, 3, 2))
        missing = self.store.open("m", 5)
        with self.assertRaises(moor.Incomplete):
            missing.tensor()
        self.assertEqual(missing.tensor(allow_missing=True)[4:6].tolist(), [[[0] * 2] * 3] * 2)
        copy = pickle.loads(pickle.dumps(record))
        self.assertEqual(copy.tensor().tolist(), ids(0, 10))

    def test_S2_8_a_forked_loader(self):
        """The loader's workers begin after the parent has let go of what they read."""
        for i in range(8):
            self.server.record(f"r{i}", i + 1, seed=i)
        records = [self.store.open(f"r{i}", 5) for i in range(8)]

        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return len(records)

            def __getitem__(self, i):
                return records[i].tensor(dtype="int32")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fork beside threads, from CPython 3.12 on
            loader = iter(torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=2, prefetch_factor=1, multiprocessing_context="fork"))
            for record in records:
                self.store.discard(record)
                record.release()
            for i in range(200):
                self.server.record(f"other{i}", 8, seed=50 + i)
            self.assertEqual([rows.tolist() for rows in loader], [ids(0, i + 1, i) for i in range(8)])
        del loader
        self.assertLeases(0)

    def test_the_default_device_may_be_another(self):
        self.server.record("a", 10)
        with torch.device("meta"):
            self.assertEqual(self.store.open("a", 5).tensor().tolist(), ids(0, 10))


class NoTorch(ApiTest):
    def test_is_an_import_error(self):
        self.server.record("a", 10)
        with unittest.mock.patch.dict(sys.modules, torch=None), self.assertRaises(ImportError):
            self.store.open("a", 5).tensor()


if __name__ == "__main__":
    unittest.main()
