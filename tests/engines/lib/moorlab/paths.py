# SPDX-License-Identifier: Apache-2.0
"""Where things are.  Every path can be overridden by an environment variable,
and everything that is written lies below the checkout (git-ignored) or in a
temporary directory."""
import atexit
import os
import signal
import sys
import tempfile

LIB = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(LIB)))
PLUGIN = os.path.join(LIB, "vllm_plugin")


def cache_dir(*parts):
    """A directory below results/.cache, made on first use."""
    base = os.environ.get("MOOR_TEST_CACHE") or os.path.join(ROOT, "results", ".cache")
    path = os.path.join(base, *parts)
    os.makedirs(path, exist_ok=True)
    return path


def results_dir(*parts):
    path = os.path.join(os.environ.get("MOOR_TEST_RESULTS") or os.path.join(ROOT, "results"), *parts)
    os.makedirs(path, exist_ok=True)
    return path


def engine_python(engine="vllm"):
    """The interpreter of an engine's environment ("vllm", "vllm024"), or None when it is absent.
    $MOOR_VENV_<ENGINE> names the environment; else the one that scripts/engine-env makes in the checkout."""
    venv = os.environ.get("MOOR_VENV_" + engine.upper()) or os.path.join(ROOT, ".venv-" + engine)
    path = os.path.join(venv, "bin", "python")
    return path if os.access(path, os.X_OK) else None


class MoorBuild:
    """The two things a process needs: where `moor` is imported from, and what to preload."""

    def __init__(self, pythonpath, preload):
        self.pythonpath = pythonpath
        self.preload = preload
        self.command = os.path.join(os.path.dirname(pythonpath), "bin", "moor")


def find_moor():
    """The Moor under test, or None.  MOOR_PREFIX names the directory that holds the package `moor`;
    else the build that CTest is running in (MOOR_BUILD_DIR); else the newest build* of the checkout."""
    given = os.environ.get("MOOR_PREFIX")
    build = os.environ.get("MOOR_BUILD_DIR")
    if given:
        roots = [given]
    elif build:
        roots = [os.path.join(build, "python")]
    else:
        builds = [os.path.join(ROOT, d) for d in os.listdir(ROOT) if d.startswith("build")]
        roots = [os.path.join(b, "python") for b in sorted(builds, key=os.path.getmtime, reverse=True)]
    for root in roots:
        lib = os.path.join(root, "moor", "libmoor.so.1")
        if os.path.exists(lib) and os.path.exists(os.path.join(root, "moor", "_moor.abi3.so")):
            return MoorBuild(root, lib)
    if given or build:
        raise FileNotFoundError(f"{roots[0]}: no package moor with libmoor.so.1 and _moor.abi3.so there")
    return None


def add_to_pythonpath(env, *dirs):
    have = [d for d in env.get("PYTHONPATH", "").split(os.pathsep) if d]
    env["PYTHONPATH"] = os.pathsep.join([*dirs, *[d for d in have if d not in dirs]])
    return env


def lab_env(extra=None):
    """An environment in which `python -m moorlab.x` works, offline and quiet."""
    env = dict(os.environ)
    env.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    add_to_pythonpath(env, LIB)
    env.update(extra or {})
    return env


def alone_on_this_machine():
    """Holds of a device are seen by every server of the machine; a test sees its own only."""
    place = tempfile.TemporaryDirectory(prefix="moor-holds-")
    atexit.register(place.cleanup)
    os.environ["MOOR_HOLDS_DIR"] = place.name


def end_on_sigterm():
    """SIGTERM leaves through the context managers, so that a stopped test stops its servers."""
    def leave(signum, frame):
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, leave)


def say(text):
    print(text, flush=True)


def warn(text):
    print(text, file=sys.stderr, flush=True)
