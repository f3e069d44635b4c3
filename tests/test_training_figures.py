"""The figure of a training: what reaches the loggers that take pictures."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.tiny_inputs import SPECIAL_IDS, collate, tiny_inputs, tiny_samples
from support.tiny_models import tiny_model
from transformers import Trainer, TrainingArguments
from transformers.integrations import WandbCallback

from normprobe import NormProbeCallback, load_run
from normprobe.report.figures.draw import png

TAG = "train/normprobe/layers"


def train(folder: Path, *loggers: Any, report_to: str = "none") -> None:
    """Two steps, measured before the first and after the last."""
    model = tiny_model("llava")
    data = [{**sample, "labels": sample["input_ids"].clone()} for sample in tiny_samples(model, 4)]
    arguments = TrainingArguments(
        str(folder / "trainer"),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=report_to,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(
        model, arguments, train_dataset=data, data_collator=collate, callbacks=[*loggers]
    )
    inputs, output = tiny_inputs(model, 3), folder / "runs"
    trainer.add_callback(
        NormProbeCallback(trainer, inputs, every=2, output=output, special_token_ids=SPECIAL_IDS)
    )
    trainer.train()


def drawn(folder: Path, step: int) -> np.ndarray:
    """The figure of the run folder of a step, in pixels."""
    figure = load_run(folder / f"runs/step-{step:06d}").figure("layers")
    return np.asarray(Image.open(io.BytesIO(png(figure, dpi=100))).convert("RGB"))


@pytest.mark.slow
def test_tensorboard_gets_the_figure_of_each_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    train(tmp_path, report_to="tensorboard")
    events = reading.EventAccumulator(str(tmp_path / "events")).Reload()
    images = events.Images(TAG)
    assert [image.step for image in images] == [0, 2]
    for image in images:
        pixels = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
        np.testing.assert_array_equal(pixels, drawn(tmp_path, image.step))


class Logger(WandbCallback):
    """The Trainer's logger of Weights & Biases, without an account."""

    def __init__(self) -> None: ...

    def setup(self, *_: Any, **__: Any) -> None: ...

    on_train_begin = on_train_end = on_log = setup


def test_weights_and_biases_gets_it_where_the_trainer_logs_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Image=np.asarray, log=logged.append))
    train(tmp_path, Logger())
    assert [entry["train/global_step"] for entry in logged] == [0, 2]
    for entry in logged:
        np.testing.assert_array_equal(entry[TAG], drawn(tmp_path, entry["train/global_step"]))


def test_nothing_is_drawn_for_loggers_of_numbers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(log=lambda _: pytest.fail("logged")))
    monkeypatch.setattr("normprobe.run.Run.figure", lambda *_: pytest.fail("drawn"))
    train(tmp_path)
