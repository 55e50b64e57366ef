# SPDX-License-Identifier: Apache-2.0
"""run_scenario.py NAME… [--engine vllm|vllm024|sglang|lmdeploy] [--only WORD]: run scenarios/NAME.py on a real engine.

Several names share one server, in this order; NAME:WORD runs the checks of that file whose name contains WORD.

Exit code: 0 all passed, 1 one failed, 77 nothing could run (the last line says why).
"""
import argparse
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "lib"))

from moorlab import paths, scenario  # noqa: E402


def load(name):
    spec = importlib.util.spec_from_file_location(f"scenario_{name}", os.path.join(HERE, "scenarios", name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    p = argparse.ArgumentParser()
    p.add_argument("names", nargs="+", metavar="NAME[:WORD]")
    p.add_argument("--engine", default="vllm")
    p.add_argument("--only", help="run the checks whose name contains this")
    args = p.parse_args()
    paths.end_on_sigterm()
    paths.alone_on_this_machine()
    modules = {}
    for name, _, word in (text.partition(":") for text in args.names):
        modules[name] = load(name), word or None
        if args.engine not in modules[name][0].GROUP.engines:
            print(f"skipped: {name} is not for {args.engine}")
            return 77
    if paths.engine_python(args.engine) is None:
        print(f"skipped: no environment of {args.engine} (scripts/engine-env {args.engine} makes it)")
        return 77
    if paths.find_moor() is None:
        print("skipped: Moor is not built")
        return 77
    passed, failed, skipped = scenario.run_files(modules, args.engine, args.only)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    if failed:
        return 1
    if not passed:
        print("skipped: no check could run")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
