# SPDX-License-Identifier: Apache-2.0
"""`moor check ENGINE`: import what the join points name, and say of each whether it was found, wrapped, and has fired."""
import importlib
import importlib.util
import sys

from moor import _moor

_THIS = f"{sys.executable} (Python {sys.version.split()[0]})"

def _import(name):
    """None, or why the module cannot be imported here."""
    try:
        importlib.import_module(name)
    except BaseException as exc:  # an engine's module may well exit or raise anything on import
        if isinstance(exc, KeyboardInterrupt):
            raise
        return f"{type(exc).__name__}: {exc}".split("\n")[0]
    return None


def _resolve(engine):
    """The engine's join points after everything that they name has been imported."""
    packages = _moor.register(engine)
    absent = [p for p in packages if importlib.util.find_spec(p) is None]
    if len(absent) == len(packages):
        raise LookupError(f"moor: engine {engine!r} is not installed in {_THIS}: no package {', '.join(packages)}")
    failed = {}
    for point in [p for p in _moor.joinpoints() if p["engine"] == engine]:
        for module in [t.split(":")[0] for t in point["targets"]]:
            if module not in sys.modules and module not in failed:
                failed[module] = _import(module)
    _moor.rescan()
    points = [p for p in _moor.joinpoints() if p["engine"] == engine]
    for point in points:
        if point["state"] in ("waiting", "missing"):
            whys = [failed.get(t.split(":")[0]) for t in point["targets"]]
            point["reason"] = next((w for w in whys if w), None) or point["reason"]
    return points


def _problems(points):
    """Join points that are required and not there."""
    found = {p["group"] for p in points if p["group"] and p["sites"]}
    return [p for p in points
            if p["state"] == "never fired"
            or (p["required"] and p["targets"] and not p["sites"] and p["group"] not in found)]


def _print_table(points, out):
    rows = [("join point", "role", "state", "fired", "errors", "where, or why not")]
    rows += [(p["name"], p["role"] or "", p["state"] if p["targets"] or p["sites"] else "at run time",
              str(p["fired"]), str(p["errors"]),
              (p["resolved"] or p["reason"] or "") + (f" (+{p['sites'] - 1} more)" if p["sites"] > 1 else ""))
             for p in points]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)) + "  " + row[5], file=out)


def main(engine, out=None):
    """0: every required join point is there; 1: some are not; 2: cannot be checked here."""
    out = out or sys.stdout
    try:
        if not _moor.bootstrap():
            raise LookupError("moor: MOOR_DISABLE is set: nothing to check")
        points = _resolve(engine)
    except LookupError as exc:
        print(exc, file=sys.stderr)
        return 2
    wrong = {kind: text for kind, text in _moor.selftest().items() if text}
    print(f"moor check: {engine} in {_THIS}", file=out)
    _print_table(points, out)
    problems = _problems(points)
    for point in problems:
        print(f"moor check: {point['name']} is required: {point['state']}: {point['reason']}", file=out)
    for kind, text in wrong.items():
        print(f"moor check: a wrapper of kind {kind} does not fire: {text}", file=out)
    if not problems and not wrong:
        print(f"moor check: {engine}: {sum(bool(p['sites']) for p in points)} of {len(points)} join points installed, "
              "none of the required ones missing; all kinds of wrappers fire", file=out)
    return 1 if problems or wrong else 0
