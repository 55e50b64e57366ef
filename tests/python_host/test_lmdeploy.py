# SPDX-License-Identifier: Apache-2.0
"""What LMDeploy's adapter does with steps that a real engine makes only when it is broken (tests/engines has the real one)."""
import sys
import unittest

from adapter_case import DELIVERING, Adapter, Joining

ENGINE = """
    from types import SimpleNamespace as Namespace

    class Engine:
        def __init__(self, engine_config):
            self.engine_config = engine_config
            self.model_config = Namespace(model_paradigm="ar", hf_config=Namespace(
                num_experts=8, num_experts_per_tok=2, num_hidden_layers=2))
            self.cache_config = Namespace(max_prefill_token_num=64, max_batches=4)

        def close(self):
            pass
    """
LOOP = """
    from types import SimpleNamespace as Namespace

    class EngineLoop:
        def _make_infer_outputs(self, batched_outputs, running, model_inputs, delta):
            return {s.session_id: Namespace(finish=True) for s in running}
    """
FRONT = """
    class AsyncEngine:
        def __init__(self):
            pass

        async def generate(self, request):
            if stale := getattr(request, "stale", None):
                yield stale
                return
            if free := getattr(request, "free", None):  # it waits for a handle
                await free.wait()
                async for answer in request.handle.async_stream_infer(request.session.session_id):
                    yield answer
            yield 1
            await request.end.wait()
    """
INSTANCE = """
    from types import SimpleNamespace as Namespace

    class EngineInstance:
        def _get_extra_outputs(self, resp, num_all_ids):
            return {"routed_experts": resp.data["routed_experts"]}

        async def async_stream_infer(self, resp, num_all_ids):
            yield Namespace(routed_experts=self._get_extra_outputs(resp, num_all_ids)["routed_experts"])
    """
PROXY = """
    class MPEngineInstance:
        async def async_stream_infer(self, session_id, *args, **kwargs):
            yield 0

    class MPEngine:
        def update_params(self, request):
            return None

        async def update_weights_from_ipc(self, request, reject_reason=None):
            return (False, reject_reason) if reject_reason else (True, "")
    """
REQUESTS = """
    from types import SimpleNamespace as Namespace

    class RequestSender:
        blocked = False

        def send_async(self, req_type, data):
            return Namespace(is_done=self.blocked)

    class EngineInstance:  # without the proxy
        def __init__(self):
            self.sender = RequestSender()

        async def async_stream_infer(self, session_id, *args, **kwargs):
            self.sender.send_async("add session", dict(session_id=session_id))
            self.sender.send_async("add message", dict(session_id=session_id, token_ids=[1]))
            yield 0
    """
MESSAGES = """
    from types import SimpleNamespace as Namespace

    class SamplingParam:
        @classmethod
        def from_gen_config(cls, gen_config):
            return Namespace(return_routed_experts=gen_config.return_routed_experts)
    """
UPDATES = """
    import asyncio
    import moor
    from types import SimpleNamespace as Namespace
    from lmdeploy.serve.core.async_engine import AsyncEngine
    from lmdeploy.pytorch.engine.mp_engine.base import MPEngine

    front, proxy = AsyncEngine(), MPEngine()
    gate = moor.attach("default", 10.0).gate

    async def ipc():
        await proxy.update_weights_from_ipc(Namespace())

    async def params():
        proxy.update_params(Namespace(finished=True))

    async def outcome(update):
        try:
            await update()
            return "installed"
        except Exception as e:
            return f"{type(e).__name__} {e}"

    async def main(update):
        request = Namespace(session=Namespace(session_id=7), end=asyncio.Event())
        answers = front.generate(request)
        await anext(answers)
        print(await outcome(update))
        request.end.set()
        async for _ in answers:
            pass
        print(await outcome(update), gate.status()["state"])
    """
DELIVERY = """
    import asyncio
    import time
    from lmdeploy.pytorch.engine.engine_instance import EngineInstance

    async def answer(name):
        async for output in EngineInstance().async_stream_infer(Namespace(data={"routed_experts": f"moor-record:{name}"}), 3):
            return "delivered" if output.routed_experts is not None else "lost"

    def deliver(name):
        begin = time.monotonic()
        print(asyncio.run(answer(name)), time.monotonic() - begin)
    """
STEPS = """
    import moor
    from types import SimpleNamespace as Namespace
    from lmdeploy.pytorch.engine.engine import Engine
    from lmdeploy.pytorch.engine.engine_loop import EngineLoop

    engine, loop = Engine(Namespace()), EngineLoop()
    store = moor.attach("default", 10.0)

    class Lengths(list):
        def tolist(self):
            return list(self)

    def step(tokens, *counts, layers=(1, 2, 1, 2)):
        # [tokens][layers][2 experts]; behind them in memory lie more: who reads too far finds ids that look like some
        row = b"".join(i.to_bytes(2, "little") for i in layers)
        memory = memoryview(row * 64).cast("B", (64, len(row)))[:tokens]
        ids = memory.cast("B").cast("H", (tokens, len(layers) // 2, 2))
        batch = [Namespace(session_id=n, status=Namespace(name="RUNNING"), num_history_ids=0, num_valid_ids=count + 1)
                 for n, count in enumerate(counts, 1)]
        loop._make_infer_outputs(Namespace(all_routed_experts=ids), batch, Namespace(seq_length=Lengths(counts)), None)
        for sequence in batch:
            with store.open(f"lmdeploy-{sequence.session_id}", 10.0) as record:
                print(record.rows, record.missing, record.array(allow_missing=True).tolist()[:1])
    """


class Engine(Adapter):
    package = "lmdeploy"
    modules = {"pytorch/engine/engine.py": ENGINE, "pytorch/engine/engine_loop.py": LOOP,
               "pytorch/engine/engine_instance.py": INSTANCE, "pytorch/engine/mp_engine/base.py": PROXY,
               "pytorch/engine/request.py": REQUESTS,
               "pytorch/messages.py": MESSAGES,
               "serve/core/async_engine.py": FRONT}


class Updates(Engine):
    start = UPDATES

    def update(self, how):
        config = '{"record": {"enabled": false}, "gate": {"mode": "enforce", "drain_timeout_s": 0.2}}'
        return self.program(f"\nasyncio.run(main({how}))\n", config)

    def test_a_drain_that_fails_leaves_no_update_open(self):
        """SEMANTICS 4.3: the update is refused, and the next one, once the request has ended, is an update like any other."""
        for how in ("ipc", "params"):
            with self.subTest(how):
                refused, again = self.update(how)
                self.assertRegex(refused, "^(Runtime|Timeout).*7")
                self.assertEqual(again, "installed open")


    def test_one_that_the_engine_is_not_prepared_for(self):
        """The trainer forgot the sleep: nothing that it sends is loaded, and the answer is the engine's."""
        self.assertEqual(self.program("""
            print(asyncio.run(proxy.update_weights_from_ipc(Namespace(), "not asleep")))
            print(gate.status()["state"], gate.status()["poisoned"], gate.status()["epoch"])
            """, '{"record": {"enabled": false}, "gate": {"mode": "enforce"}}'),
                         ["(False, 'not asleep')", "open False 1"])


class Requests(Engine):
    def test_one_that_is_turned_away(self):
        """It was preprocessed before the engine slept, which never hears of it: the gate waits for no record."""
        self.assertEqual(self.program("""
            import asyncio
            import moor
            from types import SimpleNamespace as Namespace
            from lmdeploy.serve.core.async_engine import AsyncEngine

            front, gate = AsyncEngine(), moor.attach("default", 10.0).gate

            async def ask(session, reason, tokens):
                answer = Namespace(finish_reason=reason, generate_token_len=tokens)
                async for _ in front.generate(Namespace(session=Namespace(session_id=session), stale=answer)):
                    pass
                print(gate.status()["in_flight"])

            asyncio.run(ask(1, "abort", 0))
            asyncio.run(ask(2, "abort", 1))
            asyncio.run(ask(3, "stop", 0))
            """), ["0", "1", "2"])

    def give_up(self, handle, *calls):
        return self.program(f"""
            import asyncio
            import moor
            from types import SimpleNamespace as Namespace
            from lmdeploy.serve.core.async_engine import AsyncEngine
            from {handle} as Handle

            front, gate = AsyncEngine(), moor.attach("default", 10.0).gate

            async def give_up(session, sent):
                request = Namespace(session=Namespace(session_id=session), free=asyncio.Event(), end=asyncio.Event(),
                                    handle=Handle())
                if sent == "blocked":
                    request.handle.sender.blocked = True
                if sent:
                    request.free.set()

                async def ask():
                    async for _ in front.generate(request):
                        pass
                task = asyncio.create_task(ask())
                await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])
                print(gate.status()["in_flight"])
            """ + "".join(f"\n            asyncio.run(give_up{call})" for call in calls))

    def test_a_hidden_stop_token_has_no_row_in_the_ref(self):
        """S1.27: LMDeploy takes its row off an array, and leaves a text as it is."""
        ref = "+".join(f"moor1:h:default:{stage}.0000002a:0000000000000001:u8:8x4x4" for stage in range(12))
        self.assertEqual(self.program(f"""
            import asyncio
            from types import SimpleNamespace as Namespace
            from lmdeploy.serve.core.async_engine import AsyncEngine

            front = AsyncEngine()

            async def ask(reason, shown, field):
                answer = Namespace(finish_reason=reason, generate_token_len=3, routed_experts=field)
                request = Namespace(session=Namespace(session_id=1), stale=answer,
                                    gen_config=Namespace(include_stop_str_in_output=shown))
                async for _ in front.generate(request):
                    pass
                print(answer.routed_experts)

            for reason, shown, field in (("stop", False, "{ref}"), ("stop", True, "{ref}"), ("length", False, "{ref}"),
                                         ("stop", False, [[[1]]]), ("stop", False, None), ("stop", False, "a key of Ray's store")):
                asyncio.run(ask(reason, shown, field))
            """, '{"gate": {"mode": "off"}}'),
                         [ref.replace(":8x", ":7x"), ref, ref, "[[[1]]]", "None", "a key of Ray's store"])

    def test_one_that_is_given_up_before_its_turn(self):
        """Its client goes while it waits for a free handle: the engine never hears of it, and no record comes."""
        self.assertEqual(self.give_up("lmdeploy.pytorch.engine.mp_engine.base import MPEngineInstance",
                                      (1, True), (2, False), (3, True)), ["1", "1", "2"])

    def test_one_that_is_given_up_without_the_proxy(self):
        """The engine is in this process. What it answers at once (it sleeps), it has refused."""
        self.assertEqual(self.give_up("lmdeploy.pytorch.engine.request import EngineInstance",
                                      (1, True), (2, False), (3, "blocked"), (4, True)), ["1", "1", "1", "2"])


AGENT = """
    class BaseModelAgent:
        def __init__(self, dist_ctx, model_config, misc_config):
            self.dist_ctx, self.awake = dist_ctx, []

        def wakeup(self, tags=None):
            self.awake = tags
    """


class DataParallel(Engine):
    """Each replica is a server of its own, whose ranks go on from the last one's."""

    def test_the_second_replica(self):
        self.write("pytorch/engine/model_agent/agent.py", AGENT)
        self.assertEqual(self.program("""
            from types import SimpleNamespace as Namespace
            from lmdeploy.pytorch.engine.engine import Engine
            from lmdeploy.pytorch.engine.model_agent.agent import BaseModelAgent

            Engine(Namespace(dp_rank=1))
            context = Namespace(rank=1, dp_rank=1, dist_config=Namespace(world_size=2, attn_tp=1))
            agent = BaseModelAgent(context, None, None)
            agent.wakeup(["kv_cache"])
            print(agent.awake)
            """, '{"record": {"enabled": false}, "barrier": {"mode": "enforce", "timeout_s": 1}}'),
                         ["['kv_cache']"])


class Off(Engine):
    """SEMANTICS 1.21: whoever cannot record says so to the whole server, which status repeats."""

    def why(self):
        text = """
            import moor
            from types import SimpleNamespace as Namespace
            from lmdeploy.pytorch.engine.engine import Engine

            engine = Engine(Namespace())
            print(moor.attach("default", 10.0).stats()["recording_off"])
            """
        return self.program(text)[0]

    def test_it_is_on(self):
        self.assertEqual(self.why(), "")

    def test_a_model_that_cannot_be_recorded(self):
        self.write("pytorch/engine/engine.py", ENGINE.replace('"ar"', '"dllm"'))
        self.assertIn("without speculative and without diffusion decoding", self.why())

    def test_a_store_that_cannot_be_opened(self):
        self.write("pytorch/engine/engine.py", ENGINE.replace("num_experts=8", "num_experts=70000"))
        self.assertIn("70000", self.why())


class Steps(Engine):
    start = STEPS

    def test_a_step(self):
        self.assertEqual(self.program("step(7, 3, 4)"), ["3 [] [[[1, 2], [1, 2]]]", "4 [] [[[1, 2], [1, 2]]]"])

    def test_ids_of_fewer_tokens_than_the_batch(self):
        """The rows are missing; what lies behind the ids in memory is not read."""
        ran = self.execute("step(5, 3, 4)")
        self.assertEqual(ran.stdout.splitlines(), ["3 [(0, 3)] [[[0, 0], [0, 0]]]", "4 [(0, 4)] [[[0, 0], [0, 0]]]"])
        self.assertIn("all_routed_experts has 5 tokens, the batch goes on to 7", ran.stderr)


    def test_layers_without_experts_are_passed_over(self):
        """The engine hands over all layers of the model, the first of them dense."""
        self.write("pytorch/engine/engine.py", ENGINE.replace("layers=2", "layers=3, first_k_dense_replace=1"))
        self.assertEqual(self.program("step(3, 3, layers=(7, 6, 1, 2, 3, 4))"), ["3 [] [[[1, 2], [3, 4]]]"])


class Several(Engine):
    """S1.2: engines of one process number their sessions alike."""
    start = STEPS

    def test_one_beside_another_ends_the_recording_of_both(self):
        self.assertEqual(self.program("""
    step(2, 2)
    other = Engine(Namespace())
    print(store.stats()["recording_off"])
    loop._make_infer_outputs(Namespace(all_routed_experts=None), [Namespace(session_id=1)], Namespace(seq_length=[2]), None)
    print(store.open("lmdeploy-1", 0.0).rows)
    """)[1:], ["this process has another engine, and Moor cannot tell their requests apart", "2"])

    def test_one_after_another_is_recorded(self):
        for how in ("engine.close()", "del engine", "beside = Engine(Namespace()); engine.close()"):
            self.assertEqual(self.program(f"""
    step(2, 2)
    {how}
    other = Engine(Namespace())
    store = moor.attach("default", 10.0)
    print(store.stats()["recording_off"])
    step(3, 3)
    """), ["2 [] [[[1, 2], [1, 2]]]", "", "3 [] [[[1, 2], [1, 2]]]"])


class Delivery(Engine):
    start = STEPS

    def test_no_delivery_waits_in_the_event_loop(self):
        self.assertEqual(self.program(DELIVERY + DELIVERING + """
    step(2, 2)
    print(asyncio.run(delivered(lambda: answer("lmdeploy-1"))))
    """, '{"record": {"deliver": "ref"}}')[1:], ["the loop goes on", "delivered"])

    def test_a_lost_record_is_waited_for_once(self):
        """Only the first of many is worth a second, until a record is there again."""
        lines = [line.split() for line in self.program(DELIVERY + """
    for _ in range(6):
        deliver("lost")
    step(2, 2)
    deliver("lmdeploy-1")
    deliver("lost")
    """, '{"record": {"deliver": "ref"}}')]
        told = [(line[0], float(line[1])) for line in lines if line[0] in ("delivered", "lost")]
        self.assertEqual([what for what, _ in told], ["lost"] * 6 + ["delivered", "lost"])
        waited = [seconds for _, seconds in told]
        self.assertGreater(waited[0], 0.9)
        self.assertLess(min(waited[1:6]), waited[0] / 2)
        self.assertGreater(waited[7], 0.9)

    def test_who_asked_gets_it(self):
        """S1.26: whose routes are put into the response, and that the sequence keeps none of its own."""
        ask = """
            from lmdeploy.pytorch.messages import SamplingParam
            for asked in (True, False):
                param = SamplingParam.from_gen_config(Namespace(return_routed_experts=asked))
                print(getattr(param, "moor_wanted", False), param.return_routed_experts)
            """
        self.assertEqual(self.program(ask), ["True False", "False False"])
        self.assertEqual(self.program(ask, '{"record": {"always": true}}'), ["True False", "True False"])
        self.assertEqual(self.program(ask, '{"record": {"always": true, "deliver": "none"}}'), ["False True", "False False"])


ASKS = "import shortuuid\ndef make():\n    return shortuuid.random()\n"


class Ids(Engine):
    """S1.1: an id that a client is shown opens its own record, or none."""
    modules = {**Engine.modules, "../shortuuid.py": "from uuid import uuid4\ndef random():\n    return uuid4().hex\n",
               "serve/openai/chat_completions/serving.py": ASKS, "serve/openai/chat_completions/fanout.py": ASKS,
               "serve/openai/responses/protocol.py": ASKS, "serve/anthropic/endpoints/messages.py": ASKS, "serve/parsers.py": ASKS,
               "serve/openai/endpoints/completions.py": "def check_request(request, server_context):\n    return ''\n"}
    start = STEPS + """
    import asyncio
    import importlib
    from lmdeploy.pytorch.messages import SamplingParam
    from lmdeploy.serve.core.async_engine import AsyncEngine
    from lmdeploy.serve.openai.endpoints.completions import check_request

    front = AsyncEngine()

    def make(module):
        return importlib.import_module("lmdeploy.serve." + module).make()

    def run(number, rows, sent=None):
        \"\"\"LMDeploy's session of that number, in the context of whoever calls it.\"\"\"
        manager = Namespace(session_id_map={} if sent is None else {number: sent})
        config, end = Namespace(return_routed_experts=False), asyncio.Event()
        end.set()

        async def answers():
            session = Namespace(session_id=number, _session_mgr=lambda: manager)
            async for _ in front.generate(Namespace(session=session, gen_config=config, end=end)):
                pass
        asyncio.run(answers())
        row = b"".join(i.to_bytes(2, "little") for i in (1, 2, 1, 2))
        ids = memoryview(row * rows).cast("H", (rows, 2, 2))
        sequence = Namespace(session_id=number, status=Namespace(name="RUNNING"), num_history_ids=0, num_valid_ids=rows + 1,
                             sampling_param=SamplingParam.from_gen_config(config))
        loop._make_infer_outputs(Namespace(all_routed_experts=ids), [sequence], Namespace(seq_length=Lengths([rows])), None)

    def found(id):
        try:
            return [r.rows for r in store.open_many([id], 0.2)]
        except (moor.NotFound, moor.Timeout):
            return None
    """

    def test_a_number_that_was_sent_opens_its_own(self):
        """LMDeploy numbers its sessions from 0 as a client may."""
        self.assertEqual(self.program("""
            check_request(Namespace(session_id=1), None)
            run(0, 3, sent=1)
            check_request(Namespace(session_id=-1), None)
            run(1, 4)
            run(2, 5, sent=0)
            check_request(Namespace(session_id=9), None)
            run(3, 6)
            run(4, 7)
            print(*map(found, ["1", "session-1", "0", "2", "-1", "session-0", "lmdeploy-2", "9"]))
            """), ["[3] [3] None None None [5] [5] [6, 7]"])

    def test_ids_that_routes_make_up(self):
        """One that is made in the context of a request, by a module that shows it, is its id; one of a tool call is not."""
        self.assertEqual(self.program("""
            import contextvars

            def route(number, module, rows):
                made = make(module)
                make("parsers")
                run(number, rows)
                return made

            def apart(*args):
                return contextvars.copy_context().run(*args)

            chat = apart(route, 0, "openai.chat_completions.serving", 3)
            resp = apart(route, 1, "openai.responses.protocol", 4)
            msg = apart(route, 2, "anthropic.endpoints.messages", 5)
            print(found(f"chatcmpl-{chat}"), found(f"resp_{resp}"), found(f"msg_{msg}"), found(chat), found(f"resp_{chat}"))
            whole = make("openai.chat_completions.fanout")
            parts = [apart(route, number, "openai.chat_completions.serving", rows) for number, rows in ((4, 7), (3, 6))]
            print(found(f"chatcmpl-{whole}"), [found(f"chatcmpl-{part}") for part in parts])
            """), ["[3] [4] [5] None None", "[6, 7] [None, None]"])


class Joins(Joining, Adapter):
    package = "lmdeploy"
    modules = {"serve/core/async_engine.py": FRONT}
    answers = "[1]"
    front = """
        import asyncio
        from types import SimpleNamespace as Namespace
        from lmdeploy.serve.core.async_engine import AsyncEngine

        async def main():
            end = asyncio.Event()
            end.set()
            request = Namespace(session=Namespace(session_id=7), end=end)
            print([answer async for answer in AsyncEngine().generate(request)])

        asyncio.run(main())
        """


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
