"""A person who reads a CSV file finds each of its columns in the reference, by its name."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image
from support.commands import invoke
from support.documents import DOCS, ROOT, loaded

from normprobe import Probe, compare, schema
from normprobe.run import Run
from normprobe.tidy import COUNTS, ESTIMATES, QUANTITY

#: What only a model of the paper, or one with a visual table, has.
NOT_OF_THE_SPECIMEN = {
    *("published.csv", "histogram.csv of interface", "figure4.csv"),
    "massive_tokens.csv",  # it has none; tests/measurements/layers/test_watchers.py
    *("training.csv", "gradients.csv", "alarms.csv"),  # a training's
}
#: Numbers that the runs below have not, or without all estimates.
RARE = {
    # five images that carry an effect, angles that differ, and --answer
    *(("cause.csv", name) for name in ("greedy_accuracy", "kl", "moved", "nll", "share_removed")),
    ("theory.csv", "lag_angle"),  # asks for a cosine above 0 at the decoder input
    *(("attention.csv", name) for name in ("score_gap", "signal_to_noise")),  # for a box
}


GENERATOR = loaded(ROOT / ".ci/columns.py")
TABLES = {GENERATOR.title(table): table for table in GENERATOR.tables()}


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
            assert number.unit or number.forms in ("key", "value"), (title, number)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run folder of each command, with every option that adds a table."""
    folder = tmp_path_factory.mktemp("runs")
    picture, other = sorted((ROOT / "benchmarks_data/images").glob("*.jpg"))[:2]
    shutil.copy(picture, folder / "a.jpg")
    shutil.copy(other, folder / "b.jpg")
    asked = {"image": "a.jpg", "prompt": "Where is the dog?", "word": "dog"}
    whole = [0, 0, *Image.open(picture).size]
    boxes = [asked | {"box": [40, 60, 200, 180]}, asked | {"box": whole}]
    data = folder / "boxes.jsonl"
    rows = [*boxes, boxes[0] | {"image": "b.jpg"}, {"prompt": 3}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    probe = Probe("specimen")
    everything = {"also": ("branches", "massive", "headroom"), "map": 1}
    layers = [probe.layers(limit=2, seed=seed) for seed in range(5)]
    made: dict[str, Run] = {
        "layers": probe.measure("layers", limit=4, **everything),
        "tower": probe.layers(limit=4, tower="vision"),
        "pairs": probe.layers("pairs"),
        "turns": probe.layers("turns", limit=2, by="turn"),
        "interface": probe.measure("interface", limit=2, map=1),
        "grounding": probe.grounding(str(data), skip_bad=True),
        "cause": probe.cause(limit=2),
        "check": probe.measure("check", limit=1),
        "embeddings": probe.embeddings(base="specimen"),
        "attention": probe.attention([picture, picture], "Which is a dog?"),
        "shares": probe.shares(limit=4),
        "follow": probe.follow(limit=12),
        "nearest": probe.nearest(limit=4),
        "share_images": probe.shares("pairs", limit=4),
        "compare": compare(layers),
    }
    for name, run in made.items():
        run.save(folder / name, figures=False)
    probe.align(output=folder / "align")
    assert invoke("survey", "specimen", "-n", 2, "-o", folder / "survey").exit_code == 0
    return {name: folder / name for name in (*made, "align", "survey")}


def written(runs: dict[str, Path]) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Command, file and content of everything that was written."""
    for name, folder in runs.items():
        for file in sorted(folder.glob("*.csv")):
            command = "layers" if name in ("pairs", "turns") else name
            yield command, file.name, pd.read_csv(file, low_memory=False)


@pytest.mark.slow
def test_what_is_written_is_in_the_reference_and_nothing_else(runs: dict[str, Path]) -> None:
    columns: dict[str, set[str]] = {}
    estimates: dict[str, dict[str, set[str]]] = {}
    for command, file, table in written(runs):
        if re.fullmatch(r"table\d\.csv", file):  # its columns are the paper's
            continue
        title = file if file in TABLES else f"{file} of {command}"
        assert title in TABLES, f"{command} writes {file}"
        declared = TABLES[title]
        known = {*declared.keys, *declared.columns}
        own = {*table.columns} - ({*ESTIMATES, QUANTITY} if declared.keys else set())
        if declared.open:
            known |= {name for other in TABLES.values() for name in (*other.keys, *other.columns)}
        assert own <= known, title
        columns.setdefault(title, set()).update(own)
        if not declared.keys:
            continue
        for quantity, rows in table.groupby(QUANTITY):
            held = rows.drop(columns=[*COUNTS, *own], errors="ignore").notna().any()
            of_quantity = estimates.setdefault(title, {}).setdefault(str(quantity), set())
            of_quantity |= {str(name) for name in held.index[held] if name != QUANTITY}
    missing: set[tuple[str, str, str]] = set()
    for title, found in estimates.items():
        declared = TABLES[title]
        for quantity, held in found.items():
            others = [t.numbers[quantity] for t in TABLES.values() if quantity in t.numbers]
            asked = [declared.numbers[quantity]] if quantity in declared.numbers else others
            assert any(held <= {*each.estimates} for each in asked), (title, quantity, held)
            if quantity in declared.numbers and not declared.open:
                lacking = {*declared.numbers[quantity].estimates} - held
                missing |= {(title, quantity, estimate) for estimate in lacking}
        if not declared.open:
            missing |= {(title, name, "all") for name in {*declared.numbers} - {*found}}
    assert {(title, quantity) for title, quantity, _ in missing} == RARE
    for title, seen in columns.items():
        if not TABLES[title].open:
            assert seen == {*TABLES[title].keys, *TABLES[title].columns}, title
    left = {title for title in TABLES if not TABLES[title].open} - columns.keys()
    assert left == NOT_OF_THE_SPECIMEN
