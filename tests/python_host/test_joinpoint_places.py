# SPDX-License-Identifier: Apache-2.0
"""Where the installer finds what it wraps: overrides, names that were bound early, other plugins' wrappers, modules that are loaded again."""
import asyncio
import importlib
import sys

from joinpoint_case import Case, info  # first: it installs

import _jphost
import mockeng.core
import mockeng.early
import mockeng.llm
import mockeng.sched
import mockeng.worker
from mockeng.core import EngineCore
from mockeng.llm import Derived


class Places(Case):
    def test_overrides(self):
        """Base, override that calls super(), subclass without override: one event each."""
        for make, result in ((mockeng.sched.Scheduler, ("base", 1)),
                             (mockeng.sched.AsyncScheduler, ("async", ("base", 1))),
                             (mockeng.sched.PlainScheduler, ("base", 1))):
            self.watch("sched.free", "before", "after")
            self.seen.clear()
            self.assertEqual(self.fires("sched.free", 1, lambda: make()._free_request(1)), result)
            self.assertEqual(self.phases(), ["before", "after"])
            self.assertEqual(self.seen[1][1]["result"], result)

    def test_overrides_imported_later(self):
        import mockeng.late
        self.assertEqual(self.fires("sched.free", 1, lambda: mockeng.late.LateScheduler()._free_request(2)),
                         ("late", ("async", ("base", 2))))
        self.assertEqual(self.fires("worker.wake_up", 1, lambda: mockeng.late.LateWorker().wake_up("kv")), ["late", "kv"])

    def test_overrides_from_before_moor(self):
        self.assertEqual(self.fires("worker.wake_up", 1, lambda: mockeng.worker.CPUWorker().wake_up("kv")),
                         ["cpu", "worker", "kv"])

    def test_overrides_of_a_user_class(self):
        class Mine(mockeng.worker.Worker):
            def wake_up(self, tags=None):
                return ["mine", tags]
        self.fires("worker.wake_up", 0, lambda: Mine().wake_up())
        _jphost.rescan()
        self.assertEqual(self.fires("worker.wake_up", 1, lambda: Mine().wake_up("kv")), ["mine", "kv"])

    def test_another_plugins_wrapper_outside_of_ours(self):
        """It names no parameters, and what it passes on is seen all the same: once, by position and by name."""
        ours = mockeng.sched.Scheduler._free_request

        def theirs(self, *args, **kwargs):
            return ("theirs", ours(self, *args, **kwargs))
        mockeng.sched.Scheduler._free_request = theirs
        try:
            _jphost.rescan()
            self.watch("sched.free", "before")
            for call in (lambda s: s._free_request("r"), lambda s: s._free_request(request="r")):
                self.seen.clear()
                self.assertEqual(self.fires("sched.free", 1, lambda: call(mockeng.sched.Scheduler())), ("theirs", ("base", "r")))
                self.assertEqual([seen["params"]["request"] for _, seen in self.seen], ["r"])
        finally:
            mockeng.sched.Scheduler._free_request = ours

    def test_same_join_point_on_another_object_inside_is_an_event(self):
        other = mockeng.sched.Scheduler()

        def free_another(call):
            if call["params"]["request"] == "outer":
                other._free_request("inner")
        _jphost.hook("sched.free", "before", free_another)
        self.fires("sched.free", 2, lambda: mockeng.sched.AsyncScheduler()._free_request("outer"))
        self.assertEqual(other.freed, ["inner"])

    def test_async_overrides(self):
        self.watch("front.generate", "before", "item", "after", "finish")

        async def use(llm):
            return [x async for x in llm.generate([1, 2], None, "d")]
        self.assertEqual(self.fires("front.generate", 1, lambda: asyncio.run(use(Derived()))), [("derived", 1), ("derived", 2)])
        self.assertEqual(self.phases(), ["before", "item", "item", "after", "finish"])
        self.assertEqual(self.seen[1][1]["result"], ("derived", 1))
        self.assertEqual(self.fires("front.wake_up", 1, lambda: asyncio.run(Derived().wake_up("kv"))),
                         ("derived", ("awake", "kv")))

    def test_async_overrides_concurrently(self):
        """Interleaved requests on one object are an event each."""
        async def one(llm, n):
            return [x async for x in llm.generate(list(range(n)), None, str(n))]

        async def use():
            llm = Derived()
            return await asyncio.gather(*[one(llm, n) for n in range(1, 9)])
        results = self.fires("front.generate", 8, lambda: asyncio.run(use()))
        self.assertEqual([len(r) for r in results], list(range(1, 9)))

    def test_names_bound_early(self):
        self.assertEqual(self.fires("ops.select", 2, lambda: mockeng.early.route(3)), ([3, 4], [3], 0))
        self.assertEqual(info("ops.select")["rebound"], 2)

    def test_pinned_names_stay(self):
        self.fires("ops.pinned", 0, lambda: mockeng.early.route(3))
        self.fires("ops.pinned", 1, mockeng.ops.collect)

    def test_alternatives(self):
        self.assertEqual(info("moved")["resolved"], "mockeng.core:EngineCore.moved")
        self.assertEqual(self.fires("moved", 1, lambda: EngineCore().moved()), "moved")
        self.assertEqual(info("either.b")["state"] in ("installed", "fired"), True)

    def test_reload_is_patched_again(self):
        import mockeng.perf
        importlib.reload(mockeng.perf)
        self.assertEqual(self.fires("perf.method", 1, lambda: mockeng.perf.Perf().method(1)), 1)

    def test_loader_is_left_as_it_was(self):
        loader = mockeng.core.__spec__.loader
        self.assertIs(type(loader).__module__, importlib.machinery.SourceFileLoader.__module__)
        self.assertNotIn("exec_module", vars(loader))
        self.assertIn("class EngineCore", loader.get_source("mockeng.core"))

    def test_another_hooks_exec_module_runs(self):
        """A finder behind ours that puts exec_module on the loader's instance: its hook runs, and so does ours."""
        name, ran = "mockeng.perf", []

        class Hook:
            def find_spec(self, fullname, path=None, target=None):
                if fullname != name:
                    return None
                spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
                run = spec.loader.exec_module
                spec.loader.exec_module = lambda module: (run(module), ran.append(module.__name__))
                return spec

        hook, before = Hook(), sys.modules.pop(name, None)
        sys.meta_path.insert(1, hook)
        try:
            perf = importlib.import_module(name)
            self.assertEqual(ran, [name])
            self.assertEqual(self.fires("perf.method", 1, lambda: perf.Perf().method(1)), 1)
        finally:
            sys.meta_path.remove(hook)
            if before is not None:
                sys.modules[name] = before

    def test_attribute_of_an_object_once(self):
        class Model:
            def load_weights(self, x):
                return x + 1
        model = Model()
        self.assertEqual(_jphost.wrap_attr("object", model, "load_weights"), 1)
        self.assertEqual(_jphost.wrap_attr("object", model, "load_weights"), 0)
        self.watch("object", "before")
        self.assertEqual(self.fires("object", 1, lambda: model.load_weights(x=1)), 2)
        self.assertEqual(self.seen[0][1]["params"], {"x": 1})
        self.assertNotIn("Wrapper", repr(Model.load_weights))
