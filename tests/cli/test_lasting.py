"""What a command imports lasts, and no more is imported than it needs."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import spawned

from normprobe.cli.console import lasting_imports

#: Packages that only other data, other models or other ways to draw need.
FOREIGN = ("datasets", "matplotlib.pyplot", "peft", "sklearn", "tensorflow", "timm", "torchvision")

START = """
import gc, sys
assert "torch" not in sys.modules
from normprobe.cli.console import lasting_imports
try:
    with lasting_imports():
        assert not gc.isenabled()
        {body}
except ImportError:
    pass
print(gc.isenabled(), gc.get_freeze_count() > 0)
"""

MEASURE = """
import gc, sys
from normprobe.cli.app import app
app(["layers", "specimen", "-n", "1", "-q", "-o", sys.argv[1]], standalone_mode=False)
print(gc.isenabled(), gc.get_freeze_count() > 100_000, file=sys.stderr)
print([name for name in {foreign} if name in sys.modules], file=sys.stderr)
"""

#: As triton of torch for CUDA: its nanobind counts, when Python ends, what was never freed. What
#: hangs on ``sys`` goes last.
COUNTING = """
import os, sys, types
alive = ["one"]
class Counted(list):
    def __del__(self, alive=alive):
        alive.clear()
class AtTheEnd:
    def __del__(self, alive=alive, write=os.write):
        if alive:
            write(2, b"leaked 1 instance!\\n")
sys.at_the_end = AtTheEnd()
held = sys.modules["held"] = types.ModuleType("held")
held.counted = Counted()
held.counted.append(held.counted)  # the garbage collector alone frees it
del held
"""


def in_a_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)


@pytest.mark.parametrize(
    ("body", "said"), [("import json", "True True"), ("import no_such_package", "True False")]
)
def test_imports_are_out_of_the_collectors_sight_and_it_works_again(body: str, said: str) -> None:
    assert in_a_process(START.format(body=body)).stdout.strip() == said


def test_where_torch_is_imported_already_nothing_is_hidden_from_the_collector() -> None:
    pytest.importorskip("torch")
    before = gc.get_freeze_count()
    with lasting_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == before


@pytest.mark.slow
def test_a_command_imports_what_it_needs_for_good(tmp_path: Path) -> None:
    done = in_a_process(MEASURE.format(foreign=FOREIGN), str(tmp_path / "run"))
    assert done.stderr.splitlines()[-2:] == ["True True", "[]"]


@pytest.fixture
def counting(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that counts, when it ends, what was never freed."""
    (tmp_path / "sitecustomize.py").write_text(COUNTING)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.getenv("PYTHONPATH")]))}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("inspect specimen", 0),
        ("layers ./nowhere", 1),
        pytest.param("interface specimen -n 1", 0, marks=pytest.mark.slow),
        pytest.param("layers specimen -n 1", 0, marks=pytest.mark.slow),
        pytest.param("embeddings specimen", 0, marks=pytest.mark.slow),
    ],
)
def test_nothing_but_our_own_notes_is_on_stderr(
    words: str, code: int, counting: dict[str, str], tmp_path: Path
) -> None:
    ended = spawned(tmp_path, words.split(), counting)
    assert ended.returncode == code
    notes = ("reads ", "note: ", "run folder: ", "does the paper's theory hold here? ")
    said = [line for line in ended.stderr.splitlines() if not line.startswith(notes)]
    assert len(said) == 2 * code, ended.stderr  # an error is two lines


def test_what_ends_with_a_traceback_is_counted_as_gone_too(
    counting: dict[str, str], tmp_path: Path
) -> None:
    ended = spawned(tmp_path, ["layers", "./nowhere"], counting | {"NORMPROBE_DEBUG": "1"})
    assert ended.stderr.splitlines()[-1].startswith("check the path")
