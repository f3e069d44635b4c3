"""How long finding the parts of a 7B-shaped model takes on the meta device, in seconds."""

import statistics
import time

import torch
import typer
from transformers import AutoModelForImageTextToText, LlavaConfig

from normprobe import find_parts


def main() -> None:
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(LlavaConfig())
    weights = sum(parameter.numel() for parameter in model.parameters())
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        find_parts(model)
        seconds.append(time.perf_counter() - start)
    typer.echo(f"{weights / 1e9:.1f} B weights: median {statistics.median(seconds):.3f} s")


if __name__ == "__main__":
    main()
