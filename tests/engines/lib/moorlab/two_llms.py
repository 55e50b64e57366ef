# SPDX-License-Identifier: Apache-2.0
"""A program with several `LLM`s: `python -m moorlab.two_llms MODEL… + MODEL` makes one after the other, each gone before the next, the last one
beside the one before. Prints what each had, as JSON. Its caller judges."""
import gc
import json
import sys

from .async_llm import equal


def make(model):
    from vllm import LLM

    return LLM(model=model, dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, block_size=32,
               additional_config={"moor": {"record": {"always": True}}})


def use(llm):
    """Twice, so that the second time comes from the prefix cache; per request its id, the field's rows, its records."""
    import moor
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    said = []
    params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0.0, detokenize=False)
    for _ in range(2):
        for out in llm.generate([TokensPrompt(prompt_token_ids=p) for p in (list(range(3, 73)), [5, 6, 7])], params, use_tqdm=False):
            field, got = out.outputs[0].routed_experts, []
            try:
                got = moor.attach("default", 10.0).open_many([out.request_id], 0.2)
            except (moor.NotFound, moor.Unsupported, moor.Timeout):
                pass
            said.append(dict(id=out.request_id, field=None if field is None else len(field),
                             records=[(record.rows, len(list(record.missing)), record.num_experts, equal(field, record)) for record in got]))
            for record in got:
                record.release()
    return said


def main(*models):
    import moor

    at = models.index("+")
    said = {"after": []}
    for n, model in enumerate(models[:at]):
        llm = make(model)
        said["after"].append(use(llm))
        if n + 1 < at:
            del llm
            gc.collect()
    other = make(models[at + 1])
    said["beside"] = use(other)
    said["first"] = use(llm)
    said["again"] = use(other)
    said["counters"] = {k: v for k, v in moor.attach("default", 10.0).stats()["counters"].items() if "errors" in k}
    print("SAID " + json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
