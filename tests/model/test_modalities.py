"""Videos and sounds beside images: what tells their tokens, and what a run makes of them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from support.capture import capture
from support.cases import model_of
from support.expected_parts import ExpectedParts
from support.tiny.fragments import AUDIO, IMAGE, VIDEO
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs, tiny_media
from support.tiny_models import tiny_model

from normprobe import NormprobeError, Probe, compare, find_parts, probe_interface, probe_layers
from normprobe.model.captured_states import traced_groups
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tracing.trace import trace_parts
from normprobe.run import page_of
from normprobe.schema import DECODER_INPUT, PADDING, TOKEN_GROUPS
from normprobe.versions import is_line_5

OMNI = "qwen2_5_omni_thinker"
only_5 = pytest.mark.skipif(not is_line_5(), reason="transformers 4 does not say what a token is")


def tokens(model: torch.nn.Module, inputs: Any, **options: Any) -> dict[str, int]:
    """How many tokens each group has at the decoder input."""
    rows = probe_layers(model, inputs, special_token_ids=(*SPECIAL_IDS, VIDEO, AUDIO), **options)
    return dict(rows[rows["layer"] == 0].set_index("group")["tokens"])


# --- which tokens ---------------------------------------------------------------------------------


def test_the_config_names_their_ids() -> None:
    parts = find_parts(model_of(OMNI))
    assert (parts.image_token_ids, parts.video_token_ids) == ((IMAGE,), (VIDEO,))
    assert parts.audio_token_ids == (AUDIO,)
    # An id that stands for both is an image's: InstructBLIP takes its images as videos.
    parts = find_parts(model_of("instructblipvideo"))
    assert (parts.image_token_ids, parts.video_token_ids) == ((VIDEO,), ())


@only_5
def test_the_processor_tells_them_where_the_config_does_not() -> None:
    model = model_of("qwen2_vl")
    inputs = tiny_media(model, 2)
    told = tokens(model, inputs, named={"video_token_ids": ()})
    assert told == tokens(model, inputs)
    assert told["video"] == int((inputs["input_ids"] == VIDEO).sum())


def test_what_the_processor_says_takes_no_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(OMNI)
    inputs = dict(tiny_media(model, 2))
    ids, padding = inputs["input_ids"], inputs["attention_mask"] == 0
    types = torch.where(padding, 2, 0)  # of a processor that pads with anything
    codes = {"visual": (IMAGE, 1), "video": (VIDEO, 2), "audio": (AUDIO, 3)}
    for token, code in codes.values():
        types[ids == token] = code
    monkeypatch.setattr(MeasuredModel, "decoder_input", None)
    for named in ({}, {"video_token_ids": (), "audio_token_ids": ()}):
        measured = MeasuredModel(model, find_parts(model, named=named))
        groups = measured.placed({**inputs, "mm_token_type_ids": types}).groups
        for group, (token, _) in codes.items():
            assert torch.equal(groups == TOKEN_GROUPS.index(group), ids == token)
        assert torch.equal(groups == PADDING, padding)


@pytest.mark.parametrize(("group", "token", "code"), [("video", VIDEO, 2), ("audio", AUDIO, 3)])
def test_the_marks_around_one_are_none_of_its_tokens(group: str, token: int, code: int) -> None:
    model = model_of(OMNI)
    inputs = dict(tiny_media(model))
    ids = inputs["input_ids"]
    own = ids == token
    around = own | own.roll(1, -1) | own.roll(-1, -1)
    assert around.sum() > own.sum()
    inputs["mm_token_type_ids"] = torch.where(around, code, 0)
    groups = MeasuredModel(model, find_parts(model)).placed(inputs).groups
    assert torch.equal(groups == TOKEN_GROUPS.index(group), own)


def test_other_pixels_tell_them_where_nothing_else_does() -> None:
    """All but the learned newline at the end of a video, which is then what its id says."""
    model = model_of("llava_onevision")
    inputs = tiny_media(model, 2)
    known = tokens(model, inputs)
    found = tokens(model, inputs, named={"video_token_ids": ()})
    assert known["video"] == int((inputs["input_ids"] == VIDEO).sum())
    assert found["video"] == known["video"] - 2
    assert found["special"] == known["special"] + 2
    assert {name: found[name] for name in ("visual", "structural", "text")} == {
        name: known[name] for name in ("visual", "structural", "text")
    }


def test_without_an_image_its_placeholders_are_the_video_s() -> None:
    model = model_of("llava_onevision")
    inputs = tiny_media(model)
    alone = {name: value for name, value in inputs.items() if not name.startswith("image_")}
    del alone["pixel_values"]
    video = inputs["input_ids"] == VIDEO
    alone["input_ids"] = torch.cat([torch.tensor([[20, 21]]), inputs["input_ids"][video][None]], 1)
    alone["attention_mask"] = torch.ones_like(alone["input_ids"])
    count = int(video.sum())
    assert tokens(model, alone) == {"text": 2, "video": count, "non_visual": 2}
    named = {"image_token_ids": (VIDEO,)}
    assert tokens(model, alone, named=named) == {"text": 2, "video": count, "non_visual": 2}


@pytest.mark.parametrize("measure", [probe_layers, probe_interface])
@pytest.mark.parametrize(
    ("group", "held"), [("video", "pixel_values_videos"), ("audio", "input_features")]
)
def test_placeholders_of_what_is_not_there_are_an_error(measure, group: str, held: str) -> None:
    model = model_of(OMNI)
    inputs = tiny_media(model)
    placeholders = int((inputs["input_ids"] == {"video": VIDEO, "audio": AUDIO}[group]).sum())
    del inputs[held]
    with pytest.raises(NormprobeError, match=f"hold {placeholders} {group} placeholders, and the"):
        measure(model, inputs)


def test_an_image_s_placeholders_need_more_than_a_video() -> None:
    inputs = tiny_media(model_of(OMNI))
    del inputs["pixel_values"]
    with pytest.raises(NormprobeError, match="image placeholders, and the inputs no pixels"):
        probe_layers(model_of(OMNI), inputs)


def test_a_video_that_no_token_stands_for_is_an_error() -> None:
    model = tiny_model("llava_onevision")
    inputs = tiny_media(model)
    forward = model.model.forward
    model.model.forward = lambda *args, pixel_values_videos=None, **more: forward(*args, **more)
    named = {"video_token_ids": ()}
    with pytest.raises(NormprobeError, match=r"hold video \(pixel_values_videos\), and no token"):
        probe_layers(model, inputs, named=named)


def test_a_trace_takes_them_for_no_image() -> None:
    model = model_of("qwen2_vl")
    inputs = tiny_media(model, 2)
    measured = MeasuredModel(model, find_parts(model))
    traced = trace_parts(model, inputs)
    masks, disputed = traced_groups(measured, inputs, measured.decoder_input(inputs), traced)
    assert disputed == 0
    for group, token in (("visual", IMAGE), ("video", VIDEO)):
        assert masks[group].sum()
        assert np.array_equal(masks[group], (inputs["input_ids"] == token).numpy())


# --- what a run makes of them ---------------------------------------------------------------------


def test_their_numbers_are_those_of_their_states() -> None:
    model = model_of(OMNI)
    inputs = tiny_media(model, 2)
    stack = ExpectedParts(decoder_layers=find_parts(model).decoder_layers.name)
    ids, mask = inputs["input_ids"].numpy(), inputs["attention_mask"].numpy() == 1
    rows = probe_layers(model, inputs).set_index(["layer", "group"])
    for number, layer in enumerate(capture(model, inputs, stack).layers, start=1):
        for group, token in (("visual", IMAGE), ("video", VIDEO), ("audio", AUDIO)):
            x, h = (state[(ids == token) & mask] for state in (layer.entered, layer.left))
            norms, before = np.linalg.norm(h, axis=-1), np.linalg.norm(x, axis=-1)
            row = rows.loc[number, group]
            assert row["tokens"] == len(h)
            assert row["norm_mean"] == pytest.approx(norms.mean(), rel=1e-5)
            cosines = (x * h).sum(-1) / norms / before
            assert row["cosine_mean"] == pytest.approx(cosines.mean(), abs=1e-6)


def test_the_vision_stages_are_left_out() -> None:
    """The modules that images pass through take the frames of videos, too."""
    probe = Probe(model_of(OMNI), special_token_ids=SPECIAL_IDS)
    run = probe.interface(tiny_media(model_of(OMNI)))
    assert "vision_encoder" not in set(run.table["stage"])
    rows = run.table[run.table["stage"] == DECODER_INPUT]
    assert {"visual", "video", "audio", "text"} <= set(rows["group"])
    assert "before the decoder is left out" in run.verdict
    alone = probe.interface(tiny_inputs(model_of(OMNI)))
    assert "vision_encoder" in set(alone.table["stage"])
    assert "left out" not in alone.verdict


@pytest.mark.slow  # draws every figure
def test_what_reads_a_run_passes_them_over(tmp_path: Path) -> None:
    probe = Probe(model_of(OMNI), special_token_ids=SPECIAL_IDS)
    inputs = tiny_media(model_of(OMNI), 2)
    run = probe.layers(inputs, also="massive,branches", output=tmp_path / "layers")
    groups = ["visual", "special", "text", "video", "audio", "non_visual"]
    assert list(run.table["group"].unique()) == groups
    assert set(run.tables["branches"]["group"]) == set(groups)
    assert set(run.tables["massive"]["group"]) == {"visual", "special", "text", "non_visual"}
    assert run.verdict
    assert "video" not in run.verdict
    assert len(list((tmp_path / "layers" / "plots").glob("*.png"))) == len(run.figures()) > 3
    interface = probe.interface(inputs, output=tmp_path / "interface")
    assert interface.figures()
    again = probe.layers(inputs, output=tmp_path / "again")
    compared = compare([run, again], ["one", "other"], output=tmp_path / "compared")
    assert compared.verdict
    for each in (run, interface):
        each.show(Console(file=io.StringIO()))
        assert each._repr_html_()
    assert "</html>" in page_of([run, interface])
