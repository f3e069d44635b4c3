"""Save the states of an engine's decoder layers, a file a sample: ``python states.py FOLDER``.

FOLDER is one that ``normprobe states MODEL -o FOLDER`` wrote: ``prompts.json`` says model, samples
and the ids of their prompts. This file needs torch, safetensors, Pillow and the engine: it runs
where normprobe is not installed. ``normprobe check MODEL --states FOLDER`` reads what it saves.

A state is what leaves a decoder layer, the whole residual stream: where a layer returns its two
addends apart, as vLLM's do, their sum. Layer 0 is what the first one takes.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PROMPTS = "prompts.json"
ENGINES = ("transformers", "vllm")
#: What an engine calls what makes states of pixels.
_READ_PICTURES = ("embed_multimodal", "get_multimodal_embeddings", "get_image_features")

Seen = dict[str, Any]  # ``states`` by layer, each as often as it ran; ``pixels``


def main(argv: Sequence[str] | None = None) -> None:
    """Run an engine on the prompts of a folder, and save what its layers return."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="what `normprobe states MODEL -o FOLDER` wrote")
    parser.add_argument("--engine", choices=ENGINES, default="vllm")
    parser.add_argument("--model", help="a checkpoint, where it is not the one of the prompts")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the model")
    given = parser.parse_args(argv)
    try:
        save_states(
            given.folder, given.engine, model=given.model, dtype=given.dtype, workers=given.workers
        )
    except Unexpected as error:
        raise SystemExit(f"error: {error}") from error


class Unexpected(Exception):
    """The engine did something else than run the prompt once."""


def save_states(
    folder: Path, engine: str, *, model: str | None = None, dtype: str = "float32", workers: int = 1
) -> list[Path]:
    """The files that were written, one a sample."""
    from safetensors.torch import save_file

    asked = json.loads((folder / PROMPTS).read_text(encoding="utf-8"))
    run = {"vllm": of_vllm, "transformers": of_transformers}[engine]
    written = []
    for sample, seen in run(folder, asked, model or asked["model"], dtype, workers):
        states = _states(sample, seen)
        tensors = {f"layer_{n}": state.cpu().contiguous() for n, state in enumerate(states)}
        tensors["input_ids"] = torch.tensor(sample["input_ids"])
        file = folder / sample["file"]
        file.parent.mkdir(parents=True, exist_ok=True)
        told = {"engine": f"{engine} {import_module(engine).__version__}", "dtype": dtype}
        save_file(tensors, file, told | {"pixels": json.dumps(seen["pixels"])})
        written.append(file)
    return written


def _states(sample: Mapping[str, Any], seen: Seen) -> list[Tensor]:
    """The state before and behind each layer, of the one forward that the prompt takes."""
    rows = len(sample["input_ids"])
    for layer, runs in enumerate(seen["states"]):
        sizes = [len(state) for state in runs]
        if sizes != [rows]:
            raise Unexpected(
                f"{sample['id']}: expected one forward of {rows} tokens, the engine ran layer "
                f"{layer} with {' and '.join(map(str, sizes)) or 'none'}"
            )
    return [runs[0] for runs in seen["states"]]


def of_transformers(
    folder: Path, asked: Mapping[str, Any], name: str, dtype: str, workers: int
) -> Iterator[tuple[Mapping[str, Any], Seen]]:
    """Each sample, and what a forward of transformers showed."""
    import transformers

    if workers > 1:
        raise Unexpected("--workers: transformers runs in one process here")
    where = {"revision": asked["revision"]}
    config = transformers.AutoConfig.from_pretrained(name, **where)
    kind: Any = transformers.AutoModelForImageTextToText
    reader: Any = transformers.AutoProcessor
    if type(config) not in kind._model_mapping:
        kind = transformers.AutoModelForCausalLM
    loaded = kind.from_pretrained(name, dtype=getattr(torch, dtype), **where).eval()
    processor = reader.from_pretrained(name, **where)
    observe(loaded)
    for sample in asked["samples"]:
        options: dict[str, Any] = {"add_special_tokens": sample["add_special_tokens"]}
        if sample["images"]:
            options["images"] = _pictures(folder, sample)
        inputs = processor(text=[sample["prompt"]], return_tensors="pt", **options)
        _expect_prompt(sample, inputs["input_ids"][0].tolist())
        floats = {n: value for n, value in inputs.items() if value.is_floating_point()}
        with torch.no_grad():
            loaded(**inputs | {n: value.to(loaded.dtype) for n, value in floats.items()})
        seen = taken(loaded)
        yield sample, seen | {"pixels": described(floats)}


def of_vllm(
    folder: Path, asked: Mapping[str, Any], name: str, dtype: str, workers: int
) -> Iterator[tuple[Mapping[str, Any], Seen]]:
    """Each sample, and what a forward of vLLM showed: eager, whole prompts, nothing cached."""
    # Functions go to the workers, by this door alone.
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    if workers == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    samples = asked["samples"]
    longest = max(len(sample["input_ids"]) for sample in samples)
    most = max(len(sample["images"]) for sample in samples)
    engine = LLM(
        name,
        revision=asked["revision"],
        dtype=dtype,
        tensor_parallel_size=workers,
        enforce_eager=True,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        max_num_seqs=1,
        max_model_len=longest + 1,
        max_num_batched_tokens=longest + 1,
        limit_mm_per_prompt={"image": most} if most else None,
        mm_processor_cache_gb=0,
    )
    engine.apply_model(observe)  # behind its forwards of profiling
    tokenizer = AutoTokenizer.from_pretrained(name, revision=asked["revision"])
    once = SamplingParams(max_tokens=1, temperature=0)
    for sample in samples:
        special = sample["add_special_tokens"]
        ids = tokenizer(sample["prompt"], add_special_tokens=special)["input_ids"]
        prompt: dict[str, Any] = {"prompt_token_ids": ids}
        if sample["images"]:
            prompt["multi_modal_data"] = {"image": _pictures(folder, sample)}
            names = [f"{sample['id']} {number}" for number in range(len(sample["images"]))]
            prompt["multi_modal_uuids"] = {"image": names}  # no picture is another's
        (output,) = engine.generate(prompt, once, use_tqdm=False)
        _expect_prompt(sample, list(output.prompt_token_ids))
        yield sample, engine.apply_model(taken)[0]  # each worker holds the whole stream


def observe(model: nn.Module) -> None:
    """Keep what each decoder layer returns from now on, what the first takes, and the pixels."""
    layers = decoder_layers(model)
    seen: Seen = {"states": [[] for _ in range(len(layers) + 1)], "pixels": {}}

    def before(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        told = signature(module.forward).bind(*given, **named).arguments
        stream = [told[name] for name in ("hidden_states", "residual") if name in told]
        seen["states"][0].append(whole_state(stream or list(given)[:1], module))

    def behind(number: int) -> Callable[..., None]:
        def keep(module: nn.Module, given: Any, output: Any) -> None:
            seen["states"][number].append(whole_state(output, module))

        return keep

    layers[0].register_forward_pre_hook(before, with_kwargs=True)
    for number, layer in enumerate(layers, 1):
        layer.register_forward_hook(behind(number))
    for name in _READ_PICTURES:
        if (read := getattr(model, name, None)) is not None:
            setattr(model, name, _describing(read, seen))
            break
    model.normprobe_seen = seen  # type: ignore[assignment]


def taken(model: nn.Module) -> Seen:
    """What was kept since the last time."""
    seen: Seen = model.normprobe_seen  # type: ignore[assignment]
    kept = {"states": [list(runs) for runs in seen["states"]], "pixels": dict(seen["pixels"])}
    for runs in seen["states"]:
        runs.clear()
    seen["pixels"].clear()
    return kept


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The longest list of modules of the language model."""
    for name in ("get_language_model", "get_decoder"):
        if (find := getattr(model, name, None)) is not None:
            model = find()
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise Unexpected(f"{type(model).__name__} has no list of layers")
    return max(lists, key=len)


def whole_state(given: Any, layer: nn.Module) -> Tensor:
    """The residual stream, ``[tokens, hidden]``, of what a layer takes or returns."""
    values = list(given) if isinstance(given, list | tuple) else [given]
    state: Tensor = values[0].detach().flatten(0, -2)
    if "residual" in signature(layer.forward).parameters and len(values) > 1:
        addend: Tensor | None = values[1]
        return state.clone() if addend is None else state + addend.detach().flatten(0, -2)
    return state.clone()


def described(values: Mapping[str, Any]) -> dict[str, Any]:
    """What tells pixels apart, whatever the shape an engine gives them; empty: there are none."""
    floats = [
        value.detach().flatten()
        for _, value in sorted(values.items())
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1
    ]
    if not floats:
        return {}
    pixels = torch.cat(floats).cpu()
    told = {"dtype": str(pixels.dtype).removeprefix("torch."), "numbers": pixels.numel()}
    pixels = pixels.float()
    told["digest"] = hashlib.sha256(pixels.numpy().tobytes()).hexdigest()[:16]
    return told | {"mean": pixels.mean().item(), "std": pixels.std().item()}


def _describing(read: Callable[..., Any], seen: Seen) -> Callable[..., Any]:
    def reading(*given: Any, **named: Any) -> Any:
        seen["pixels"].update(described(named))
        return read(*given, **named)

    return reading


def _pictures(folder: Path, sample: Mapping[str, Any]) -> list[Any]:
    from PIL import Image

    found = []
    for name in sample["images"]:
        with Image.open(folder / name) as image:
            found.append(image.convert("RGB"))
    return found


def _expect_prompt(sample: Mapping[str, Any], ids: list[int]) -> None:
    """Refuse another prompt than normprobe's."""
    expected = sample["input_ids"]
    if ids == expected:
        return
    pairs = zip(expected, ids, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(expected)))
    raise Unexpected(
        f"{sample['id']}: the engine reads another prompt: expected {len(expected)} ids, received "
        f"{len(ids)}; the first other one is number {place}: expected "
        f"{expected[place : place + 1]}, received {ids[place : place + 1]}"
    )


if __name__ == "__main__":
    main()
