"""Known failures: two lines, an exit code, nothing half-written."""

import json
import shutil
import signal
import socket
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from cli.conftest import assert_two_lines
from safetensors.torch import load_file, save_file
from support.commands import Forked, spawned
from typer.testing import Result

from normprobe.data.data_set import bundled_data_dir
from normprobe.errors import NormprobeError
from normprobe.probe import Probe
from normprobe.run import load_run
from normprobe.specimen import SPECIMEN_DIR

Run = Callable[..., Result]
COMMANDS = ["interface", "layers", "embeddings"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the specimen to damage."""
    return Path(shutil.copytree(SPECIMEN_DIR, tmp_path / "model"))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_folder_that_exists(command: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("mine")
    assert_two_lines(run(command, "-o", "out"), "out exists", "--overwrite")
    assert_two_lines(run(command, "-o", "out", "--overwrite"), "not a run folder")
    assert (tmp_path / "out/thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("command", [*COMMANDS, "inspect"])
def test_a_model_that_is_not_there(command: str, run: Run, tmp_path: Path) -> None:
    assert_two_lines(run(command, "./nowhere"), "./nowhere")
    assert_two_lines(run(command, "nobody/nothing"), "nobody/nothing", "HF_HUB_OFFLINE")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", ["layers specimen -n 1", "show out", "check specimen"])
def test_a_working_folder_that_was_deleted(
    words: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert_two_lines(run(*words.split()), "the working folder is not there any more")


def test_a_folder_without_a_config(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_two_lines(run("layers", "./empty"), "config.json")


def test_a_model_type_nobody_knows(run: Run, checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "unheard_of"}')
    assert_two_lines(run("layers", checkpoint), "unheard_of", "upgrade transformers")


def test_code_that_is_not_trusted(run: Run, checkpoint: Path) -> None:
    config = {"model_type": "homemade", "auto_map": {"AutoConfig": "configuration.Homemade"}}
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "configuration.py").write_text("raise SystemExit('ran')")
    assert_two_lines(run("layers", checkpoint), "--trust-remote-code")


def test_a_missing_tensor_is_named(run: Run, checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    name = next(key for key in weights if "multi_modal_projector" in key and "weight" in key)
    del weights[name]
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    result = run("interface", checkpoint, "-n", "1", "-o", "out")
    assert_two_lines(result, name.split(".", 1)[-1], "random")
    assert not (checkpoint.parent / "out").exists()


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"]
)
def test_a_weight_file_that_is_none(content: bytes, run: Run, checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(content)
    assert_two_lines(run("embeddings", checkpoint), "model")


def spoil(checkpoint: Path, part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change one tensor of a saved model."""
    weights = load_file(checkpoint / "model.safetensors")
    key = next(key for key in weights if part in key)
    weights[key] = change(weights[key])
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("embed_tokens", lambda w: torch.ones(5, 128), ["saved [5, 128]", "expected [433, 128]"]),
        ("embed_tokens", lambda w: w * torch.nan, ["NaN or infinity", "embed_tokens.weight"]),
        ("embed_tokens", lambda w: w.to(torch.float8_e5m2), ["embed_tokens.weight (F8_E5M2)"]),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_weight_that_cannot_be_measured(
    command: str, part: str, change: Any, words: list[str], run: Run, checkpoint: Path
) -> None:
    spoil(checkpoint, part, change)
    assert_two_lines(run(command, checkpoint, "-o", "out"), *words)
    assert not (checkpoint.parent / "out").exists()


def test_overwriting_with_a_model_that_cannot_be_loaded_keeps_the_older_run(
    run: Run, checkpoint: Path, tmp_path: Path
) -> None:
    assert run("layers", checkpoint, "-n", 1, "-o", "out").exit_code == 0
    before = {file: file.read_bytes() for file in Path("out").rglob("*") if file.is_file()}
    (checkpoint / "model.safetensors").write_bytes(b"cut off")
    refused = run("layers", checkpoint, "-n", 1, "-o", "out", "--overwrite")
    assert_two_lines(refused, "model.safetensors", "cannot be read")
    assert {f: f.read_bytes() for f in Path("out").rglob("*") if f.is_file()} == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_truncated_weight_file_is_named(command: str, run: Run, checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100_000])
    assert_two_lines(run(command, checkpoint, "-o", "out"), "model.safetensors", "cannot be read")
    assert not (checkpoint.parent / "out").exists()


def test_a_shard_that_is_missing_is_named(run: Run, checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "somewhere.safetensors")
    keys = load_file(checkpoint / "somewhere.safetensors")
    index = {"weight_map": dict.fromkeys(keys, "model-00001-of-00001.safetensors")}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_two_lines(run("layers", checkpoint, "-o", "out"), "model-00001-of-00001.safetensors")
    assert not (checkpoint.parent / "out").exists()


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_a_package_that_only_this_checkpoint_needs(run: Run, checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (checkpoint / "config.json").write_text(json.dumps(config))
    result = run("embeddings", str(checkpoint))
    assert_two_lines(result, "bitsandbytes", "install the package that it names")


def test_an_adapter_for_nothing_here(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    config = {"base_model_name_or_path": str(checkpoint), "peft_type": "LORA"}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    result = run("layers", "./adapter", "-o", "out")
    assert_two_lines(result, "the adapter adapter does not fit", "adapter_config.json")
    assert not (tmp_path / "out").exists()


def test_a_language_model_has_no_use_for_images(run: Run, tmp_path: Path) -> None:
    from support.tiny_models import tiny_model

    tiny_model("llama").save_pretrained(tmp_path / "llama")
    assert_two_lines(run("layers", "./llama"), "--data text", "normprobe interface")


def test_a_model_of_videos_alone(run: Run, tmp_path: Path) -> None:
    from support.tiny_models import tiny_model

    tiny_model("instructblipvideo").config.save_pretrained(tmp_path / "model")
    assert_two_lines(run("layers", "./model"), "reads videos")
    assert not (tmp_path / "runs").exists()
    assert run("inspect", "./model").exit_code == 0


def test_a_device_nobody_has(run: Run) -> None:
    assert_two_lines(run("layers", "-n", "1", "--device=tpu:9"), "tpu:9")


def test_data_that_is_not_there(run: Run, tmp_path: Path) -> None:
    assert_two_lines(run("layers", "--data", "./nowhere.tsv"), "nowhere.tsv")
    assert not (tmp_path / "runs").exists()


def test_hub_data_offline_names_the_way_out(run: Run) -> None:
    assert_two_lines(run("layers", "--data", "mmbench"), "--data sample")


def test_a_column_that_is_missing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text("index\tquestion\n1\twhat?\n")
    assert_two_lines(run("layers", "--data", "bad.tsv"), "bad.tsv", "image")


def test_an_image_that_is_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.jpg").write_text("no image")
    line = {"question_id": 1, "image": "a.jpg", "text": "Is it?", "label": "yes"}
    (tmp_path / "bad.jsonl").write_text(json.dumps(line) + "\n")
    assert_two_lines(run("layers", "--data", "bad.jsonl", "-o", "out"), "a.jpg")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_keeps_what_is_there(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from normprobe.runs import collecting
    from normprobe.runs import run_folder as run_folder

    monkeypatch.setattr(collecting, "SECONDS_A_PART", 0.0)
    written: list[Path] = []
    real = run_folder.write_by_rename

    def full_after_two_parts(path: Path, data: bytes) -> None:
        if path.suffix == ".parquet":
            written.append(path)
            if len(written) > 2:
                path.parent.joinpath("no space")  # what the disk says is tested with run_folder
                raise run_folder.NormprobeError(f"no space left in {path.parent}", "free some")
        real(path, data)

    monkeypatch.setattr(run_folder, "write_by_rename", full_after_two_parts)
    assert_two_lines(run("layers", "-n", "4", "-o", "out"), "no space left")
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "partial"
    assert len(list(tmp_path.glob("out/samples/part-*.parquet"))) == 2
    assert not list(tmp_path.glob("out/**/*.tmp*"))
    assert not (tmp_path / "out/layers.csv").exists()


def test_ctrl_c_keeps_the_complete_parts(start: Callable[..., Forked], tmp_path: Path) -> None:
    shutil.copy(bundled_data_dir() / "images" / "coffee.jpg", tmp_path / "a.jpg")
    # So many that the first part is not the last one.
    lines = [{"id": n, "image": "a.jpg", "prompt": f"Is it {n}?"} for n in range(600)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    process = start("layers", "--data", "data.jsonl", "-b", "1", "-o", "out")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out/samples/part-*.parquet")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.wait(timeout=0).stderr
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    ended = process.wait(timeout=30)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert "interrupted: what was measured is in out" in ended.stderr
    assert "normprobe layers --data data.jsonl -b 1 -o out --resume" in ended.stderr
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "partial"
    for part in tmp_path.glob("out/samples/*"):
        assert part.suffix == ".parquet"
        assert not pd.read_parquet(part).empty


def test_debug_lets_the_traceback_through(
    start: Callable[..., Forked],
) -> None:
    ended = start("layers", "./nowhere", NORMPROBE_DEBUG="1").wait(timeout=60)
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr


def test_usage_errors_end_with_two(run: Run) -> None:
    assert run("layers", "--no-such-option").exit_code == 2
    assert run("layers", "--batch-size", "0").exit_code == 2


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("layers specimin", "did you mean specimen?"),
        ("layers ./modelx", "did you mean ./model?"),
        ("layers --data sampl", "did you mean sample?"),
        ("layers --data ./modelx", "did you mean model?"),
        ("layers --data pope:rndom", "did you mean random?"),
        ("layers --also brnches", "did you mean branches?"),
        ("layers --part vision_encoder=model.vision_towr", "did you mean model.vision_tower or"),
        ("paper tabel2", "did you mean table2 or"),
    ],
)
def test_a_name_that_is_not_known_is_met_with_the_nearest(
    words: str, near: str, run: Run, checkpoint: Path
) -> None:
    assert_two_lines(run(*words.split()), near)


def test_tables_columns_and_measurements_too(measured: Callable[..., Path], run: Run) -> None:
    folder = measured("layers", "-n", "2")
    assert_two_lines(run("show", folder, "--table", "thery"), "did you mean theory?")
    with pytest.raises(NormprobeError, match=r"did you mean layers\?"):
        load_run(folder).figure("layrs")
    with pytest.raises(NormprobeError, match=r"did you mean norm_ratio_to_text"):
        load_run(folder).readable(columns=["norm_ratio_to_txt"])
    with pytest.raises(NormprobeError, match=r"did you mean interface\?"):
        Probe("specimen").measure("interfaces")


def test_a_failure_is_an_object_where_json_was_asked_for(run: Run) -> None:
    result = run("layers", "./nowhere", "--format", "json")
    assert result.exit_code == 1
    problem, remedy = (line.removeprefix("error:").strip() for line in result.stderr.splitlines())
    assert json.loads(result.stdout) == {"error": {"problem": problem, "remedy": remedy}}


@pytest.mark.slow  # it waits
@pytest.mark.parametrize("endpoint", ["refuses", "is silent"])
def test_a_hub_that_does_not_answer_is_told_of_within_seconds(
    endpoint: str, tmp_path: Path
) -> None:
    """Its library would try for more than a minute."""
    with socket.create_server(("127.0.0.1", 0)) as hub:
        port = hub.getsockname()[1]
        if endpoint == "refuses":
            hub.close()
        online = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": f"http://127.0.0.1:{port}"}
        home = {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
        began = time.monotonic()
        ended = spawned(tmp_path, ["inspect", "org/model"], online | home)
    assert_two_lines(ended, "cannot find the model 'org/model'", "does not answer")
    assert time.monotonic() - began < 60  # ten, and a busy machine
