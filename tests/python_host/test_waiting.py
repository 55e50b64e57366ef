# SPDX-License-Identifier: Apache-2.0
"""Waiting at the gate in a front end's event loops: in order, counted, and at no cost. The same code for every engine; shown with vLLM's table."""
import json
import unittest

from adapter_case import Adapter
from test_vllm import FRONT, START

MORE = """
    import threading
    import moor._waiting as waiting

    def call(id, end):
        return llm.generate(end, Namespace(n=1), id)

    def waits():
        return gate.status()["waiting"]

    def counters():
        return moor.attach("default", 10.0).stats()["counters"]

    async def one(id, order, end):
        async for _ in call(id, end):
            order.append(id)

    def start(ids, order, end):
        return [asyncio.create_task(one(id, order, end)) for id in ids]

    async def until(what, *, timeout=60):
        last = time.monotonic() + timeout
        while not what() and time.monotonic() < last:
            await asyncio.sleep(0.01)
        return what()
    """


class Waiting(Adapter):
    package = "vllm"
    modules = {"v1/engine/async_llm.py": FRONT}
    start = START

    def main(self, text, drain=0.2, timeout=60, record=False, mode="enforce"):
        config = {"record": {"enabled": record}, "weights": {"timeout_s": timeout},
                  "gate": {"mode": mode, "drain_timeout_s": drain}}
        head = "\n".join(line[4:] for line in MORE.splitlines())
        return self.program(f"{head}\nasync def main():\n{text}\nasyncio.run(main())\n", json.dumps(config))


class Line(Waiting):
    def test_they_are_admitted_in_order_of_arrival(self):
        """S4.1, S4.14; also those that come while the first ones are admitted."""
        self.assertEqual(self.main("""
            order, end = [], asyncio.Event()
            gate.seal()
            tasks = start([f"r{n}" for n in range(300)], order, end)
            await until(lambda: waits() == 300)
            process, = [p["waiting"] for p in moor.attach("default", 10.0).stats()["processes"]]
            print(waits(), process)
            gate.reopen()
            while len(order) < 40:
                await asyncio.sleep(0)
            tasks += start(["late"], order, end)
            await until(lambda: len(order) == 301)
            print(order == [f"r{n}" for n in range(300)] + ["late"], waits())
            end.set()
            await asyncio.gather(*tasks)
            print(gate.status()["in_flight"])
            """), ["300 300", "True 0", "0"])

    def test_waiting_is_one_look_for_all(self):
        """However many wait, one looks, and a few times a second: the seconds are those that this machine took."""
        looks, = self.main("""
            order, end, looks = [], asyncio.Event(), 0
            join = waiting.join

            def counting(look, deadline):
                def counted():
                    nonlocal looks
                    looks += 1
                    return look()
                return join(counted, deadline)

            waiting.join = counting
            gate.seal()
            tasks = start([f"r{n}" for n in range(500)], order, end)
            await until(lambda: waits() == 500)
            looks, began = 0, time.monotonic()
            await asyncio.sleep(2)
            print(looks <= 4 * (time.monotonic() - began) + 2, looks > 0)
            end.set()
            gate.reopen()
            await asyncio.gather(*tasks)
            """)
        self.assertEqual(looks, "True True")

    def test_the_loop_goes_on_between_a_few_of_them(self):
        """What they do once they are admitted is the engine's, and takes its time."""
        self.assertEqual(self.main("""
            order, end, between = [], asyncio.Event(), []
            gate.seal()
            tasks = start([f"r{n}" for n in range(200)], order, end)
            await until(lambda: waits() == 200)
            gate.reopen()
            last = 0
            while len(order) < 200:
                await asyncio.sleep(0)
                between.append(len(order) - last)
                last = len(order)
            print(max(between) <= 16)
            end.set()
            await asyncio.gather(*tasks)
            """), ["True"])

    def test_one_that_is_given_up_leaves_it(self):
        self.assertEqual(self.main("""
            order, end = [], asyncio.Event()
            end.set()
            gate.seal()
            tasks = start([f"r{n}" for n in range(60)], order, end)
            await until(lambda: waits() == 60)
            for task in tasks[:40]:
                task.cancel()
            await until(lambda: waits() == 20)
            print(waits())
            gate.reopen()
            await asyncio.gather(*tasks, return_exceptions=True)
            print(order == [f"r{n}" for n in range(40, 60)], waits(), gate.status()["in_flight"])
            """), ["20", "True 0 0"])

    def test_one_that_is_given_up_between_its_admission_and_its_turn(self):
        """It has its ticket, and nothing of it ran: no record is waited for."""
        self.assertEqual(self.main("""
            order, end = [], asyncio.Event()
            gate.seal()
            task, = start(["a"], order, end)
            await until(waits)
            gate.reopen()
            line = waiting._lines[asyncio.get_running_loop()]()
            line._walk()
            print(gate.status()["in_flight"])
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            print(order, gate.status()["in_flight"], waits())
            """, record=True), ["1", "[] 0 0"])

    def test_one_that_is_interrupted_as_it_joins(self):
        """A signal's handler may raise once it stands in the line, which must not look for a request that is gone."""
        self.assertEqual(self.main("""
            order, end = [], asyncio.Event()
            join = waiting._Line.join
            def interrupted(*args):
                join(*args)
                raise KeyboardInterrupt
            async def caught():
                try:
                    await one("a", order, end)
                except KeyboardInterrupt:
                    order.append("interrupted")
            gate.seal()
            waiting._Line.join = interrupted
            await caught()
            waiting._Line.join = join
            line = waiting._lines[asyncio.get_running_loop()]()
            print(order, len(line.waiters), waits())
            gate.reopen()
            await until(lambda: not line.waiters)
            print(len(line.waiters), gate.status()["in_flight"])
            """), ["['interrupted'] 1 0", "0 0"])

    def test_a_deadline(self):
        """Of all of them; the ones behind are not forgotten."""
        said = self.main("""
            order, end = [], asyncio.Event()
            gate.seal()
            tasks = start([f"r{n}" for n in range(40)], order, end)
            for answer in await asyncio.gather(*tasks, return_exceptions=True):
                print(type(answer).__name__, answer)
            print(waits(), gate.status()["in_flight"])
            """, timeout=0.5)
        self.assertEqual([line.split(":")[:2] for line in said[:-1]], [["RuntimeError moor", " admission"]] * 40)
        for n in range(40):
            self.assertIn(f"request r{n}: the gate is sealed since", said[n])
        self.assertEqual(said[-1], "0 0")

    def test_sealed_again_before_all_were_admitted(self):
        """The rest waits on, and in its order."""
        self.assertEqual(self.main("""
            order, end = [], asyncio.Event()
            end.set()
            gate.seal()
            tasks = start([f"r{n}" for n in range(100)], order, end)
            await until(lambda: waits() == 100)
            gate.reopen()
            while len(order) < 20:
                await asyncio.sleep(0)
            gate.seal()
            await asyncio.sleep(0.1)
            first = len(order)
            print(20 <= first < 100, waits() == 100 - first)
            gate.reopen()
            await asyncio.gather(*tasks)
            print(order == [f"r{n}" for n in range(100)])
            """), ["True True", "True"])

    def test_loops_of_several_threads(self):
        self.assertEqual(self.main("""
            gate.seal()
            async def other():
                order, end = [], asyncio.Event()
                end.set()
                await asyncio.gather(*start([f"{threading.get_ident()}-{n}" for n in range(20)], order, end))
                done.append(len(order))
            done = []
            threads = [threading.Thread(target=lambda: asyncio.run(other())) for _ in range(3)]
            for thread in threads:
                thread.start()
            await until(lambda: waits() == 60)
            print(waits())
            gate.reopen()
            await until(lambda: len(done) == 3)
            for thread in threads:
                thread.join()
            print(done, waits(), gate.status()["in_flight"])
            """), ["60", "[20, 20, 20] 0 0"])

    def test_a_loop_that_ends_while_they_wait(self):
        """Its descriptor goes with it, and the next loop's requests are admitted."""
        self.assertEqual(self.main("""
            import gc
            import os
            gate.seal()
            def descriptors():
                return len(os.listdir("/proc/self/fd"))
            def run():
                loop = asyncio.new_event_loop()
                async def begin():
                    return start(["a", "b"], [], asyncio.Event())
                tasks = loop.run_until_complete(begin())
                loop.run_until_complete(asyncio.sleep(0.05))
                loop.close()
            before = descriptors()
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            gc.collect()
            print(descriptors() - before, waits())
            gate.reopen()
            """), ["0 0"])

    def test_without_a_descriptor(self):
        """None can be had: they are admitted all the same, and it is said."""
        self.assertEqual(self.main("""
            import os
            import resource
            order, end = [], asyncio.Event()
            end.set()
            gate.seal()
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)
            free = os.open("/dev/null", 0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, limit[1]))
            tasks = start(["a", "b"], order, end)
            await asyncio.sleep(0.1)
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            print(waits(), waiting._lines[asyncio.get_running_loop()]().watch.fd)
            gate.reopen()
            await asyncio.gather(*tasks)
            print(order)
            """), ["2 None", "['a', 'b']"])


class Tickets(Waiting):
    def test_no_cell_is_free(self):
        """S4.1: who finds none waits, keeps nobody else from going, and goes when one is settled."""
        self.assertEqual(self.main("""
            order, end, last = [], asyncio.Event(), asyncio.Event()
            first = start(["same"], order, last)
            tasks = start(["same"] * 63, order, end)
            await until(lambda: len(order) == 64)
            tasks += start(["same", "another"], order, end)
            await until(lambda: "another" in order)
            print(len(order), waits(), counters()["gate_full_total"])
            last.set()
            await until(lambda: len(order) == 66)
            print(len(order), waits(), counters()["gate_full_total"])
            end.set()
            await asyncio.gather(*first, *tasks)
            print(gate.status()["in_flight"])
            """), ["65 1 1", "66 0 1", "0"])

    def test_no_cell_is_free_behind_a_sealed_gate(self):
        self.assertEqual(self.main("""
            order, end = [], asyncio.Event()
            tasks = start(["same"] * 64, order, end)
            await until(lambda: len(order) == 64)
            gate.seal()
            tasks += start(["same"], order, end)
            await until(waits)
            print(len(order), waits())
            end.set()
            await asyncio.gather(*tasks[:64])
            gate.drain(10)
            print(len(order), gate.status()["state"])
            gate.reopen()
            await asyncio.gather(*tasks)
            print(len(order))
            """), ["64 1", "64 drained", "65"])


    def test_observe_keeps_nobody_waiting(self):
        """S4.8: it runs without a ticket, which the counters and the log say."""
        self.assertEqual(self.main("""
            order, end = [], asyncio.Event()
            tasks = start(["same"] * 66, order, end)
            await until(lambda: len(order) == 66)
            now = counters()
            print(len(order), waits(), now["gate_full_total"], now["hook_errors_total"])
            end.set()
            await asyncio.gather(*tasks)
            """, mode="observe"), ["66 0 2 2"])


class Drains(Waiting):
    def test_a_drain_says_the_deadline_that_it_had(self):
        """S4.14"""
        said, count = self.main("""
            finish = await begun("a")
            print(await outcome(llm.pause_generation(mode="wait")))
            print(counters()["gate_drain_timeouts_total"])
            await finish()
            """)
        self.assertIn("1 request not settled after 0.200 s: a (running)", said)
        self.assertEqual(count, "1")

    def test_a_drain_has_its_deadline_whoever_comes_later(self):
        """S4.14: later drains do not keep the first one waiting."""
        self.assertEqual(self.main("""
            order, end = [], asyncio.Event()
            request, = start(["a"], order, end)
            await until(lambda: order)
            drains = [asyncio.create_task(outcome(llm.pause_generation(mode="wait")))]
            while not drains[0].done() and len(drains) < 200:
                await asyncio.sleep(0.02)
                drains.append(asyncio.create_task(outcome(llm.pause_generation(mode="wait"))))
            print(drains[0].done())
            end.set()
            await asyncio.gather(request, *drains)
            print("not settled after 0.200 s" in drains[0].result())
            """), ["True", "True"])

    def test_a_gate_that_somebody_else_closed_long_ago(self):
        """The deadline is the drain's own."""
        said, count = self.main("""
            finish = await begun("a")
            gate.seal()
            began = time.monotonic()
            said = await outcome(llm.start_weight_update())
            print(said if time.monotonic() - began >= 0.2 else "too early")
            print(counters()["gate_drain_timeouts_total"])
            await finish()
            """)
        self.assertIn("1 request not settled after 0.200 s: a (running)", said)
        self.assertEqual(count, "1")

    def test_a_drain_ends_when_the_last_request_does(self):
        """It is told, and looks no more than that."""
        self.assertEqual(self.main("""
            finish = await begun("a")
            waited = []
            until_told = waiting.until
            waiting.until = lambda *args: waited.append(args) or until_told(*args)
            pause = asyncio.create_task(llm.pause_generation(mode="wait"))
            await asyncio.sleep(0.7)
            print(pause.done(), len(waited))
            await finish()
            await asyncio.wait_for(pause, 60)
            print(gate.status()["state"], len(waited), counters()["gate_drain_timeouts_total"])
            """, drain=3600), ["False 1", "drained 1 0"])

    def test_an_abort_keeps_what_has_not_started(self):
        """S4.6: after a second; that is no time-out of a drain."""
        self.assertEqual(self.main("""
            finish = await begun("a")
            await llm.pause_generation()
            print(gate.status()["state"], counters()["gate_drain_timeouts_total"])
            await llm.resume_generation()
            await finish()
            """), ["sealed 0"])


if __name__ == "__main__":
    unittest.main()
