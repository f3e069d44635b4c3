"""The public API: what importing costs, and that every name arrives."""

import subprocess
import sys

import pytest

import normprobe


def test_importing_the_package_and_its_command_line_loads_no_torch() -> None:
    code = (
        "import sys, normprobe, normprobe.cli.app;"
        "print([m for m in ('torch', 'transformers', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", normprobe.__all__)
def test_every_public_name_arrives(name: str) -> None:
    assert getattr(normprobe, name).__module__.startswith("normprobe")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        normprobe.no_such_thing  # noqa: B018


def test_dir_shows_the_public_names_alone() -> None:
    names = set(dir(normprobe))
    assert set(normprobe.__all__) <= names
    assert {name for name in names if not name.startswith("__")} == set(normprobe.__all__)
