"""States of vLLM, in an environment of its own: ``make test-engines``."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commands import invoke
from support.processors import make_processor
from support.tiny.fragments import mrope
from support.tiny_models import EVERY, tiny_model

pytest.importorskip("vllm")
pytestmark = pytest.mark.real

#: Its workers bind to cores by themselves only where there are as many memory nodes.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def states(model: Path | str, folder: Path, dtype: str, *more: str) -> None:
    """Each run in a process of its own, as vLLM's memory stays with it."""
    import subprocess
    import sys

    asked = ("states", model, "-n", "2", "-o", folder, "--dtype", dtype, "--engine", "vllm", *more)
    workers = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if more else {}
    done = subprocess.run(
        [sys.executable, "-m", "normprobe", *map(str, asked)],
        env=os.environ | workers,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check(model: Path | str, folder: Path, dtype: str) -> Any:
    asked = ("--dtype", dtype, "-n", "2", "--data", "sample", "--device", "cpu")
    return invoke("check", model, "--states", folder, *asked)


@pytest.mark.parametrize(
    ("dtype", "more"),
    [("float32", ()), ("bfloat16", ()), ("float32", ("--tensor-parallel", "2"))],
    ids=["float32", "bfloat16", "two workers"],
)
def test_states_of_the_specimen_are_those_of_transformers(
    dtype: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    states("specimen", tmp_path / "out", dtype, *more)
    done = check("specimen", tmp_path / "out", dtype)
    assert done.exit_code == 0, done.output
    assert "All 14 states of 2 samples are the same" in " ".join(done.stdout.split())
    assert "other pixels" not in done.stdout


def test_states_of_qwen2_vl_are_those_of_transformers(tmp_path: Path) -> None:
    """With heads of 32 dimensions: vLLM has no attention of fewer on a CPU."""
    _, settings = EVERY["qwen2_vl"]
    text = settings["text_config"] | {"num_attention_heads": 2} | mrope(4, 6, 6)
    model = tiny_model("qwen2_vl", text_config=text)
    model.save_pretrained(tmp_path / "model")
    make_processor("qwen2_vl").save_pretrained(tmp_path / "model")
    states(tmp_path / "model", tmp_path / "out", "float32")
    done = check(tmp_path / "model", tmp_path / "out", "float32")
    assert done.exit_code == 0, done.output


#: A line of vLLM's LLaVA that returns image rows, and what ports get wrong about it.
LINE = "        return self._process_image_input(image_input)\n"
PORTS = {
    "/ e.shape[-1] ** 0.5": "Usually a scale: one that is missing, or applied twice (it is 1 / the",
    "* 0": "visual is zero",
    ".flip(0)": "Usually the same rows in another order",
}


@pytest.mark.parametrize("change", PORTS)
def test_a_port_that_gets_image_rows_wrong_is_named(change: str, tmp_path: Path) -> None:
    from importlib.util import find_spec

    spec = find_spec("vllm.model_executor.models.llava")
    assert spec is not None and spec.origin is not None
    file, kept = Path(spec.origin), tmp_path / "llava.py"
    shutil.copyfile(file, kept)
    code = file.read_text(encoding="utf-8")
    assert LINE in code
    try:
        rows = f"tuple(e {change} for e in self._process_image_input(image_input))\n"
        if change.startswith("."):
            rows = rows.replace("e .", "e.")
        file.write_text(code.replace(LINE, f"        return {rows}"), encoding="utf-8")
        states("specimen", tmp_path / "out", "float32")
    finally:
        shutil.copyfile(kept, file)
    done = check("specimen", tmp_path / "out", "float32")
    assert done.exit_code == 1, done.output
    told = " ".join(done.stdout.split())
    assert "Not the same from decoder input on" in told and PORTS[change] in told
