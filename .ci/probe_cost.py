"""What probing costs: interleaved runs of a bare forward and of ways to look inside it.

One LLaVA-shaped random model (hidden size 1024, 256 visual tokens, float32) at 8 and 32 layers.
Each round runs every way once, so that a busy machine slows all of them; ratios are of medians.
Run by `make cost`, which writes the table into docs/explanation/cost.md. nnsight has a row where it
is installed. What watching costs in training is told by steps with and without it, in turns;
`--only-training` measures that alone.
"""

import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn
from transformers import (
    AutoModelForImageTextToText,
    LlavaConfig,
)

from normprobe import Probe, Watch, probe_layers, watch
from normprobe.data.data_set import DataSet, open_data
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import inputs_for
from normprobe.inputs.processor import load_processor
from normprobe.measurements.layers import WATCHERS, Layers
from normprobe.model.find.structure import find_parts
from normprobe.model.measured_model import MeasuredModel
from normprobe.options import Sampling
from normprobe.runs.collecting import collect
from normprobe.runs.run_folder import RunFolder
from normprobe.specimen import SPECIMEN_DIR

ROOT = Path(__file__).resolve().parent.parent
WIDTH, PATCH, PIXELS = 1024, 14, 224
Way = Callable[[], object]


def build_model(layers: int) -> Any:
    """LLaVA's shape; random weights cost what trained ones cost."""
    config = LlavaConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": 512,
            "hidden_size": WIDTH,
            "intermediate_size": 2752,
            "num_hidden_layers": layers,
            "num_attention_heads": 16,
        },
        vision_config={
            "model_type": "clip_vision_model",
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "image_size": PIXELS,
            "patch_size": PATCH,
        },
        image_token_index=3,
    )
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(config).eval()


def build_processor() -> Any:
    """The specimen's, for pictures of 224 pixels."""
    processor = load_processor(str(SPECIMEN_DIR))
    processor.image_processor.size = {"shortest_edge": PIXELS}
    processor.image_processor.crop_size = {"height": PIXELS, "width": PIXELS}
    processor.patch_size = PATCH
    return processor


# --- ways to look inside a forward --------------------------------------------------------------


def bare(model: Any, inputs: Any) -> object:
    with torch.no_grad():
        return model(**inputs, use_cache=False)


def output_hidden_states(model: Any, inputs: Any) -> object:
    with torch.no_grad():
        return model(**inputs, use_cache=False, output_hidden_states=True)


def kept_by_hooks(model: Any, inputs: Any) -> object:
    """What a TraceDict does: the output of every layer stays until the forward has ended."""
    kept: list[Any] = []
    with hooked(find_layers(model), lambda _, __, output: kept.append(output)), torch.no_grad():
        model(**inputs, use_cache=False)
    return kept


def nnsight_trace(model: Any, inputs: Any) -> object:
    from nnsight import NNsight

    wrapped = NNsight(model)
    with torch.no_grad(), wrapped.trace(**inputs, use_cache=False):
        kept = list().save()
        for layer in wrapped.model.language_model.layers:
            kept.append(layer.output)
    return kept


def find_layers(model: Any) -> list[nn.Module]:
    parts = find_parts(model)
    assert parts.decoder_layers is not None
    return list(parts.decoder_layers.module.children())


@contextmanager
def hooked(modules: list[nn.Module], hook: Any) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def ways(model: Any, inputs: Any, special: list[int]) -> dict[str, Way]:
    measured = MeasuredModel(model, find_parts(model), special)
    layers, probe = Layers(), Probe(model, special_token_ids=special)
    found: dict[str, Way] = {
        "bare forward": partial(bare, model, inputs),
        "normprobe": partial(layers.sample_rows, measured, inputs),
        **{
            f"normprobe `--{name}`": partial(
                layers.asking(also=[name]).sample_rows, measured, inputs
            )
            for name in WATCHERS
        },
        "`Probe.layers(inputs)` again": partial(probe.layers, inputs),
        "`probe_layers`, each time anew": partial(
            probe_layers, model, inputs, special_token_ids=special
        ),
        "`output_hidden_states`": partial(output_hidden_states, model, inputs),
        "hooks that keep each output": partial(kept_by_hooks, model, inputs),
    }
    try:
        import nnsight  # noqa: F401
    except ImportError:
        return found
    return found | {"nnsight": partial(nnsight_trace, model, inputs)}


# --- measuring ----------------------------------------------------------------------------------


def seconds_of(way: Way) -> tuple[float, float]:
    """CPU and wall time."""
    cpu, wall = time.process_time(), time.perf_counter()
    way()
    return time.process_time() - cpu, time.perf_counter() - wall


def peak_mib(way: Way) -> float:
    """Most memory that tensors made by the forward hold at once."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        kept = way()
    del kept
    events = [
        event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / 2**20


def compare(layers: int, rounds: int) -> dict[str, tuple[float, float, float]]:
    """CPU seconds, wall seconds and peak MiB of each way."""
    model, processor = build_model(layers), build_processor()
    (sample,) = open_data("sample", limit=1)
    inputs = InputBuilder(processor).build([sample])
    chosen = ways(model, inputs, InputBuilder(processor).special_token_ids)
    memory = {name: peak_mib(way) for name, way in chosen.items()}  # and the warm-up
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    for _ in range(rounds):
        for name, way in chosen.items():
            times[name].append(seconds_of(way))
    medians = {
        name: [statistics.median(kind) for kind in zip(*taken, strict=True)]
        for name, taken in times.items()
    }
    return {name: (cpu, wall, memory[name]) for name, (cpu, wall) in medians.items()}


def end_to_end(samples: int, rounds: int) -> tuple[float, float]:
    """Samples a second: bare forwards on ready inputs; from JPEG to rows on disk."""
    model, builder = build_model(8), InputBuilder(build_processor())
    data = open_data("sample", limit=samples)
    ready = [builder.build([sample]) for sample in data]
    bare(model, ready[0])
    rates: dict[str, list[float]] = {"ready": [], "whole": []}
    for _ in range(rounds):
        for name, work in (
            ("ready", lambda: [bare(model, inputs) for inputs in ready]),
            ("whole", lambda: measure_all(model, data, builder)),
        ):
            rates[name].append(samples / seconds_of(work)[1])
    return statistics.median(rates["ready"]), statistics.median(rates["whole"])


def measure_all(model: Any, data: DataSet, builder: InputBuilder) -> None:
    measured = MeasuredModel(model, find_parts(model), builder.special_token_ids)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", overwrite=False, record={})
        collect(run, measured, data, builder, Layers(), Sampling())


# --- beside training ----------------------------------------------------------------------------


def beside_training(
    model: Any, processor: Any, batch: int, rounds: int, seconds: Callable[[Way], float]
) -> tuple[float, float, float]:
    """Median seconds of a step of a twin without a watch, of one not due, and of one due."""
    built = InputBuilder(processor).build([*open_data("sample", limit=batch)])
    inputs = dict(inputs_for(model, built))
    inputs["labels"] = inputs["input_ids"]
    models = {name: deepcopy(model).train() for name in ("bare", "watched")}
    optimizers = {
        name: torch.optim.AdamW(each.parameters(), lr=1e-5) for name, each in models.items()
    }

    def step(name: str, seen: Watch) -> None:
        models[name](**inputs).loss.backward()
        optimizers[name].step()
        optimizers[name].zero_grad()
        if name == "watched":
            seen.end_step()

    kinds = {"bare": "bare", "not due": "watched", "due": "watched"}
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    with watch(models["watched"], 2, output=None) as seen:
        for _ in range(rounds + 1):  # in the first, watch finds out what is structural
            for kind, name in kinds.items():
                seen.step = int(kind != "due")
                taken[kind].append(seconds(partial(step, name, seen)))
    bare, idle, due = (statistics.median(times[1:]) for times in taken.values())
    return bare, idle, due


def training_table(rounds: int) -> str:
    specimen = AutoModelForImageTextToText.from_pretrained(SPECIMEN_DIR, dtype=torch.float32)
    models = {
        "the specimen, 4 samples": (specimen, load_processor(str(SPECIMEN_DIR)), 4),
        "8 layers of width 1024, 1 sample": (build_model(8), build_processor(), 1),
    }
    lines = ["| | a step | not due | due |", "|---|---|---|---|"]
    for name, of_model in models.items():
        bare, idle, due = beside_training(*of_model, rounds, lambda way: seconds_of(way)[0])
        cells = [f"{100 * (seconds / bare - 1):+.1f} %" for seconds in (idle, due)]
        lines.append(f"| {name} | {bare:.2f} s | {' | '.join(cells)} |")
    return (
        "\n".join(lines)
        + f"\n\nCPU time on 1 thread: medians of {rounds} steps with AdamW, all kinds in turns.\n"
    )


def write_block(name: str, text: str) -> None:
    """Put it between the marks of that name in the documentation."""
    file = ROOT / "docs/explanation/cost.md"
    block = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
    file.write_text(block.sub(lambda _: text, file.read_text("utf-8")), encoding="utf-8")


def markdown(costs: dict[int, Any], rates: tuple[float, float], samples: int, rounds: int) -> str:
    depths = list(costs)
    heads = [f"{kind}, {n} layers" for kind in ("CPU", "wall", "peak") for n in depths]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name in ["bare forward", "normprobe", *list(costs[depths[0]])[2:]]:
        cells = [f"{costs[n][name][kind]:.2f} s" for kind in (0, 1) for n in depths]
        cells += [f"{costs[n][name][2]:.0f} MiB" for n in depths]
        if name != "bare forward":
            base = {n: costs[n]["bare forward"] for n in depths}
            ratios = [costs[n][name][kind] / base[n][kind] for kind in (0, 1) for n in depths]
            cells = [f"x {ratio:.2f}" for ratio in ratios]
            cells += [f"{costs[n][name][2] - base[n][2]:+.1f} MiB" for n in depths]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if "nnsight" not in costs[depths[0]]:
        lines.append("| nnsight | " + " | ".join(["not installed"] * len(heads)) + " |")
    ready, whole = rates
    lines.append(
        f"\nMedians of {rounds} interleaved runs on {torch.get_num_threads()} CPU thread, torch "
        f"{torch.__version__}; ratios and differences are against the bare forward. End to end, "
        f"{samples} samples from JPEG to rows on disk, 8 layers: {whole:.2f} a second, "
        f"{whole / ready:.2f} of the bare forward on ready inputs ({ready:.2f})."
    )
    return "\n".join(lines) + "\n"


def main(
    rounds: Annotated[int, typer.Option(help="Runs of each way.")] = 9,
    samples: Annotated[int, typer.Option(help="Samples of the end-to-end runs.")] = 56,
    page: Annotated[bool, typer.Option(help="Write into the documentation.")] = True,
    only_training: Annotated[bool, typer.Option(help="Leave out the table of ways.")] = False,
) -> None:
    # Threads that wait for each other on a busy machine burn CPU time.
    torch.set_num_threads(1)
    blocks = {"training": training_table(rounds)}
    if not only_training:
        costs = {layers: compare(layers, rounds) for layers in (8, 32)}
        rates = end_to_end(samples, max(1, rounds // 3))
        blocks["cost"] = markdown(costs, rates, samples, rounds)
    for name, text in blocks.items():
        typer.echo(text)
        if page:
            write_block(name, text)


if __name__ == "__main__":
    typer.run(main)
