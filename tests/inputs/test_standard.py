"""Clips and sounds through the processors of transformers, to the tokens that stand for them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.flat import flat
from support.processors import make_checkpoint, make_processor
from transformers.utils import is_torchvision_available

from normprobe import NormprobeError, Probe
from normprobe.data.data_set import open_data
from normprobe.data.media import Audio, Video
from normprobe.data.rows import RefusedSample
from normprobe.data.sample import Sample
from normprobe.inputs.builder import InputBuilder
from normprobe.versions import is_line_5

pytestmark = [
    pytest.mark.skipif(not is_torchvision_available(), reason="clips are read with torchvision"),
    pytest.mark.skipif(not is_line_5(), reason="tiny processors are those of transformers 5"),
]

OMNI = "qwen2_5_omni_thinker"


@pytest.fixture(autouse=True)
def _small_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Qwen2_5OmniProcessor

    small = {"size": {"shortest_edge": 512, "longest_edge": 2048}}
    monkeypatch.setattr(Qwen2_5OmniProcessor, "videos_kwargs", small)


@pytest.fixture(scope="module")
def mixed() -> dict[str, Sample]:
    return {sample.id.removeprefix("prompts/"): sample for sample in open_data("mixed")}


def test_marks_place_them_in_the_text(mixed) -> None:
    processor = make_processor(OMNI)
    ids = InputBuilder(processor, model_type=OMNI).build([mixed["all"]])["input_ids"][0]
    kinds = [processor.image_token_id, processor.video_token_id, processor.audio_token_id]
    order = [int(i) for i in torch.unique_consecutive(ids[torch.isin(ids, torch.tensor(kinds))])]
    assert order == kinds  # as the prompt has them, with words between
    text = processor.tokenizer.decode(ids)
    assert text.index("circle of") < text.index("<|IMAGE|>") < text.index("that of")
    assert text.index("note in") < text.index("<|AUDIO|>")


def test_pixels_are_those_of_the_processor_itself(mixed) -> None:
    """What it draws and reads when it is called by hand, by the rate of the clip."""
    processor = make_processor("qwen3_vl")
    inputs = InputBuilder(processor, model_type="qwen3_vl").build([mixed["clip"]])
    video = mixed["clip"].videos[0]
    frames = np.stack([np.asarray(frame) for frame in video.frames])
    facts = {"total_num_frames": 16, "fps": 8.0, "frames_indices": list(range(16))}
    by_hand = processor.video_processor([frames], video_metadata=[facts], return_tensors="pt")
    assert torch.equal(inputs["pixel_values_videos"], by_hand["pixel_values_videos"])
    assert inputs["drawn_frames"].tolist() == [4]  # two a second, of two seconds


def test_a_clip_without_a_rate_is_read_whole(mixed) -> None:
    builder = InputBuilder(make_processor("qwen3_vl"), model_type="qwen3_vl")
    timed = mixed["clip"]
    whole = replace(timed, videos=(Video(timed.videos[0].frames),))
    alone = [builder.build([sample]) for sample in (timed, whole)]
    both = builder.build([timed, whole])
    assert alone[1]["drawn_frames"].tolist() == [16]
    assert both["drawn_frames"].tolist() == [4, 16]
    pixels = torch.cat([inputs["pixel_values_videos"] for inputs in alone])
    assert torch.equal(both["pixel_values_videos"], pixels)


def short_clip(sample: Sample, frames: int) -> Sample:
    (video,) = sample.videos
    return replace(sample, videos=(Video(video.frames[:frames], video.fps),))


@pytest.mark.parametrize(("frames", "drawn"), [(1, 1), (3, 3), (8, 8), (16, 8)])
def test_a_clip_that_is_too_short_to_draw_from_is_read_whole(mixed, frames, drawn) -> None:
    """InternVL draws so many frames, in a way of its own, and does not tell how many."""
    processor = make_processor("internvl")
    processor.video_processor.do_sample_frames = True
    processor.video_processor.num_frames = 8
    sample = short_clip(mixed["clip"], frames)
    inputs = InputBuilder(processor, model_type="internvl").build([sample])
    assert inputs["drawn_frames"].tolist() == [drawn]
    step = frames // drawn
    kept = [np.asarray(frame) for frame in sample.videos[0].frames[step // 2 :: step]]
    by_hand = processor.video_processor(
        [np.stack(kept)], do_sample_frames=False, return_tensors="pt"
    )
    assert torch.equal(inputs["pixel_values"], by_hand["pixel_values_videos"].flatten(0, 1))


@pytest.mark.parametrize("model_type", ["glm5_next", "molmo2"])
def test_a_clip_of_one_frame_is_read(model_type, mixed) -> None:
    builder = InputBuilder(make_processor(model_type), model_type=model_type)
    assert builder.build([short_clip(mixed["clip"], 1)])["drawn_frames"].tolist() == [1]


def test_settings_that_draw_from_no_clip_are_refused(mixed) -> None:
    processor = make_processor("qwen2_vl")
    reader = processor.video_processor
    reader.do_sample_frames, reader.num_frames, reader.fps = True, 8, 2
    with pytest.raises(RefusedSample, match="mutually exclusive"):
        InputBuilder(processor, model_type="qwen2_vl").build([mixed["clip"]])
    assert "sample_frames" not in vars(reader)  # as it was


def test_a_sound_is_read_at_the_rate_of_the_model(mixed) -> None:
    pytest.importorskip("soxr")
    builder = InputBuilder(make_processor(OMNI), model_type=OMNI)
    sound = mixed["sound"]
    slow = Audio(sound.audios[0].samples[::2].copy(), 8000)
    seconds = [
        builder.build([s])["feature_attention_mask"].sum()
        for s in (sound, replace(sound, audios=(slow,)))
    ]
    assert seconds[0] == pytest.approx(seconds[1], abs=1)


@pytest.mark.parametrize(
    ("model_type", "name", "match"),
    [
        ("qwen2_vl", "sound", "reads no sound"),
        ("qwen2_vl", "all", "reads no sound"),
        ("llava", "clip", "reads no video|given no video"),
        ("llava", "sound", "reads no sound"),
    ],
)
def test_what_a_model_does_not_read_is_refused(model_type, name, match, mixed) -> None:
    builder = InputBuilder(make_processor(model_type), model_type=model_type)
    with pytest.raises(RefusedSample, match=match):
        builder.build([mixed[name]])


def test_placeholders_in_a_prompt_are_refused(mixed) -> None:
    builder = InputBuilder(make_processor(OMNI), model_type=OMNI)
    with pytest.raises(NormprobeError, match=r"this model's audio token '<\|AUDIO\|>'"):
        builder.build([replace(mixed["text"], prompt="Hear <|AUDIO|>?")])


def test_a_run_records_the_frames_and_does_not_depend_on_batches(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(OMNI, tmp_path / "model")
    probe = Probe(str(checkpoint))
    one, five = (probe.layers("mixed", batch_size=size) for size in (1, 5))
    for run in (one, five):
        assert run.record["frames"] == dict.fromkeys(
            ["prompts/clip", "prompts/all"], "16 of 16 frames at 8 a second"
        )
        assert run.record["media"] == ["image", "clip", "sound"]
        assert any("speak of images, clips, sounds like" in each for each in run.record["warnings"])
    keys = ["layer", "group"]
    of_one, of_five = flat(one.table), flat(five.table)
    beside = of_one.merge(of_five, on=keys, suffixes=("", "_five"))
    assert len(beside) == len(of_one) == len(of_five)
    assert (beside["tokens"] == beside["tokens_five"]).all()
    assert beside["norm_mean"].to_numpy() == pytest.approx(beside["norm_mean_five"], rel=1e-5)
    text_alone = probe.layers("text", limit=2)
    assert "media" not in text_alone.record
    assert "frames" not in text_alone.record
    assert "frames" not in text_alone.store.rows()


def test_a_model_s_own_answers_ask_for_no_more(tmp_path: Path) -> None:
    """A random model would begin a picture behind its prompt."""
    probe = Probe(str(make_checkpoint(OMNI, tmp_path / "model")))
    run = probe.cause("mixed", do="freeze")
    assert run.table["samples"].max() == 3  # those with a picture or a clip
