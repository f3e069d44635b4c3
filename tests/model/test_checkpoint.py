"""From a name to a checkpoint and the kind of model that it holds."""

from pathlib import Path

import pytest
from support.tiny_models import tiny_model

from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import (
    LANGUAGE_MODEL,
    VISION_ENCODER,
    VISION_LANGUAGE,
    open_checkpoint,
)


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [
        ("llava", VISION_LANGUAGE),
        ("qwen2_vl", VISION_LANGUAGE),
        ("clip", VISION_ENCODER),
        ("siglip", VISION_ENCODER),
        ("llama", LANGUAGE_MODEL),
        ("qwen3", LANGUAGE_MODEL),
    ],
)
def test_a_saved_model_is_opened(model_type: str, kind: str, tmp_path: Path) -> None:
    tiny_model(model_type).save_pretrained(tmp_path / "saved")
    checkpoint = open_checkpoint(str(tmp_path / "saved"))
    assert checkpoint.kind == kind
    assert checkpoint.name == "saved"
    assert checkpoint.local_folders == [str(tmp_path / "saved")]


def test_a_file_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(NormprobeError, match="is a file") as failure:
        open_checkpoint(str(tmp_path / "weights.bin"))
    assert str(tmp_path) in failure.value.remedy
