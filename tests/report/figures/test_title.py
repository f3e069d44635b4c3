"""The line above a figure: odd names, norms that were added, and how many samples."""

import json
import warnings

import pandas as pd
import pytest
from support.figure_cases import TABLES, drawings, write

from normprobe.report.figures.draw import build, title
from normprobe.runs.run_folder import RunFolder, RunStore
from normprobe.schema import SCHEMA_VERSION


def drawn_title(folder, **record):
    """The title of a figure of ``layers``, from a run folder."""
    write(folder, TABLES["layers"])
    written = {"status": "complete", "warnings": [], "files": [], **record}
    written["schema_version"] = SCHEMA_VERSION
    text = json.dumps(written, ensure_ascii=False)
    (folder / "run.json").write_text(text, encoding="utf-8")
    run = RunFolder.open(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = build(drawings("layers", run), run)["layers"]
        figure.draw_without_rendering()
    return figure.get_suptitle()


def test_odd_names_reach_the_title_as_text(tmp_path):
    found = drawn_title(tmp_path, model="组织/$x_1$", data="/data/mmbench.tsv")
    assert found == r"\u7ec4\u7ec7/$x_1$, 56 samples of mmbench.tsv"


def test_the_title_says_that_a_norm_aligned_the_model(tmp_path):
    aligned = {"after": "projector"}
    found = drawn_title(tmp_path, model="specimen", data="sample", alignment=aligned)
    assert found == "specimen, aligned, 56 questions of the bundled sample"


@pytest.mark.parametrize(
    ("table", "samples"),
    [
        (pd.DataFrame({"samples": [1, 1]}), ", 1 sample"),
        (pd.DataFrame({"samples": [None, 7]}), ", 7 samples"),
        (pd.DataFrame({"samples": [None]}), ""),
        (pd.DataFrame({"layer": [0]}), ""),
        (pd.DataFrame({"samples": [5, 9], "run": ["a", "b"]}), ", 5 to 9 samples"),
        (pd.DataFrame({"samples": [9, 9], "run": ["a", "b"]}), ", 9 samples"),
    ],
)
def test_samples_are_counted_in_the_table_that_is_drawn(table, samples):
    run = RunStore({"command": "layers", "model": "org/model"})
    assert title(run, table) == f"org/model{samples}"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"data": "sample"}, "3 photographs of the bundled sample"),
        ({"data": "mmbench"}, "3 pictures of mmbench"),
        ({"data": "mmbench/1", "options": {"prompt": "Where  is\nit?"}}, '"Where is it?"'),
        ({"data": "fixed inputs"}, "3 pictures"),
        ({"data": "mmbench/1", "compared": "attention"}, "one prompt"),
        ({"data": "sample", "base": "org/llm"}, "3 photographs of the bundled sample"),
    ],
)
def test_the_title_says_what_is_shown(record, expected):
    run = RunStore({"command": "layers", "model": "org/model", **record})
    assert title(run, pd.DataFrame({"image": [1, 1, 2, 3]})) == f"org/model, {expected}"


def test_the_base_is_named_where_its_norms_are_drawn():
    run = RunStore({"command": "embeddings", "model": "org/model", "base": "org/llm"})
    assert title(run, pd.DataFrame({"base_norm": [1.0]})) == "org/model against org/llm"
    assert title(run, pd.DataFrame({"norm_mean": [1.0]})) == "org/model"
