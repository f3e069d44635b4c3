"""A person who reads a CSV file finds each of its columns in the reference, by its name."""

import csv
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from support.commands import invoke
from support.documents import DOCS, ROOT, loaded

from normprobe import Probe, compare, schema
from normprobe.run import Run

#: What only a model of the paper, or one with a visual table, has.
NOT_OF_THE_SPECIMEN = {
    *("published.csv", "histogram.csv of interface", "figure4.csv"),
    "massive_tokens.csv",  # it has none; tests/measurements/layers/test_watchers.py
    *("training.csv", "gradients.csv", "alarms.csv"),  # a training's
}
OF_SOUND = re.compile("disparity_(image|video|audio)")  # and of clips


GENERATOR = loaded(ROOT / ".ci/columns.py")
TABLES = {GENERATOR.title(table): table for table in GENERATOR.tables()}


def documented(title: str) -> list[str]:
    columns: list[str] = TABLES[title].columns
    return columns


def test_the_page_is_what_its_source_says() -> None:
    page = (DOCS / "reference/columns.md").read_text(encoding="utf-8")
    assert page == GENERATOR.page(), "run `make columns`"


def test_every_quantity_of_the_schema_is_explained() -> None:
    names = {title: {n.name for n in table.quantities} for title, table in TABLES.items()}
    layers = {*schema.TOKEN_METRICS, *schema.OTHER_TOKEN_METRICS, *schema.RATIOS_TO_TEXT.values()}
    assert layers | set(schema.SAMPLE_METRICS) <= names["layers.csv"]
    assert set(schema.PAIR_METRICS) <= names["theory.csv"]
    assert set(schema.BRANCH_METRICS) <= names["branches.csv"]
    stages = next(n.words for n in TABLES["interface.csv"].quantities if n.name == "stage")
    assert all(f"`{stage}`" in stages for stage in schema.STAGES)


def test_every_quantity_has_a_meaning_and_every_number_a_unit() -> None:
    for title, table in TABLES.items():
        for number in table.quantities:
            assert number.words, (title, number)
            assert number.unit or number.forms == "value", (title, number)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run folder of each command, with every option that adds a table."""
    folder = tmp_path_factory.mktemp("runs")
    picture = next(iter((ROOT / "benchmarks_data/images").glob("*.jpg")))
    shutil.copy(picture, folder / "a.jpg")
    asked = {"image": "a.jpg", "prompt": "Where is the dog?", "word": "dog"}
    whole = [0, 0, *Image.open(picture).size]
    boxes = [asked | {"box": [40, 60, 200, 180]}, asked | {"box": whole}]
    data = folder / "boxes.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in [*boxes, {"prompt": 3}]), "utf-8")

    probe = Probe("specimen")
    everything = {"also": ("branches", "massive"), "map": 1}
    layers = [probe.layers(limit=2, seed=seed) for seed in range(5)]
    made: dict[str, Run] = {
        "layers": probe.measure("layers", limit=2, **everything),
        "pairs": probe.layers("pairs"),
        "turns": probe.layers("turns", limit=2, by="turn"),
        "interface": probe.measure("interface", limit=2, map=1),
        "grounding": probe.grounding(str(data), skip_bad=True),
        "cause": probe.cause(limit=2),
        "check": probe.measure("check", limit=1),
        "embeddings": probe.embeddings(base="specimen"),
        "attention": probe.attention([picture, picture], "Which is a dog?"),
        "compare": compare(layers),
    }
    for name, run in made.items():
        run.save(folder / name, figures=False)
    probe.align(output=folder / "align")
    assert invoke("survey", "specimen", "-n", 2, "-o", folder / "survey").exit_code == 0
    return {name: folder / name for name in (*made, "align", "survey")}


def headers(runs: dict[str, Path]) -> Iterator[tuple[str, str, list[str]]]:
    """Command, file and columns of everything that was written."""
    for name, folder in runs.items():
        for file in sorted(folder.glob("*.csv")):
            with file.open(encoding="utf-8", newline="") as lines:
                yield (
                    "layers" if name in ("pairs", "turns") else name,
                    file.name,
                    next(csv.reader(lines)),
                )


@pytest.mark.slow
def test_every_column_that_is_written_is_in_the_reference_and_no_other(
    runs: dict[str, Path],
) -> None:
    seen: dict[str, set[str]] = {}
    for command, file, columns in headers(runs):
        if re.fullmatch(r"table\d\.csv", file):  # its columns are the paper's
            continue
        title = file if file in TABLES else f"{file} of {command}"
        assert title in TABLES, f"{command} writes {file}"
        known = documented(title)
        if TABLES[title].open:
            known = [*known, *(name for table in TABLES for name in documented(table))]
        else:
            seen.setdefault(title, set()).update(columns)
        assert not set(columns) - set(known), title
    for title, columns_seen in seen.items():
        assert {c for c in documented(title) if not OF_SOUND.match(c)} == columns_seen, title
    left = {title for title in TABLES if not TABLES[title].open} - seen.keys()
    assert left == NOT_OF_THE_SPECIMEN
