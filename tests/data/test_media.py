"""Clips and sounds of files, frames and arrays; what a stranger's file may do is refused."""

import json
import wave

import numpy as np
import pytest
from PIL import Image

from data.published import write_lines
from normprobe.data import media
from normprobe.data.data_set import open_data
from normprobe.data.media import audio_of, video_of
from normprobe.data.rows import BadRow
from normprobe.data.sample import Sample, as_sample, marks_fault
from normprobe.errors import NormprobeError

FRAMES = np.random.default_rng(0).integers(0, 255, (5, 32, 48, 3)).astype(np.uint8)
WAVE = (np.sin(np.arange(800) / 9) * 2**14).astype(np.int16)


def sample_of(folder, **cells) -> Sample:
    (sample,) = open_data(str(write_lines(folder / "mine.jsonl", {"prompt": "What?", **cells})))
    return sample


def refused(folder, match, **cells) -> None:
    with pytest.raises(NormprobeError, match=match):
        sample_of(folder, **cells)


def write_video(path, frames=FRAMES, rate=5) -> None:
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as file:
        stream = file.add_stream("ffv1" if path.suffix == ".mkv" else "mpeg4", rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "bgr0" if path.suffix == ".mkv" else "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(stream.encode())


@pytest.fixture
def frames(tmp_path):
    (tmp_path / "clip").mkdir()
    for number, frame in enumerate(FRAMES):
        Image.fromarray(frame).save(tmp_path / f"clip/{number}.png")
    return [f"clip/{number}.png" for number in range(len(FRAMES))]


def test_folder_list_and_array_hold_the_same_frames(tmp_path, frames):
    np.save(tmp_path / "clip.npy", FRAMES)
    videos = [
        sample_of(tmp_path, video=named, fps=5).videos[0]
        for named in ("clip", "clip.npy", frames)
        if isinstance(named, str)
    ]
    (listed,) = sample_of(tmp_path, videos=[frames], fps=5).videos
    for video in (*videos, listed, video_of(FRAMES, 5)):
        assert np.array_equal(np.stack(video.frames), FRAMES)
        assert video.fps == 5
        assert video.hash == listed.hash
    assert sample_of(tmp_path, video="clip").videos[0].fps is None


def test_a_file_is_decoded_whole_with_its_rate(tmp_path):
    write_video(tmp_path / "clip.mkv")
    (video,) = sample_of(tmp_path, video="clip.mkv").videos
    assert np.array_equal(np.stack(video.frames), FRAMES)  # ffv1 loses nothing
    assert video.fps == 5
    assert sample_of(tmp_path, video="clip.mkv", fps=2).videos[0].fps == 2


def test_sounds_are_those_of_their_files(tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((2, 2, 8000, 0, "NONE", ""))
        file.writeframes(np.stack([WAVE, WAVE // 2], axis=1).astype("<i2").tobytes())
    np.save(tmp_path / "a.npy", WAVE)
    sound = sample_of(tmp_path, audio="a.npy", rate=8000).audios[0]
    assert np.array_equal(sound.samples, WAVE.astype(np.float64) / 2**15)
    pytest.importorskip("soundfile")
    mixed = sample_of(tmp_path, audio="a.wav").audios[0]
    expected = (WAVE.astype(np.float64) + WAVE // 2) / 2**16
    assert mixed.rate == 8000
    assert mixed.samples == pytest.approx(expected, abs=1e-6)


def test_another_rate_is_resampled(tmp_path):
    sound = audio_of(WAVE, 8000)
    assert sound.at(8000) is sound.samples
    pytest.importorskip("soxr")
    twice = sound.at(16000)
    assert len(twice) == 2 * len(WAVE)
    assert twice[200:-200:2] == pytest.approx(sound.samples[100:-100], abs=1e-3)


def test_a_rate_that_would_make_a_sound_huge_is_refused():
    sound = audio_of(np.zeros(2**16, np.float32), 1)
    with pytest.raises(BadRow, match="65536 samples of 1 Hz become 1048576000 of 16000 Hz") as huge:
        sound.at(16000)
    assert huge.value.remedy == "correct the rate of the sound, or cut it"


def test_a_sample_is_known_by_its_clip_and_its_sound(tmp_path, frames):
    np.save(tmp_path / "a.npy", WAVE)
    both = sample_of(tmp_path, image=frames[0], video="clip", audio="a.npy", rate=8000)
    hashes = both.image_hash.split("+")
    assert hashes == [both.image_hashes[0], both.videos[0].hash, both.audios[0].hash]
    slower = sample_of(tmp_path, audio="a.npy", rate=4000)
    assert slower.image_hash != both.audios[0].hash


def test_marks_place_each_kind(tmp_path, frames):
    prompt = "Is <video> like <image>?"
    sample = sample_of(tmp_path, image=frames[0], video="clip", prompt=prompt)
    assert [type(piece).__name__ for piece in sample.pieces] == [
        "str",
        "Video",
        "str",
        "Image",
        "str",
    ]
    assert sample.text_with(lambda n: f"[{n}]", video="V") == "Is V like [1]?"
    with pytest.raises(ValueError, match="given no video"):
        sample.text_with(str)
    before = sample_of(tmp_path, image=frames[0], video="clip")
    assert before.text_with(str, "\n", video="V") == "1\nV\nWhat?"
    refused(
        tmp_path, "as many marks <video> as videos", image=frames[0], video="clip", prompt="<image>"
    )
    assert marks_fault("see <video>", 1) is None  # of what is not there, it is text


def test_a_folder_holds_pictures_clips_and_sounds(tmp_path, frames):
    write_video(tmp_path / "clip.mkv")
    data = open_data(str(tmp_path))
    samples = {sample.id.removeprefix("images/"): sample for sample in data}
    assert samples["clip.mkv"].prompt == "Describe the video."
    assert len(samples["clip.mkv"].videos) == 1
    assert samples["clip/0.png"].prompt == "Describe the image."
    assert data.has_images


def test_a_table_names_them_too(tmp_path, frames):
    table = tmp_path / "mine.tsv"
    table.write_text(
        "id\tprompt\timage\tvideo\tfps\na\tWhat?\t\tclip\t2.5\nb\tWhy?\tclip/0.png\t\t\n"
    )
    one, other = open_data(str(table))
    assert (one.videos[0].fps, one.images, len(other.images), other.videos) == (2.5, (), 1, ())


def test_the_bundled_sample_needs_no_decoder():
    samples = {sample.id: sample for sample in open_data("mixed")}
    assert [len(s.images) + len(s.videos) + len(s.audios) for s in samples.values()] == [
        1,
        1,
        1,
        3,
        0,
    ]
    assert samples["prompts/clip"].videos[0].fps == 8
    assert samples["prompts/sound"].audios[0].rate == 16000


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        ({"video": "../clip.mp4"}, "leaves the folder"),
        ({"audio": "/etc/passwd"}, "leaves the folder"),
        ({"video": "none.mp4"}, "cannot be read"),
        ({"video": "list.m3u8"}, "cannot be decoded"),
        ({"video": "text.mp4"}, "cannot be decoded"),
        ({"audio": "text.wav"}, "cannot be decoded"),
        ({"video": "sound.npy"}, r"expected uint8 \[frames"),
        ({"audio": "sound.npy"}, "expected samples a second, received None"),
        ({"audio": "nan.npy", "rate": 8000}, "not finite"),
        ({"audio": "empty.npy", "rate": 8000}, "the sound is empty"),
        ({"audio": "empty.wav"}, "the sound is empty"),
        ({"audio": "frames.npy", "rate": 8000}, r"expected floats or int16 \[samples\]"),
        ({"video": "pickle.npy"}, "cannot be decoded"),
        ({"video": "long.npy"}, "cannot be decoded"),
        ({"video": "empty"}, "received no frame"),
        ({"video": "sizes"}, "frames of one size"),
        ({"video": ["sizes/4.png", "sizes/5.png", "none.png"]}, "frames of one size, received 4x4"),
        ({"video": "several.npy"}, r"the array 'several.npy' .*it holds several"),
        ({"audio": "several.npy", "rate": 8000}, r"the array 'several.npy' .*it holds several"),
        ({"video": "frames.npy", "fps": "fast"}, "expected frames a second"),
        ({"video": ["frames.npy"]}, "frames.npy"),
        ({"video": 3}, "expected a video or a list of its frames"),
        ({"audio": [1]}, "expected a sound"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, cells, match):
    for package in ("av", "soundfile"):
        pytest.importorskip(package)
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST\n")
    for name in ("text.mp4", "text.wav"):
        (tmp_path / name).write_text("no media")
    np.save(tmp_path / "sound.npy", WAVE)
    np.save(tmp_path / "nan.npy", np.array([0.0, np.nan]))
    np.save(tmp_path / "empty.npy", WAVE[:0])
    with wave.open(str(tmp_path / "empty.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
    np.save(tmp_path / "frames.npy", FRAMES)
    np.save(tmp_path / "pickle.npy", np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "several.npz", FRAMES, WAVE)
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    whole = (tmp_path / "frames.npy").read_bytes()
    (tmp_path / "long.npy").write_bytes(whole.replace(b"(5, 32, 48, 3)", b"(9**9,32,48,3)"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "sizes").mkdir()
    for side in (4, 5):
        Image.new("RGB", (side, 4)).save(tmp_path / f"sizes/{side}.png")
    refused(tmp_path, match, **cells)


@pytest.mark.parametrize(
    ("bound", "most", "cells"),
    [
        ("MOST_FRAMES", 4, {"video": "clip.mkv"}),
        ("MOST_PIXELS", 4 * 32 * 48, {"video": "clip.mkv"}),
        ("MOST_PIXELS", 4 * 32 * 48, {"video": "clip.npy"}),
        ("MOST_PIXELS", 4 * 32 * 48, {"video": "clip"}),
        ("MOST_FRAMES", 4, {"video": "clip"}),
        ("MOST_SAMPLES", 700, {"audio": "a.wav"}),
        ("MOST_SAMPLES", 700, {"audio": "a.npy", "rate": 8000}),
    ],
)
def test_what_is_too_large_is_not_decoded(tmp_path, frames, monkeypatch, bound, most, cells):
    if cells.get("video") == "clip.mkv":
        write_video(tmp_path / "clip.mkv")
    np.save(tmp_path / "clip.npy", FRAMES)
    np.save(tmp_path / "a.npy", WAVE)
    if cells.get("audio") == "a.wav":
        pytest.importorskip("soundfile")
        with wave.open(str(tmp_path / "a.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(WAVE.astype("<i2").tobytes())
    sample_of(tmp_path, **cells)
    monkeypatch.setattr(media, bound, most)
    refused(tmp_path, "expected at most", **cells)


@pytest.mark.parametrize(
    ("package", "extra", "cells"),
    [("av", "video", {"video": "a.mp4"}), ("soundfile", "audio", {"audio": "a.wav"})],
)
def test_a_library_that_is_not_there_names_its_extra(tmp_path, monkeypatch, package, extra, cells):
    (tmp_path / next(iter(cells.values()))).write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(NormprobeError) as raised:
        sample_of(tmp_path, **cells)
    assert not isinstance(raised.value, BadRow)  # another row will not do
    assert f"needs {package}" in raised.value.problem
    assert f"normprobe[{extra}]" in raised.value.remedy


def test_a_bad_clip_is_a_row_to_skip(tmp_path):
    pytest.importorskip("av")
    (tmp_path / "bad.mp4").write_text("no media")
    lines = [{"prompt": "What?", "video": "bad.mp4"}, {"prompt": "Why?"}]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    data = open_data(str(path), skip_bad=True)
    assert len(list(data)) == 1
    assert data.bad.skipped[0].column == "video"


def test_a_prompt_by_hand_takes_them_beside_its_picture(tmp_path):
    np.save(tmp_path / "clip.npy", FRAMES)
    picture, sound = Image.new("RGB", (4, 4)), audio_of(WAVE, 8000)
    prompt = "Is <image> in <video> or <audio>?"
    sample = as_sample(picture, prompt, [tmp_path / "clip.npy"], [sound])
    assert np.array_equal(np.stack(sample.videos[0].frames), FRAMES)
    assert sample.audios == (sound,)
    assert sample.is_marked
    with pytest.raises(NormprobeError, match="as many marks <audio> as audios"):
        as_sample(picture, "Is <image> in it?", audios=[sound])
    with pytest.raises(NormprobeError, match="is no file"):
        as_sample(picture, "What?", [tmp_path / "none.mp4"])
