"""What a command imports lasts, and no more is imported than it needs."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
