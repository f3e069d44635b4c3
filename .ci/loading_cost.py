"""What each command fetches, keeps in memory and waits for, beside a full load.

A LLaVA-shaped checkpoint of 1.5 GB with random weights, in 200 MB shards, is written to a temporary
folder and served by a hub on this machine. Every load runs in a process of its own, the hub's cache
and the page cache cold. Prints a table. Needs 5 GB of disk; ``make loading-cost``.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import typer
from transformers import AutoModelForImageTextToText, LlavaConfig

from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.model.load.plan import plan_for
from normprobe.model.load.required_tensors import (
    before_the_decoder,
    embedding_tables,
    forward_to_last_layer,
)
from normprobe.model.load.weight_checks import refuse_non_finite

REPOSITORY = "team/llava-shaped"
HUB = Path(__file__).parents[1] / "tests/support/loopback_hub.py"
FULL = "full load"
NEEDS = {
    "embeddings": embedding_tables,
    "interface": before_the_decoder,
    "layers": forward_to_last_layer,
}
MB = 2**20

app = typer.Typer()


def write_checkpoint(folder: Path) -> None:
    """About 1.5 GB in bfloat16, of which the interface needs about a seventh."""
    text = {
        "model_type": "llama",
        "vocab_size": 32_064,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
    }
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "image_size": 112,
        "patch_size": 14,
    }
    config = LlavaConfig(text_config=text, vision_config=vision, dtype="bfloat16")
    torch.set_default_dtype(torch.bfloat16)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder, max_shard_size="200MB")


def resident(field: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


@app.command(hidden=True)
def load(mode: str, source: str, ranges: bool = False) -> None:
    """One load, measured; a JSON line."""
    checkpoint = open_checkpoint(source)
    load_model(open_checkpoint("specimen"), device="cpu")  # everything is imported
    before, started = resident("VmRSS"), time.perf_counter()
    needed = 0
    if mode == FULL:
        model: Any = AutoModelForImageTextToText.from_pretrained(source)
        refuse_non_finite(checkpoint, model)  # every weight is touched, as below
    else:
        plan = plan_for(NEEDS[mode], checkpoint, range_reads=ranges)
        needed = plan.nbytes_in(plan.files)
        model = load_model(checkpoint, plan, device="cpu")
    seconds = time.perf_counter() - started
    needed = needed or sum(weight.nbytes for weight in model.parameters())
    peak = resident("VmHWM") - before
    typer.echo(json.dumps({"needed": needed, "peak": peak, "seconds": seconds}))


def cold(folder: Path) -> None:
    """Drop the folder's files from the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def measured(mode: str, folder: Path, scratch: Path, where: str) -> dict[str, Any]:
    """One load in a process of its own, from the folder or from the hub."""
    cold(folder)
    if where == "folder":
        return child([mode, str(folder)], {})
    log = scratch / "requests.jsonl"
    log.write_text("")
    hub = subprocess.Popen(
        [sys.executable, str(HUB), str(log), f"{REPOSITORY}={folder}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert hub.stdout is not None
    address = f"http://127.0.0.1:{int(hub.stdout.readline())}"
    with tempfile.TemporaryDirectory(dir=scratch) as cache:
        online = {"HF_ENDPOINT": address, "HF_HOME": cache, "HF_HUB_DISABLE_XET": "1"}
        arguments = [mode, REPOSITORY, *(["--ranges"] if where == "hub, ranges" else [])]
        result = child(arguments, online)
    hub.communicate("")
    requests = [json.loads(line) for line in log.read_text().splitlines()]
    sent = [r["sent"] for r in requests if r["method"] == "GET" and r["path"].endswith("tensors")]
    return result | {"fetched": sum(sent)}


def child(arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run ``load`` in a process of its own."""
    finished = subprocess.run(
        [sys.executable, __file__, "load", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


@app.command()
def table() -> None:
    """Measure every command, and print a Markdown table."""
    typer.echo("| command | from | needed MB | fetched MB | peak memory MB | seconds |")
    typer.echo("|---|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        scratch, folder = Path(name), Path(name, "checkpoint")
        write_checkpoint(folder)
        for mode in (FULL, *NEEDS):
            for where in ("folder", "hub, files", "hub, ranges"):
                if where == "hub, ranges" and mode in (FULL, "layers"):
                    continue
                found = measured(mode, folder, scratch, where)
                fetched = f"{found['fetched'] / MB:.0f}" if "fetched" in found else ""
                memory = f"{found['needed'] / MB:.0f} | {fetched} | {found['peak'] / MB:.0f}"
                typer.echo(f"| {mode} | {where} | {memory} | {found['seconds']:.1f} |")


if __name__ == "__main__":
    app()
