"""The table of docs/explanation/own-code.md: published code, measured beside float64.

    python .ci/own_code.py FOLDER [--python OTHER/bin/python ...] [--write]

FOLDER stands outside this repository and holds no more than is measured, one folder a family:

    checkpoint/   tiny random weights around the published code, changed only as row.json says
    inputs.py     an inputs file, where the model needs one
    reference.py  writes ``layer,group,tokens,norm_mean`` to stdout: plain float64 hooks on a model
                  that normprobe did not load, of the first two bundled questions; groups are
                  visual, known from how the prompt was built, and other
    row.json      family, repository, commit, changed (patches, in words), source (the folder that
                  holds the published files, from here), path (what to put on PYTHONPATH), edited
                  (how many lines of the file are not as `normprobe inputs` began it), options (of
                  the command, where it needs some)

A row is made again by each of the interpreters, one a line of transformers, and says nothing that
was not measured in this run. Families that FOLDER lacks keep the row that they have.
"""

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "own-code.md"
START, END = "<!-- made by .ci/own_code.py -->", "<!-- end -->"
HEADER = (
    "| family | repository | files | changed to run | file | transformers: largest difference |",
    "|---|---|---|---|---|---|",
)
#: The groups of layers.csv that make up those of a reference.
GROUPS = {"visual": ("visual",), "other": ("text", "special", "structural")}
TOLERANCE = 1e-6


def main(
    folder: Path,
    python: Annotated[list[Path] | None, typer.Option(help="More interpreters.")] = None,
    write: Annotated[bool, typer.Option(help=f"Into {PAGE.relative_to(ROOT)}.")] = False,
) -> None:
    """Measure every family of FOLDER and print the table."""
    interpreters = [Path(sys.executable), *(python or [])]
    families = sorted(file.parent for file in folder.glob("*/row.json"))
    lines = [*HEADER, *(row(family, interpreters) for family in families)]
    typer.echo("\n".join(lines))
    if write:
        before, _, rest = PAGE.read_text().partition(START)
        held, _, after = rest.partition(END)
        rows = {line.split("|")[1].strip(): line for line in held.strip().splitlines()[2:]}
        rows |= {line.split("|")[1].strip(): line for line in lines[2:]}
        table = [*HEADER, *(rows[family] for family in sorted(rows, key=str.lower))]
        PAGE.write_text("\n".join([before + START, *table, END + after]))


def row(family: Path, interpreters: list[Path]) -> str:
    """One line of the table."""
    facts = json.loads((family / "row.json").read_text())
    measured = [f"{version(p)}: {difference(family, facts, p)}" for p in interpreters]
    inputs = family / "inputs.py"
    written = f"{len(inputs.read_text().splitlines())} lines" if inputs.exists() else "none"
    if "edited" in facts:
        written += f", {facts['edited']} edited"
    repository = f"{facts['repository']} {facts['commit'][:8]}"
    cells = [facts["family"], repository, digest(family / facts["source"]), facts["changed"]]
    typer.echo(f"{facts['family']}: {measured}", err=True)
    return f"| {' | '.join([*cells, written, '; '.join(measured)])} |"


def version(python: Path) -> str:
    """Of transformers."""
    return run(python, "-c", "import transformers; print(transformers.__version__)").stdout.strip()


def digest(source: Path) -> str:
    """Of all Python files as they were published: names and contents, eight digits."""
    total = sha256()
    for file in sorted(source.rglob("*.py")):
        total.update(file.relative_to(source).as_posix().encode() + file.read_bytes())
    return total.hexdigest()[:8]


def difference(family: Path, facts: dict[str, Any], python: Path) -> str:
    """The largest relative difference of a mean norm, or what stood in the way."""
    path = [str((family / entry).resolve()) for entry in facts["path"]]
    reference = run(python, str(family / "reference.py"), path=path)
    if reference.returncode:
        typer.echo(f"{family.name}: {reference.stderr[-1500:]}", err=True)
        return "the code itself does not run"
    inputs = family / "inputs.py"
    options = ["--inputs", str(inputs)] if inputs.exists() else []
    options += facts.get("options", [])
    with tempfile.TemporaryDirectory() as scratch:
        command = ["layers", str(family / "checkpoint"), "--trust-remote-code", "-n", "2"]
        made = run(
            python, "-m", "normprobe", *command, *options, "--output", f"{scratch}/run", path=path
        )
        if made.returncode:
            typer.echo(f"{family.name}: {made.stderr[-1500:]}", err=True)
            return "a traceback" if "Traceback" in made.stderr else "refused"
        found = Path(scratch, "run", "layers.csv").read_text()
    return compared(table(reference.stdout), table(found))


def compared(expected: list[dict[str, str]], found: list[dict[str, str]]) -> str:
    """Of every layer and group, the number of tokens and the mean norm over them."""
    worst = 0.0
    for want in expected:
        rows = [
            (int(have["tokens"]), float(have["mean"]))
            for have in found
            if (have["layer"], have["quantity"]) == (want["layer"], "norm")
            if have["group"] in GROUPS[want["group"]] and int(have["tokens"])
        ]
        tokens = sum(count for count, _ in rows)
        if tokens != int(want["tokens"]):
            return f"WRONG: {tokens} {want['group']} tokens for {want['tokens']}"
        mean = sum(count * norm for count, norm in rows) / tokens
        worst = max(worst, abs(mean / float(want["norm_mean"]) - 1))
    return f"{worst:.0e}" if worst < TOLERANCE else f"WRONG: {worst:.0e}"


def table(text: str) -> list[dict[str, str]]:
    """A CSV file; what the code of a model printed before it is left out."""
    return list(csv.DictReader(io.StringIO(text[text.index("layer,") :])))


def run(
    python: Path, *command: str, path: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A process of its own, offline."""
    search = os.pathsep.join([str(ROOT), *(path or [])])
    environment = {**os.environ, "PYTHONPATH": search, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [str(python), *command],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )


if __name__ == "__main__":
    typer.run(main)
