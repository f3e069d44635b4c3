"""Snippets of ``states --snippet``, run in those of the engines that are installed here."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.commands import invoke
from support.gguf_file import tiny_llama, tiny_qwen2, write_gguf
from transformers import AutoTokenizer

pytestmark = pytest.mark.real


def dump(engine: str, *arguments: object) -> None:
    """Run a snippet as a user does: a file, in the folder that holds ``states``."""
    Path("dump.py").write_text(invoke("states", "--snippet", engine).stdout)
    command = [sys.executable, "dump.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("engine", "package"),
    [("vllm", "vllm"), ("mlx", "mlx_vlm"), ("executorch", "executorch")],
)
def test_a_snippet_saves_the_states_of_the_specimen(
    engine: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{engine} is not installed")
    monkeypatch.chdir(tmp_path)
    if engine == "vllm":
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0")
        monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    asked = ("--dtype", "float32", "-n", "2", "--data", "sample")
    done = invoke("states", "specimen", "-o", "states", "--export-inputs", *asked)
    assert done.exit_code == 0, done.output
    dump(engine)
    done = invoke("check", "specimen", "--states", "states", *asked)
    assert "All 12 states of 2 samples are the same within 0.0001" in " ".join(done.stdout.split())


@pytest.mark.parametrize("made", [tiny_llama, tiny_qwen2])
def test_llama_cpp_saves_the_states_of_a_gguf_file(
    made: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("llama_cpp") is None:
        pytest.skip("llama-cpp-python is not installed")
    monkeypatch.chdir(tmp_path)
    model = made()  # type: ignore[operator]
    file = write_gguf(model, tmp_path / "tiny.gguf", "F32")
    model.save_pretrained("model")
    AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name).save_pretrained("model")
    asked = ("-n", "2", "--data", "text")
    done = invoke("states", "model", "-o", "states", "--dtype", "float32", *asked)
    assert done.exit_code == 0, done.output
    dump("llama.cpp", file)
    done = invoke("check", file, "--states", "states", *asked)
    assert "All 6 states of 2 samples are the same within 0.0001" in " ".join(done.stdout.split())
