# SPDX-License-Identifier: Apache-2.0
"""A program that uses vLLM's AsyncLLM itself: `python -m moorlab.async_llm MODEL` prints what it saw, as JSON. Its caller judges.

Ids are its own, and streaming input sessions exist nowhere else."""
import asyncio
import json
import sys

ODD = ["3_17", "0_grp", "1_2_3", "7_", "a-0", "a-1", "x-01234567", "cmpl-z-3", "session-3", "resp_1", "17", "3_17-0123abcd", "0_"]
NEVER = ["18", "a", "x", "cmpl-z", "2_3", "grp", "3_17-0123abc", "_"]


def equal(field, record, start=0):
    """Whether the field is the record from this row on, to the field's end."""
    import numpy as np

    if field is None:
        return None
    rows = np.asarray(record.array(layers="model", dtype=str(field.dtype)))[start:start + len(field)]
    return bool(np.array_equal(field, rows))


class Program:
    def __init__(self, model):
        import moor
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(
            model=model, dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=512, block_size=32,
            enable_return_routed_experts=True))
        self.store = moor.attach("default", 10.0)
        self.said = {}

    def params(self, sampled, **more):
        from vllm import SamplingParams

        return SamplingParams(max_tokens=sampled, detokenize=False, **{"ignore_eos": True, "temperature": 0.0, **more})

    def prompt(self, tokens):
        from vllm.inputs import TokensPrompt

        return TokensPrompt(prompt_token_ids=tokens)

    async def one(self, id, tokens, sampled, **more):
        from vllm.sampling_params import RequestOutputKind

        async for out in self.llm.generate(self.prompt(tokens), self.params(sampled, output_kind=RequestOutputKind.FINAL_ONLY, **more), id):
            last = out
        return last

    def found(self, id):
        import moor

        try:
            with self.store.open(id, 0.2) as record:
                return record.request_id
        except moor.NotFound:
            return None

    async def ids(self):
        said = self.said["ids"] = {}
        for i, id in enumerate(ODD):
            out = await self.one(id, [5, 6, 7 + i], 4 + i)
            with self.store.open(id, 10.0) as record:
                said[id] = dict(rows=record.rows, of=record.request_id, same=equal(out.outputs[0].routed_experts, record))
        self.said["never"] = {id: self.found(id) for id in NEVER}
        out = await self.one("0_g", [9, 9, 9], 5, n=3, temperature=1.0, seed=3)
        records = self.store.open_many(["0_g"], 10.0)
        self.said["group"] = [(record.request_id, equal(choice.routed_experts, record)) for record, choice in zip(records, out.outputs)]
        for record in records:
            record.release()

    async def settled(self, what):
        """Every ticket is, the dropped requests' too."""
        for id in ("9_drop", "8_"):
            task = asyncio.create_task(self.one(id, list(range(3, 200)), 200))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait([task])
        for _ in range(400):
            if not self.store.gate.status()["in_flight"]:
                break
            await asyncio.sleep(0.05)
        self.said[what] = self.store.gate.status()["in_flight"]

    async def session(self, id, chunks, ahead, starts):
        """Turns of one streaming request: `ahead`, the inputs come before they are wanted; starts: of each turn's field, within its input."""
        from vllm.engine.protocol import StreamingInput
        from vllm.sampling_params import RequestOutputKind

        more, turns = asyncio.Queue(), []

        def params(start):
            return self.params(5, output_kind=RequestOutputKind.DELTA, **({"routed_experts_prompt_start": start} if start else {}))

        async def inputs():
            for chunk, start in zip(chunks, starts):
                yield StreamingInput(prompt=self.prompt(list(chunk)), sampling_params=params(start))
                if not ahead:
                    await more.get()

        fields = []
        async for out in self.llm.generate(inputs(), params(0), id):
            if out.outputs and out.outputs[0].finish_reason is not None:
                fields.append(out.outputs[0].routed_experts)
                more.put_nowait(None)
        with self.store.open(id, 10.0) as record:
            for field, start in zip(fields, starts):
                turns.append(None if field is None else (start, start + len(field), equal(field, record, start)))
            self.said[id] = dict(turns=turns, rows=record.rows, missing=list(record.missing))

    def counters(self):
        self.said["counters"] = {k: v for k, v in self.store.stats()["counters"].items() if "errors" in k}

    async def run(self):
        await self.ids()
        await self.settled("left after ids")
        chunks = [[5, 6, 7, 8], [9, 10, 11], [12, 13]]
        await self.session("s_1", chunks, False, [0, 0, 0])
        await self.session("s_2", chunks, True, [0, 0, 0])
        await self.session("s_3", chunks, False, [2, 3, 0])
        await self.settled("left after sessions")
        self.counters()
        self.llm.shutdown()


async def main(model):
    program = Program(model)
    await program.run()
    print("SAID " + json.dumps(program.said), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
