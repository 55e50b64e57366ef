# SPDX-License-Identifier: Apache-2.0
"""sglang_scenario.py own|native|ref [--overlap] [--dtype float32]: a real SGLang engine with Moor against the oracle.

own     Moor delivers nothing and the engine captures as well: its field must equal Moor's record bit for bit (S1.20).
native  Moor fills meta_info["routed_experts"] with the engine's capture on but replaced, or off (--no-capture); then
        the gate in enforce: pauses, an update session, and an update that returns False (S4.6, S4.7, S4.4).
ref     meta_info["routed_experts"] is a reference.
Exit code: 0 all passed, 1 one failed, 77 no environment.
"""
import argparse
import base64
import json
import os
import random
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "shims", "sglang"), os.path.join(HERE, "lib")]
T0 = time.monotonic()
FAILED = []


def say(text):
    print(f"[{time.monotonic() - T0:6.1f}] {text}", flush=True)


def check(rule, ok, text):
    say(f"{'ok  ' if ok else 'FAIL'} {rule}: {text}")
    if not ok:
        FAILED.append(rule)


class Lab:
    def __init__(self, args, folder, engine, store, oracle):
        self.args, self.folder, self.engine, self.store, self.oracle = args, folder, engine, store, oracle
        self.random = random.Random(7)
        self.n = 0

    def prompt(self, length):
        return [self.random.randrange(3, 512) for _ in range(length)]

    def send(self, prompts, sampled=8, **more):
        rids = [f"r{self.n + i}" for i in range(len(prompts))]
        self.n += len(prompts)
        params = dict(max_new_tokens=sampled, temperature=0, ignore_eos=True)
        outs = self.engine.generate(input_ids=prompts, sampling_params=params, rid=rids, **more)
        return [(rid, prompt + list(out["output_ids"]), len(prompt), out["meta_info"])
                for rid, prompt, out in zip(rids, prompts, outs)]

    def field(self, meta):
        from moorlab import models

        layers, _, top_k, _ = models.shape(self.folder)
        return __import__("numpy").frombuffer(base64.b64decode(meta["routed_experts"]), "int32").reshape(-1, layers, top_k)

    def expect_routes(self, rule, done, folder=None):
        """Each record is the oracle's, and what the response carries is the record."""
        import numpy as np
        import moor
        from moorlab import compare

        want = self.oracle.rows(folder or self.folder, {rid: tokens for rid, tokens, _, _ in done})
        tally, unlike = compare.Tally(), []
        for rid, tokens, _, meta in done:
            with self.store.open(rid, 10.0) as record:
                tally.add(compare.against_oracle(rid, record.array(), want[rid].ids, want[rid].gap))
                if self.args.mode == "ref":
                    with moor.resolve(meta["routed_experts"]) as same:
                        field = np.asarray(same.array(layers="model"))
                else:
                    field = self.field(meta)
                whole = np.asarray(record.array(layers="model"))
                if field.shape != whole.shape or not (field == whole).all():
                    unlike.append(rid)
        for line in tally.shown:
            say("     " + line)
        cached = sum(meta["cached_tokens"] for _, _, _, meta in done)
        check(rule, not tally.errors and not tally.missing_rows and self.accept(tally),
              f"{len(done)} requests, {cached} cached tokens, {tally.pairs} pairs, {tally.mismatches} differ, "
              f"{tally.missing_rows} rows missing, {tally.errors[:2]}")
        check("S1.20", not unlike, f"the responses' fields are the records ({len(unlike)} are not: {unlike[:3]})")

    def accept(self, tally):
        """float32: none. bfloat16: near-ties flip; a wrong capture differs nearly everywhere."""
        return tally.mismatches == 0 if self.args.dtype == "float32" else tally.mismatches < 0.05 * tally.pairs


def recording(lab):
    more = dict(return_routed_experts=True) if lab.args.mode == "own" else {}
    lab.expect_routes("S1.1", lab.send([lab.prompt(5), lab.prompt(1)], sampled=3, **more))
    lab.expect_routes("S1.2", lab.send([lab.prompt(3 + 2 * i) for i in range(20)], **more))
    shared = lab.prompt(60)
    lab.send([shared], **more)
    again = lab.send([shared + lab.prompt(4 + i) for i in range(3)], **more)
    check("S1.15", all(meta["cached_tokens"] >= 50 for *_, meta in again), "the engine had prefix hits")
    lab.expect_routes("S1.15", again)
    lab.expect_routes("S1.14", lab.send([lab.prompt(300)], **more))  # several chunks
    for _ in range(4):  # more tokens than the pool has slots: they are used again
        lab.expect_routes("S1.15", lab.send([lab.prompt(200) for _ in range(3)], **more))


def pauses(lab):
    """A request that is paused in the middle, in each of the engine's modes, has the rows of one that was not."""
    import asyncio
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

    manager = lab.engine.tokenizer_manager

    async def across(mode, prompt, rid):
        params = dict(max_new_tokens=80, temperature=0, ignore_eos=True)
        task = asyncio.ensure_future(lab.engine.async_generate(input_ids=prompt, sampling_params=params, rid=rid))
        await asyncio.sleep(0.3)
        await manager.pause_generation(PauseGenerationReqInput(mode=mode))
        gate = lab.store.gate.status()["state"]
        await asyncio.sleep(0.2)
        await manager.continue_generation(ContinueGenerationReqInput())
        return gate, await asyncio.wait_for(task, 120)

    for mode in ("in_place", "retract", "abort"):
        prompt, rid = lab.prompt(9), f"pause-{mode}"
        gate, out = lab.engine.loop.run_until_complete(across(mode, prompt, rid))
        meta = out["meta_info"]
        check("S4.6", gate != "open" and lab.store.gate.status()["state"] == "open",
              f"{mode}: gate {gate} meanwhile, {meta['finish_reason']}, {len(out['output_ids'])} tokens, "
              f"{meta.get('num_retractions')} retractions")
        lab.expect_routes("S1.22" if mode == "abort" else "S1.6", [(rid, prompt + list(out["output_ids"]), 9, meta)])


def updates(lab):
    """A session in enforce, then the trap: False although the weights have changed."""
    import torch
    from moorlab import models
    from safetensors.torch import load_file

    second = models.ensure("qwen3", 1, lab.args.python)
    before = lab.store.gate.status()
    weights = [(name, tensor.to(getattr(torch, lab.args.dtype)))
               for name, tensor in load_file(models.weights_file(second)).items()]
    check("S4.7", lab.engine.begin_weight_update()[0], "begin_weight_update")
    done = lab.engine.update_weights_from_tensor(weights)
    check("S4.7", done[0], f"update_weights_from_tensor: {done[1]}")
    check("S4.7", lab.engine.end_weight_update()[0], "end_weight_update")
    after = lab.store.gate.status()
    check("S4.5", after["epoch"] == before["epoch"] + 1 and not after["poisoned"],
          f"epoch {before['epoch']} → {after['epoch']}, gate {after['state']}")
    sent = lab.send([lab.prompt(12) for _ in range(4)])
    lab.expect_routes("S1.6", sent, second)
    with lab.store.open(sent[0][0], 5.0) as record:
        check("S1.6", [epoch for _, epoch in record.versions] == [after["epoch"]], f"versions {record.versions}")
    loop, manager = lab.engine.loop, lab.engine.tokenizer_manager
    lab.engine.release_memory_occupation(tags=["kv_cache"])
    lab.engine.resume_memory_occupation(tags=["kv_cache"])
    check("S4.8", lab.store.gate.status()["state"] == "open", "resuming the KV cache reopens")
    lab.expect_routes("S5", lab.send([lab.prompt(12)]), second)
    refused = loop.run_until_complete(manager.update_weights_from_tensor(tensor_request(weights)))
    check("S4.4", not refused[0] and not lab.store.gate.status()["poisoned"], "a refused call that changed nothing poisons nothing")
    trap(lab)


def tensor_request(weights):
    from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
    from sglang.srt.utils import MultiprocessingSerializer

    return UpdateWeightsFromTensorReqInput(serialized_named_tensors=[MultiprocessingSerializer.serialize(weights)])


def trap(lab):
    """Paused with a request in the middle, the engine loads new weights, cannot flush the old cache, and says False."""
    import asyncio
    from sglang.srt.managers.io_struct import (ContinueGenerationReqInput, PauseGenerationReqInput,
                                               UpdateWeightFromDiskReqInput)

    manager = lab.engine.tokenizer_manager
    before = lab.store.gate.status()["epoch"]

    async def play():
        params = dict(max_new_tokens=200, temperature=0, ignore_eos=True)
        task = asyncio.ensure_future(lab.engine.async_generate(input_ids=lab.prompt(9), sampling_params=params, rid="trap"))
        await asyncio.sleep(0.3)
        await manager.pause_generation(PauseGenerationReqInput(mode="in_place"))
        answer = await manager.update_weights_from_disk(UpdateWeightFromDiskReqInput(model_path=lab.folder))
        try:
            await manager.continue_generation(ContinueGenerationReqInput())
            reopened = "reopened"
        except RuntimeError as error:
            reopened = str(error)
        await asyncio.wait_for(task, 120)
        return answer, reopened

    answer, reopened = lab.engine.loop.run_until_complete(play())
    status = lab.store.gate.status()
    check("S4.7", answer[0] is False and status["epoch"] > before, f"epoch {before} → {status['epoch']}; {str(answer)[:160]}")
    check("S4.4", status["poisoned"] and "unknown" in reopened, reopened[:250])
    try:
        lab.send([lab.prompt(5)])
        check("S4.4", False, "a request ran with weights of an unknown version")
    except Exception as error:
        check("S4.4", "unknown" in str(error), str(error)[:250])


def start(args, folder):
    import sglang

    return sglang.Engine(
        model_path=folder, device="cpu", skip_tokenizer_init=True, attention_backend="torch_native", sampling_backend="pytorch",
        grammar_backend="none", disable_cuda_graph=True, disable_overlap_schedule=not args.overlap, mem_fraction_static=0.3,
        max_total_tokens=1024, chunked_prefill_size=128, max_running_requests=8, dtype=args.dtype, random_seed=1,
        tp_size=args.tp, enable_return_routed_experts=not args.no_capture, log_level="warning")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("mode", choices=["own", "native", "ref"])
    p.add_argument("--overlap", action="store_true")
    p.add_argument("--no-capture", action="store_true")
    p.add_argument("--quick", action="store_true", help="leave most of the recording checks out")
    p.add_argument("--dtype", default="float32")
    p.add_argument("--tp", type=int, default=1)
    args = p.parse_args()
    args.python = sys.executable
    from moorlab import models, paths
    from moorlab.oracle import Oracle

    build = paths.find_moor()
    if build is None:
        print("skipped: Moor is not built")
        return 77
    config = {"record": {"deliver": "none" if args.mode == "own" else args.mode}}
    if args.mode == "native":
        config.update(gate={"mode": "enforce"}, weights={"timeout_s": 10})  # how long a request waits at a closed gate
    directory = tempfile.mkdtemp(prefix="moor-sg-")
    sys.path.insert(0, build.pythonpath)
    os.environ.update(HF_HUB_OFFLINE="1", SGLANG_USE_CPU_ENGINE="1", OMP_NUM_THREADS="1", MOOR_CONFIG=json.dumps(config),
                      MOOR_DIR=directory)
    paths.add_to_pythonpath(os.environ, build.pythonpath, *sys.path[:0], os.path.join(HERE, "shims", "sglang"))
    if args.tp > 1:
        os.environ.update(SGLANG_CPU_OMP_THREADS_BIND="|".join(map(str, range(args.tp))), SGLANG_NCCL_SO_PATH="/nonexistent/libnccl.so")
    folder = models.ensure("qwen3", 0, args.python)
    say(f"model {os.path.basename(folder)}")
    engine = start(args, folder)
    say("engine is up")
    try:
        import moor

        with Oracle(args.python) as oracle:
            lab = Lab(args, folder, engine, moor.attach("default", 10.0), oracle)
            if args.quick:
                lab.expect_routes("S1.1", lab.send([lab.prompt(5), lab.prompt(1)], sampled=3))
            else:
                recording(lab)
            if args.mode == "native":
                pauses(lab)
                updates(lab)
    finally:
        engine.shutdown()
        say("engine is down")
    print(f"{len(FAILED)} failed: {FAILED}" if FAILED else "all passed", flush=True)
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
