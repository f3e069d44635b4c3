"""``normprobe inputs MODEL --write FILE``: a file that runs, and what is said where it does not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import invoke

from normprobe import load_run


def test_a_file_that_is_begun_measures_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = invoke("inputs", "specimen", "--write", "begun.py")
    assert begun.exit_code == 0, begun.output
    assert "one sample is measured with it: 64 visual" in begun.stdout
    text = Path("begun.py").read_text()
    for told in ("pixel_values: float32 [1, 3, 64, 64]", "placeholder '<image>'", "LlamaModel"):
        assert told in text
    for out, more in (("with", ["--inputs", "begun.py"]), ("without", [])):
        done = invoke("layers", "specimen", "-n", "2", "-o", out, *more)
        assert done.exit_code == 0, done.output
    # The template of the processor writes the turn around the prompt; the file's author does.
    tokens = [
        load_run(out).table.query("group == 'visual'")["tokens"] for out in ("with", "without")
    ]
    assert tokens[0].tolist() == tokens[1].tolist()


def test_a_model_of_own_code_and_a_file_that_is_there(
    repository: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = repository("unseen")
    begun = invoke("inputs", model, "--trust-remote-code", "--write", "begun.py")
    assert "begun.py is written; one sample is measured with it" in begun.stdout, begun.output
    text = Path("begun.py").read_text()
    assert '# "decoder_layers": "tower"' in text
    assert "input_ids\n    pixel_values=None\n    attention_mask=None" in text
    again = invoke("inputs", model, "--trust-remote-code", "--write", "begun.py")
    assert (again.exit_code, Path("begun.py").read_text()) == (1, text)
    assert "begun.py exists" in again.stderr


def test_a_setup_that_fails_says_why(
    repository: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inputs.py").write_text("def setup():\n    import a_package_that_nobody_has\n")
    told = invoke("layers", repository("unseen"), "--trust-remote-code", "--inputs", "inputs.py")
    assert told.exit_code == 1
    assert "setup() of inputs.py fails: ModuleNotFoundError" in told.stderr
    assert "on PYTHONPATH" in told.stderr
