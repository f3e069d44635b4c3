"""Rows are made while the model runs on the next batch, and nothing is lost; maps of norms."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from support.several_images import noise
from torch import nn
from transformers import BatchFeature

from normprobe import NormprobeError
from normprobe.data.data_set import DataSet, open_data
from normprobe.data.question import Question
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.prefetch import Batch
from normprobe.model.token_places import NormMap, rows_at
from normprobe.options import Sampling
from normprobe.runs import collecting
from normprobe.runs.collecting import begun_twice, norm_maps, unmarked, untiled
from normprobe.runs.run_folder import RunFolder, RunStore
from normprobe.schema import DIGESTS, SCHEMA_VERSION

LONG = 30.0  # seconds that only a failing test waits


class SlowDevice:
    """A measurement whose every forward lasts until the rows of the forward before are made.

    It waits without the interpreter's lock, as a host does for a device.

    Args:
        fails_at: the number of the forward that fails, from 0; None: none.
        rows_fail_at: the number of the forward whose rows cannot be made.
    """

    def __init__(self, fails_at: int | None = None, rows_fail_at: int | None = None) -> None:
        self.fails_at, self.rows_fail_at = fails_at, rows_fail_at
        self.intervals = True
        self.made: list[Event] = []
        self.overlapped: list[bool] = []

    reads_samples = False

    def observer(self, model: Any, builder: Any) -> Any:
        return self.observe

    def observe(self, inputs: Mapping[str, Any], samples: Sequence[Any]) -> int:
        number = len(self.made)
        self.made.append(Event())
        if number:
            self.overlapped.append(self.made[number - 1].wait(LONG))
        if number == self.fails_at:
            raise RuntimeError("the forward fails")
        return number

    def rows(self, seen: int, sample_ids: Sequence[str] | None) -> pd.DataFrame:
        self.made[seen].set()
        if seen == self.rows_fail_at:
            raise RuntimeError("the rows fail")
        assert sample_ids is not None
        return pd.DataFrame({"sample_id": list(sample_ids), "group": "text", "tokens": seen})


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Collects five batches of one sample into a run in memory."""

    def batches(data: Any, *_: Any, wanted: set[str], **__: Any) -> Iterator[Batch]:
        for sample in data:
            if sample.id in wanted:
                inputs = BatchFeature({"input_ids": torch.ones(1, 1, dtype=torch.long)})
                told = (sample.image_hash, sample.prompt, None)
                digests = {name: {sample.id: of} for name, of in zip(DIGESTS, told, strict=True)}
                yield Batch(digests, inputs, [], {})

    monkeypatch.setattr(collecting, "prefetched", batches)
    torch_model: Any = nn.Module()
    torch_model.dtype, torch_model.config = torch.float32, SimpleNamespace()
    parts = SimpleNamespace(fusion="in-sequence")
    model: Any = SimpleNamespace(
        model=torch_model,
        parts=parts,
        positions=None,
        has_decoder=False,
        begin_id=None,
        token_text=None,
    )
    builder: Any = SimpleNamespace()
    store, data = RunStore({"command": "layers"}), open_data("sample", limit=5)

    def collect(measurement: SlowDevice, store: RunStore = store) -> pd.DataFrame:
        return collecting.collect(store, model, data, builder, measurement, Sampling())

    return SimpleNamespace(collect=collect, store=store, data=data)


def test_rows_are_made_while_the_next_forward_runs(run: Any) -> None:
    device = SlowDevice()
    rows = run.collect(device)
    assert device.overlapped == [True] * 4
    assert list(rows["tokens"]) == [0, 1, 2, 3, 4]
    measured = zip(rows["sample_id"], rows["image_hash"], strict=True)
    assert list(measured) == [(sample.id, sample.image_hash) for sample in run.data]


def test_a_forward_that_fails_loses_no_batch_before_it(run: Any) -> None:
    with pytest.raises(RuntimeError, match="the forward fails"):
        run.collect(SlowDevice(fails_at=3))
    assert list(run.store.rows()["tokens"]) == [0, 1, 2]


def test_rows_that_fail_end_the_run_where_they_are(run: Any) -> None:
    device = SlowDevice(rows_fail_at=1)
    with pytest.raises(RuntimeError, match="the rows fail"):
        run.collect(device)
    assert list(run.store.rows()["tokens"]) == [0]
    assert len(device.made) == 3  # the forward at work, and none after it


def test_a_failure_is_followed_by_what_is_left(run: Any) -> None:
    with pytest.raises(RuntimeError, match="the forward fails"):
        run.collect(SlowDevice(fails_at=2))
    rows = run.collect(SlowDevice())
    assert list(rows["sample_id"]) == list(run.data.ids)


@pytest.mark.parametrize("deleted", ["part-00000.parquet", "part-*.parquet"])
def test_rows_that_are_deleted_while_a_run_writes_are_said_to_be(
    deleted: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "SECONDS_A_PART", 0.0)
    record = {"command": "layers", "schema_version": SCHEMA_VERSION}
    folder = RunFolder.create(tmp_path / "run", overwrite=False, record=record)
    sample_ids = folder.sample_ids

    def all_measured() -> set[str]:
        known = sample_ids()
        monkeypatch.setattr(folder, "rows", rows_of_what_is_left)
        return known

    def rows_of_what_is_left(columns: Sequence[str] | None = None) -> pd.DataFrame:
        for part in (folder.path / "samples").glob(deleted):
            part.unlink()
        return RunFolder.rows(folder, columns)

    monkeypatch.setattr(folder, "sample_ids", all_measured)
    with pytest.raises(NormprobeError) as refused:
        run.collect(SlowDevice(), folder)
    assert "rows that were written have been deleted since" in refused.value.problem
    assert "--resume measures them again" in refused.value.remedy
    assert list(run.collect(SlowDevice(), RunFolder.open(folder.path))["sample_id"]) == run.data.ids


RED, GREEN, BLUE = (Image.new("RGB", (8, 6), color) for color in ("red", "green", "blue"))
SAMPLES = {"one": [RED], "text": [], "again": [RED], "two": [GREEN, RED], "three": [BLUE]}


@pytest.fixture
def data() -> DataSet:
    questions = [
        Question("made", name, lambda images=tuple(images): ("What?", images), bool(images))
        for name, images in SAMPLES.items()
    ]
    return DataSet("made", questions, {})


def rows(*names: str) -> pd.DataFrame:
    """Sample rows; each sample has several."""
    return pd.DataFrame({"sample_id": [f"made/{n}" for n in names or [*SAMPLES, *SAMPLES]]})


def one_token(model, picture) -> NormMap:
    brightness = np.asarray(picture.image).mean(keepdims=True).ravel()
    return NormMap(rows_at(np.array([[0.0, 0.0, 1.0, 1.0]]), layer=0, norm=brightness), {})


def mapped(data, norm_map, measured, pictures=4):
    run = RunStore({})
    tables = norm_maps(run, None, data, InputBuilder(None), norm_map, measured, pictures)
    return run, tables.get("map")


def test_each_picture_is_mapped_once_and_kept(data: DataSet) -> None:
    run, table = mapped(data, one_token, rows())
    assert table["sample_id"].tolist() == ["made/one", "made/two", "made/three"]
    assert table["image"].tolist() == [1, 2, 3]
    assert list(table.columns[:5]) == ["sample_id", "image", "layer", "visual_token", "left"]
    kept = dict(run.images())
    assert list(kept) == ["image", "image_2", "image_3"]
    assert [image.getpixel((0, 0)) for image in kept.values()] == [
        image.getpixel((0, 0)) for image in (RED, GREEN, BLUE)
    ]


def test_no_more_pictures_than_asked_for_and_only_of_measured_samples(data: DataSet) -> None:
    _, table = mapped(data, one_token, rows(), pictures=2)
    assert table["sample_id"].tolist() == ["made/one", "made/two"]
    _, table = mapped(data, one_token, rows("three", "text"))
    assert table["sample_id"].tolist() == ["made/three"]


def test_other_images_of_the_prompt_stay_when_one_is_replaced(data: DataSet) -> None:
    built = []

    class Builder:
        def build(self, samples):
            built.extend(samples)
            return {}

    def look(model, picture):
        picture.build(noise(0, (8, 6)))
        alone.append(picture.alone)
        return NormMap(pd.DataFrame(), {})

    alone: list[bool] = []
    norm_maps(RunStore({}), None, data, Builder(), look, rows("two"), 4)
    assert [sample.id for sample in built] == ["made/two"] * 2
    assert built[0].images[1] == RED
    assert built[1].images[0] == GREEN
    assert built[0].images[0] != GREEN and built[1].images[1] != RED
    assert alone == [False, False]


def test_what_is_unknown_is_said_once(data: DataSet, caplog: pytest.LogCaptureFixture) -> None:
    def unknown(model, picture):
        reasons = {"projector_output": f"no grid ({picture.image.getpixel((0, 0))})"}
        return NormMap(one_token(model, picture).rows.head(int(picture.image == RED)), reasons)

    with caplog.at_level(logging.WARNING):
        run, table = mapped(data, unknown, rows())
    assert table["sample_id"].tolist() == ["made/one"]
    told = ["no map of projector output: no grid ((255, 0, 0))"]
    assert run.record["warnings"] == told
    assert [message.removeprefix("warning: ") for message in caplog.messages] == told


def test_no_place_is_known_and_the_run_goes_on(data: DataSet) -> None:
    run, table = mapped(data, lambda *_: NormMap(pd.DataFrame(), {"visual tokens": "why"}), rows())
    assert table is None
    assert not dict(run.images())
    assert run.record["warnings"] == ["no map of visual tokens: why"]


def test_a_run_of_clips_speaks_of_clips() -> None:
    """Their tokens are visual, too."""
    groups = {"sample_id": list("aab"), "group": ["visual", "video", "video"]}
    run = RunStore({})
    note = collecting.note_confidence(run, pd.DataFrame({**groups, "image_hash": ["1", "1", "2"]}))
    assert note.startswith("2 clips: ") and note.endswith("they speak of clips like these")
    assert run.record["media"] == ["clip"]


def test_samples_without_an_image_are_not_counted_as_images() -> None:
    hashes = ["1", "2", "2", *[None] * 8]
    groups = {"sample_id": list("abcdefghijk"), "group": ["visual"] * 3 + ["text"] * 8}
    note = collecting.note_confidence(RunStore({}), pd.DataFrame({**groups, "image_hash": hashes}))
    assert note.startswith("2 images and 8 samples without: ")
    assert note.endswith("they speak of samples like these")


@pytest.mark.parametrize(
    ("asks", "tiles", "doubted"),
    [("anyres_max_9", 2, True), ("anyres", 5, False), ("pad", 2, False), (None, 2, False)],
)
def test_a_picture_in_one_square_is_in_doubt_where_tiles_are_asked_for(
    asks: str | None, tiles: int, doubted: bool
) -> None:
    """SliME's sampler and LLaVA-Video's newlines do not run then."""
    body: Any = nn.Module()
    body.config = SimpleNamespace(image_aspect_ratio=asks)
    model: Any = SimpleNamespace(model=body)
    inputs = {"input_ids": torch.ones(2, 5), "pixel_values": torch.zeros(tiles, 3, 8, 8)}
    batch: Any = SimpleNamespace(inputs=inputs, sample_ids=["a", "b"])
    told = untiled(model, batch)
    assert (f"asks for tiles (image_aspect_ratio {asks})" in told) == doubted
    assert bool(told) == doubted


@pytest.mark.parametrize(
    ("ids", "masked", "told"),
    [
        ([[1, 1, 5, 6], [0, 0, 1, 5]], True, True),
        ([[1, 5, 1, 1], [0, 1, 5, 1]], True, False),
        ([[0, 1, 1, 5], [1, 5, 6, 7]], True, True),
        ([[1, 1, 5, 6]], False, True),
        ([[1, 5, 1, 1]], False, False),
    ],
)
def test_two_begin_tokens_are_told(ids: list[list[int]], masked: bool, told: bool) -> None:
    """One of a turn as it is written, one of the tokenizer (LongLLaVA)."""
    parts = SimpleNamespace(fusion="in-sequence", text_embedding=None)
    model: Any = SimpleNamespace(model=nn.Module(), begin_id=1, parts=parts)
    tokens = torch.tensor(ids)
    inputs = {"input_ids": tokens} | ({"attention_mask": tokens.ne(0).long()} if masked else {})
    batch: Any = SimpleNamespace(inputs=inputs, sample_ids=["a", "b"])
    assert ("opens with two begin tokens" in begun_twice(model, batch)) == told
    model.begin_id = None
    assert begun_twice(model, batch) == ""


def test_marks_that_are_no_special_tokens_are_told() -> None:
    """They count as text, and stand around rows of a picture (SOLO)."""
    words = ["<s>", "<vision>", "what", "<", "<vrow_sep>", "<image>", "< a >", "<|user|>"]
    parts = SimpleNamespace(fusion="in-sequence", text_embedding=None, image_token_ids=())
    model: Any = SimpleNamespace(
        model=nn.Module(), parts=parts, special_token_ids=[0, 7], token_text=words.__getitem__
    )
    batch: Any = SimpleNamespace(
        inputs={"input_ids": torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, -200]])}
    )
    assert unmarked(model, batch).startswith("<vision>, <vrow_sep> in prompts: no special tokens")
    batch.inputs["input_ids"] = torch.tensor([[0, 2, 3, 5, 7]])
    assert unmarked(model, batch) == ""
