# SPDX-License-Identifier: Apache-2.0
"""LMDeploy alone: an executor that cannot update, lost input, and a prefix cache that outlives the KV cache it describes."""
from moorlab import client
from moorlab.scenario import Group, proves, require

GROUP = Group(engines=("lmdeploy",), prefix=True, moor={"gate": {"mode": "enforce"}})


@proves("S4.4")
def check_an_executor_that_cannot_update_poisons_nothing(lab):
    """Without Ray /update_weights is not implemented, and nothing was touched."""
    lab.client.prepare_update()
    try:
        lab.client.update_begin(lab.model(1))
        require(False, "an executor without Ray took weights")
    except client.HttpError:
        pass
    status = lab.store.gate.status()
    require(status["state"] == "open" and not status["poisoned"], f"{status}")
    lab.expect_routes([lab.one([5, 6, 7], 6)])


@proves("S9.1")
def check_lost_input_fails_with_its_name(lab):
    """A text model: of a message LMDeploy joins the texts, and would answer as if a part of a type that it does not know had not been
    sent; what it knows it refuses, without saying which."""
    name = lab.client.get("/v1/models").json()["data"][0]["id"]

    def chat(part):
        lab.client.post("/v1/chat/completions", {"model": name, "max_tokens": 4, "messages": [
            {"role": "user", "content": [{"type": "text", "text": "t5 t6"}, part]}]})

    asked = {"image": lambda: lab.one([5, 6, 7], 4, image_data=["data:image/png;base64,AAAA"]),
             "input_audio": lambda: chat({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
             "video_url": lambda: chat({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}})}
    for field, ask in asked.items():
        try:
            ask()
            require(False, f"{field} was lost without a word")
        except client.HttpError as e:
            require(e.status == 400 and field in str(e) and "moor" in str(e), f"{field}: {e}")
    lab.expect_routes([lab.one([5, 6, 7], 4)])


ASK_THE_PROCESSOR = """
import asyncio
from lmdeploy.serve.core.async_engine import AsyncEngine
from lmdeploy.serve.processors.multimodal import MultimodalProcessor
from lmdeploy.vl.constants import Modality
try:
    AsyncEngine.__init__(object.__new__(AsyncEngine))  # where Moor joins; the rest of it has no arguments
except TypeError:
    pass
class Encoder:
    _uses_new_preprocess = True
    class model:
        get_input_prompt = staticmethod(lambda **more: "")
    def __init__(self, *arrived):
        self.arrived = arrived
    async def preprocess(self, messages, **more):
        return {"input_ids": [1], "multimodal": [{"modality": modality} for modality in self.arrived]}
def ask(encoder):
    p = object.__new__(MultimodalProcessor)
    p.vl_encoder, p.backend, p.chat_template, p.tokenizer, p.allowed_media_domains = encoder, "pytorch", None, None, None
    parts = [{"type": "text", "text": "a"}, {"type": "image_data", "image_data": {"data": "pixels"}}]
    try:
        return asyncio.run(p.get_prompt_input([{"role": "user", "content": parts}], do_preprocess=False))["input_ids"]
    except ValueError as e:
        return str(e)
print(ask(Encoder(Modality.IMAGE)))
print(ask(Encoder()))
"""


@proves("S9.1")
def check_input_that_a_processor_passes_over(lab):
    """A model that takes images: one that arrives, one that its processor lost."""
    said = lab.beside(ASK_THE_PROCESSOR).splitlines()[-2:]
    require(said[0] == "[1]" and "image_data was passed (1)" in said[1], f"{said}")


@proves("S1.15", "S1.5")
def check_prefix_hits_after_a_sleep_are_missing(lab):
    """LMDeploy 0.18 keeps its prefix cache across a sleep that drops the KV cache: what such a hit reads is nobody's, and so
    its rows are missing, never those that once were."""
    prompt = list(range(20, 84))
    first = lab.one(prompt, 4)
    lab.expect_routes([first])
    lab.client.sleep()
    require(lab.store.gate.status()["state"] != "open", "the gate is open while the engine sleeps")
    lab.client.wake_weights()
    lab.client.wake_kv()
    again = lab.one(prompt, 4, routes=False)
    with lab.store.open(again.id, 10.0) as record:
        missing = [tuple(m) for m in record.missing]
        require(not record.complete and missing and missing[0][0] == 0, f"complete {record.complete}, missing {missing}")
    lab.expect_routes([lab.one([5, 6, 7], 6)])
