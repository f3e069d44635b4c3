"""Extensions: what a package adds, one that is broken, and the example of the documentation."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from support.documents import DOCS, ROOT, blocks
from typer.testing import CliRunner

from normprobe import Probe, compare, load_run, measurements, registry
from normprobe.cli.app import all_commands
from normprobe.inputs.inputs_file import family_file
from normprobe.run import page_of

PAGE = DOCS / "how-to/extension.md"
FILES = {block.value: block.text for block in blocks(PAGE) if block.mark == "file"}
OURS = registry.entry_points(group=registry.GROUP)
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a module on the path, and its ``EXTENSION`` among the entry points."""
    points = [*OURS]

    def forget() -> None:
        registry.extensions.cache_clear()
        measurements.measurements.cache_clear()

    def added(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        points.append(EntryPoint(name, f"{name}:EXTENSION", registry.GROUP))
        forget()

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    yield added
    for name in {point.name for point in points} & {*sys.modules}:
        del sys.modules[name]
    monkeypatch.undo()
    forget()


def commands() -> dict[str, str]:
    """The panel of each command."""
    return {name: panel for panel, name, _ in all_commands()}


def test_the_example_is_short() -> None:
    """As a reader counts: 60 lines of Python that say something."""
    text = FILES["normprobe_lengths.py"].splitlines()
    assert len([line for line in text if line.strip()]) <= 60


def test_the_example_measures_is_shown_and_compared(install: Install, tmp_path: Path) -> None:
    install("normprobe_lengths", FILES["normprobe_lengths.py"])
    assert commands()["lengths"] == registry.MEASURE
    runs = [
        Probe("specimen").lengths(limit=limit, output=tmp_path / str(limit)) for limit in (3, 4)
    ]
    table = runs[0].table.set_index("group")["mean"]
    assert table["visual"] == 64
    assert str(runs[0].verdict) == f"Most tokens of a prompt are text: {table['text']:.1f}."
    assert "lengths" in page_of([load_run(tmp_path / "3")])
    side = compare([tmp_path / "3", tmp_path / "4"])
    ranked = side.table.query("quantity == 'length'")
    assert [*ranked["mean"]] == [64.0, 64.0]
    assert "visual tokens a prompt" in page_of([side])


def test_the_example_is_a_command(install: Install, tmp_path: Path) -> None:
    install("normprobe_lengths", FILES["normprobe_lengths.py"])
    application = typer.Typer()
    for _, name, command in all_commands():
        application.command(name)(command)
    words = ["lengths", "specimen", "-n", "3", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(application, words)
    assert result.exit_code == 0, result.output
    assert "Most tokens of a prompt are text" in result.stdout
    assert CliRunner().invoke(application, [*words, "--resume"]).exit_code == 0


BROKEN = {
    "cannot be imported": "import no_such_module_anywhere",
    "ends in the middle": "class Extension(",
    "is no extension": "EXTENSION = 7",
    "names nothing": "",
    "leaves": "raise SystemExit(3)",
    "has a panel without a name": """
from normprobe.registry import Extension
class Broken(Extension):
    panel = ["Mine"]
EXTENSION = Broken()
""",
    "has a measurement without a summary": """
from normprobe.measurements.measurement import SampleMeasurement
from normprobe.registry import Extension
class Empty(SampleMeasurement):
    name = "empty"
class Broken(Extension):
    def measurements(self):
        return (Empty(),)
EXTENSION = Broken()
""",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_one_costs_a_warning(
    text: str, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    before = commands()
    install("normprobe_broken", text)
    assert commands() == before
    (record,) = caplog.records
    assert "the extension normprobe_broken of an unknown package is left out" in record.message
    assert "cause" in measurements.measurements()


LATE = """
from normprobe.registry import Extension
class Late(Extension):
    def commands(self):
        import no_such_module_anywhere
    def methods(self):
        raise SystemExit(3)
    def inputs_file(self, config):
        raise ValueError("no such config")
EXTENSION = Late()
"""


def test_one_that_breaks_when_it_is_asked_costs_a_warning_too(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    before = commands()
    install("normprobe_late", LATE)
    assert commands() == before
    assert family_file({"model_type": "molmo", "architectures": ["MolmoForCausalLM"]}).build
    assert callable(Probe("specimen").attention)
    with pytest.raises(AttributeError, match="Probe has no mine"):
        Probe("specimen").mine()
    told = {record.message for record in caplog.records}
    for error in ("ModuleNotFoundError: No module", "SystemExit: 3", "ValueError: no such config"):
        said = f"the extension normprobe_late is left out: {error}"
        assert any(said in message for message in told), told


UNTAKEABLE = """
from normprobe.registry import Extension
def weigh(of: dict[str, object], to: "nowhere.Known"):
    'Weigh a model.'
def cut(model: str = "specimen"):
    'Cut [/a model].'
def count(model: str = "specimen"):
    'Count [a model].'
class Untakeable(Extension):
    panel = "Mine"
    def commands(self):
        return {"weigh": weigh, "cut": cut, "count": count, "nothing": 7}
EXTENSION = Untakeable()
"""


def test_a_command_that_typer_cannot_take_costs_a_warning(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    before = commands()
    install("normprobe_untakeable", UNTAKEABLE)
    application = typer.Typer()
    for panel, name, command in all_commands():
        application.command(name, rich_help_panel=panel)(command)
    for words in (["--help"], ["count"]):
        result = CliRunner().invoke(application, words)
        assert result.exit_code == 0, result.output
    assert commands() == {**before, "count": "Mine"}
    told = " ".join(record.message for record in caplog.records)
    for name in ("weigh", "cut", "nothing"):
        assert f"the command {name} of normprobe_untakeable is left out: " in told


TAKES = """
from normprobe.measurements.measurement import Measurement
from normprobe.registry import Extension
class Taken(Measurement):
    def __init__(self, name):
        self.name = name
class Greedy(Extension):
    panel = "Mine"
    def measurements(self):
        return Taken("layers"), Taken("cause"), Taken("mine")
    def commands(self):
        return {"compare": print, "check": print, "mine": print}
    def methods(self):
        return {"attention": print, "mine": lambda probe, word: f"{word} {probe.name}"}
EXTENSION = Greedy()
"""


def test_names_that_are_taken_are_not_replaced(install: Install) -> None:
    before, known = commands(), measurements.measurements()
    install("normprobe_greedy", TAKES)
    assert commands() == {**before, "mine": "Mine"}
    assert all(function is not print for _, name, function in all_commands() if name != "mine")
    found = measurements.measurements()
    assert {type(found[name]) for name in known} == {type(each) for each in known.values()}
    assert [*found] == [*known, "mine"]
    assert Probe("specimen").mine("my") == "my specimen"
    assert "mine" in dir(Probe("specimen"))


def test_an_installation_of_an_older_release_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As behind a pull in an editable one: its metadata know no extension."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    assert registry.extensions.__wrapped__() == []
    (record,) = caplog.records
    assert "install it anew" in record.message


def test_what_nobody_has_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="Probe has no mine, nor has an extension"):
        Probe("specimen").mine()


@pytest.mark.slow
def test_the_example_is_installed_and_run(tmp_path: Path) -> None:
    """As its page says, into a folder of its own."""
    package, site = tmp_path / "package", tmp_path / "site"
    package.mkdir()
    for name, text in FILES.items():
        (package / name).write_text(text, encoding="utf-8")
    words = ["pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, "-m", *words, str(package)], check=True)
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}

    def normprobe(*words: str) -> str:
        command = [sys.executable, "-m", "normprobe", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
        )
        return done.stdout

    assert "lengths     How many tokens of each group a prompt has." in normprobe("--help")
    told = normprobe("lengths", "specimen", "-n", "2", "-o", "run")
    assert "Most tokens of a prompt are text: " in told
    normprobe("report", "run", "-o", "page.html")
    assert "Most tokens of a prompt are text" in (tmp_path / "page.html").read_text("utf-8")
