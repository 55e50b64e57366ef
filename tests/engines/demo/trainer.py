# SPDX-License-Identifier: Apache-2.0
"""The demo's trainer: a process of its own that knows an engine only through `import moor`.

It reads one JSON command a line and answers with one JSON line.  It never
imports an engine, torch or transformers; records are read where they lie, in
the mapped arena.
"""
import json
import sys
import threading
import time
import traceback

import numpy as np

import moor
from moorlab import compare


def mapped_arenas():
    """[(start, end)] of this process's mappings of a memfd: where a zero-copy view must point."""
    spans = []
    with open("/proc/self/maps") as f:
        for line in f:
            if "/memfd:" in line:
                start, end = line.split(maxsplit=1)[0].split("-")
                spans.append((int(start, 16), int(end, 16)))
    return spans


def in_arena(array, spans):
    at = array.__array_interface__["data"][0]
    return array.nbytes == 0 or any(s <= at and at + array.nbytes <= e for s, e in spans)


class Trainer:
    def __init__(self):
        self.store = None
        self.records = {}
        self.holds = []

    def attach(self, instance, timeout):
        self.store = moor.attach(instance, timeout)
        return {"stats": self._stats()}

    def _stats(self):
        return json.loads(json.dumps(self.store.stats(), default=str))

    def stats(self):
        return {"stats": self._stats()}

    def gate(self):
        return {"gate": json.loads(json.dumps(self.store.gate.status(), default=str))}

    def open(self, id, timeout):
        """Open one record by the id that the HTTP client saw; it stays leased until `release`."""
        record = self.store.open(id, timeout)
        self.records[id] = record
        spans = mapped_arenas()
        parts = [np.asarray(s) for s in record.segments()]
        return {"request_id": record.request_id, "rows": record.rows, "complete": bool(record.complete),
                "missing": [list(m) for m in record.missing], "versions": [list(v) for v in record.versions],
                "dtype": str(record.dtype), "layers": record.layers, "layer_ids": list(record.layer_ids),
                "top_k": record.top_k, "num_experts": record.num_experts,
                "segments": len(parts), "bytes": sum(p.nbytes for p in parts),
                "zero_copy": all(in_arena(p, spans) for p in parts)}

    def compare(self, items, epochs):
        """Each item: id, oracle {weight set: .npz}, index in it, http (.npy or null).
        epochs: {epoch: weight set}; a row is compared with the weights that its version names."""
        tallies = {name: compare.Tally() for name in set(epochs.values())}
        problems, rows_of_epoch, bits = [], {}, 0
        loaded = {}
        for item in items:
            record = self.records[item["id"]]
            whole = np.asarray(record.array())
            parts = [np.asarray(s) for s in record.segments()]
            if len(parts) == 1 and not in_arena(whole, mapped_arenas()):
                problems.append(f"{item['id']}: one segment, but array() is a copy")
            if parts and not np.array_equal(np.concatenate(parts), whole):
                problems.append(f"{item['id']}: array() and segments() differ")
            if record.missing or not record.complete:
                problems.append(f"{item['id']}: rows missing: {list(record.missing)}")
            versions = [tuple(v) for v in record.versions]
            starts = [v[0] for v in versions] + [len(whole)]
            if not versions or versions[0][0] != 0:
                problems.append(f"{item['id']}: versions {versions} do not begin at row 0")
            for n, (start, epoch) in enumerate(versions):
                end = starts[n + 1]
                name = epochs.get(str(epoch))
                if name is None:
                    problems.append(f"{item['id']}: rows {start}..{end - 1} carry epoch {epoch}, known: {sorted(epochs)}")
                    continue
                path = item["oracle"][name]
                z = loaded.get(path) or loaded.setdefault(path, dict(np.load(path)))
                want, gap = z[f"{item['index']}.ids"], z[f"{item['index']}.gap"]
                # the last segment must reach the end of what the oracle has: a short record is a loss
                stop = len(want) if n == len(versions) - 1 else end
                tally = compare.against_oracle(item["id"], whole[start:end], want[start:stop], gap[start:stop],
                                               record.num_experts)
                tally.requests = 1 if n == 0 else 0
                tallies[name].add(tally)
                rows_of_epoch[str(epoch)] = rows_of_epoch.get(str(epoch), 0) + end - start
            if item.get("http"):
                field = np.load(item["http"])  # in the engine's own type: vLLM's is the record's, SGLang's is wider
                wrong = compare.bit_for_bit(item["id"] + ": record against the HTTP response",
                                            np.asarray(record.array(layers="model", dtype=str(field.dtype))), field)
                if wrong:
                    problems.append(wrong)
                else:
                    bits += 1
        return {"tallies": {k: t.as_dict() for k, t in tallies.items()}, "problems": problems,
                "rows_of_epoch": rows_of_epoch, "http_equal": bits}

    def release(self, ids):
        for rid in ids:
            self.records.pop(rid).release()
        return {"released": len(ids)}

    def hold(self, device, label, seconds):
        """Take the hold now, let go after `seconds`; the times are CLOCK_MONOTONIC, comparable across processes."""
        hold = self.store.hold(device, label)
        hold.__enter__()
        entry = {"taken": time.monotonic(), "released": None}
        self.holds.append(entry)

        def later():
            time.sleep(seconds)
            entry["released"] = time.monotonic()  # before the release: the barrier may open at once
            hold.__exit__(None, None, None)

        thread = threading.Thread(target=later)
        thread.start()
        entry["thread"] = thread
        return {"taken": entry["taken"]}

    def hold_times(self):
        for entry in self.holds:
            entry["thread"].join()
        return {"holds": [{k: e[k] for k in ("taken", "released")} for e in self.holds]}


def main():
    trainer = Trainer()
    print(json.dumps({"ok": True, "moor": getattr(moor, "__file__", "?")}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            answer = {"ok": True, **getattr(trainer, ask.pop("do"))(**ask)}
        except Exception as e:
            answer = {"ok": False, "error": f"{type(e).__name__}: {e}", "trace": traceback.format_exc()[-1500:]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
