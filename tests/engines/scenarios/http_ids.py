# SPDX-License-Identifier: Apache-2.0
"""Whatever id an HTTP client is shown opens its own record, or none: each generating route of each engine, one by one."""
import collections
import itertools

from moorlab import client
from moorlab.scenario import ALL, VLLM, Group, Skipped, proves, require

GROUP = Group(engines=(*ALL, "vllm024"), tokenizer=True,
              options={"vllm": {"args": ["--enable-prompt-tokens-details", "--enable-scale-out"]}})

WORDS = "t5 t6 t7 t8 t9"
_lengths = itertools.count(3)  # each request samples another number of tokens: no record is mistaken for another's


def only(lab, *engines):
    if lab.engine.name not in engines:
        raise Skipped(f"a route of {', '.join(engines)}")


def opens(lab, id, *rows):
    """These records are what the id means, in this order; one of them opens as such, several are ambiguous."""
    import moor

    records = lab.store.open_many([id], 10.0)
    got = [r.rows for r in records]
    for r in records:
        r.release()
    require(got == list(rows), f"{id}: records of {got} rows, {list(rows)} expected")
    try:
        lab.store.open(id, 10.0).release()
        require(len(rows) == 1, f"{id} means {len(rows)} records, and opened as one")
    except moor.Ambiguous:
        require(len(rows) > 1, f"{id} is ambiguous, and means one record")


def opens_nothing(lab, id):
    import moor

    try:
        with lab.store.open(id, 0.3) as record:
            require(False, f"{id} is no record's, and opened {record.request_id} of {record.rows} rows")
    except (moor.NotFound, moor.Timeout):
        pass


def usage(got):
    """Tokens in and out, as whichever route says it."""
    u = got["usage"]
    return tuple(next(u[name] for name in names if name in u)
                 for names in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")))


def rows(got):
    tokens, sampled = usage(got)
    return tokens + sampled - 1


def served(lab):
    return lab.client.get("/v1/models").json()["data"][0]["id"]


def say(text=WORDS):
    return [{"role": "user", "content": text}]


# ---- vLLM

def ask(lab, path, max_tokens=None, **body):
    """That many tokens, or a number that no request before it had."""
    body = dict(model="m", temperature=1, ignore_eos=True, max_tokens=max_tokens or next(_lengths), **body)
    return lab.client.post(path, body)


@proves("S1.1")
def check_vllm_completions_of_one_prompt(lab):
    only(lab, *VLLM)
    for prompt in (WORDS, [5, 6, 7, 8, 9]):
        got = ask(lab, "/v1/completions", prompt=prompt)
        opens(lab, got["id"], rows(got))
        opens(lab, got["id"] + "-0", rows(got))


@proves("S1.1")
def check_vllm_completions_of_several_prompts_and_samples(lab):
    only(lab, *VLLM)
    for prompts in ([WORDS, WORDS + " t10", WORDS + " t10 t11"], [[5, 6, 7, 8, 9], [5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 9, 10, 11]]):
        n = next(_lengths)
        got = ask(lab, "/v1/completions", n, prompt=prompts)
        opens(lab, got["id"], n + 4, n + 5, n + 6)
        for i in range(3):
            opens(lab, f"{got['id']}-{i}", n + 4 + i)
        n = next(_lengths)
        got = ask(lab, "/v1/completions", n, prompt=prompts, n=2)
        opens(lab, got["id"], n + 4, n + 4, n + 5, n + 5, n + 6, n + 6)
        for i in range(3):
            opens(lab, f"{got['id']}-{i}", n + 4 + i, n + 4 + i)


@proves("S1.1")
def check_vllm_chat(lab):
    only(lab, *VLLM)
    got = ask(lab, "/v1/chat/completions", messages=say())
    opens(lab, got["id"], rows(got))
    n = next(_lengths)
    got = ask(lab, "/v1/chat/completions", n, messages=say(), n=3)
    opens(lab, got["id"], n + 4, n + 4, n + 4)


@proves("S1.1")
def check_vllm_chat_streamed(lab):
    only(lab, *VLLM)
    n = next(_lengths)
    events = list(lab.client.events("/v1/chat/completions", dict(model="m", temperature=0, ignore_eos=True, max_tokens=n,
                                                                 stream=True, messages=say())))
    ids = {e["id"] for e in events}
    require(len(ids) == 1, f"ids of one stream: {ids}")
    opens(lab, ids.pop(), n + 4)


@proves("S1.1")
def check_vllm_chat_batch(lab):
    only(lab, *VLLM)
    n = next(_lengths)
    got = ask(lab, "/v1/chat/completions/batch", n, messages=[say(), say(WORDS + " t10")])
    opens(lab, got["id"], n + 4, n + 5)
    opens(lab, got["id"] + "_0", n + 4)
    opens(lab, got["id"] + "_1", n + 5)


@proves("S1.1")
def check_vllm_responses(lab):
    only(lab, *VLLM)
    got = lab.client.post("/v1/responses", dict(model="m", input=WORDS, temperature=0, max_output_tokens=next(_lengths)))
    opens(lab, got["id"], rows(got))


@proves("S1.1")
def check_vllm_messages(lab):
    only(lab, *VLLM)
    got = lab.client.post("/v1/messages", dict(model="m", messages=say(), temperature=0, max_tokens=next(_lengths)))
    opens(lab, got["id"], rows(got))


@proves("S1.1")
def check_vllm_generate(lab):
    """0.24 shows another random id than the request's; what the client calls it is in the one that opens."""
    only(lab, *VLLM)
    n, label = next(_lengths), lab.label()
    got = lab.client.post("/inference/v1/generate", dict(
        model="m", request_id=label, token_ids=[5, 6, 7, 8, 9], sampling_params=dict(max_tokens=n, temperature=0, ignore_eos=True)))
    opens(lab, f"generate-tokens-{label}", n + 4)
    if lab.engine.name == "vllm024":
        opens_nothing(lab, got["request_id"])
    else:
        opens(lab, got["request_id"], n + 4)


@proves("S1.1")
def check_vllm_invocations(lab):
    """Whatever its body means: here a completion."""
    only(lab, *VLLM)
    got = ask(lab, "/invocations", prompt=WORDS)
    opens(lab, got["id"], rows(got))


@proves("S1.1")
def check_vllm_scoring(lab):
    """One token of each item. 0.24 keeps the id of them all to itself until they are done."""
    only(lab, *VLLM)
    got = lab.client.post("/generative_scoring", dict(model="m", query=[5, 6, 7], items=[[8, 9], [8, 9, 10]], label_token_ids=[11, 12]))
    if lab.engine.name == "vllm024":
        opens_nothing(lab, got["id"])
    else:
        opens(lab, got["id"], 5, 6)
    opens(lab, got["id"] + "-0", 5)
    opens(lab, got["id"] + "-1", 6)


@proves("S1.1")
def check_vllm_beam_search(lab):
    """Its steps are requests that nobody sees; what is seen is no request: no record, no field, one line."""
    only(lab, *VLLM)
    got = lab.client.post("/v1/completions", dict(model="m", prompt=WORDS, use_beam_search=True, n=2, max_tokens=4, temperature=0))
    require(len(got["choices"]) == 2, f"{got}")
    require(not any(c.get("routed_experts") for c in got["choices"]), "a beam's routes, of which it has several requests'")
    for id in (got["id"], got["id"] + "-0"):
        opens_nothing(lab, id)
    said = lab.server.log_text().count("beam search is not recorded")
    require(said == 1, f"beam search is said {said} times")


# ---- SGLang: an id is the rid that the client sent, or one that SGLang made

def generate(lab, path="/generate", **body):
    """[(id, rows)] of its outputs."""
    got = lab.client.post(path, body)
    got = got.get("predictions", got) if isinstance(got, dict) else got
    metas = [g["meta_info"] for g in (got if isinstance(got, list) else [got])]
    return [(m["id"], m["prompt_tokens"] + m["completion_tokens"] - 1) for m in metas]


def each_its_own(lab, shown, *expected):
    require(len({id for id, _ in shown}) == len(shown), f"{shown}: an id twice")
    require([r for _, r in shown] == list(expected), f"{shown}: rows {expected} expected")
    for id, count in shown:
        opens(lab, id, count)


@proves("S1.1")
def check_sglang_generate(lab):
    only(lab, "sglang")
    one, two = [5, 6, 7, 8, 9], [5, 6, 7, 8, 9, 10]
    for path, given in (("/generate", lambda ids: dict(input_ids=ids)),
                        ("/vertex_generate", lambda ids: dict(instances=[dict(input_ids=i) for i in ids]))):
        n = next(_lengths)
        params = dict(max_new_tokens=n, ignore_eos=True, temperature=1)
        more = {"sampling_params": params} if path == "/generate" else {"parameters": {"sampling_params": params}}
        each_its_own(lab, generate(lab, path, **given([one, two]), **more), n + 4, n + 5)
    n = next(_lengths)
    params = dict(max_new_tokens=n, ignore_eos=True, temperature=1)
    each_its_own(lab, generate(lab, input_ids=one, sampling_params=params), n + 4)
    each_its_own(lab, generate(lab, text=WORDS, sampling_params=params), n + 4)
    label = lab.label()
    got = generate(lab, input_ids=one, rid=label, sampling_params=params)
    require(got[0][0] == label, f"{got}: asked as {label}")
    each_its_own(lab, got, n + 4)
    labels = [lab.label(), lab.label()]
    got = generate(lab, input_ids=[one, two], rid=labels, sampling_params=params)
    require([id for id, _ in got] == labels, f"{got}: asked as {labels}")
    each_its_own(lab, got, n + 4, n + 5)


@proves("S1.1")
def check_sglang_generate_several_samples(lab):
    only(lab, "sglang")
    n = next(_lengths)
    params = dict(max_new_tokens=n, ignore_eos=True, temperature=1, n=3)
    each_its_own(lab, generate(lab, input_ids=[5, 6, 7, 8, 9], sampling_params=params), n + 4, n + 4, n + 4)


@proves("S1.1")
def check_sglang_completions_and_chat(lab):
    """Of several choices the response shows the first one's id."""
    only(lab, "sglang")
    for path, one, several in (("/v1/completions", dict(prompt=WORDS), dict(prompt=[WORDS, WORDS + " t10"])),
                               ("/v1/completions", dict(prompt=[5, 6, 7, 8, 9]), dict(prompt=WORDS, n=2)),
                               ("/v1/chat/completions", dict(messages=say()), dict(messages=say(), n=2)),
                               ("/invocations", dict(messages=say()), dict(messages=say(), n=2))):
        got = ask(lab, path, **one)
        opens(lab, got["id"], rows(got))
        label = lab.label()
        got = ask(lab, path, rid=label, **one)
        require(got["id"] == label, f"{path}: {got['id']}, asked as {label}")
        opens(lab, label, rows(got))
        n = next(_lengths)
        got = ask(lab, path, n, **several)
        require(len(got["choices"]) == 2, f"{path}: {got}")
        opens(lab, got["id"], n + 4)


@proves("S1.1")
def check_sglang_responses(lab):
    only(lab, "sglang")
    got = lab.client.post("/v1/responses", dict(model=served(lab), input=WORDS, temperature=0, max_output_tokens=next(_lengths)))
    opens(lab, got["id"], rows(got))


@proves("S1.1")
def check_sglang_messages_show_no_records_id(lab):
    """The route makes one up when the request is over; nobody before it knows that."""
    only(lab, "sglang")
    got = lab.client.post("/v1/messages", dict(model="m", messages=say(), temperature=0, max_tokens=next(_lengths)))
    require(got["id"].startswith("msg_"), f"{got}")
    opens_nothing(lab, got["id"])


@proves("S1.1")
def check_sglang_ollama_shows_no_id(lab):
    only(lab, "sglang")
    for path, body in (("/api/generate", dict(prompt=WORDS)), ("/api/chat", dict(messages=say()))):
        got = lab.client.post(path, dict(model="m", stream=False, options=dict(num_predict=3), **body))
        require("id" not in got and got["done"], f"{path}: {got}")


# ---- LMDeploy: an id is the session_id that the client sent, or one that the route made

ANTHROPIC = {"anthropic-version": "2023-06-01"}  # without it LMDeploy refuses what it has of Anthropic's


def ask_lmdeploy(lab, path, max_tokens=None, **body):
    return lab.client.post(path, dict(model=served(lab), max_tokens=max_tokens or next(_lengths), top_k=1, **body), headers=ANTHROPIC)


@proves("S1.1")
def check_lmdeploy_generate_shows_no_id(lab):
    """Whoever wants the record sends a number."""
    only(lab, "lmdeploy")
    n = next(_lengths)
    for more in ({}, dict(session_id=(1 << 41) + n)):
        got = lab.client.post("/generate", dict(input_ids=[5, 6, 7, 8, 9], max_tokens=n, ignore_eos=True, **more))
        require(set(got) == {"text", "output_ids", "meta_info"} and not any("id" in k for k in got["meta_info"] if "token_ids" not in k),
                f"{got}")
    opens(lab, f"session-{(1 << 41) + n}", n + 4)


@proves("S1.1")
def check_lmdeploy_completions(lab):
    """The session_id as it was sent. LMDeploy's own numbers begin at 0 too, and are no ids: 1 is this request, not its second one."""
    only(lab, "lmdeploy")
    for sent in (1, 2, (1 << 41) + 7):
        got = ask_lmdeploy(lab, "/v1/completions", prompt=WORDS, ignore_eos=True, session_id=sent)
        require(got["id"] == str(sent), f"{got}")
        opens(lab, got["id"], rows(got))
        opens(lab, f"session-{sent}", rows(got))
    got = ask_lmdeploy(lab, "/v1/completions", prompt=WORDS, ignore_eos=True)
    require(got["id"] == "-1", f"{got}")
    for id in ("-1", "0", "3"):
        opens_nothing(lab, id)


@proves("S1.1")
def check_lmdeploy_completions_of_several_prompts(lab):
    only(lab, "lmdeploy")
    n = next(_lengths)
    got = ask_lmdeploy(lab, "/v1/completions", n, prompt=[WORDS, WORDS + " t10", WORDS + " t10 t11"], ignore_eos=True, session_id=77)
    opens(lab, got["id"], n + 4, n + 5, n + 6)


@proves("S1.1")
def check_lmdeploy_chat(lab):
    only(lab, "lmdeploy")
    got = ask_lmdeploy(lab, "/v1/chat/completions", messages=say(), ignore_eos=True)
    opens(lab, got["id"], rows(got))
    n = next(_lengths)
    got = ask_lmdeploy(lab, "/v1/chat/completions", n, messages=say(), ignore_eos=True, n=3)
    count = usage(got)[0] + n - 1
    opens(lab, got["id"], count, count, count)


@proves("S1.1")
def check_lmdeploy_chat_streamed(lab):
    only(lab, "lmdeploy")
    for samples in (1, 2):
        n = next(_lengths)
        events = list(lab.client.events("/v1/chat/completions", dict(
            model=served(lab), messages=say(), max_tokens=n, ignore_eos=True, stream=True, n=samples, stream_options=dict(include_usage=True))))
        ids = {e["id"] for e in events}
        require(len(ids) == 1, f"ids of one stream: {ids}")
        tokens = next(e["usage"]["prompt_tokens"] for e in events if e.get("usage"))
        opens(lab, ids.pop(), *[tokens + n - 1] * samples)


@proves("S1.1")
def check_lmdeploy_responses_and_messages(lab):
    only(lab, "lmdeploy")
    got = ask_lmdeploy(lab, "/v1/responses", input=WORDS, max_output_tokens=next(_lengths))
    opens(lab, got["id"], rows(got))
    got = ask_lmdeploy(lab, "/v1/messages", messages=say())
    opens(lab, got["id"], rows(got))
    n = next(_lengths)
    events = list(lab.client.events("/v1/messages", dict(model=served(lab), messages=say(), max_tokens=n, top_k=1, stream=True), ANTHROPIC))
    message = next(e["message"] for e in events if "message" in e)
    opens(lab, message["id"], rows(got) - usage(got)[1] + n)
