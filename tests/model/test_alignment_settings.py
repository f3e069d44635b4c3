"""What adapters and checkpoints of aligned models say of their norm, whole and broken."""

import json
from pathlib import Path

import pytest
from support.tiny_models import tiny_model

from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.config import (
    ADAPTER_CONFIG,
    CONFIG_ENTRY,
    AlignmentSettings,
    adapter_settings,
    write_adapter_settings,
)

ENTRY = {"after": "model.multi_modal_projector", "compensate": True}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tiny_model("llava").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapter(folder: Path, base: Path) -> AlignmentSettings:
    folder.mkdir()
    settings = AlignmentSettings(
        **ENTRY, folder=folder, base_model=str(base), model_type="llava", hidden_size=32
    )
    write_adapter_settings(settings)
    return settings


def test_an_adapter_says_what_was_written(base: Path, tmp_path: Path) -> None:
    settings = adapter(tmp_path / "adapter", base)
    assert adapter_settings(tmp_path / "adapter") == settings
    assert list(json.loads((tmp_path / "adapter" / ADAPTER_CONFIG).read_text())) == [
        "base_model",
        "revision",
        "model_type",
        "hidden_size",
        "after",
        "compensate",
    ]


def test_an_adapter_opens_its_base_and_the_checkpoint_carries_the_settings(
    base: Path, tmp_path: Path
) -> None:
    settings = adapter(tmp_path / "adapter", base)
    checkpoint = open_checkpoint(str(tmp_path / "adapter"))
    assert checkpoint.name == "adapter"
    assert checkpoint.source == str(base)
    assert checkpoint.alignment == settings
    assert checkpoint.local_folders == [str(base), str(tmp_path / "adapter")]


def test_a_checkpoint_of_an_aligned_model_says_so_in_its_config(base: Path) -> None:
    assert open_checkpoint(str(base)).alignment is None
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {CONFIG_ENTRY: ENTRY}))
    checkpoint = open_checkpoint(str(base))
    assert checkpoint.alignment == AlignmentSettings(**ENTRY)
    assert checkpoint.local_folders == [str(base)]


@pytest.mark.parametrize("entry", [{}, {"after": "x"}, "x", [1]])
def test_a_broken_entry_is_refused(entry: object, base: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {CONFIG_ENTRY: entry}))
    with pytest.raises(NormprobeError, match="expected after and compensate"):
        open_checkpoint(str(base))


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "{}", json.dumps(ENTRY)])
def test_a_broken_adapter_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / ADAPTER_CONFIG).write_text(content)
    with pytest.raises(NormprobeError, match=f"cannot read .*{ADAPTER_CONFIG}") as failure:
        open_checkpoint(str(tmp_path))
    assert "normprobe align" in failure.value.remedy


def test_a_folder_without_settings_is_no_adapter(base: Path) -> None:
    assert adapter_settings(base) is None
    assert adapter_settings(base / "nowhere") is None
