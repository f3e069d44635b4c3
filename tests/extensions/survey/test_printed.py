"""The paper's tables over the models of a survey, from the runs of each."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import made_tables
from support.flat import tidied
from support.made_runs import run_folder
from support.read_latex import read_latex
from support.read_page import Reader, page_of_folders

import normprobe.paper
from normprobe.extensions.survey.measure import survey_tables
from normprobe.extensions.survey.printed import printed_table
from normprobe.report.table_text import latex
from normprobe.run import Run, load_run

LLAVA, QWEN, OVIS = "llava-hf/llava-1.5-7b-hf", "Qwen/Qwen2.5-7B-Instruct", "AIDC-AI/Ovis2.5-9B"
MEASUREMENTS = ("interface", "embeddings")


def shipped(file: str, **keys: str) -> dict[str, str]:
    """A row of the paper's file."""
    with (Path(normprobe.paper.__file__).parent / f"{file}.csv").open(encoding="utf-8") as lines:
        return next(row for row in csv.DictReader(lines) if keys.items() <= row.items())


def measured(folder: Path, scale: float, **tables: pd.DataFrame) -> Path:
    """The runs of a model, its norms scaled."""
    for name, table in tables.items():
        own = table.copy()
        own[["norm_mean", "norm_std"]] *= scale
        run_folder(folder / name, name, record={"model": folder.name}, **{name: tidied(name, own)})
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """LLaVA, a model of nobody's at a revision, two language models, Ovis, and one that failed."""
    interface, text = made_tables.interface(), made_tables.embeddings("text")
    both = made_tables.embeddings("text", "visual")
    folders = [
        measured(tmp_path / "llava", 1, interface=interface, embeddings=text),
        measured(tmp_path / "own", 0.01, interface=interface, embeddings=text),
        measured(tmp_path / "qwen", 3, embeddings=text),
        measured(tmp_path / "ovis", 2, interface=interface, embeddings=both),
        tmp_path / "gated",
    ]
    models = [(LLAVA, ""), ("org/own_1", "v2"), (QWEN, ""), (OVIS, ""), ("org/gated", "")]
    common = {"failures": {}, "fetched_bytes": 1, "peak_memory": 1, "seconds": 1.0}
    outcomes = [{"model": model, "revision": revision, **common} for model, revision in models]
    tables = survey_tables(outcomes, folders, MEASUREMENTS)
    return load_run(run_folder(tmp_path / "run", "survey", record={"model": "survey"}, **tables))


def norms(made: pd.DataFrame, scale: float, **where: str) -> list[float]:
    row = made[np.logical_and.reduce([made[k] == v for k, v in where.items()])].iloc[0]
    return [scale * row["norm_mean"], scale * row["norm_std"]]


BEFORE = {"stage": "projector_input", "group": "visual"}
AFTER = {"stage": "projector_output", "group": "visual"}
ENCODER = {"stage": "vision_encoder", "group": "visual"}


def test_every_cell_is_that_of_the_run_and_beside_it_what_the_paper_prints(run: Run) -> None:
    made = made_tables.interface()
    table = run.tables["table2"]
    assert table["model"].tolist() == [LLAVA, "org/own_1@v2", OVIS]
    columns = ["before_projector_mean", "before_projector_std"]
    columns += ["after_projector_mean", "after_projector_std"]
    for row, scale in enumerate((1, 0.01, 2)):
        expected = norms(made, scale, **BEFORE) + norms(made, scale, **AFTER)
        assert table.loc[row, columns].tolist() == pytest.approx(expected)
    printed = shipped("table2_projector", model="LLaVA-v1.5")
    for column, text in printed.items():
        if column != "model":
            assert table.loc[0, f"{column}_published"] == float(text)
            assert table.loc[1:, f"{column}_published"].isna().all()


def test_table_1_has_encoders_above_text(run: Run) -> None:
    table = run.tables["table1"]
    names = [LLAVA, "org/own_1@v2", OVIS]
    assert table["model"].tolist() == [*names, LLAVA, "org/own_1@v2", QWEN, OVIS]
    assert table["modality"].tolist() == ["visual"] * 3 + ["text"] * 4
    made = made_tables.interface()
    assert table.loc[:2, "mean"].tolist() == pytest.approx(
        [norms(made, scale, **ENCODER)[0] for scale in (1, 0.01, 2)]
    )
    qwen = shipped("table1_interface", model="Qwen2.5-7B-Instruct")
    assert table.loc[5, "mean_published"] == float(qwen["mean"])
    assert table.loc[5, "hidden_size_published"] == int(qwen["hidden_size"])
    assert table.drop(index=5)["mean_published"].isna().all()


def test_table_3_has_models_with_a_visual_table_alone_and_table_6_all_texts(run: Run) -> None:
    made = made_tables.embeddings("text", "visual")
    table = run.tables["table3"]
    assert table[["modality", "model"]].to_numpy().tolist() == [["visual", OVIS], ["text", OVIS]]
    expected = norms(made, 2, table="visual", rows="nonzero_rows")
    assert table.loc[0, ["mean", "std"]].tolist() == pytest.approx(expected)
    assert table["mean_published"].tolist() == [64.00, 1.38]
    table = run.tables["table6"].set_index("model")
    assert list(table.index) == [LLAVA, "org/own_1@v2", QWEN, OVIS]
    printed = shipped("table6_embedding_global", family="Qwen2.5-7B", variant="base")
    assert table.loc[QWEN, "std_published"] == float(printed["std"])


def test_a_table_is_printed_with_the_headers_and_digits_of_the_paper(run: Run) -> None:
    made = made_tables.interface()
    read = read_latex(run.to_latex("table2"))
    assert read.rows[0] == [
        "Model", "Visual (Before Proj.)", "Visual (After Proj.)", "Text (Embedding)"
    ]  # fmt: skip
    before, after = norms(made, 1, **BEFORE), norms(made, 1, **AFTER)
    text = made_tables.embedding_norms("text").mean()
    assert read.rows[1] == [
        LLAVA,
        *(f"{m:.2f} ± {s:.2f}" for m, s in (before, after)),
        f"{text:.2f}",
    ]
    assert read.rows[2] == ["", "(28.71 ± 16.87)", "(39.96 ± 45.58)", "(1.08)"]
    assert [row[0] for row in read.rows[3:]] == [
        "org/own_1@v2",
        OVIS,
    ]  # nothing is published of them
    # Two decimals would leave nothing of so small a norm.
    assert float(read.rows[3][3]) == pytest.approx(0.01 * text, rel=0.05)
    assert any("published (arXiv 2512.08374)" in line for line in read.notes)
    assert read_latex(run.to_latex("table6")).rows[0] == ["Model", "Mean Norm", "Std. Deviation"]
    chosen = read_latex(run.to_latex("table6", ["model", "std"]))
    assert chosen.rows[0] == ["model", "std"]


def test_a_mean_without_deviation_stands_alone_and_a_missing_number_is_a_dash() -> None:
    row: dict[str, Any] = {"model": "org/a"}
    for column, value in (("mean", 2.0), ("std", np.nan)):
        row |= {column: value, f"{column}_published": np.nan}
    table = printed_table("table6", pd.DataFrame([row]))
    assert table is not None
    assert table.rows == [["org/a", "2.0000", "-"]]
    one = pd.DataFrame(
        [{"modality": "visual", **row, "hidden_size": 8, "hidden_size_published": None}]
    )
    table = printed_table("table1", one)
    assert table is not None
    assert table.rows == [["Visual", "org/a", "8", "2.00"]]
    assert "published" not in latex(table)
    assert printed_table("survey", one) is None


def test_revisions_of_one_model_are_told_apart(tmp_path: Path) -> None:
    """Two of them and another model, listed with a revision too, which is alone."""
    models = [("org/a", "v1"), ("org/a", "v2"), ("org/b", "v1")]
    folders = [
        measured(tmp_path / str(place), place + 1, embeddings=made_tables.embeddings("text"))
        for place in range(3)
    ]
    common = {"failures": {}, "fetched_bytes": 1, "peak_memory": 1, "seconds": 1.0}
    outcomes = [{"model": model, "revision": revision, **common} for model, revision in models]
    tables = survey_tables(outcomes, folders, MEASUREMENTS)
    names = ["org/a@v1", "org/a@v2", "org/b"]
    assert [tables[name]["model"].tolist() for name in ("models", "cost")] == [names] * 2
    norm = made_tables.embedding_norms("text").mean()
    found = tables["survey"].query("quantity == 'table_norm'")
    assert found["model"].tolist() == names
    assert found["mean"].tolist() == pytest.approx([norm, 2 * norm, 3 * norm])


def test_the_page_shows_the_tables(run: Run) -> None:
    assert run.path is not None
    read = Reader(page_of_folders(run.path))
    assert "As Table 2: L2 norms of visual tokens" in read.text
    assert "(28.71 ± 16.87)" in read.text
    assert "mean published" not in read.text  # each stands there once, in its own form
