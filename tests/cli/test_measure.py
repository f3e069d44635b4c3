"""What commands that measure do before they load anything."""

import pytest
from support.commands import invoke

from normprobe.cli import console


@pytest.mark.parametrize("wrong", [("./no_model",), ("specimen", "--data", "./no_data.jsonl")])
def test_a_wrong_path_is_told_before_torch_is_loaded(
    wrong: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def importing() -> None:
        raise AssertionError("torch is loaded first")

    monkeypatch.setattr(console, "lasting_imports", importing)
    told = invoke("layers", *wrong)
    assert told.exit_code == 1
    assert wrong[-1].removeprefix("./") in told.stderr
