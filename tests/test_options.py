"""What the Tab key and the error of a model that is not there propose; what options hand on."""

from pathlib import Path

import pytest

from normprobe.options import Sampling, models_here


@pytest.mark.parametrize(
    ("typed", "beside"),
    [("", ["mine", "small.gguf"]), ("./", ["./mine", "./small.gguf"]), ("sub/m", ["sub/other"])],
)
def test_models_are_proposed_as_they_are_typed(
    typed: str, beside: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("mine/config.json", "small.gguf", "sub/other/config.json", "notes/config.txt"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    assert models_here(typed) == ["specimen", *beside]


def test_which_samples_are_drawn_is_handed_on() -> None:
    asked = {"prompt": "What?", "limit": 3, "seed": 7, "skip_bad": True}
    assert Sampling(**asked).draw == asked  # type: ignore[arg-type]
