"""The README shows what the commands print."""

import re
from pathlib import Path

import pytest
from support.documents import DOCS, ROOT, loaded, name, pages
from typer.testing import CliRunner

from normprobe.cli.app import COMMANDS, app

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS_PAGE = (DOCS / "reference/commands.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"^\[?(-?\d+(\.\d+)?)[],]?$")


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_the_table_is_what_layers_prints(tmp_path: Path) -> None:
    block = README.split("<!-- layers -->\n```text\n")[1].split("```\n<!-- /layers -->")[0]
    printed = CliRunner().invoke(app, ["layers", "--output", str(tmp_path / "run")]).stdout
    shown, measured = block.split(), printed.split()
    assert len(shown) == len(measured), printed
    for there, here in zip(shown, measured, strict=True):
        if number := NUMBER.match(there):  # bfloat16 kernels of other processors differ a little
            (found,) = re.findall(r"-?(?:[\d.]+\d|\d)", here)
            rounding = 0.0 if "." in there else 1.0  # whole percents
            expected = pytest.approx(float(number[1]), rel=0.02, abs=rounding)
            assert float(found) == expected, printed
        else:
            assert there == here


@pytest.mark.slow
def test_the_weights_of_a_7b_are_those_of_its_headers() -> None:
    block = README.split("<!-- weights -->\n")[1].split("<!-- /weights -->")[0]
    assert block == loaded(ROOT / ".ci/readme.py").weights_block(), "run `make readme`"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_is_documented(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"normprobe {command}" in COMMANDS_PAGE


@pytest.mark.slow
def test_the_python_block_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = README.split("<!-- python -->\n```python\n")[1].split("```\n<!-- /python -->")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "as large as that of text tokens" in printed
    assert "Largest norm disparity: " in printed
    assert (tmp_path / "layers.png").is_file()
    assert (tmp_path / "runs/before/layers.csv").is_file()


def test_the_first_screen_shows_what_it_is_for() -> None:
    first = README.splitlines()[:60]
    begins = ("git clone", "pip install", "uvx --from", "| question |", "![", "**How to read it.**")
    for start in (*begins, "**Found so far.**"):
        assert any(line.startswith(start) for line in first), start
    assert any("other-tools.md" in line for line in README.splitlines()[:100])


def test_what_is_found_is_what_the_results_say() -> None:
    results = " ".join((DOCS / "explanation/results.md").read_text(encoding="utf-8").split())
    found = " ".join(README.partition("**Found so far.**")[2].partition("```")[0].split())
    said = ("255 times", "9 to 540 times more slowly", "layers 13 to 28", "5.7", "layer 4")
    assert all(each in found and each in results for each in said)


def test_every_command_of_the_table_is_one() -> None:
    table = [line for line in README.splitlines() if line.startswith("| ") and "normprobe " in line]
    named = {word for line in table for word in re.findall(r"`normprobe (\w+)", line)}
    assert len(named) > 8 and named <= set(COMMANDS)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("page", pages(), ids=name)
def test_files_that_a_page_links_are_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
