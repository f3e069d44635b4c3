"""What is pasted into another engine: each runs against a stand-in of the engine's interface.

What was run in the engines themselves stands in tests/engines.
"""

import json
import sys
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import invoke
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText

from normprobe.specimen import SPECIMEN_DIR

_SHIPPED = files("normprobe.extensions.check") / "dumpers.toml"
SNIPPETS = tomllib.loads(_SHIPPED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("engine", SNIPPETS)
def test_a_snippet_is_printed_and_parses(engine: str) -> None:
    done = invoke("states", "--snippet", engine)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == SNIPPETS[engine].strip()
    compile(done.stdout, engine, "exec")
    assert "Assumes" in done.stdout and "states" in done.stdout


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The specimen, beside prompts for it in ``states``, where the snippet will run."""
    monkeypatch.chdir(tmp_path)
    asked = ("states", "specimen", "-n", "2", "--dtype", "float32", "-o", "states")
    assert invoke(*asked, "--export-inputs").exit_code == 0
    return AutoModelForImageTextToText.from_pretrained(SPECIMEN_DIR, dtype=torch.float32).eval()


def told_by_check() -> str:
    asked = ("check", "specimen", "--dtype", "float32", "-n", "2", "--data", "sample")
    return " ".join(invoke(*asked, "--states", "states").stdout.split())


ALL_SAME = "All 12 states of 2 samples are the same within 0.0001"


class TwoAddends(nn.Module):
    """What a layer of vLLM or SGLang returns: hidden states, and the residual that is to come."""

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return 0.25 * state, 0.75 * state


class Engine(nn.Module):
    """Names and outputs of an engine's layers, around a model of transformers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        layers = model.model.language_model.layers
        decoder = nn.Module()
        decoder.model = nn.Module()
        decoder.model.layers = nn.ModuleList(TwoAddends() for _ in layers)
        self.language_model, self.runs = decoder, [model]
        for layer, seen in zip(layers, decoder.model.layers, strict=True):
            layer.register_forward_hook(lambda _, given, output, s=seen: s(output[0]) and None)

    def get_language_model(self) -> nn.Module:
        return self.language_model

    def run(self, sample: dict[str, Any]) -> None:
        with torch.no_grad():
            self.runs[0](**load_file(Path("states/inputs") / sample["file"]))


def samples() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path("states/prompts.json").read_text())["samples"]
    return found


def as_vllm(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, left = Engine(model), samples()

    class LLM:
        def __init__(self, name: str, **settings: Any) -> None:
            assert name == str(SPECIMEN_DIR) and settings["enforce_eager"]

        def apply_model(self, function: Callable[[nn.Module], Any]) -> list[Any]:
            return [function(engine)]

        def get_tokenizer(self) -> Any:
            return lambda text, add_special_tokens: {"input_ids": [1]}

        def generate(self, prompt: Any, settings: Any, use_tqdm: bool) -> Any:
            sample = left.pop(0)
            (picture,) = prompt["multi_modal_data"]["image"]
            assert picture.mode == "RGB"
            engine.run(sample)
            return [SimpleNamespace(prompt_token_ids=sample["input_ids"])]

    vllm = ModuleType("vllm")
    vllm.LLM, vllm.SamplingParams = LLM, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_ALLOW_INSECURE_SERIALIZATION"):
        monkeypatch.setenv(name, "0")


def as_sglang(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine imports the hook by name, and puts it on the modules that are named."""
    inside, left = Engine(model), samples()

    class SGLang:
        def __init__(self, forward_hooks: list[dict[str, Any]], **settings: Any) -> None:
            assert settings["disable_cuda_graph"] and settings["chunked_prefill_size"] == -1
            known = dict(inside.named_modules())
            for hook in forward_hooks:
                name, _, function = hook["hook_factory"].partition(":")
                assert name == "sglang_states"
                made = made_by[function](hook["config"])
                (target,) = (known[name] for name in hook["target_modules"] if name in known)
                target.register_forward_hook(made)

        def generate(self, prompt: str, image_data: list[str], sampling_params: Any) -> None:
            sample = left.pop(0)
            assert prompt == sample["prompt"] and all(Path(name).is_file() for name in image_data)
            inside.run(sample)

        def shutdown(self) -> None:
            assert not left

    sglang = ModuleType("sglang")
    sglang.Engine = SGLang  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang", sglang)


#: What the snippet for SGLang defines, as its engine would import it.
made_by: dict[str, Any] = {}


def as_mlx(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are tensors of torch, and layers a list whose entries may be anything."""
    decoder = model.model.language_model
    layers = [*decoder.layers]
    del decoder.layers
    decoder.layers = layers

    def language_model(ids: Tensor, inputs_embeds: Tensor) -> Any:
        with torch.no_grad():
            return SimpleNamespace(logits=model(inputs_embeds=inputs_embeds).logits)

    language_model.model = decoder  # type: ignore[attr-defined]

    def embed(ids: Tensor, pixels: Tensor, mask: Tensor) -> Any:
        entered: list[Tensor] = []
        handle = model.model.language_model.register_forward_pre_hook(
            lambda _, given, named: entered.append(named["inputs_embeds"]), with_kwargs=True
        )
        with torch.no_grad():
            model(input_ids=ids, pixel_values=pixels, attention_mask=mask)
        handle.remove()
        return SimpleNamespace(inputs_embeds=entered[0], attention_mask_4d=None)

    loaded = SimpleNamespace(
        language_model=language_model, get_input_embeddings=embed, set_dtype=lambda dtype: None
    )
    core, vlm = ModuleType("mlx.core"), ModuleType("mlx_vlm")
    core.load, core.eval, core.float32 = load_file, lambda array: None, None  # type: ignore
    core.save_safetensors = lambda file, arrays: save_file(  # type: ignore[attr-defined]
        {name: array.contiguous() for name, array in arrays.items()}, file
    )
    vlm.load = lambda name, revision: (loaded, None)  # type: ignore[attr-defined]
    mlx = ModuleType("mlx")
    mlx.core = core  # type: ignore[attr-defined]
    for name, module in {"mlx": mlx, "mlx.core": core, "mlx_vlm": vlm}.items():
        monkeypatch.setitem(sys.modules, name, module)


def as_executorch(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are exported run as torch runs them."""
    programs: list[Any] = []

    def lower(program: Any, partitioner: list[Any]) -> Any:
        programs.append(program)
        number = str(len(programs) - 1).encode()
        return SimpleNamespace(to_executorch=lambda: SimpleNamespace(buffer=number))

    class Runtime:
        @classmethod
        def get(cls) -> "Runtime":
            return cls()

        def load_program(self, file: Path) -> Any:
            program = programs[int(file.read_text())].module()
            method = SimpleNamespace(execute=lambda given: program(*given))
            return SimpleNamespace(load_method=lambda name: method)

    xnnpack = "executorch.backends.xnnpack.partition.xnnpack_partitioner"
    names = [xnnpack.rsplit(".", n)[0] for n in range(5)]
    for name in [*names, "executorch.exir", "executorch.runtime"]:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[xnnpack].XnnpackPartitioner = object  # type: ignore[attr-defined]
    sys.modules["executorch.exir"].to_edge_transform_and_lower = lower  # type: ignore
    sys.modules["executorch.runtime"].Runtime = Runtime  # type: ignore[attr-defined]


STAND_INS = {"vllm": as_vllm, "sglang": as_sglang, "mlx": as_mlx, "executorch": as_executorch}
SLOW = ("mlx", "executorch")


@pytest.mark.parametrize(
    "engine", [pytest.param(e, marks=[pytest.mark.slow] * (e in SLOW)) for e in STAND_INS]
)
def test_what_a_snippet_saves_is_the_models(
    engine: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    STAND_INS[engine](model, monkeypatch)
    made_by.clear()
    made_by["__name__"] = "__main__"
    exec(compile(SNIPPETS[engine], engine, "exec"), made_by)
    assert ALL_SAME in told_by_check()
