"""What ``python -m normprobe`` does before there is a command line."""

import importlib
import sys

import pytest

from normprobe.__main__ import main


@pytest.mark.parametrize("installed", ["4.40.0", "5.2.0"])
def test_a_transformers_that_does_not_do_is_said_in_two_lines(
    installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("transformers"), "__version__", installed)
    monkeypatch.setitem(sys.modules, "normprobe.cli.app", None)  # an ImportError
    with pytest.raises(SystemExit, match=f"transformers {installed} is installed; expected 4.57"):
        main()


def test_another_import_that_fails_is_not_blamed_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "normprobe.cli.app", None)
    with pytest.raises(ImportError):
        main()
