"""``normprobe verify``: a finished run measured again, and what it says where that differs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cli.conftest import assert_two_lines
from PIL import Image
from support.commands import invoke
from support.kept_folder import keep, restore
from support.unrendered import save_placeholders
from typer.testing import Result

from normprobe import Probe
from normprobe.runs.run_folder import RunFolder
from normprobe.specimen import SPECIMEN_DIR

Run = Callable[..., Result]
Measured = Callable[..., Path]

SAMPLES = "samples/part-00000.parquet"


@pytest.mark.parametrize(
    "command",
    [
        ("interface", "-n", "2"),
        ("layers", "-n", "6", "-b", "4", "--dtype", "bfloat16"),
        pytest.param(("grounding", "-n", "4"), marks=pytest.mark.slow),
        pytest.param(
            ("layers", "-n", "6", "-b", "4", "--also", "branches"), marks=pytest.mark.slow
        ),
        pytest.param(("interface", "-n", "4", "--align", "table"), marks=pytest.mark.slow),
    ],
)
def test_a_run_measures_the_same_again(
    command: tuple[str, ...], run: Run, measured: Measured
) -> None:
    """Last bits depend on the other samples of a batch: it is the batch that the run had."""
    told = json.loads(run("verify", measured(*command), "--format", "json").stdout)
    assert told["equal"]
    assert told["changed"] == []
    table = pd.DataFrame(told["table"])
    assert table["sample_id"].nunique() == min(3, int(command[2]))
    assert table["numbers"].sum() > 100
    assert not table["different"].any()


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a picture of its own and a run of both."""
    folder = tmp_path_factory.mktemp("once") / "here"
    folder.mkdir()
    shutil.copytree(SPECIMEN_DIR, folder / "model")
    Image.effect_noise((48, 40), 50).convert("RGB").save(folder / "a.bmp")
    (folder / "own.jsonl").write_text(json.dumps({"id": 1, "prompt": "Which?", "image": "a.bmp"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        save_placeholders(patch)
        assert invoke("interface", "./model", "--data", "own.jsonl", "-o", "out").exit_code == 0
    return keep(folder)


@pytest.fixture
def here(once: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in which all is as it was."""
    monkeypatch.chdir(restore(once))
    return once


def differs(*arguments: object) -> str:
    result = invoke("verify", "out", *arguments)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    return " ".join(result.stdout.split())


def test_one_bit_of_a_number_is_found(here: Path) -> None:
    rows = pd.read_parquet(here / "out" / SAMPLES)
    value = rows.loc[3, "norm_mean"]
    rows.loc[3, "norm_mean"] = np.nextafter(value, np.inf)
    rows.to_parquet(here / "out" / SAMPLES)
    told = differs()
    assert "1 of " in told
    place = f"norm_mean of prompts/1, stage {rows.loc[3, 'stage']}, group {rows.loc[3, 'group']}"
    assert place in told
    assert "Nothing that the run recorded of model, data, libraries and device has changed." in told


def test_a_row_that_is_lost_is_found(here: Path) -> None:
    rows = pd.read_parquet(here / "out" / SAMPLES)
    rows.drop(index=2).to_parquet(here / "out" / SAMPLES)
    assert " rows " in differs()


def test_another_model_is_named_by_its_tensor(here: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = here / "model/model.safetensors"
    weights = load_file(file)
    (name,) = (key for key in weights if key.endswith("projector.linear_1.weight"))
    weights[name] *= 3
    save_file(weights, file, {"format": "pt"})
    told = differs()
    assert "Changed since: model: model.multi_modal_projector.linear_1.weight was " in told
    assert "has changed" not in told


def test_another_picture_is_named_by_its_sample(here: Path) -> None:
    Image.effect_noise((48, 40), 90).convert("RGB").save(here / "a.bmp")
    assert "Changed since: data: the picture of prompts/1 is another one" in differs()


def test_another_template_is_another_prompt(here: Path) -> None:
    template = here / "model/chat_template.jinja"
    template.write_text(template.read_text().replace("USER:", "USER says:"))
    told = differs()
    assert "Changed since: model: 0:chat_template.jinja was " in told
    assert "Changed since: data: the prompt of prompts/1 is another one" in told


def test_other_versions_are_told(here: Path) -> None:
    of_now = RunFolder.open(here / "out").record["versions"]
    RunFolder.open(here / "out").note(versions=of_now | {"torch": "1.0"}, device="cuda")
    result = invoke("verify", "out")
    assert result.exit_code == 0, result.output  # the numbers are the same all the same
    told = " ".join(result.stdout.split())
    assert "library: torch was 1.0, is 2." in told and "numpy was" not in told
    assert "device: device was cuda, is cpu" in told


def test_what_made_the_pixels_is_told(here: Path) -> None:
    """With torchvision, transformers takes another image processor, whose pixels are others."""
    run = RunFolder.open(here / "out")
    versions = run.record["versions"]
    assert versions["pillow"] and "torchvision" in versions
    assert run.record["processor"]["image_processor"].startswith("CLIPImageProcessor")
    run.note(
        versions=versions | {"torchvision": "0.1"},
        processor=run.record["processor"] | {"image_processor": "OtherImageProcessor"},
    )
    told = " ".join(invoke("verify", "out").stdout.split())
    assert f"library: torchvision was 0.1, is {versions['torchvision']}" in told
    assert "library: image_processor was OtherImageProcessor, is CLIPImageProcessor" in told


def test_another_image_processor_makes_other_pixels_of_the_same_picture(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.clip import image_processing_pil_clip as clip

    monkeypatch.setattr(clip.CLIPImageProcessorPil, "resample", 0)  # nearest, not bicubic
    real = clip.CLIPImageProcessorPil.preprocess
    monkeypatch.setattr(
        clip.CLIPImageProcessorPil,
        "preprocess",
        lambda self, *given, **named: real(self, *given, **{**named, "resample": 0}),
    )
    told = differs()
    assert "Changed since: data: the processed picture of prompts/1 is another one" in told
    assert "the picture of prompts/1 is another one" not in told


def test_batches_of_several_sizes_are_told(here: Path) -> None:
    """A run that went on with another batch size."""
    RunFolder.open(here / "out").note(batch_size=1, batch_sizes=[1, 4])
    result = invoke("verify", "out")
    assert result.exit_code == 0, result.output
    told = " ".join(result.stdout.split())
    assert "the run took 1 and 4 samples a batch, and these were measured with 1" in told


def test_what_cannot_be_measured_again_is_refused(
    here: Path, measured: Measured, tmp_path: Path
) -> None:
    assert_two_lines(invoke("verify", "model"), "model is not a run folder")
    assert_two_lines(invoke("verify", measured("embeddings")), "measures no samples")

    def changed(**facts: Any) -> Result:
        shutil.rmtree("other", ignore_errors=True)
        shutil.copytree("out", "other")
        opened = RunFolder.open(Path("other"))
        options = opened.record["options"] | facts.pop("options", {})
        opened.note(options=options, **facts)
        return invoke("verify", "other")

    assert_two_lines(changed(status="partial"), "other is not complete", "--resume")
    assert_two_lines(changed(options={"model": None}), "a model in memory")
    assert_two_lines(changed(sample_ids=[]), "inputs that were given")
    code = changed(options={"trust_remote_code": True})
    assert_two_lines(code, "was measured with --trust-remote-code", "pass --trust-remote-code")
    assert_two_lines(changed(options={"inputs": "own.py"}), "pass --inputs own.py")
    gone = changed(options={"data": str(tmp_path / "gone.jsonl")})
    assert_two_lines(gone, "--data: expected", "gone.jsonl")


def test_samples_that_the_data_lost_are_named(here: Path) -> None:
    (here / "own.jsonl").write_text(json.dumps({"id": 2, "prompt": "Which?", "image": "a.bmp"}))
    assert_two_lines(invoke("verify", "out"), "--data own.jsonl holds no sample prompts/1")


def test_in_python_only_some_samples_are_measured_in_their_batches() -> None:
    probe = Probe("specimen", dtype="bfloat16")
    whole = probe.layers(limit=5, batch_size=3, workers=0).samples
    ids = sorted(whole["sample_id"].unique())[::2]
    some = probe.layers(limit=5, batch_size=3, workers=0, only=ids).samples
    expected = whole[whole["sample_id"].isin(ids)].reset_index(drop=True)
    pd.testing.assert_frame_equal(some, expected, check_exact=True)
