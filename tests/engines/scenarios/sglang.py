# SPDX-License-Identifier: Apache-2.0
"""SGLang alone: its pause modes, sessions of tensors, an update that says False after it changed the weights, lost input."""
import time

from moorlab import client
from moorlab.scenario import Group, proves, require

GROUP = Group(engines=("sglang",), moor={"gate": {"mode": "enforce"}, "weights": {"timeout_s": 8}})  # a request waits so long


def one_of(flying):
    result = flying.finish()
    require(not result.failed, f"{result.failed}")
    return next(iter(result.done.values()))


@proves("S4.6", "S1.6", "S1.22")
def check_pause_modes(lab):
    """A request that is paused in the middle, in each of the engine's modes, has the rows of one that was not."""
    said = []
    for mode in ("in_place", "retract", "abort"):
        for _ in range(20):
            flying = lab.frozen(lambda: lab.client.pause(mode), lab.client.resume, ends=mode == "abort")
            state = lab.store.gate.status()["state"]
            require(state != "open", f"{mode}: the gate is open while the engine is paused")
            time.sleep(0.2)
            lab.client.resume()
            require(lab.store.gate.status()["state"] == "open", f"{mode}: {lab.store.gate.status()} after continue_generation")
            c = one_of(flying)
            if mode != "abort" or c.finish == "abort":  # else it was at its end before it could be aborted
                break
        require((c.finish == "abort") == (mode == "abort"), f"{mode}: {c.finish}")
        lab.expect_routes([c])
        said.append(f"{mode} {len(c.tokens)} tokens")
    return ", ".join(said)


@proves("S4.5", "S4.7", "S1.6")
def check_a_session_moves_the_epoch_once(lab):
    before = lab.store.gate.status()
    lab.client.prepare_update()
    lab.client.update_begin(lab.model(1))
    lab.client.update_tensors(lab.model(1))
    lab.client.update_rest(lab.model(1), "tensors")
    after = lab.store.gate.status()
    require(after["epoch"] == before["epoch"] + 1 and not after["poisoned"], f"epoch {before['epoch']}, then {after}")
    done = lab.send(4, 2)
    lab.expect_routes(done, which=1)
    with lab.store.open(done[0].id, 5.0) as record:
        require([e for _, e in record.versions] == [after["epoch"]], f"versions {record.versions}")


@proves("S4.4")
def check_a_refused_call_poisons_nothing(lab):
    """Tensors without a session: SGLang refuses before it touches anything."""
    try:
        lab.client.update_tensors(lab.model(0))
        require(False, "SGLang took tensors without a session")
    except client.HttpError as e:
        require("begin_weight_update" in str(e), f"{e}")
    status = lab.store.gate.status()
    require(status["state"] == "open" and not status["poisoned"], f"{status}")
    lab.expect_routes([lab.one([5, 6, 7], 4)], which=1)


@proves("S9.1")
def check_lost_input_fails_with_its_name(lab):
    """A text model: SGLang would answer as if the image, video or audio had not been sent."""
    for name in ("image_data", "video_data", "audio_data"):
        try:
            lab.one([5, 6, 7], 4, **{name: ["data:application/octet-stream;base64,AAAA"]})
            require(False, f"{name} was lost without a word")
        except client.HttpError as e:
            require(e.status == 400 and name in str(e), f"{name}: {e}")
    lab.expect_routes([lab.one([5, 6, 7], 4)], which=1)


ASK_THE_TOKENIZER = """
from types import SimpleNamespace as N
from sglang.srt.managers.tokenizer_manager import TokenizerManager
try:
    TokenizerManager.__init__(object.__new__(TokenizerManager))  # where Moor joins; the rest of it has no arguments
except TypeError:
    pass
def ask(arrived, **passed):
    obj = N(need_wait_for_mm_inputs=False, **{"image_data": None, "video_data": None, "audio_data": None, **passed})
    outputs = N(mm_items=[N(modality=N(name=name)) for name in arrived])
    try:
        TokenizerManager._create_tokenized_object(object.__new__(TokenizerManager), obj=obj, mm_inputs=outputs)
    except TypeError:  # Moor let it pass, and the engine's function lacks its other arguments
        return "passes"
    except ValueError as e:
        return str(e)
print(ask(["IMAGE"], image_data=["a"]))
print(ask(["MULTI_IMAGES", "IMAGE"], video_data=["a"]))
print(ask(["IMAGE"], image_data=["a"], audio_data=["b"]))
print(ask([], image_data=[{"format": "processor_output"}]))
"""


@proves("S9.1")
def check_input_that_a_processor_passes_over(lab):
    """One image, a video that became images, an audio that is gone, a processor's output that was passed in and is gone."""
    said = lab.beside(ASK_THE_TOKENIZER).splitlines()[-4:]
    require(said[:2] == ["passes", "passes"], f"{said}")
    require("audio_data was passed (1)" in said[2] and "image_data was passed (1)" in said[3], f"{said}")


@proves("S4.4", "S4.7")
def check_false_after_the_weights_changed(lab):
    """Last. Paused with a request in the middle, SGLang loads new weights, cannot flush the old cache, and says False."""
    before = lab.store.gate.status()["epoch"]
    flying = lab.frozen(lambda: lab.client.pause("in_place"), lab.client.resume)
    try:
        lab.client.update(lab.model(0))
        require(False, "the update succeeded: the check proves nothing")
    except client.HttpError as e:
        require("not flushed" in str(e), f"{e}")
    status = lab.store.gate.status()
    require(status["epoch"] > before and status["poisoned"], f"{status}")
    try:
        lab.client.resume()
        require(False, "the gate reopened with weights of an unknown version")
    except client.HttpError:
        pass
    one_of(flying)
    try:
        lab.one([5, 6, 7], 4)
        require(False, "a request ran with weights of an unknown version")
    except client.HttpError:
        pass
    require("unknown" in lab.server.log_text(), "nothing says that the version is unknown")
