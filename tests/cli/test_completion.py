"""Completion in a shell: what the Tab key finds, how it is installed, and what it does not load."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Ends as the command does, and tells which heavy libraries it has loaded.
PROGRAM = """
import sys
from normprobe.cli.app import main
try:
    main()
finally:
    loaded = [name for name in ("torch", "transformers", "pandas", "rich") if name in sys.modules]
    print(*loaded, file=sys.stderr)
"""
NO_DETECTION = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}


def started(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={**os.environ, **NO_DETECTION, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("normprobe in", ["inputs", "inspect", "interface"]),
        ("normprobe layers --als", ["--also"]),
        ("normprobe interface --ma", ["--map"]),
        ("normprobe layers --dtype b", ["bfloat16"]),
        ("normprobe layers sp", ["specimen"]),
        ("normprobe inspect org/", ["org/cached"]),
        ("normprobe survey specimen ./m", ["./mine"]),
        ("normprobe embeddings --base m", ["mine"]),
        ("normprobe layers --data mms", ["mmstar"]),
        ("normprobe layers --data pope:r", ["pope:random"]),
        ("normprobe layers --part vi", ["video_token_ids=", "vision_encoder="]),
        ("normprobe layers --part kind=l", ["kind=language"]),
        ("normprobe layers --part fusion=c", ["fusion=cross-attention"]),
        ("normprobe paper figure1", ["figure1b"]),
        ("normprobe paper --run al", ["all"]),
        ("normprobe show run --table la", ["layers"]),
    ],
)
def test_tab_finds_commands_options_and_values_and_loads_nothing(
    typed: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("mine/config.json", "run/layers.csv", "run/theory.csv", "notes/config.txt"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    cached = tmp_path / "hub/models--org--cached/snapshots/1"
    cached.mkdir(parents=True)
    (cached / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    cache = str(tmp_path / "hub")
    done = started(_NORMPROBE_COMPLETE="complete_bash", HF_HUB_CACHE=cache, **words)
    assert sorted(done.stdout.split()) == found
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_shown(shell: str) -> None:
    assert f"_NORMPROBE_COMPLETE=complete_{shell}" in started("--show-completion", shell).stdout


def test_completion_is_installed_for_a_user(tmp_path: Path) -> None:
    started("--install-completion", "bash", HOME=str(tmp_path))
    (script,) = tmp_path.glob(".bash_completions/*")
    assert "_NORMPROBE_COMPLETE=complete_bash" in script.read_text()
    assert script.name in (tmp_path / ".bashrc").read_text()


def test_help_opens_no_checkpoint() -> None:
    told = "import sys, normprobe.cli.app; print('normprobe.model.checkpoint' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("layers /no/such/folder", "no such folder: /no/such/folder"),
        ("layers --data ./no/such", "received './no/such'"),
        pytest.param(
            "check /no/such --against was.json", "no such folder: /no/such", marks=pytest.mark.slow
        ),
        pytest.param("check --against /no/such.json", "no such file", marks=pytest.mark.slow),
        pytest.param(
            "embeddings --base /no/such", "no such folder: /no/such", marks=pytest.mark.slow
        ),
        pytest.param(
            "inputs /no/such --write new.py", "no such folder: /no/such", marks=pytest.mark.slow
        ),
        pytest.param("inspect /no/such", "no such folder: /no/such", marks=pytest.mark.slow),
        pytest.param("show /no/such/run", "no such folder: /no/such/run", marks=pytest.mark.slow),
        pytest.param("verify /no/such/run", "no such folder: /no/such/run", marks=pytest.mark.slow),
        pytest.param("card /no/such/run", "no such folder: /no/such/run", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_path_is_told_before_torch_is_loaded(words: str, told: str) -> None:
    typed = [sys.executable, "-c", PROGRAM, *words.split()]
    done = subprocess.run(typed, capture_output=True, text=True, check=False)
    assert f"{told}\n" in done.stderr
    assert "torch" not in done.stderr.splitlines()[-1]
