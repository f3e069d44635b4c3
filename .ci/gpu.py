"""What this package does on a GPU: its tests there, what probing costs, a whole run. `make gpu`.

A model of the shape of LLaVA-1.5-7B is made in the memory of the device: random weights, bfloat16,
576 visual tokens. Writes `.github/GPU.md`. Without a CUDA device it says so and ends.
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from probe_cost import bare, beside_training, measure_all, ways
from transformers import AutoModelForImageTextToText, LlavaConfig

from normprobe import Probe
from normprobe.data.data_set import DataSet, open_data
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import inputs_for
from normprobe.inputs.processor import load_processor
from normprobe.specimen import SPECIMEN_DIR

ROOT = Path(__file__).resolve().parent.parent
BATCHES = (1, 8)
TRACED = 50  # samples of the run that is traced for what the device does: tracing slows the host


def build_model(layers: int = 32) -> Any:
    """LlavaConfig's own shape: Vicuna 7B and CLIP ViT-L/14 at 336 pixels."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = LlavaConfig(image_token_index=3)
    config.text_config.num_hidden_layers = layers
    with torch.device("cuda"):
        model = AutoModelForImageTextToText.from_config(config)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def build_processor() -> Any:
    processor = load_processor(str(SPECIMEN_DIR))
    processor.image_processor.size = {"shortest_edge": 336}
    processor.image_processor.crop_size = {"height": 336, "width": 336}
    processor.patch_size = 14
    return processor


def questions(folder: Path, samples: int) -> DataSet:
    """As many questions about the bundled photographs, as a file that a user would have."""
    pictures = []
    (folder / "images").mkdir()
    for number, sample in enumerate(open_data("sample")):
        pictures.append(f"{number}.jpg")
        sample.images[0].convert("RGB").save(folder / "images" / pictures[-1])
    lines = [
        {
            "question_id": number,
            "image": pictures[number % len(pictures)],
            "text": f"Is there a thing of kind {number} in the picture?",
            "label": "yes",
        }
        for number in range(samples)
    ]
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return open_data(str(file))


def seconds_of(work: Any) -> float:
    """Until the device has done what it was asked for."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    kept = work()
    torch.cuda.synchronize()
    del kept
    return time.perf_counter() - started


def cost_table(model: Any, builder: InputBuilder, batch: int, rounds: int) -> list[str]:
    """Milliseconds and memory of each way to look inside a forward, in interleaved rounds."""
    inputs = inputs_for(model, builder.build([*open_data("sample", limit=batch)]))
    chosen = ways(model, inputs, builder.special_token_ids)
    weights, memory = torch.cuda.memory_allocated(), {}
    for name, way in chosen.items():  # and the warm-up
        torch.cuda.reset_peak_memory_stats()
        seconds_of(way)
        memory[name] = (torch.cuda.max_memory_allocated() - weights) / 2**20
    taken: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(rounds):
        for name, way in chosen.items():
            taken[name].append(seconds_of(way))
    base = statistics.median(taken["bare forward"])
    lines = [
        f"| a forward of {batch} | ms | of the bare forward | peak beside the weights |",
        "|---" * 4 + "|",
    ]
    for name, times in taken.items():
        middle = statistics.median(times)
        lines.append(
            f"| {name} | {1e3 * middle:.1f} | {middle / base:.3f} | {memory[name]:.0f} MiB |"
        )
    return lines


def idle_share(work: Any) -> float:
    """The share of the time of some work in which no kernel and no copy runs on the device."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        seconds = seconds_of(work)
    events = profile.profiler.kineto_results.events()
    on_device = [
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    busy = last = 0
    for start, end in sorted(on_device):
        busy += max(0, end - max(start, last))
        last = max(last, end)
    return 1 - busy / 1e9 / seconds


def measurement_table(model: Any, builder: InputBuilder, samples: int) -> list[str]:
    """Milliseconds that a further sample costs each measurement, from JPEG to rows in memory."""
    probe = Probe(model, builder.processor)
    asked: dict[str, dict[str, Any]] = {
        "interface": {},
        "layers": {},
        "layers --tower vision": {"tower": "vision"},
        "shares": {},
        "follow": {},
        "cause --do freeze": {"do": "freeze"},
        "cause --do blank": {"do": "blank"},
        "cause --do gain": {"do": "gain"},
    }
    lines = [
        "| measurement | ms a further sample | of a bare forward |",
        "|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        file = str(Path(name) / "questions.jsonl")
        data = questions(Path(name), samples)
        ready = [inputs_for(model, builder.build([sample])) for sample in data]
        base = seconds_of(lambda: [bare(model, inputs) for inputs in ready]) / samples
        for words, how in asked.items():
            measure = partial(probe.measure, words.split()[0], file, intervals=False, **how)
            measure(limit=2)  # the warm-up
            # What workers and tables cost, however many samples.
            fixed = seconds_of(partial(measure, limit=samples // 2))
            taken = (seconds_of(measure) - fixed) / (samples - samples // 2)
            lines.append(f"| {words} | {1e3 * taken:.1f} | {taken / base:.2f} |")
    return lines


def training_lines(rounds: int) -> list[str]:
    """What a watch adds to a step of eight layers of that width."""
    step, idle, due = beside_training(build_model(8), build_processor(), 4, rounds, seconds_of)
    return [
        "| training step, 8 layers, 4 samples | ms | of the step |",
        "|---|---|---|",
        f"| without a watch | {1e3 * step:.1f} | 1.000 |",
        f"| watched, not due | {1e3 * idle:.1f} | {idle / step:.3f} |",
        f"| watched, due | {1e3 * due:.1f} | {due / step:.3f} |",
    ]


def whole_run(model: Any, builder: InputBuilder, samples: int) -> list[str]:
    """From JPEG to rows on disk, beside bare forwards on inputs that are ready on the device."""
    with tempfile.TemporaryDirectory() as name:
        data = questions(Path(name), samples)
        few = [inputs_for(model, builder.build([sample])) for sample in data.subset(data.ids[:20])]
        ready = seconds_of(lambda: [bare(model, inputs) for inputs in few]) / len(few)
        torch.cuda.reset_peak_memory_stats()
        whole = seconds_of(lambda: measure_all(model, data, builder)) / samples
        peak = torch.cuda.max_memory_allocated() / 2**30
        traced = open_data(str(Path(name) / "questions.jsonl"), limit=min(TRACED, samples))
        idle = idle_share(lambda: measure_all(model, traced, builder))
    return [
        f"| {samples} samples, one a forward | |",
        "|---|---|",
        f"| from JPEG to rows on disk | {1 / whole:.2f} samples a second |",
        f"| bare forward on ready inputs | {1 / ready:.2f} samples a second |",
        f"| of the bare forward | {ready / whole:.3f} |",
        f"| device idle | {idle:.1%} |",
        f"| peak memory, weights included | {peak:.1f} GiB |",
    ]


def tests_there() -> str:
    """The last line of pytest, and which tests fail."""
    files = [str(file) for file in (ROOT / "tests").rglob("test_*.py") if _has_gpu_tests(file)]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    typer.echo(done.stdout)
    failed = re.findall(r"^(?:FAILED|ERROR) \S*?([^/:\s]+(?:::\S+)?)", done.stdout, re.MULTILINE)
    names = "".join(f"\n- `{name}` fails" for name in failed)
    return re.sub(r"^=+ | in .* =+$", "", done.stdout.strip().splitlines()[-1]) + names


def _has_gpu_tests(file: Path) -> bool:
    """To collect all others takes half a minute."""
    return "mark.gpu" in file.read_text(encoding="utf-8")


def main(
    rounds: Annotated[int, typer.Option(help="Forwards of each way.")] = 30,
    samples: Annotated[int, typer.Option(help="Samples of the whole run.")] = 1000,
) -> None:
    if not torch.cuda.is_available():
        typer.echo("no CUDA device here: nothing is measured")
        return
    parts = [
        f"# {torch.cuda.get_device_name()}",
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, transformers "
        f"{transformers.__version__}.\n"
        "The model has the shape of LLaVA-1.5-7B, random weights, bfloat16 (`make gpu`).",
    ]
    for part in measured(rounds, samples):  # each as soon as it is known
        typer.echo(f"{part}\n")
        parts.append(part)
    (ROOT / ".github/GPU.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def measured(rounds: int, samples: int) -> Iterator[str]:
    """Each part of the page."""
    model, builder = build_model(), InputBuilder(build_processor())
    for batch in BATCHES:
        yield "\n".join(cost_table(model, builder, batch, rounds))
    yield "\n".join(whole_run(model, builder, samples))
    yield "\n".join(measurement_table(model, builder, 2 * rounds))
    del model
    yield "\n".join(training_lines(rounds))
    yield f"Tests on the device: {tests_there()}"


if __name__ == "__main__":
    typer.run(main)
