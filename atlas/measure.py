"""Measure released models for the atlas: what they weigh, one survey of them all, an entry of each.

`python atlas/measure.py` takes atlas/models.txt; it needs the hub, and a GPU for models of this
size. First it says how much each model has to fetch, from the headers of its weight files. What was
stopped goes on with the same command. Options that it does not know go to `normprobe survey`, such
as `--trust-remote-code` or `--device balanced`.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from normprobe.extensions.survey.models import ListedModel, listed_models

ATLAS = Path(__file__).resolve().parent
NORMPROBE = [sys.executable, "-m", "normprobe"]
#: What of its weights a model has to give: the decoder layers, or where it has none, the encoder.
NEEDED = ("layers", "interface")


def main() -> int:
    """Sizes, the survey, the entries. Returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="?", default=ATLAS / "models.txt", help="a list of models")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/atlas"))
    parser.add_argument("--entries", type=Path, default=ATLAS, help="where the entries go")
    parser.add_argument("--rate", type=float, default=100.0, help="MB a second from the hub")
    parser.add_argument("--sizes", action="store_true", help="say what the models weigh, and end")
    asked, more = parser.parse_known_args()
    tell_sizes(listed_models([str(asked.models)]), asked.rate, more)
    if asked.sizes:
        return 0
    resume = ["--resume"] * asked.output.exists()
    run("survey", asked.models, "--measure", "layers", "-o", asked.output, *resume, *more)
    return add_entries(asked.output, asked.entries)


def tell_sizes(models: list[ListedModel], rate: float, more: list[str]) -> None:
    """How much each model has to fetch, and how long that takes."""
    trusted = [word for word in more if word == "--trust-remote-code"]
    table = Table("model", Column("GB", justify="right"), Column("hours", justify="right"))
    total = 0
    for model in models:
        size, problem = size_of(model, trusted)
        total += size
        cells = [problem, ""] if problem else [f"{size / 1e9:.3g}", f"{size / rate / 3.6e9:.2g}"]
        table.add_row(str(model), *cells)
    table.add_section()
    table.add_row("together", f"{total / 1e9:.3g}", f"{total / rate / 3.6e9:.2g}")
    table.caption = f"weights that `layers` reads; hours to fetch them at {rate:g} MB a second"
    Console().print(table)


def size_of(model: ListedModel, trusted: list[str]) -> tuple[int, str]:
    """Bytes of weights that are needed, or why that is not known."""
    revision = ["--revision", model.revision] if model.revision else []
    words = ["inspect", model.model, "--weights", "--format", "json", *revision, *trusted]
    done = subprocess.run([*NORMPROBE, *words], capture_output=True, text=True, check=False)
    told: dict[str, Any] = json.loads(done.stdout or "{}")
    if "error" in told or done.returncode:
        return 0, str(told.get("error", {}).get("problem") or done.stderr.strip().split("\n")[0])
    sizes = {row["what"]: row["bytes"] for row in told["weights"] if row["kind"] == "command"}
    return next((int(sizes[name]) for name in NEEDED if sizes.get(name)), 0), ""


def add_entries(survey: Path, entries: Path) -> int:
    """An entry of each model with decoder layers that was measured. Returns an exit code."""
    added = 0
    for measured in sorted(survey.glob("models/*/layers/run.json")):
        added += run("atlas", "add", measured.parent, "-o", entries) == 0
    sys.stdout.write(f"{added} entries in {entries}; their page: normprobe atlas build {entries}\n")
    return int(not added)


def run(*words: object) -> int:
    """One command of normprobe, in sight. Returns its exit code."""
    return subprocess.run([*NORMPROBE, *map(str, words)], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
