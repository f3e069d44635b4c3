"""Videos and sounds beside images: what tells their tokens, and what a run makes of them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image as Picture
from rich.console import Console
from safetensors.torch import load_file, save_file
from support.capture import capture
from support.cases import model_of
from support.eager_attention import eager_weights
from support.expected_parts import ExpectedParts
from support.flat import flat
from support.processors.tokenizer import character_tokenizer
from support.tiny.fragments import AUDIO, IMAGE, VIDEO
from support.tiny.media import EARS, features_of, media_of
from support.tiny_inputs import SPECIAL_IDS, heard_and_seen, tiny_media
from support.tiny_models import tiny_model

from normprobe import NormprobeError, Probe, compare, find_parts, probe_interface, probe_layers
from normprobe.extensions.pictures.attention.measure import measure_attention
from normprobe.measurements.layers.recomputed import differences
from normprobe.model.captured_states import traced_groups
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.model_kind import auto_class, reads_sounds
from normprobe.model.tracing.trace import trace_parts
from normprobe.run import page_of
from normprobe.schema import DECODER_INPUT, PADDING, TOKEN_GROUPS
from normprobe.tidy import select
from normprobe.versions import is_line_5

OMNI = "qwen2_5_omni_thinker"
#: Types that read what are no images; the first hear, too.
HEARING = ("dots3_note", "inkling_mm_model", "muse_spark", "nemotron_h_omni", OMNI)
HEARING += ("gemma4", "gemma4_unified", "qwen3_omni_moe_thinker")
SEEING = ("cohere_compass", "cosmos3_edge", "cosmos3_omni", "ernie4_5_vl_moe", "exaone4_5")
SEEING += ("glm46v", "glm4v", "glm4v_moe", "glm5_next", "glm_ocr", "glmga", "kimi_k25", "lfm3_vl")
SEEING += ("hyperclovax_vision_v2", "llava_next_video", "llava_onevision", "minicpm_ocr", "molmo2")
SEEING += ("minicpmv4_6", "minicpmv4_7", "minimax_m3_vl", "muse_glimmer", "perception_lm")
SEEING += ("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe")
SEEING += ("qwen4_exp", "video_llama_3", "video_llava")
only_5 = pytest.mark.skipif(not is_line_5(), reason="transformers 4 does not say what a token is")


def tokens(model: torch.nn.Module, inputs: Any, **options: Any) -> dict[str, int]:
    """How many tokens each group has at the decoder input."""
    rows = probe_layers(model, inputs, special_token_ids=(*SPECIAL_IDS, VIDEO, AUDIO), **options)
    return dict(select(rows, "norm", layer=0).set_index("group")["tokens"])


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
    assert {name: found[name] for name in ("image", "structural", "text")} == {
        name: known[name] for name in ("image", "structural", "text")
    }
    for counted in (known, found):
        assert counted["visual"] == counted["image"] + counted["video"]


def test_without_an_image_its_placeholders_are_the_video_s() -> None:
    model = model_of("llava_onevision")
    inputs = tiny_media(model)
    alone = {name: value for name, value in inputs.items() if not name.startswith("image_")}
    del alone["pixel_values"]
    video = inputs["input_ids"] == VIDEO
    alone["input_ids"] = torch.cat([torch.tensor([[20, 21]]), inputs["input_ids"][video][None]], 1)
    alone["attention_mask"] = torch.ones_like(alone["input_ids"])
    count = int(video.sum())
    expected = {"visual": count, "text": 2, "video": count}
    assert tokens(model, alone) == expected
    assert tokens(model, alone, named={"image_token_ids": (VIDEO,)}) == expected


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
    for group, placeholders in (("visual", (IMAGE, VIDEO)), ("image", IMAGE), ("video", VIDEO)):
        assert masks[group].sum()
        assert np.array_equal(masks[group], np.isin(inputs["input_ids"].numpy(), placeholders))


# --- what a run makes of them ---------------------------------------------------------------------


PLACEHOLDERS = {"visual": (IMAGE, VIDEO), "image": IMAGE, "video": VIDEO, "audio": AUDIO}


def test_their_numbers_are_those_of_their_states() -> None:
    model = model_of(OMNI)
    inputs = tiny_media(model, 2)
    stack = ExpectedParts(decoder_layers=find_parts(model).decoder_layers.name)
    ids, mask = inputs["input_ids"].numpy(), inputs["attention_mask"].numpy() == 1
    rows = flat(probe_layers(model, inputs)).set_index(["layer", "group"])
    for number, layer in enumerate(capture(model, inputs, stack).layers, start=1):
        for group, placeholders in PLACEHOLDERS.items():
            own = np.isin(ids, placeholders) & mask
            x, h = layer.entered[own], layer.left[own]
            norms, before = np.linalg.norm(h, axis=-1), np.linalg.norm(x, axis=-1)
            row = rows.loc[number, group]
            assert row["tokens"] == len(h)
            assert row["norm_mean"] == pytest.approx(norms.mean(), rel=1e-5)
            cosines = (x * h).sum(-1) / norms / before
            assert row["cosine_mean"] == pytest.approx(cosines.mean(), abs=1e-6)


def norms_by_hand(part: Any, model: torch.nn.Module, group: str, inputs: Any) -> np.ndarray:
    """Of what a module returns of a video, a sound or an image alone, by a hook of its own."""
    returned: list[np.ndarray] = []

    def keep(_: Any, __: Any, left: Any) -> None:
        if hasattr(left, "last_hidden_state"):
            pooled = getattr(left, "pooler_output", None)
            left = left.last_hidden_state if pooled is None else pooled
        states = left if isinstance(left, tuple | list) else [left]
        returned.extend(x.double().numpy() for x in states if torch.is_tensor(x) and x.dim() > 1)

    handle = part.module.register_forward_hook(keep)
    features_of(model, {"visual": "image"}.get(group, group), inputs)
    handle.remove()
    return np.concatenate([np.linalg.norm(x, axis=-1).ravel() for x in returned])


@pytest.mark.parametrize("model_type", HEARING + SEEING)
def test_stages_hold_what_their_modules_return(model_type: str) -> None:
    """Each by itself, as the model's own accessor runs it; padding of a sound left out."""
    if model_type == "qwen3_omni_moe_thinker" and not is_line_5():
        pytest.skip("transformers 4: fails on an image beside a video")
    model = heard_and_seen(model_type)
    inputs = tiny_media(model)
    parts = find_parts(model)
    rows = flat(probe_interface(model, inputs)).set_index(["stage", "group"])
    taken = media_of(model)
    told = [("projector_output", group, parts.projector) for group in ("image", "video")]
    told.append(("audio_projector_output", "audio", parts.audio_projector))
    if model_type == "inkling_mm_model":  # its tower writes the tokens
        told = [("audio_encoder", "audio", parts.audio_encoder)]
    seen: dict[str, np.ndarray] = {}
    for stage, group, part in told:
        if group in ("video", "audio") and group not in taken:
            assert (stage, group) not in rows.index
            continue
        if group == "image" and "pixel_values" not in inputs:
            continue
        if group == "image" and "video" not in taken:
            group = "visual"
        expected = norms_by_hand(part, model, group, inputs)
        if group == "audio" and model_type in EARS:
            there = int((inputs["input_ids"] == AUDIO).sum())
            assert len(expected) > there
            expected = expected[:there]  # padded behind
        if model_type == "video_llava" and group == "video":
            expected = expected.reshape(-1, 17)[:, 1:].ravel()  # a class row a frame
        assert rows.loc[(stage, group), "tokens"] == len(expected)
        assert rows.loc[(stage, group), "norm_mean"] == pytest.approx(expected.mean(), rel=1e-6)
        seen[group] = expected
    assert len(seen) >= len(taken)
    if {"image", "video"} <= seen.keys():
        both = np.concatenate([seen["image"], seen["video"]])
        row = rows.loc[("projector_output", "visual")]
        assert row["tokens"] == len(both)
        assert row["norm_mean"] == pytest.approx(both.mean(), rel=1e-6)
    entered = rows.loc[DECODER_INPUT]["tokens"]
    ids = inputs["input_ids"].flatten().tolist()
    assert entered.get("audio", 0) == ids.count(AUDIO)
    placed = entered.get("visual", 0) + entered.get("structural", 0)
    assert placed == ids.count(IMAGE) + ids.count(VIDEO)


@pytest.mark.parametrize("model_type", sorted(EARS))
def test_padding_of_a_sound_counts_nowhere(model_type: str) -> None:
    model = heard_and_seen(model_type)
    inputs = tiny_media(model)
    rows = flat(probe_interface(model, inputs))
    heard = rows[rows["group"] == "audio"]
    placeholders = int((inputs["input_ids"] == AUDIO).sum())
    assert set(heard["tokens"]) == {placeholders}
    known = list(heard[heard["stage"] == "audio_projector_output"]["norm_mean"])
    entered = list(heard[heard["stage"] == DECODER_INPUT]["norm_mean"])
    assert known == pytest.approx(entered, rel=1e-5)


def test_another_video_tells_its_rows_from_the_image_s() -> None:
    """With the same tower: those of a video alone, and those of an image alone."""
    model = model_of(OMNI)
    both = tiny_media(model)
    run = Probe(model, special_token_ids=SPECIAL_IDS).interface(both)
    rows = flat(run.table).set_index(["stage", "group"])["norm_mean"]
    stages = ("vision_encoder", "projector_input", "projector_output")
    ids = both["input_ids"][0]
    for group, token, others in (
        ("video", VIDEO, ("pixel_values", "image_grid_thw")),
        ("image", IMAGE, ("pixel_values_videos", "video_grid_thw", "video_second_per_grid")),
    ):
        away = torch.isin(ids, torch.tensor([*{IMAGE, VIDEO, AUDIO} - {token}]))
        kept = ~(away | away.roll(1) | away.roll(-1))  # with the marks around them
        left_out = (*others, "input_features", "feature_attention_mask")
        alone = {name: value for name, value in both.items() if name not in left_out}
        for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
            if name in alone:
                alone[name] = alone[name][:, kept]
        found = probe_interface(model, alone, special_token_ids=SPECIAL_IDS)
        found = flat(found).set_index(["stage", "group"])["norm_mean"]
        for stage in stages:
            assert found[stage, "visual"] == pytest.approx(rows[stage, group], rel=1e-6)
        assert {g for s, g in found.index if s in stages} == {"visual", group} - {"image"}
    said = str(run.verdict)
    assert "Norm of video tokens at the decoder input" in said
    assert "Norm of audio tokens at the decoder input" in said
    assert "left out" not in said


def test_before_the_projector_of_images_is_no_sound() -> None:
    rows = flat(probe_interface(model_of(OMNI), tiny_media(model_of(OMNI))))
    found = rows.set_index(["stage", "group"])["ratio_to_before_projector"]
    assert found["projector_output", "visual"] > 0
    assert found.loc[(slice(None), ["video", "audio"])].isna().all()
    assert rows[rows["group"].isin(["video", "audio"])]["ratio_to_prompt"].notna().all()


# --- models of sounds alone, and those that also speak --------------------------------------------


@only_5
def test_of_a_model_that_speaks_the_thinker_is_measured(tmp_path: Path) -> None:
    """A checkpoint as it is published: its tensors, and its config, inside those of the whole."""
    model = model_of(OMNI)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    whole = {f"thinker.{name}": tensor for name, tensor in tensors.items()}
    save_file(whole, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "qwen2_5_omni", "dtype": "float32"}
    config["thinker_config"] = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    inputs = tiny_media(model)
    tokenizer = character_tokenizer({}, {}, [])
    found = flat(Probe(str(tmp_path), tokenizer).layers(inputs).table)
    expected = flat(Probe(model, tokenizer).layers(inputs).table)
    assert found["norm_mean"].to_numpy() == pytest.approx(expected["norm_mean"], rel=1e-6)
    assert list(found["tokens"]) == list(expected["tokens"])


@only_5
def test_a_checkpoint_of_sounds_alone_is_loaded_with_its_ears(tmp_path: Path) -> None:
    tiny_model("qwen2_audio").save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    assert reads_sounds(checkpoint.config)
    assert auto_class(checkpoint.kind, checkpoint.config) is transformers.AutoModelForMultimodalLM
    for name in ("qwen2", "llama"):
        assert not reads_sounds(transformers.AutoConfig.for_model(name))


@pytest.mark.slow  # draws every figure
def test_what_reads_a_run_shows_them(tmp_path: Path) -> None:
    probe = Probe(model_of(OMNI), special_token_ids=SPECIAL_IDS)
    inputs = tiny_media(model_of(OMNI), 2)
    run = probe.layers(inputs, also="massive,branches", output=tmp_path / "layers")
    groups = ["visual", "special", "text", "image", "video", "audio", "non_visual"]
    assert list(run.table["group"].unique()) == groups
    assert set(run.tables["branches"]["group"]) == {*groups} - {"image"}
    assert set(run.tables["massive"]["group"]) == {"visual", "special", "text", "non_visual"}
    assert "Norm of image tokens at the decoder input" in str(run.verdict)
    assert "Norm of video tokens at the decoder input" in str(run.verdict)
    assert "Norm of audio tokens at the decoder input" in str(run.verdict)
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


def test_what_is_said_of_visual_tokens_is_said_of_images_and_videos() -> None:
    """Theory, pairs and pooled cosines, by a trace and in float64."""
    model = model_of("qwen2_vl")
    inputs = tiny_media(model, 2)
    measured = MeasuredModel(model, find_parts(model))
    found = differences(measured, inputs, trace_parts(model, inputs))
    apart = {name: value for name, value in found.items() if not isinstance(value, str)}
    assert {"norm", "angle", "pooled_cosine", "cross_modal_cosine", "retention"} <= apart.keys()
    assert max(apart.values()) < 1e-4, apart


def test_text_attends_to_a_video_as_to_an_image() -> None:
    model = model_of(OMNI)
    inputs = tiny_media(model)
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    picture = Picture.new("RGB", (28, 28))
    seen = measure_attention(measured, lambda _: inputs, [picture], decode=str).table
    seen = select(seen, "share")
    ids = inputs["input_ids"][0]
    visual = torch.isin(ids, torch.tensor([IMAGE, VIDEO]))
    behind = torch.arange(len(ids)) > visual.nonzero().max()
    asking = behind & ~torch.isin(ids, torch.tensor([AUDIO, *SPECIAL_IDS]))
    for number, of_layer in enumerate(eager_weights(model, inputs), start=1):
        shares = of_layer[:, asking][..., visual].sum(axis=-1)
        (row,) = seen[seen["layer"] == number].itertuples()
        assert row.tokens == int(asking.sum())
        assert row.mean == pytest.approx(float(shares.mean()), rel=1e-5)
