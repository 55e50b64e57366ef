# SPDX-License-Identifier: Apache-2.0
"""Compare recorded routes with the oracle's, and with what a response carried.

Needs numpy only: the trainer's process uses it too.  A comparer that cannot
find an error proves nothing, so `selftest/test_compare.py` plants one of each kind.
"""
from dataclasses import dataclass, field

SHOWN = 5  # mismatches kept with their detail


@dataclass
class Tally:
    """Adds up over requests and weight sets."""
    requests: int = 0
    rows: int = 0
    bytes: int = 0
    pairs: int = 0
    mismatches: int = 0
    ties: int = 0  # pairs that differ and are explained; no mismatches
    missing_rows: int = 0
    errors: list = field(default_factory=list)  # shape, dtype, duplicate ids: not a count, a defect
    shown: list = field(default_factory=list)

    @property
    def clean(self):
        return not (self.mismatches or self.missing_rows or self.errors)

    def add(self, other):
        for name in ("requests", "rows", "bytes", "pairs", "mismatches", "ties", "missing_rows"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.errors += other.errors
        self.shown = (self.shown + other.shown)[:SHOWN]
        return self

    def as_dict(self):
        return {n: getattr(self, n) for n in
                ("requests", "rows", "bytes", "pairs", "mismatches", "ties", "missing_rows", "errors", "shown")}

    @classmethod
    def from_dict(cls, d):
        return cls(**d)


def ties_of(ids, want, gap, wrong, tie):
    """Which of the wrong pairs are explained: one expert is another, and the oracle's own choice was as near as `tie`; or
    they come behind such a pair, in a later layer of its row or of a later row, and have seen other values."""
    import numpy as np

    others = (ids[..., :, None] != want[..., None, :]).all(-1).sum(-1)
    near = wrong & (others == 1) & (gap < tie)
    from_here = np.maximum.accumulate(near, axis=0)
    behind = np.cumsum(from_here, axis=1) > from_here
    return wrong & (near | behind)


def against_oracle(name, got, want, gap=None, num_experts=None, tie=0.0):
    """`got` [rows, layers, K] in any order within K; `want` the same, sorted (the oracle's).

    Every (token, layer) pair is compared as a set.  Returns a Tally of one request.
    tie: a difference is no mismatch where the oracle's gap is smaller, nor behind that (ties_of).
    """
    import numpy as np

    got = np.asarray(got)
    tally = Tally(requests=1, bytes=got.nbytes)
    if got.ndim != 3 or got.shape[1:] != want.shape[1:]:
        tally.errors.append(f"{name}: shape {got.shape}, the oracle has {want.shape}")
        return tally
    if got.dtype.kind not in "ui":
        tally.errors.append(f"{name}: dtype {got.dtype} is not an integer type")
        return tally
    tally.rows = len(got)
    if len(got) > len(want):
        tally.errors.append(f"{name}: {len(got)} rows, only {len(want)} tokens went through the model")
        return tally
    tally.missing_rows = len(want) - len(got)
    if not len(got):
        return tally
    ids = np.sort(got.astype(np.int64), axis=-1)
    want = want[:len(got)].astype(np.int64)
    if num_experts is not None and (ids[..., -1].max() >= num_experts or ids[..., 0].min() < 0):
        tally.errors.append(f"{name}: an id outside 0..{num_experts - 1}")
    if ids.shape[-1] > 1 and (ids[..., 1:] == ids[..., :-1]).any():
        row, layer = np.argwhere((ids[..., 1:] == ids[..., :-1]).any(-1))[0]
        tally.errors.append(f"{name}: row {row} layer {layer}: ids not distinct: {ids[row, layer].tolist()}")
    wrong = (ids != want).any(-1)
    tally.pairs = wrong.size
    if tie and wrong.any():
        explained = ties_of(ids, want, np.asarray(gap), wrong, tie)
        tally.ties = int(explained.sum())
        wrong &= ~explained
    tally.mismatches = int(wrong.sum())
    for row, layer in np.argwhere(wrong)[:SHOWN]:
        near = "" if gap is None else f", the oracle's gap there is {float(gap[row, layer]):.2e}"
        tally.shown.append(f"{name}: row {row} layer {layer}: got {ids[row, layer].tolist()}, "
                           f"want {want[row, layer].tolist()}{near}")
    return tally


def bit_for_bit(name, a, b):
    """Same dtype, shape and bytes: returns a text that says what differs, or None."""
    import numpy as np

    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype:
        return f"{name}: dtype {a.dtype} against {b.dtype}"
    if a.shape != b.shape:
        return f"{name}: shape {a.shape} against {b.shape}"
    differ = np.ascontiguousarray(a) != np.ascontiguousarray(b)
    if differ.any():
        at = tuple(int(i) for i in np.argwhere(differ)[0])
        return f"{name}: {int(differ.sum())} ids differ, first at {at}: {a[at]} against {b[at]}"
    return None


def to_model_layers(rows, moe_layers, num_layers):
    """[rows, moe layers, K] -> [rows, num_layers, K]; a dense layer reads 0, as in the engine's own field."""
    import numpy as np

    rows = np.asarray(rows)
    out = np.zeros((rows.shape[0], num_layers, rows.shape[2]), dtype=rows.dtype)
    out[:, moe_layers] = rows
    return out


def version_of_row(versions, row):
    """versions = [(start row, epoch), ...] as in Record.versions (SEMANTICS 1.6)."""
    found = None
    for start, epoch in versions:
        if start <= row:
            found = epoch
    return found
