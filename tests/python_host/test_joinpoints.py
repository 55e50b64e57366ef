# SPDX-License-Identifier: Apache-2.0
"""The installer of join points on an engine's class shapes (issue 3, "Join points"; SEMANTICS 1.22, 4.7 rely on it: what is not
seen is not recorded): wrappers of each kind, what they say of themselves, errors, and what a hook may replace."""
import _thread
import asyncio
import copy
import gc
import inspect
import pickle
import threading
import time
import traceback
import unittest
import weakref

from joinpoint_case import Case, info  # first: it installs

import _jphost
import mockeng.llm
from mockeng.core import EngineCore
from mockeng.llm import AsyncLLM, Derived


class Kinds(Case):
    def test_method_arguments_and_result(self):
        self.watch("core.add_request", "before", "after", "finish")
        core = EngineCore()
        self.fires("core.add_request", 1, lambda: self.assertEqual(core.add_request("r", request_wave=3), 1))
        self.assertEqual(self.phases(), ["before", "after", "finish"])
        call = self.seen[0][1]
        self.assertIs(call["self"], core)
        self.assertEqual(call["args"], (core, "r"))
        self.assertEqual(call["params"], {"request": "r", "request_wave": 3})
        self.assertEqual(self.seen[1][1]["result"], 1)
        self.assertEqual(core.requests, [("r", 3)])

    def test_default_is_not_passed(self):
        self.watch("core.add_request", "before")
        EngineCore().add_request(request="r")
        self.assertEqual(self.seen[0][1]["params"], {"request": "r"})

    def test_init(self):
        self.watch("core.init", "before")
        self.assertEqual(self.fires("core.init", 1, lambda: EngineCore("x")).name, "x")

    def test_static_method(self):
        self.watch("core.static", "before")
        self.assertEqual(self.fires("core.static", 2, lambda: (EngineCore.make(1), EngineCore().make(size=1, spare=1))),
                         (["slot"], ["slot", "slot"]))
        self.assertIsInstance(EngineCore.__dict__["make"], staticmethod)
        self.assertEqual([c["params"] for _, c in self.seen], [{"size": 1}, {"size": 1}])
        self.assertIsNone(self.seen[0][1]["self"])

    def test_class_method(self):
        self.watch("core.class", "before")
        made = self.fires("core.class", 1, lambda: EngineCore.from_config("c"))
        self.assertEqual((type(made), made.name), (EngineCore, "c"))
        self.assertIsInstance(EngineCore.__dict__["from_config"], classmethod)
        self.assertIs(self.seen[0][1]["self"], EngineCore)
        self.assertEqual(self.seen[0][1]["params"], {"config": "c"})

    def test_cached_method_binds(self):
        core = EngineCore()
        self.assertEqual(self.fires("core.cached", 2, lambda: (core.cached(4), core.cached(4))), (8, 8))
        self.assertEqual(EngineCore.cached.cache_info().hits, 1)  # asked of the original

    def test_nested_class_and_inherited_from_object(self):
        self.assertEqual(self.fires("core.nested", 1, lambda: EngineCore.Inner().deep()), "deep")
        self.assertIn("__reduce_ex__", EngineCore.__dict__)  # its own wrapper; object is not ours to change
        self.assertEqual(self.fires("core.inherited", 1, lambda: copy.copy(EngineCore("y"))).name, "y")

    def test_coroutine(self):
        self.watch("front.sleep", "before", "after", "error", "finish")
        llm = AsyncLLM()
        self.assertTrue(inspect.iscoroutinefunction(AsyncLLM.sleep) and inspect.iscoroutinefunction(llm.sleep))
        self.assertEqual(asyncio.run(llm.sleep(level=2)), ("asleep", 2))
        self.assertEqual(self.phases(), ["before", "after", "finish"])
        self.assertEqual(self.seen[1][1]["result"], ("asleep", 2))

    def test_class_coroutine(self):
        self.assertEqual(self.fires("front.class_coroutine", 1, lambda: asyncio.run(Derived.class_coroutine(1))),
                         ("Derived", 1))

    def test_coroutine_never_awaited_is_no_event(self):
        before = info("front.sleep")["fired"]
        coroutine = AsyncLLM().sleep()
        coroutine.close()
        self.assertEqual(info("front.sleep")["fired"], before)

    def test_async_generator(self):
        self.watch("front.generate", "before", "item", "after", "error", "finish")
        llm = AsyncLLM()
        self.assertTrue(inspect.isasyncgenfunction(AsyncLLM.generate))

        async def use():
            return [x async for x in llm.generate([1, 2, 3], None, "r1", priority=5)]
        self.assertEqual(self.fires("front.generate", 1, lambda: asyncio.run(use())), [1, 2, 3])
        self.assertEqual(self.phases(), ["before", "item", "item", "item", "after", "finish"])
        self.assertEqual(self.seen[0][1]["params"], {"prompt": [1, 2, 3], "request_id": "r1", "priority": 5})
        self.assertEqual(self.seen[0][1]["by_name"], "r1")

    def test_async_generator_asend_athrow_aclose(self):
        self.watch("front.generate", "after", "error", "finish")
        llm = AsyncLLM()

        async def use():
            stream = llm.generate(["a", "b", "c", "d", "e"], None, "r2")
            seen = [await stream.__anext__(), await stream.asend("hello"), await stream.athrow(KeyError("k"))]
            seen.append(await stream.__anext__())
            await stream.aclose()
            return seen
        self.assertEqual(asyncio.run(use()), ["a", "b", "recovered", "c"])
        self.assertEqual(llm.log, [("sent", "hello"), ("caught", "k"), ("closed", "r2")])
        self.assertEqual(self.phases(), ["error", "finish"])
        self.assertIsInstance(self.seen[0][1]["exc"], GeneratorExit)

    def test_async_generator_left_behind(self):
        self.watch("front.generate", "finish")
        llm = AsyncLLM()

        async def use():
            async for _ in llm.generate(["a", "b"], None, "r3"):
                break
        asyncio.run(use())
        gc.collect()
        self.assertEqual(self.phases(), ["finish"])
        self.assertEqual(llm.log, [("closed", "r3")])

    def test_cancellation(self):
        self.watch("front.sleep", "error", "finish")

        async def use():
            task = asyncio.ensure_future(AsyncLLM().sleep())
            await asyncio.sleep(0)
            task.cancel()
            await task
        with self.assertRaises(asyncio.CancelledError):
            asyncio.run(use())
        self.assertEqual(self.phases(), ["error", "finish"])
        self.assertIsInstance(self.seen[0][1]["exc"], asyncio.CancelledError)

    def test_decorated(self):
        """Looks plain, is not: `after` comes when the work is done."""
        self.watch("front.decorated", "before", "after", "error", "finish")
        llm = AsyncLLM()
        coroutine = self.fires("front.decorated", 1, lambda: llm.decorated(7))
        self.assertEqual(self.phases(), ["before"])
        self.assertEqual(asyncio.run(_value(coroutine)), 7)
        self.assertEqual(self.phases(), ["before", "after", "finish"])
        with self.assertRaises(ValueError):
            asyncio.run(_value(llm.decorated(None)))
        self.assertEqual(self.phases()[3:], ["before", "error", "finish"])

    def test_decorated_stream_and_hint(self):
        self.watch("front.decorated_stream", "item", "after", "finish")

        async def use():
            return [x async for x in AsyncLLM().decorated_stream(2)]
        self.assertEqual(asyncio.run(use()), [0, 1])
        self.assertEqual(self.phases(), ["item", "item", "after", "finish"])
        self.watch("front.hinted", "after")
        self.assertEqual(asyncio.run(_value(AsyncLLM().hinted(4))), ("asleep", 4))
        self.assertEqual(self.seen[-1][1]["result"], ("asleep", 4))

    def test_recursion_is_a_new_event(self):
        self.assertEqual(self.fires("core.around", 4, lambda: EngineCore().step(3)), [3, 2, 1])

    def test_many_threads(self):
        before = info("core.add_request")["fired"]
        core = EngineCore()
        threads = [threading.Thread(target=lambda: [core.add_request(i) for i in range(500)]) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(info("core.add_request")["fired"] - before, 2000)
        self.assertEqual(len(core.requests), 2000)


async def _value(awaitable):
    return await awaitable


class Identity(Case):
    def test_names_signature_doc(self):
        for name, function in (("add_request", EngineCore.add_request), ("sleep", AsyncLLM.sleep),
                               ("generate", AsyncLLM.generate), ("make", EngineCore.make)):
            original = function.__wrapped__
            for attribute in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
                self.assertEqual(getattr(function, attribute), getattr(original, attribute), (name, attribute))
            self.assertEqual(inspect.signature(function), inspect.signature(original))
            self.assertEqual(function.__name__, name)
        self.assertEqual(str(inspect.signature(EngineCore().add_request)), "(request, request_wave: int = 0) -> int")
        self.assertEqual(EngineCore.add_request.marker, "kept")
        self.assertEqual(EngineCore.add_request.__code__.co_name, "add_request")
        self.assertIn("def add_request", inspect.getsource(EngineCore.add_request))
        self.assertTrue(inspect.isroutine(EngineCore.add_request))
        self.assertTrue(inspect.ismethod(EngineCore().add_request))

    def test_pickle_copy_weakref(self):
        for function in (EngineCore.add_request, AsyncLLM.generate, mockeng.ops.select_experts):
            for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
                self.assertIs(pickle.loads(pickle.dumps(function, protocol)), function)
            self.assertIs(copy.copy(function), function)
            self.assertIs(copy.deepcopy(function), function)
            self.assertIs(weakref.ref(function)(), function)
        bound = pickle.loads(pickle.dumps(EngineCore("b").add_request))
        self.assertEqual((bound.__self__.name, bound("x")), ("b", 1))

    def test_missing_attribute_is_an_error(self):
        with self.assertRaises(AttributeError):
            EngineCore.add_request.no_such_thing
        self.assertIn("core.add_request", repr(EngineCore.__dict__["add_request"]))

    def test_attributes_can_be_set(self):
        EngineCore.add_request.note = 1
        self.assertEqual(EngineCore.add_request.note, 1)
        del EngineCore.add_request.note

    def test_parameters_of_a_bound_method_do_not_count_self(self):
        class Router:
            def select(self, x, k):
                return k
        router = Router()
        self.watch("object", "before")
        self.assertEqual(_jphost.wrap_attr("object", router, "select"), 1)
        self.seen.clear()
        self.assertEqual(router.select(3, 4), 4)
        self.assertEqual(self.seen[0][1]["params"], {"x": 3})

    def test_wrappers_are_collected(self):
        class Router:
            def select(self, x):
                return x
        router = Router()
        self.assertEqual(_jphost.wrap_attr("object", router, "select"), 1)
        alive = weakref.ref(router.select)
        self.assertEqual(router.select(3), 3)
        del router
        gc.collect()
        self.assertIsNone(alive())


class States(Case):
    def test_states(self):
        self.assertEqual(info("lost")["state"], "missing")
        self.assertIn("EngineCore.lost", info("lost")["reason"])
        self.assertEqual(info("not_imported")["state"], "waiting")
        self.assertEqual(info("core.never_called")["state"], "installed")
        EngineCore().add_request(1)
        self.assertEqual(info("core.add_request")["state"], "fired")
        self.assertEqual(info("core.add_request")["detected"], 1)

    def test_bound_never_fired(self):
        """SEMANTICS 1.4, 1.5 rest on this: a bypassed capture is an error state, not zeros."""
        _jphost.bound("capture", 4, 0)
        for _ in range(2):
            EngineCore().add_request(1)
        self.assertEqual(info("capture")["state"], "never fired")
        _jphost.bound("capture", 0, 1)
        self.assertEqual(info("capture")["state"], "fired")


class Errors(Case):
    def failing(self, call):
        raise RuntimeError("hook is broken")

    def test_engine_errors_pass_through(self):
        self.watch("core.add_request", "after", "error", "finish")
        try:  # assertRaises would clear the traceback
            EngineCore().add_request("bad")
        except ValueError as exc:
            self.assertEqual(exc.args, ("bad request",))
            self.assertEqual(self.phases(), ["error", "finish"])
            self.assertIs(self.seen[0][1]["exc"], exc)
            self.assertIsNone(exc.__context__)
            names = [frame.name for frame in traceback.extract_tb(exc.__traceback__)]
            self.assertEqual(names, ["test_engine_errors_pass_through", "add_request"])
        else:
            self.fail("the engine's error was swallowed")

    def test_wrong_arguments_name_the_original(self):
        with self.assertRaisesRegex(TypeError, r"add_request\(\) got an unexpected keyword argument 'nope'"):
            EngineCore().add_request(1, nope=2)
        with self.assertRaisesRegex(TypeError, "add_request"):
            EngineCore.add_request()

    def test_a_failing_hook_is_open(self):
        for phase in ("before", "after", "finish"):
            _jphost.hook("core.add_request", phase, self.failing)
        errors = info("core.add_request")["errors"]
        core = EngineCore()
        self.assertEqual([core.add_request(1), core.add_request(2)], [1, 2])
        self.assertEqual(info("core.add_request")["errors"] - errors, 4)

    def test_a_failing_hook_is_strict(self):
        _jphost.strict(True)
        _jphost.hook("core.add_request", "before", self.failing)
        core = EngineCore()
        with self.assertRaisesRegex(RuntimeError, "hook is broken"):
            core.add_request(1)
        self.assertEqual(core.requests, [])
        _jphost.hook("front.sleep", "before", self.failing)
        with self.assertRaisesRegex(RuntimeError, "hook is broken"):
            asyncio.run(AsyncLLM().sleep())

    def test_a_failing_error_hook_keeps_the_engines_error(self):
        _jphost.hook("core.add_request", "error", self.failing)
        _jphost.hook("front.sleep", "error", self.failing)
        with self.assertRaisesRegex(ValueError, "bad request"):
            EngineCore().add_request("bad")
        with self.assertRaisesRegex(ValueError, "-1"):
            asyncio.run(AsyncLLM().sleep(-1))

    def test_refusal(self):
        """SEMANTICS 5.3: in enforce the KV resume is refused, whatever on_error says."""
        _jphost.hook("core.add_request", "before", lambda call: ("raise", TimeoutError("rank 1 is missing")))
        core = EngineCore()
        with self.assertRaisesRegex(TimeoutError, "rank 1 is missing"):
            core.add_request(1)
        self.assertEqual(core.requests, [])
        _jphost.hook("front.generate", "item", lambda call: ("raise", TimeoutError("late")))
        llm = AsyncLLM()

        async def use():
            return [x async for x in llm.generate([1], None, "r")]
        with self.assertRaisesRegex(TimeoutError, "late"):
            asyncio.run(use())
        self.assertEqual(llm.log, [("closed", "r")])

    def test_refusal_replaces_an_error(self):
        for name, call in (("core.add_request", lambda: EngineCore().add_request("bad")),
                           ("front.sleep", lambda: asyncio.run(AsyncLLM().sleep(-1)))):
            _jphost.hook(name, "error", lambda call: ("raise", KeyError("other")))
            with self.assertRaises(KeyError) as caught:
                call()
            self.assertIsInstance(caught.exception.__context__, ValueError)

    def test_generator_error(self):
        self.watch("front.generate", "after", "error", "finish")

        async def use():
            return [x async for x in AsyncLLM().generate(["boom"], None, "r")]
        with self.assertRaises(OverflowError):
            asyncio.run(use())
        self.assertEqual(self.phases(), ["error", "finish"])


class Replacing(Case):
    def test_arguments(self):
        _jphost.hook("core.add_request", "before", lambda c: ("args", (c["self"], "other"), {"request_wave": 9}))
        core = EngineCore()
        core.add_request("mine")
        self.assertEqual(core.requests, [("other", 9)])

    def test_one_parameter(self):
        _jphost.hook("core.add_request", "before", lambda c: ("param", 1, 5))
        core = EngineCore()
        passed = {"request_wave": 1}
        core.add_request("a")
        core.add_request("b", 1)
        _thread.start_new_thread(EngineCore.add_request, (core, "c"), passed)  # hands over the very dict
        for _ in range(1000):
            if len(core.requests) == 3:
                break
            time.sleep(0.01)
        self.assertEqual(core.requests, [("a", 5), ("b", 5), ("c", 5)])
        self.assertEqual(passed, {"request_wave": 1})

    def test_result(self):
        _jphost.hook("core.add_request", "after", lambda c: ("result", c["result"] + 100))
        self.assertEqual(EngineCore().add_request("a"), 101)
        _jphost.hook("front.sleep", "after", lambda c: ("result", "changed"))
        self.assertEqual(asyncio.run(AsyncLLM().sleep()), "changed")
        _jphost.hook("front.generate", "item", lambda c: ("result", c["result"] * 10))

        async def use():
            return [x async for x in AsyncLLM().generate([1, 2], None, "r")]
        self.assertEqual(asyncio.run(use()), [10, 20])

    def test_done(self):
        self.watch("core.add_request", "after", "error", "finish")
        _jphost.hook("core.add_request", "before", lambda c: ("done", "instead"))
        core = EngineCore()
        self.assertEqual(core.add_request("a"), "instead")
        self.assertEqual((core.requests, self.phases()), ([], ["finish"]))
        _jphost.hook("front.sleep", "before", lambda c: ("done", "slept"))
        self.assertEqual(asyncio.run(AsyncLLM().sleep()), "slept")
        _jphost.hook("front.generate", "before", lambda c: ("done", AsyncLLM().stream(3)))

        async def use():
            return [x async for x in AsyncLLM().generate([], None, "r")]
        self.assertEqual(asyncio.run(use()), [0, 1, 2])

    def test_around(self):
        for answer, result in ((("proceed",), [1]), (None, [1]), (("result", "mine"), "mine"),
                               (("proceed and fail",), [1])):
            _jphost.hook("core.around", "around", lambda c: answer if c["params"]["n"] == 1 else None)
            self.assertEqual(EngineCore().step(1), result)
        self.watch("core.around", "error")
        _jphost.hook("core.around", "around", lambda c: ("proceed",))
        with self.assertRaises(IndexError):
            EngineCore().step(-1)
        self.assertEqual(self.phases(), ["error"])

    def test_waiting(self):
        """A request that arrives while the gate is sealed waits (SEMANTICS 4.1) without blocking the event loop."""
        async def ticket(value):
            await asyncio.sleep(0.001)
            return value

        def wait(call):
            self.seen.append((call["rounds"], call["awaited"]))
            return ("await", ticket(call["rounds"])) if call["rounds"] < 2 else None
        _jphost.hook("front.generate", "before", wait)
        _jphost.hook("front.sleep", "after", wait)

        async def use():
            return [x async for x in AsyncLLM().generate([1], None, "r")]
        self.assertEqual(asyncio.run(use()), [1])
        self.assertEqual(self.seen, [(0, None), (1, 0), (2, 1)])
        self.seen.clear()
        self.assertEqual(asyncio.run(AsyncLLM().sleep(3)), ("asleep", 3))
        self.assertEqual(self.seen, [(0, None), (1, 0), (2, 1)])
        _jphost.hook("core.add_request", "before", lambda c: ("await", None))
        errors = info("core.add_request")["errors"]
        self.assertEqual(EngineCore().add_request(1), 1)  # a plain callable cannot wait: a failing hook
        self.assertEqual(info("core.add_request")["errors"] - errors, 1)

    def test_no_leak(self):
        class Token:
            pass
        llm, core = AsyncLLM(), EngineCore()
        self.watch("front.generate", "before", "item", "after", "finish")
        _jphost.hook("core.add_request", "before", lambda c: ("param", 1, 5))

        async def use(token):
            async for _ in llm.generate([token], None, token):
                pass
        for _ in range(20):
            token = Token()
            alive = weakref.ref(token)
            asyncio.run(use(token))
            core.add_request(token)
            core.requests.clear()
            llm.log.clear()
            self.seen.clear()
            del token
            gc.collect()
            self.assertIsNone(alive())


if __name__ == "__main__":
    unittest.main()
