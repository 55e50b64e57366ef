# SPDX-License-Identifier: Apache-2.0
"""What SGLang's adapter does where a real server would have to be broken, or hit at the right moment."""
import sys
import unittest

from adapter_case import DELIVERING, SECOND, STARTED, TRIED, Adapter, Joining

FRONT = """
    from types import SimpleNamespace as Namespace

    class TokenizerManager:
        def __init__(self):
            self.says, self.raises = (True, "ok"), None

        async def answer(self):
            if self.raises:
                raise self.raises
            return self.says

        def _create_tokenized_object(self, obj, mm_inputs):
            pass

        async def generate_request(self, obj, request=None):
            if hasattr(obj, "go"):  # it waits while the engine is paused
                await obj.go.wait()
            self._create_tokenized_object(obj, None)
            yield getattr(obj, "output", {"meta_info": {}})
            await obj.end.wait()

        async def pause_generation(self, obj):
            pass

        async def continue_generation(self, obj):
            pass

        async def begin_weight_update(self, obj, request=None):
            return await self.answer()

        async def end_weight_update(self, obj, request=None):
            return await self.answer()

        async def update_weights_from_disk(self, obj, request=None):
            return await self.answer()

        async def release_memory_occupation(self, obj, request=None):
            pass

        async def resume_memory_occupation(self, obj, request=None):
            pass

        async def flush_cache(self, timeout_s):
            return Namespace(success=True)
    """
SCHEDULER = """
    from types import SimpleNamespace as Namespace

    class Model:
        def modules(self):
            return iter([Namespace(layer_id=n, topk_config=Namespace()) for n in range(2)])

        def load_weights(self, weights):
            pass

    class Scheduler:
        def send_abort_output(self, abort_req, req):
            pass

        def _release_aborted_request(self, req):
            pass

        def __init__(self, is_generation):
            self.is_generation = is_generation
            self.tp_worker = Namespace(model_runner=Namespace(model=Model()))
            self.model_config = Namespace(hf_text_config=Namespace(
                num_experts=8, num_experts_per_tok=2, num_hidden_layers=2))
    """
STREAMER = """
    class SchedulerOutputStreamer:
        def stream_output(self, reqs, return_logprob, skip_req=None):
            pass
    """
UPDATER = """
    import sys
    from types import SimpleNamespace as Namespace

    class SchedulerWeightUpdaterManager:
        def __init__(self):
            self.offload_tags = {"kv_cache"}

        def resume_memory_occupation(self, recv_req):
            self.offload_tags.clear()
            return Namespace()

        def update_weights_from_disk(self, recv_req):
            print("loads", flush=True)
            sys.stdin.readline()
            return Namespace(success=True)
    """
CONTEXT = """
    import sys
    from types import SimpleNamespace as Namespace

    def get_parallel():
        rank = int(sys.argv[1])
        return Namespace(tp_rank=rank, tp_size=2, pp_rank=0, pp_size=1, dp_rank=rank, dp_size=1, attn_dp_size=2)
    """
START = STARTED + """
    import asyncio
    import moor
    from types import SimpleNamespace as Namespace
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    manager = TokenizerManager()
    gate = moor.attach("default", 10.0).gate
    obj = Namespace(weight_version="7", mode="in_place", tags=None)

    async def outcome(call):
        try:
            return await call
        except Exception as e:
            return f"{type(e).__name__}: {e}"

    def tell(what):
        now = gate.status()
        print(what, "-", now["state"], *["poisoned"] * now["poisoned"])

    async def begun():
        end = asyncio.Event()
        answers = manager.generate_request(Namespace(rid="a", text="x", end=end))
        return await started(answers, end)

    async def refused_update():
        finish = await begun()
        await outcome(manager.update_weights_from_disk(obj))
        await finish()
    """ + SECOND


class Updates(Adapter):
    package = "sglang"
    modules = {"srt/managers/tokenizer_manager.py": FRONT}
    start = START

    def main(self, text):
        return self.program("async def main():\n" + text + "\nasyncio.run(main())\n",
                            '{"record": {"enabled": false}, "gate": {"mode": "enforce", "drain_timeout_s": 0.2}}')

    def test_one_after_a_session_that_failed_is_gated(self):
        """SEMANTICS 4.5: a request in flight keeps it waiting, whatever became of the session before."""
        for call in ("begin", "end"):
            with self.subTest(call):
                failed, update = self.main(f"""
                    if "{call}" == "end":
                        await manager.begin_weight_update(obj)
                    manager.raises = OSError("gone")
                    tell(await outcome(manager.{call}_weight_update(obj)))
                    manager.raises = None
                    gate.acknowledge()
                    gate.reopen(1.0)
                    in_flight = await begun()  # who drops it, aborts it
                    tell(await outcome(manager.update_weights_from_disk(obj)))
                    """)
                self.assertEqual(failed, "OSError: gone - drained poisoned")
                self.assertRegex(update, "^RuntimeError.*not settled.* - sealed$")

    def test_a_session_that_does_not_begin(self):
        """The engine says no: somebody else's is open. What the gate was closed for does not come."""
        self.assertEqual(self.main("""
            manager.says = (False, "one is open")
            tell((await manager.begin_weight_update(obj))[1])
            manager.says = (True, "ok")
            tell((await manager.update_weights_from_disk(obj))[1])
            print(gate.status()["label"])
            """), ["one is open - open", "ok - open", "7"])

    def test_a_session(self):
        self.assertEqual(self.main("""
            tell((await manager.begin_weight_update(obj))[1])
            tell((await manager.update_weights_from_disk(obj))[1])
            manager.says = (False, "one is open")
            tell((await manager.begin_weight_update(obj))[1])
            manager.says = (True, "ok")
            tell((await manager.end_weight_update(obj))[1])
            """), ["ok - drained", "ok - drained", "one is open - drained", "ok - open"])

    def test_a_session_over_several_workers(self):
        """SEMANTICS 4.11: each of its calls comes to whoever accepts it."""
        self.assertEqual(self.main("""
            with Second() as second:
                tell((await manager.begin_weight_update(obj))[1])
                tell(second("manager.update_weights_from_disk(obj)"))
                print(gate.status()["label"] or "none yet")
                tell(second("manager.end_weight_update(obj)"))
                tell((await manager.update_weights_from_disk(obj))[1])
                print(gate.status()["label"])
            """), ["ok - drained", "(True, 'ok') - drained", "none yet", "(True, 'ok') - open", "ok - open", "7"])

    def test_a_pause_that_came_over_another_worker(self):
        """SEMANTICS 4.8: it keeps the request, and the update over this worker does not wait for it."""
        self.assertEqual(self.main("""
            with Second() as second:
                finish = await begun()
                tell(second("manager.pause_generation(obj)"))
                tell((await manager.update_weights_from_disk(obj))[1])
                tell(await manager.continue_generation(obj))
                await finish()
            """), ["None - sealed", "ok - sealed", "None - open"])

    def test_a_pause_of_the_callers_is_the_callers(self):
        """Also after an update that Moor closed the gate for, and that came to nothing."""
        self.assertEqual(self.main("""
            await refused_update()
            await manager.pause_generation(obj)
            await manager.update_weights_from_disk(obj)
            tell("updated")
            await manager.continue_generation(obj)
            tell("continued")
            """), ["updated - sealed", "continued - open"])

    def test_no_request_before_the_kv_cache_is_back(self):
        self.assertEqual(self.main("""
            await refused_update()
            await manager.release_memory_occupation(obj)
            await manager.update_weights_from_disk(obj)
            tell("updated")
            await manager.resume_memory_occupation(obj)
            tell("resumed")
            """), ["updated - drained", "resumed - open"])


class Rest(Adapter):
    """The server answers for all its ranks when the first one is done."""
    package = "sglang"
    modules = {"srt/managers/tokenizer_manager.py": FRONT, "srt/managers/scheduler.py": SCHEDULER,
               "srt/runtime_context.py": CONTEXT, "srt/managers/scheduler_components/weight_updater.py": UPDATER}

    def test_the_gate_opens_with_the_last_rank(self):
        """SEMANTICS 4.8: not beside one that is loading still."""
        self.assertEqual(self.program("""
            import asyncio
            import subprocess
            import sys
            import moor
            from types import SimpleNamespace as Namespace

            def rank():
                from sglang.srt.managers.scheduler import Scheduler
                from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
                scheduler, updater = Scheduler(True), SchedulerWeightUpdaterManager()
                sys.stdin.readline()
                updater.update_weights_from_disk(Namespace())
                sys.stdin.readline()

            async def front(manager, other):
                said = []

                def tell():
                    other.stdin.write("\\n")
                    other.stdin.flush()

                def finish():
                    said.append(gate.status()["state"])
                    tell()

                async def answer():
                    tell()
                    other.stdout.readline()  # it loads
                    asyncio.get_running_loop().call_later(0.3, finish)
                    return True, "ok"

                gate = moor.attach("default", 10.0).gate
                manager.answer = answer
                print(*await manager.update_weights_from_disk(Namespace(weight_version="7")), *said, gate.status()["state"])
                tell()

            if len(sys.argv) > 1:
                rank()
            else:
                from sglang.srt.managers.tokenizer_manager import TokenizerManager
                manager = TokenizerManager()  # whose children find its instance
                with subprocess.Popen([sys.executable, __file__, "0"], stdin=-1, stdout=-1, text=True) as other:
                    asyncio.run(front(manager, other))
            """, '{"record": {"enabled": false}, "gate": {"mode": "enforce"}}'), ["True ok drained open"])


class HealthChecks(Adapter):
    package = "sglang"
    modules = {"srt/managers/tokenizer_manager.py": FRONT}
    start = START

    def test_they_have_no_ticket(self):
        """SEMANTICS 4.2: a scheduler that is busy drops them, and no drain waits for an answer."""
        self.assertEqual(self.program("""
            async def ask(rid):
                end = asyncio.Event()
                answers = manager.generate_request(Namespace(rid=rid, text="x", end=end))
                await anext(answers)
                print(gate.status()["in_flight"])

            asyncio.run(ask("HEALTH_CHECK_1"))
            asyncio.run(ask("a"))
            """, '{"record": {"enabled": false}}'), ["0", "1"])


class Field(Adapter):
    """Who gets SGLang's field: the request that says return_routed_experts."""
    package = "sglang"
    modules = {"srt/managers/tokenizer_manager.py": FRONT}
    start = START + TRIED

    def fields(self, config):
        return self.program("""
            async def ask(output, **more):
                end = asyncio.Event()
                end.set()
                async for _ in manager.generate_request(Namespace(rid="a", text="x", end=end, output=output, **more)):
                    pass
                print(tried())

            def output():
                return {"meta_info": {"id": "a", "finish_reason": {"type": "stop"}, "prompt_tokens": 5, "completion_tokens": 3}}

            asyncio.run(ask(output()))
            asyncio.run(ask([output(), output()], return_routed_experts=False))
            asyncio.run(ask(output(), return_routed_experts=True))
            asyncio.run(ask([output(), output()], return_routed_experts=True))
            """, config)

    def test_who_asked_gets_it(self):
        """S1.26"""
        self.assertEqual(self.fields('{"gate": {"mode": "off"}}'), ["0", "0", "1", "3"])

    def test_always_is_for_all(self):
        """S1.26; each of a batch is tried."""
        self.assertEqual(self.fields('{"gate": {"mode": "off"}, "record": {"always": true}}'), ["1", "3", "4", "6"])


class GivingUp(Adapter):
    package = "sglang"
    modules = {"srt/managers/tokenizer_manager.py": FRONT}
    start = START

    def test_before_the_scheduler_has_it(self):
        """A client that goes while the engine is paused: the scheduler never hears of it, and no record comes."""
        self.assertEqual(self.program("""
            async def give_up(rid, sent):
                async def ask():
                    async for _ in manager.generate_request(Namespace(rid=rid, text="x", go=go, end=asyncio.Event())):
                        pass
                go = asyncio.Event()
                if sent:
                    go.set()
                task = asyncio.create_task(ask())
                await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])
                print(gate.status()["in_flight"])

            asyncio.run(give_up("a", True))
            asyncio.run(give_up("b", False))
            asyncio.run(give_up("c", True))
            """, "{}"), ["1", "1", "2"])


class Ranks(Adapter):
    package = "sglang"
    modules = {"srt/managers/scheduler.py": SCHEDULER, "srt/runtime_context.py": CONTEXT,
               "srt/managers/io_struct.py": "class ResumeMemoryOccupationReqOutput: pass",
               "srt/managers/scheduler_components/weight_updater.py": UPDATER}

    def test_ranks_of_data_parallel_attention_are_one_replica(self):
        """SEMANTICS 5.1: they meet, though each has a data-parallel rank of its own."""
        self.assertEqual(self.program("""
            import subprocess
            import sys
            sys.argv[1:] = sys.argv[1:] or ["0"]
            from types import SimpleNamespace as Namespace
            from sglang.srt.managers.scheduler import Scheduler
            from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

            scheduler, updater, other = Scheduler(True), SchedulerWeightUpdaterManager(), None
            if sys.argv[1] == "0":
                other = subprocess.Popen([sys.executable, __file__, "1"], stdout=-1, text=True)
            updater.resume_memory_occupation(Namespace(tags=["kv_cache"]))
            print("resumed" if not updater.offload_tags else "refused")
            if other:
                print(other.communicate()[0].strip())
            """, '{"record": {"enabled": false}, "barrier": {"mode": "enforce", "timeout_s": 10}}'),
                         ["resumed", "resumed"])


class Ends(Adapter):
    package = "sglang"
    modules = {"srt/managers/tokenizer_manager.py": FRONT, "srt/managers/scheduler.py": SCHEDULER,
               "srt/managers/scheduler_components/output_streamer.py": STREAMER}
    start = START

    def test_a_request_whose_routes_are_not_collected(self):
        """SEMANTICS 1.22, 4.2: a retraction aborts it, its sampled token may not be committed, it is rejected: its client is told, and its
        ticket settles; once, whatever is told of it again."""
        self.assertEqual(self.program("""
            import time
            from sglang.srt.managers.scheduler import Scheduler
            from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer

            class FINISH_ABORT:
                pass

            scheduler, streamer = Scheduler(True), SchedulerOutputStreamer()

            def request(reason=None):
                return Namespace(rid="a", origin_input_ids=[1, 2, 3], output_ids=[4, 5], finished_reason=reason)

            def left(n):
                end = time.monotonic() + 20
                while gate.status()["in_flight"] > n and time.monotonic() < end:
                    time.sleep(0.01)
                return gate.status()["in_flight"]

            async def main():
                runs, aborted, rejected = request(), request(), request(FINISH_ABORT())
                streamer.stream_output([runs], False)
                await (await begun())()
                await (await begun())()
                print(left(2), end=" ")
                scheduler.send_abort_output(None, aborted)
                print(left(1), end=" ")
                for _ in range(2):
                    scheduler._release_aborted_request(aborted)
                    scheduler.send_abort_output(None, aborted)
                    streamer.stream_output([runs], False)
                time.sleep(1)  # they would be heard within it
                print(left(1), end=" ")
                streamer.stream_output([runs, rejected], False)
                print(left(0))
            asyncio.run(main())
            """, "{}"), ["2 1 1 0"])


class Off(Adapter):
    package = "sglang"
    modules = {"srt/managers/scheduler.py": SCHEDULER}

    def test_a_model_that_generates_nothing(self):
        """SGLang tells of the end of a request that generates: others' records would never be sealed."""
        for generates, why in (True, ""), (False, "only what SGLang generates"):
            with self.subTest(generates):
                told = self.program(f"""
                    import moor
                    from sglang.srt.managers.scheduler import Scheduler

                    scheduler = Scheduler({generates})
                    print("why:", moor.attach("default", 10.0).stats()["recording_off"])
                    """, "{}")
                self.assertRegex(told[0], f"^why: .*{why}$" if why else "^why: $")


ANSWERS = """
    class TokenizerManager:
        async def generate_request(self, obj, request=None):
            meta = {"id": "a", "finish_reason": None, "prompt_tokens": 3, "completion_tokens": 1}
            yield {"meta_info": dict(meta)}
            yield [{"meta_info": dict(meta, finish_reason={}, id=id)} for id in "ab"]
    """


class Delivery(Adapter):
    package = "sglang"
    modules = {"srt/managers/tokenizer_manager.py": ANSWERS}

    def test_no_delivery_waits_in_the_event_loop(self):
        self.assertEqual(self.program(DELIVERING + """
    import moor
    from types import SimpleNamespace as Namespace
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    async def answer():
        request = Namespace(rid="a", text="x", return_routed_experts=True)
        async for item in TokenizerManager().generate_request(request):
            pass
        return [sorted(output["meta_info"]) for output in item]

    print(asyncio.run(delivered(answer)))  # there is no store
    print(moor.attach("default", 10.0).stats()["counters"]["deliver_errors_total"])
    """), ["the loop goes on", str([["completion_tokens", "finish_reason", "id", "prompt_tokens"]] * 2), "2"])


class Joins(Joining, Adapter):
    package = "sglang"
    modules = {"srt/managers/tokenizer_manager.py": FRONT}
    answers = "[{'meta_info': {}}]"
    front = """
        import asyncio
        from types import SimpleNamespace as Namespace
        from sglang.srt.managers.tokenizer_manager import TokenizerManager

        async def main():
            end = asyncio.Event()
            end.set()
            print([answer async for answer in TokenizerManager().generate_request(Namespace(end=end))])

        asyncio.run(main())
        """


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
