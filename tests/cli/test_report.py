"""``normprobe report`` and ``show``: one file, and tables, from run folders alone."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from cli.conftest import assert_two_lines
from support import made_tables
from support.made_runs import run_folder
from support.read_latex import read_latex
from typer.testing import Result


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "one", "layers", layers=made_tables.layers())


def test_the_command_writes_one_file_and_keeps_another(
    run: Callable[..., Result], layers: Path, tmp_path: Path
) -> None:
    output = tmp_path / "page.html"
    arguments = ["report", layers, "-o", output]
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    assert first.stdout == f"{output}\n"
    assert output.read_text().startswith("<!doctype html>")
    again = run(*arguments)
    assert again.exit_code == 1
    assert "--overwrite" in again.stderr
    assert run(*arguments, "--overwrite").exit_code == 0
    no_run = run("report", tmp_path / "none", "-o", f"{output}.new")
    assert no_run.exit_code == 1
    assert "no such folder" in no_run.stderr


def test_a_folder_of_runs_is_reported_in_the_order_in_which_they_were_begun(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    """Such as the folder of a demo, whose names are in another order."""
    for place, (name, command) in enumerate((("z", "interface"), ("a", "layers"), ("b", "other"))):
        record = {"created": f"2026-01-0{place + 1}T00:00:00+00:00"}
        table = {command: getattr(made_tables, command)()} if command != "other" else {}
        run_folder(tmp_path / "demo" / name, command, record=record, **table)
    (tmp_path / "demo" / "notes").mkdir()
    (tmp_path / "demo" / "link").symlink_to(tmp_path / "demo" / "a")
    done = run("report", tmp_path / "demo", "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    titles = re.findall(r'<h2 id="title-[^"]*">(.*?)</h2>', (tmp_path / "page.html").read_text())
    assert titles == ["interface", "layers", "other", "Provenance"]
    printed = run("show", tmp_path / "demo", "--format", "md").stdout
    assert printed.index("interface") < printed.index("layers")
    nothing = run("report", tmp_path / "demo" / "notes", "-o", tmp_path / "none.html")
    assert_two_lines(nothing, "notes holds no run folder", "give the folder")


def test_the_tables_of_any_runs_are_printed_to_paste(
    run: Callable[..., Result], layers: Path, tmp_path: Path
) -> None:
    record = {"model": "org/two\n\\input{x}", "data": "mmbench"}
    tables = {"interface": made_tables.interface(), "published": pd.DataFrame({"a": [0.5]})}
    other = run_folder(tmp_path / "two", "interface", record=record, **tables)
    done = run("show", layers, other, "--format", "tex", "--table=layers", "--table=interface")
    assert done.exit_code == 0, done.output
    pieces = done.stdout.split("\n\n")
    read = [read_latex(piece) for piece in pieces]
    assert [(table.caption, table.label) for table in read] == [
        ("layers: one", "one"),
        ("interface: org/two\\x0a\\input{x}, mmbench", "two"),
    ]
    assert done.stdout == run("show", layers, other, "--format", "tex").stdout  # main tables
    made = (made_tables.layers(), tables["interface"])
    assert [len(table.rows) for table in read] == [2 + made[0]["layer"].nunique(), 1 + len(made[1])]
    chosen = run("show", layers, other, "--format", "md", "--table", "published")
    assert chosen.stdout.startswith("**interface: org/two")
    assert chosen.stdout.splitlines()[0].endswith(", mmbench, published**")
    assert chosen.stdout.count("\n|") == 3


@pytest.mark.parametrize("form", ["csv", "json"])
def test_csv_and_json_hold_one_table(
    form: str, run: Callable[..., Result], layers: Path, tmp_path: Path
) -> None:
    tables = {"interface": made_tables.interface(), "published": pd.DataFrame({"a": [0.5, 2.0]})}
    other = run_folder(tmp_path / "two", "interface", **tables)
    for words, told in (
        ((layers, other), (f"--format {form} prints one table, received 2", "layers, interface")),
        ((other, "--table", "nothing"), ("no run holds a table nothing", "interface, published")),
    ):
        refused = run("show", *words, "--format", form)
        if form == "json":  # says it on stdout, too
            assert json.loads(refused.stdout)["error"]["problem"] == told[0]
            refused.stdout_bytes = b""
        assert_two_lines(refused, *told)
    one = run("show", other, "--format", form, "--table", "published").stdout
    json_rows = json.loads(one)["table"] if form == "json" else None
    read = pd.read_csv(io.StringIO(one)) if form == "csv" else pd.DataFrame(json_rows)
    pd.testing.assert_frame_equal(read, tables["published"])
    assert run("show", other, "--format", form).exit_code == 0


def test_a_report_loads_no_torch(layers: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from normprobe.cli.app import app;"
        f"CliRunner().invoke(app, ['report', {str(layers)!r}, '-o', {str(tmp_path / 'p.html')!r}]);"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert (tmp_path / "p.html").is_file()
