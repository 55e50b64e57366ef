# SPDX-License-Identifier: Apache-2.0
"""What the tests of join points share: the installer over the class shapes of an engine (mockeng), some imported before it and some after."""
import functools
import os
import sys
import unittest

import _jphost

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mockeng.early  # noqa: E402  before Moor: sys.modules has it, and names are bound early
import mockeng.worker  # noqa: E402

assert _jphost.install() is True
assert _jphost.install() is True  # again: nothing more

import mockeng.core  # noqa: E402  after Moor: patched as it is executed
import mockeng.llm  # noqa: E402
import mockeng.sched  # noqa: E402


def info(name):
    return _jphost.info(name)


class Case(unittest.TestCase):
    def setUp(self):
        self.seen = []

    def tearDown(self):
        _jphost.unhook()
        _jphost.strict(False)

    def watch(self, name, *phases):
        for phase in phases:
            _jphost.hook(name, phase, functools.partial(self.note, phase))

    def note(self, phase, call):
        self.seen.append((phase, call))

    def phases(self):
        return [phase for phase, _ in self.seen]

    def fires(self, name, times, function):
        before = info(name)["fired"]
        result = function()
        self.assertEqual(info(name)["fired"] - before, times, name)
        return result
