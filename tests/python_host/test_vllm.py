# SPDX-License-Identifier: Apache-2.0
"""What vLLM's adapter does where a real server would have to be broken, or hit at the right moment."""
import sys
import unittest

from adapter_case import DELIVERING, SECOND, STARTED, TRIED, Adapter, Joining

FRONT = """
    class AsyncLLM:
        def __init__(self, vllm_config):
            self.paused, self.refuses, self.busy = False, None, None

        def answer(self):
            if self.refuses:
                raise ValueError(self.refuses)

        async def generate(self, prompt, sampling_params, request_id):
            yield 1
            await prompt.wait()

        async def pause_generation(self, *, mode="abort", clear_cache=True):
            self.answer()
            self.paused = True

        async def resume_generation(self):
            self.paused = False

        async def sleep(self, level=1, mode="abort"):
            self.answer()
            self.paused = True

        async def wake_up(self, tags=None):
            self.paused = False
            return True

        async def start_weight_update(self):
            self.answer()
            if self.busy:
                raise ValueError(self.busy)

        async def update_weights(self, request):
            self.answer()

        async def finish_weight_update(self, weight_version=None):
            self.answer()
    """
SCHEDULER = """
    from types import SimpleNamespace as Namespace

    class Scheduler:
        def __init__(self, vllm_config):
            self.vllm_config, self.finished = vllm_config, set()

        def schedule(self):
            out = Namespace(total_num_scheduled_tokens=0, finished_req_ids=self.finished)
            self.finished = set()
            return out

        def _free_request(self, request):
            self.finished.add(request.request_id)
    """
RUNNER = """
    from array import array
    from types import SimpleNamespace as Namespace

    class Router:
        def set_capture_fn(self, function):
            self.function = function

    class Model:
        def __init__(self):
            self.layers = [Namespace(layer_id=n, router=Router()) for n in range(2)]

        def modules(self):
            return iter(self.layers)

        def load_weights(self, weights):
            pass

    class GPUModelRunner:
        def __init__(self, vllm_config):
            self.vllm_config, self.device = vllm_config, Namespace(type="cpu")
            self.input_batch = Namespace(req_ids=[], num_computed_tokens_cpu=array("i", [0] * 8))
            self.requests = {}

        def load_model(self):
            self.model = Model()

        def initialize_kv_cache(self, kv_cache_config, is_profiling=False):
            pass

        def execute_model(self, scheduler_output):
            pass
    """
CORE_CLIENT = """
    class AsyncMPClient:
        def _send_input(self, request_type, request, engine=None):
            pass
    """
OUTPUTS = """
    from types import SimpleNamespace as Namespace

    class RequestState:
        request_id, prompt_len, queue = "a", 5, None

        def __init__(self):
            self.detokenizer = Namespace(num_output_tokens=lambda: 3)

        def _new_completion_output(self, token_ids, finish_reason):
            return Namespace(routed_experts="zeros")
    """
CONFIG = """
    from types import SimpleNamespace as Namespace

    class VllmConfig:
        def __init__(self, device="cpu", runner="generate", moe=True, moor=None):
            self.aux_output_config = Namespace(enable_return_routed_experts=True)
            self.device_config = Namespace(device_type=device)
            self.model_config = Namespace(runner_type=runner, is_moe=moe)
            self.additional_config = {} if moor is None else {"moor": moor}
            self._verify_aux_output_compatibility()

        def _verify_aux_output_compatibility(self):
            if self.aux_output_config.enable_return_routed_experts:
                raise ValueError("it requires the other model runner")
    """
START = STARTED + """
    import asyncio
    import time
    import moor
    from types import SimpleNamespace as Namespace
    from vllm.v1.engine.async_llm import AsyncLLM

    shape = Namespace(num_experts=8, num_experts_per_tok=2, num_hidden_layers=2)
    config = Namespace(
        additional_config={}, compilation_config=Namespace(mode=0),
        model_config=Namespace(hf_config=shape, hf_text_config=shape),
        parallel_config=Namespace(rank=0, world_size=1, data_parallel_rank=0, tensor_parallel_size=1,
                                  pipeline_parallel_size=1),
        scheduler_config=Namespace(max_num_batched_tokens=64, max_num_seqs=8))
    llm = AsyncLLM(vllm_config=config)
    gate = moor.attach("default", 10.0).gate

    async def outcome(call):
        try:
            await call
        except Exception as e:
            return f"{type(e).__name__}: {e}"
        return "ok"

    def tell(what):
        now = gate.status()
        print(what, "-", now["state"], *["poisoned"] * now["poisoned"], *["paused"] * llm.paused)

    async def begun(id):
        end = asyncio.Event()
        answers = llm.generate(end, Namespace(n=1), id)
        return await started(answers, end)
    """ + SECOND
ENFORCE = '{"record": {"enabled": false}, "gate": {"mode": "enforce", "drain_timeout_s": 0.2}}'


class Front(Adapter):
    package = "vllm"
    modules = {"v1/engine/async_llm.py": FRONT}
    start = START

    def main(self, text):
        return self.program("async def main():\n" + text + "\nasyncio.run(main())\n", ENFORCE)


class Pauses(Front):
    def test_a_sleep_of_level_0_ends(self):
        """Its memory was never gone: what wakes it is "scheduling"."""
        self.assertEqual(self.main("""
            await llm.sleep(0)
            tell("asleep")
            await llm.wake_up(["weights"])
            tell("weights")
            await llm.wake_up(["scheduling"])
            tell("awake")
            """), ["asleep - drained paused", "weights - drained", "awake - open"])

    def test_a_pause_that_the_engine_refuses(self):
        """Nobody resumes what did not pause: the requests go on."""
        self.assertEqual(self.main("""
            llm.refuses = "not now"
            for call in (llm.pause_generation(), llm.sleep()):
                tell(await outcome(call))
            llm.refuses = None
            await llm.pause_generation(mode="keep")
            llm.refuses = "not now"
            tell(await outcome(llm.sleep()))
            """), ["ValueError: not now - open", "ValueError: not now - open", "ValueError: not now - sealed paused"])


class Updates(Front):
    def test_one_that_was_refused_may_be_tried_again(self):
        """SEMANTICS 4.3: the gate stays sealed, until the next one ends: the pause was Moor's own."""
        refused, started, finished = self.main("""
            finish = await begun("a")
            tell(await outcome(llm.start_weight_update()))
            await finish()
            tell(await outcome(llm.start_weight_update()))
            tell(await outcome(llm.finish_weight_update("7")))
            """)
        self.assertRegex(refused, "^RuntimeError.*not settled.*a .running.* - sealed$")
        self.assertEqual([started, finished], ["ok - drained paused", "ok - open"])

    def test_a_pause_of_the_callers_is_the_callers(self):
        """Also after an update that Moor closed the gate for, and that came to nothing."""
        self.assertEqual(self.main("""
            finish = await begun("a")
            await outcome(llm.start_weight_update())
            await finish()
            await llm.pause_generation(mode="wait")
            await llm.start_weight_update()
            await llm.finish_weight_update("7")
            tell("finished")
            await llm.resume_generation()
            tell("resumed")
            """), ["finished - drained paused", "resumed - open"])

    def test_one_that_is_ended_through_another_front_end(self):
        """They accept from one socket: which of them a call comes to is chance."""
        self.assertEqual(self.main("""
            with Second() as second:
                await llm.pause_generation(mode="wait")
                await llm.start_weight_update()
                print(second("llm.finish_weight_update('7')"), gate.status()["label"])
                tell(await outcome(llm.resume_generation()))
            """), ["ok 7", "ok - open"])

    def test_one_that_fails_in_another_front_end(self):
        self.assertEqual(self.main("""
            with Second() as second:
                await llm.pause_generation(mode="wait")
                await llm.start_weight_update()
                second("asyncio.sleep(setattr(llm, 'refuses', 'no space') or 0)")
                print(second("llm.update_weights(None)"))
                gate.acknowledge()
                tell(await outcome(llm.resume_generation()))
            """), ["ValueError: no space", "ok - open"])

    def test_one_that_outlives_its_front_end(self):
        """SEMANTICS 4.9: the one that began it was killed inside it, and nobody here knows what it did."""
        began, after = self.main("""
            with Second() as second:
                await llm.pause_generation(mode="wait")
                print(second("llm.start_weight_update()"))
                second.kill()
                await outcome(llm.finish_weight_update("7"))
                tell((await outcome(llm.resume_generation()))[:40])
            """)
        self.assertEqual(began, "ok")
        self.assertRegex(after, "^RuntimeError.* - drained poisoned$")

    def test_a_pause_that_keeps_requests_came_over_another_front_end(self):
        """SEMANTICS 4.6, 4.8: nobody waits for a drain that cannot end, whichever of them is asked."""
        paused, started, installed, finished, resumed = self.main("""
            with Second() as second:
                finish = await begun("a")
                await llm.pause_generation(mode="keep")
                print(gate.status()["state"], gate.status()["kept"])
                print(second("llm.start_weight_update()"))
                print(second("llm.finish_weight_update('7')"), gate.status()["label"], gate.status()["in_flight"])
                tell(second("llm.pause_generation(mode='wait')"))  # what is frozen stays frozen
                print(second("llm.resume_generation()"), gate.status()["kept"], gate.status()["state"])
                await finish()
            """)
        self.assertEqual([paused, started, installed, finished, resumed],
                         ["sealed True", "ok", "ok 7 1", "ok - sealed paused", "ok False open"])

    def test_one_without_a_pause_is_ended_through_another_front_end(self):
        """The pause was Moor's own: who ends the update resumes the engine."""
        self.assertEqual(self.main("""
            with Second() as second:
                tell(await outcome(llm.start_weight_update()))
                second("asyncio.sleep(setattr(llm, 'paused', True) or 0)")
                tell(second("llm.finish_weight_update('7')"))
                print(second("asyncio.sleep(llm.paused and 1 / 0)"))
            """), ["ok - drained paused", "ok - open paused", "ok"])

    def test_one_whose_front_end_dies_before_it_began(self):
        """SEMANTICS 4.11: its own pause is on, nothing was loaded: the next update goes on from there, and ends it."""
        refused, started, finished = self.main("""
            finish = await begun("a")
            with Second() as second:
                tell(second("llm.start_weight_update()"))
                second.kill()
            await finish()
            tell(await outcome(llm.start_weight_update()))
            tell(await outcome(llm.finish_weight_update("7")))
            """)
        self.assertRegex(refused, "^RuntimeError.*not settled.* - sealed$")
        self.assertEqual([started, finished], ["ok - drained paused", "ok - open"])

    def test_one_whose_version_cannot_be_installed(self):
        """Somebody else's failure: the gate says so, and the engine does not stand still behind it."""
        second, finished, after = self.main("""
            with Second() as second:
                await llm.start_weight_update()
                second("asyncio.sleep(setattr(llm, 'busy', 'one is open') or 0)")
                print(second("llm.start_weight_update()"))
                print(await outcome(llm.finish_weight_update("7")))
                await asyncio.sleep(0)
                tell("after")
            """)
        self.assertEqual([second, after], ["ValueError: one is open", "after - drained poisoned"])
        self.assertIn("one is open", finished)


CORE = """
    class EngineCore:
        def __init__(self, vllm_config):
            pass

        def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
            return [f"{method} in the workers"]
    """


class Poisoned(Front):
    """SEMANTICS 4.4: a trainer that knows only the engine learns from its error what happened, and each way out."""
    modules = {"v1/engine/async_llm.py": FRONT, "v1/engine/core.py": CORE}

    def test_a_trainer_that_died_inside_an_update(self):
        died, ways, answers, again, after = self.main("""
            from vllm.v1.engine.core import EngineCore
            core = EngineCore(vllm_config=config)
            with Second() as second:
                await llm.pause_generation(mode="wait")
                second("llm.start_weight_update()")
                second.kill()
            told = await outcome(llm.resume_generation())
            print("ended inside it" in told, "s ago" in told)
            print(*(way in told for way in ("moor gate acknowledge default", 'moor.attach("default").gate.acknowledge()',
                                            'POST /collective_rpc {"method": "moor_gate_acknowledge"}')))
            print("ended inside it" in core.collective_rpc("moor_gate_acknowledge")[0],
                  core.collective_rpc("moor_gate_acknowledge"), core.collective_rpc("check_health"))
            print(await outcome(llm.start_weight_update()), await outcome(llm.finish_weight_update("8")))
            tell(await outcome(llm.resume_generation()))
            """)
        self.assertEqual([died, ways], ["True True", "True True True"])
        self.assertEqual(answers, "True [] ['check_health in the workers']")
        self.assertEqual([again, after], ["ok ok", "ok - open"])

    def test_a_request_that_waits_for_one_that_is_gone(self):
        """SEMANTICS 4.11: the front end that closed the gate died before its update began."""
        told, = self.program("""
            async def main():
                with Second() as second:
                    finish = await begun("a")
                    second("llm.start_weight_update()")
                    second.kill()
                print(await outcome(begun("b")))
                await finish()
            asyncio.run(main())
            """, ENFORCE[:-1] + ', "weights": {"timeout_s": 0.1}}')
        self.assertRegex(told, "request b.*sealed.*which is gone: the engine's resume or the next update opens it")


class Ranks(Adapter):
    package = "vllm"
    modules = {"v1/worker/gpu_model_runner.py": RUNNER}

    def test_one_of_an_external_launcher(self):
        """Its number is that among all engines that the launcher started."""
        self.assertEqual(self.program("""
            import moor
            from types import SimpleNamespace as Namespace
            from vllm.v1.worker.gpu_model_runner import GPUModelRunner

            parallel = Namespace(rank=5, world_size=2, tensor_parallel_size=2)
            GPUModelRunner(Namespace(parallel_config=parallel)).load_model()
            process, = moor.attach("default", 10.0).stats()["processes"]
            print(process["rank"], process["world_size"])
            """, '{"record": {"enabled": false}}'), ["1 2"])


STATES = """
    class RequestState:
        def __init__(self, request, parent_req, request_index):
            self.request_id, self.external_req_id = request.request_id, request.external_req_id
            self.parent_req, self.request_index = parent_req, request_index

        @classmethod
        def from_new_request(cls, request, parent_req, request_index):
            return cls(request, parent_req, request_index)
    """
PROTOCOL = """
    class RequestResponseMetadata:
        def __init__(self, request_id):
            self.request_id = request_id
    """

BEAMS = """
    import asyncio

    class BeamSearchOnlineMixin:
        async def beam_search(self, step):
            for _ in range(2):
                yield await asyncio.create_task(step())
    """


class Requests(Adapter):
    """Three processes' worth of vLLM in one: what goes to the core is made in the front end, scheduled and run."""
    package = "vllm"
    modules = {"v1/engine/async_llm.py": FRONT, "v1/core/sched/scheduler.py": SCHEDULER,
               "v1/worker/gpu_model_runner.py": RUNNER, "v1/engine/output_processor.py": STATES,
               "entrypoints/generate/base/protocol.py": PROTOCOL, "entrypoints/generate/beam_search/online.py": BEAMS}
    start = START + """
    from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.output_processor import RequestState
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    scheduler, runner = Scheduler(vllm_config=config), GPUModelRunner(config)
    runner.load_model()
    group = Namespace(kv_cache_spec=Namespace(block_size=4))
    runner.initialize_kv_cache(Namespace(num_blocks=8, kv_cache_groups=[group]))
    store = moor.attach("default", 10.0)

    def sent(given, core, parent=None, index=0, params=None):
        request = Namespace(request_id=core, external_req_id=given, resumable=False,
                            sampling_params=params or Namespace(extra_args={"mine": 1}, max_tokens=4))
        RequestState.from_new_request(request=request, parent_req=parent, request_index=index)
        return request

    def freed(request, tokens):
        scheduler._free_request(Namespace(
            request_id=request.request_id, status=Namespace(name="FINISHED_ABORTED"), sampling_params=request.sampling_params,
            num_output_tokens=0, num_tokens=tokens, num_computed_tokens=tokens, moor_ran=tokens > 0))

    def run(request):
        state = Namespace(prompt_token_ids=[1, 2, 3], sampling_params=request.sampling_params, block_ids=([0],))
        runner.requests[request.request_id] = state
        runner.input_batch.req_ids = [request.request_id]
        runner.execute_model(Namespace(total_num_scheduled_tokens=3, num_scheduled_tokens={request.request_id: 3},
                                       scheduled_spec_decode_tokens={}, finished_req_ids=set()))
        freed(request, 3)

    def found(id):
        try:
            records = store.open_many([id], 0.05)
        except (moor.NotFound, moor.Timeout):
            return None
        return [record.request_id for record in records]
    """

    def test_one_that_ends_before_it_ran_is_settled(self):
        """Its record never comes; the core's name of it is not the front end's."""
        self.assertEqual(self.program("""
            async def main():
                for id in ("cmpl-a-0", "cmpl-b-0"):
                    await (await begun(id))()
                print(gate.status()["in_flight"])
                freed(sent("cmpl-a-0", "cmpl-a-0-0123abcd"), 0)
                runner.execute_model(scheduler.schedule())
                end = time.monotonic() + 20
                while gate.status()["in_flight"] > 1 and time.monotonic() < end:
                    time.sleep(0.01)
                print(gate.status()["in_flight"])

            asyncio.run(main())
            """, "{}"), ["2", "1"])

    def test_ids_are_never_read_off_their_looks(self):
        """SEMANTICS 1.1: an id is a sample's, or a prompt's, when the engine says so."""
        self.assertEqual(self.program("""
            for id in ("3_17", "7_", "a-1", "b-01234567"):
                run(sent(id, id + "-0123abcd"))
                print(id, found(id))
            print([found(id) for id in ("17", "", "a", "b", "1_a") if id])
            """), ["3_17 ['3_17-0123abcd']", "7_ ['7_-0123abcd']", "a-1 ['a-1-0123abcd']",
                   "b-01234567 ['b-01234567-0123abcd']", "[None, None, None, None]"])

    def test_samples_and_prompts_as_the_engine_numbers_them(self):
        """Whoever asks for the whole gets all, by prompt and then by sample; the engine's own parameters stay as they were."""
        self.assertEqual(self.program("""
            shared = Namespace(extra_args=None, max_tokens=4)
            shown = RequestResponseMetadata("cmpl-x")
            for prompt in (1, 0):
                for sample in (1, 0):
                    run(sent(f"cmpl-x-{prompt}", f"{sample}_cmpl-x-{prompt}-0123abcd", object(), sample, shared))
            print(found("cmpl-x-1"))
            print(found("cmpl-x"))
            print(shared.extra_args, sent("a", "a-1", None, 0).sampling_params.extra_args)
            shown = RequestResponseMetadata("resp_y")
            run(sent("resp_y_0", "resp_y_0-89abcdef"))
            del shown
            run(sent("cmpl-x-7", "cmpl-x-7-0123abcd"))
            print(found("resp_y"), len(found("cmpl-x")))
            """), ["['0_cmpl-x-1-0123abcd', '1_cmpl-x-1-0123abcd']",
                   "['0_cmpl-x-0-0123abcd', '1_cmpl-x-0-0123abcd', '0_cmpl-x-1-0123abcd', '1_cmpl-x-1-0123abcd']",
                   "None {'mine': 1, 'moor_ids': [['a', 0]]}", "['resp_y_0-89abcdef'] 4"])

    def test_a_request_is_no_part_of_another_one(self):
        """Two clients at once, who call theirs "x" and "x-1"."""
        self.assertEqual(self.program("""
            shown = [RequestResponseMetadata("chatcmpl-x"), RequestResponseMetadata("chatcmpl-x-1")]
            for id in ("chatcmpl-x", "chatcmpl-x-1"):
                run(sent(id, id + "-0123abcd"))
            print(found("chatcmpl-x"), found("chatcmpl-x-1"))
            """), ["['chatcmpl-x-0123abcd'] ['chatcmpl-x-1-0123abcd']"])

    def test_beam_search_is_said_and_has_no_field(self):
        """Each step of each beam is a request of its own, whose routes are nobody's; what is asked before and after it has its field."""
        ran = self.execute("""
            from vllm.entrypoints.generate.beam_search.online import BeamSearchOnlineMixin

            async def step():
                request = Namespace(request_id="b-0123abcd", external_req_id="b", sampling_params=Namespace(extra_args=None))
                return getattr(RequestState.from_new_request(request, None, 0), "moor_off", False)

            async def main():
                print(await step())
                for _ in range(2):
                    print([off async for off in BeamSearchOnlineMixin().beam_search(step)])
                    print(await step())

            asyncio.run(main())
            """)
        self.assertEqual(ran.stdout.splitlines(), ["False", "[True, True]", "False", "[True, True]", "False"])
        self.assertEqual(ran.stderr.count("beam search is not recorded as such"), 1)


class GivingUp(Adapter):
    """`sent` of the samples of a request reach the core before its client goes."""
    package = "vllm"
    modules = {"v1/engine/core_client.py": CORE_CLIENT,
               "v1/engine/async_llm.py": FRONT.replace("            yield 1", """
            from types import SimpleNamespace as Namespace
            from vllm.v1.engine.core_client import AsyncMPClient
            for _ in range(prompt.sent):
                AsyncMPClient()._send_input("ADD", Namespace(external_req_id=request_id))
                await prompt.wait(0)
            AsyncMPClient()._send_input("ABORT", [request_id])
            await prompt.wait()
            yield 1""")}
    start = START

    def give_up(self, *calls, end=""):
        return self.program("""
            from vllm.v1.core.sched.scheduler import Scheduler
            from vllm.v1.worker.gpu_model_runner import GPUModelRunner

            scheduler, runner = Scheduler(vllm_config=config), GPUModelRunner(config)
            runner.load_model()
            group = Namespace(kv_cache_spec=Namespace(block_size=4))
            runner.initialize_kv_cache(Namespace(num_blocks=8, kv_cache_groups=[group]))

            async def give_up(id, sent, n=1):
                async def ask():
                    async for _ in llm.generate(prompt, Namespace(n=n), id):
                        pass
                prompt = Namespace(sent=sent, wait=lambda seconds=60: asyncio.sleep(seconds))
                task = asyncio.create_task(ask())
                await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])
                print(gate.status()["in_flight"])
            """ + "".join(f"\n            asyncio.run(give_up{call})" for call in calls) + end, "{}")

    def setUp(self):
        super().setUp()
        self.write("v1/core/sched/scheduler.py", SCHEDULER)
        self.write("v1/worker/gpu_model_runner.py", RUNNER)

    def test_before_the_core_has_it(self):
        """A client that goes while its prompt is read: the core never hears of it, and no record comes."""
        self.assertEqual(self.give_up(("a", 1), ("b", 0), ("c", 1)), ["1", "1", "2"])

    def test_between_its_samples(self):
        """SEMANTICS 4.2: those that the core has are aborted, each with a record; the others never were."""
        self.assertEqual(self.give_up(("a", 2, 3), end="""
            for sample in range(2):
                print(gate.status()["in_flight"])
                scheduler._free_request(Namespace(
                    request_id=f"{sample}_a-0123abcd", status=Namespace(name="FINISHED_ABORTED"),
                    sampling_params=Namespace(extra_args={"moor_ids": [["a", sample]]}), num_output_tokens=0, num_tokens=5, num_computed_tokens=0))
                runner.execute_model(scheduler.schedule())
            end = time.monotonic() + 20
            while gate.status()["in_flight"] and time.monotonic() < end:
                time.sleep(0.01)
            print(gate.status()["in_flight"])
            """), ["1", "1", "1", "0"])

    def test_two_of_one_id(self):
        """What the core got of one is not what it got of the other."""
        self.assertEqual(self.give_up(("a", 2, 2), end="""
            async def both():
                async def ask(prompt):
                    async for _ in llm.generate(prompt, Namespace(n=2), "b"):
                        pass
                prompts = [Namespace(sent=sent, wait=lambda seconds=60: asyncio.sleep(seconds)) for sent in (2, 0)]
                tasks = []
                for prompt in prompts:
                    tasks.append(asyncio.create_task(ask(prompt)))
                    await asyncio.sleep(0.01)
                for task in reversed(tasks):
                    task.cancel()
                    await asyncio.wait([task])
                print(gate.status()["in_flight"])
            asyncio.run(both())
            """), ["1", "2"])

    def test_where_nobody_says_when_the_core_has_it(self):
        self.write("v1/engine/core_client.py", CORE_CLIENT.replace("_send_input", "_send"))
        self.write("v1/engine/async_llm.py", FRONT)
        self.assertEqual(self.give_up(("a", 1), ("b", 1)), ["1", "2"])


class Children(Front):
    """A process that the engine starts joins the engine's instance, however it was given its environment."""

    def told(self, text):
        """With a directory that only the configuration names."""
        found = self.program(text, f'{{"dir": "{self.dir}/moor"}}')
        return [line.replace(self.dir, "...") for line in found]

    def test_with_and_without_an_environment_of_their_own(self):
        ways = ["", ", env=os.environ.copy()", ", env={**os.environ, 'OTHER': '1'}", ", env=dict(os.environb)"]
        self.assertEqual(self.told("""
            import os
            show = ["printenv", "MOOR_INSTANCE", "MOOR_DIR"]""" + "".join(f"""
            print(*subprocess.check_output(show, text=True{way}).split())""" for way in ways)),
            ["default .../moor"] * len(ways))

    def test_by_multiprocessing(self):
        self.assertEqual(self.told("""
            import multiprocessing, os
            if __name__ == "__main__":
                for way in ("fork", "spawn", "forkserver"):
                    with multiprocessing.get_context(way).Pool(1) as pool:
                        print(*pool.map(os.getenv, ["MOOR_INSTANCE", "MOOR_DIR"]))
            """), ["default .../moor"] * 3)

    def test_workers_of_a_ray_cluster(self):
        self.write("ray/ray_env.py", "def get_env_vars_to_copy(exclude_vars=None):\n    return {'HF_HOME'}\n")
        self.assertEqual(self.told("""
            import os
            from vllm.ray.ray_env import get_env_vars_to_copy
            names = get_env_vars_to_copy()
            print(*sorted(names), all(n in os.environ for n in names - {"HF_HOME"}))
            """), ["HF_HOME MOOR_CONFIG MOOR_DIR MOOR_INSTANCE True"])


QUEUED = """
    from types import SimpleNamespace as Namespace

    class RequestState:
        def __init__(self, queue):
            self.queue, self.prompt_len, self.request_id = queue, 3, "a"
            self.detokenizer = Namespace(num_output_tokens=lambda: 2)

        def _new_completion_output(self, token_ids, finish_reason, stop_reason=None):
            return Namespace(routed_experts=None, finish_reason=finish_reason)
    """
ANSWERS = """
    from types import SimpleNamespace as Namespace
    from vllm.v1.engine.output_processor import RequestState

    class AsyncLLM:
        def __init__(self, vllm_config):
            pass

        async def generate(self, prompt, sampling_params, request_id):
            state = RequestState(queue=Namespace())
            yield Namespace(outputs=[state._new_completion_output([1], None)])
            yield Namespace(outputs=[state._new_completion_output([1], "stop") for _ in range(2)])
    """


class Delivery(Adapter):
    package = "vllm"
    modules = {"v1/engine/async_llm.py": ANSWERS, "v1/engine/output_processor.py": QUEUED}

    def test_no_delivery_waits_in_the_event_loop(self):
        self.assertEqual(self.program(DELIVERING + """
    import moor
    from types import SimpleNamespace as Namespace
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import RequestState

    parallel = Namespace(rank=0, world_size=1, data_parallel_rank=0, tensor_parallel_size=1, pipeline_parallel_size=1)
    llm = AsyncLLM(vllm_config=Namespace(additional_config={"moor": {"record": {"always": True}}}, parallel_config=parallel))

    async def answer():
        return [[o.routed_experts for o in item.outputs] async for item in llm.generate("", Namespace(n=2), "a")]

    print(asyncio.run(delivered(answer)))  # there is no store
    print(moor.attach("default", 10.0).stats()["counters"]["deliver_errors_total"])
    print(RequestState(None)._new_completion_output([1], "stop").routed_experts)  # LLM, without an event loop
    """), ["the loop goes on", "[[None], [None, None]]", "2", "None"])


class Joins(Joining, Adapter):
    package = "vllm"
    modules = {"v1/engine/async_llm.py": FRONT}
    answers = "[1]"
    front = """
        import asyncio
        from types import SimpleNamespace as Namespace
        from vllm.v1.engine.async_llm import AsyncLLM

        async def main():
            end = asyncio.Event()
            end.set()
            parallel = Namespace(rank=0, world_size=1, data_parallel_rank=0, tensor_parallel_size=1, pipeline_parallel_size=1)
            llm = AsyncLLM(vllm_config=Namespace(additional_config={}, parallel_config=parallel))
            print([answer async for answer in llm.generate(end, Namespace(n=1), "a")])

        asyncio.run(main())
        """


class Field(Adapter):
    """Who gets vLLM's field: its requests cannot ask, the server's switch does."""
    package = "vllm"
    modules = {"v1/engine/output_processor.py": OUTPUTS, "v1/engine/async_llm.py": FRONT, "config/vllm.py": CONFIG}
    start = START + TRIED

    def fields(self, config):
        return self.program("""
            from vllm.v1.engine.output_processor import RequestState

            def respond():
                print(RequestState()._new_completion_output([7], "stop").routed_experts, tried())

            respond()
            config.model_config.enable_return_routed_experts = True  # 0.24
            llm = None  # the next one takes its place
            llm = AsyncLLM(vllm_config=config)
            respond()
            del config.model_config.enable_return_routed_experts
            config.aux_output_config = Namespace(enable_return_routed_experts=True)
            llm = None  # the next one takes its place
            llm = AsyncLLM(vllm_config=config)
            respond()
            """, config)

    def test_the_servers_switch_asks_for_all(self):
        """S1.26: who did not ask has the engine's response, to which Moor adds nothing. What cannot be delivered is no field, not the zeros that
        0.24's own capture says on a CPU."""
        self.assertEqual(self.fields("{}"), ["zeros 0", "None 1", "None 2"])

    def test_always_asks_as_well(self):
        """S1.26"""
        self.assertEqual(self.fields('{"record": {"always": true}}'), ["None 1", "None 2", "None 3"])

    def test_nobody_is_asked_where_nothing_is_delivered(self):
        self.assertEqual(self.fields('{"record": {"always": true, "deliver": "none"}}'), ["zeros 0"] * 3)

    def start_with(self, config, arguments=""):
        return self.program(f"""
            from vllm.config.vllm import VllmConfig
            try:
                made = VllmConfig({arguments})
                print(made.additional_config, made.aux_output_config.enable_return_routed_experts)
            except Exception as e:
                print(type(e).__name__, e)
            """, config)[0]

    def test_a_switch_that_the_engine_refuses_is_moors(self):
        """S1.26: on a CPU, where the engine's own capture does not run and Moor's does. It goes to the other processes with Moor's section."""
        self.assertEqual(self.start_with("{}"), "{'moor': {'record': {'always': True}}} False")
        self.assertEqual(self.start_with("{}", 'moor={"record": {"deliver": "ref"}}'),
                         "{'moor': {'record': {'deliver': 'ref', 'always': True}}} False")

    def test_a_switch_that_moor_could_not_keep_stays_the_engines(self):
        """S1.26"""
        refused = "ValueError it requires the other model runner"
        for config, arguments in (("{}", 'device="cuda"'), ("{}", "moe=False"), ("{}", 'runner="pooling"'),
                                  ('{"record": {"deliver": "none"}}', ""), ('{"record": {"enabled": false}}', "")):
            with self.subTest(config=config, arguments=arguments):
                self.assertEqual(self.start_with(config, arguments), refused)

    def test_a_configuration_that_is_wrong_is_the_error(self):
        self.assertIn("arena_byte", self.start_with("{}", 'moor={"record": {"arena_byte": 1}}'))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
