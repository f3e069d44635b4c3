"""``Run``: in memory, in a folder and on a page, the same tables, words and figures."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.made_runs import ATTACK
from support.processors import make_processor
from support.read_latex import read_latex
from support.read_page import Reader
from support.tiny_inputs import tiny_inputs
from support.tiny_models import tiny_model

from normprobe import NormprobeError, Probe, Run, compare, load_run
from normprobe.report.page.document import run_title
from normprobe.report.table_text import table_text
from normprobe.run import page_of
from normprobe.runs.files import csv_bytes
from normprobe.runs.run_folder import COMPLETE, PARTIAL

pytestmark = pytest.mark.usefixtures("unrendered")


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe(tiny_model("llava"), make_processor("llava"))


@pytest.fixture(scope="module")
def run(probe: Probe) -> Run:
    return probe.layers("sample", limit=3, batch_size=3)


@pytest.fixture(scope="module")
def other() -> Run:
    """Another model on the same samples."""
    model = tiny_model("gemma3")
    return Probe(model, make_processor("gemma3")).layers("sample", limit=3)


@pytest.fixture(scope="module", params=["layers", "interface", "embeddings", "attention"])
def any_run(request: pytest.FixtureRequest, probe: Probe, run: Run) -> Run:
    if request.param == "layers":
        return run
    if request.param == "interface":
        return probe.interface("sample", limit=2)
    if request.param == "embeddings":
        return probe.embeddings()
    from normprobe.data.data_set import open_data

    return probe.attention(next(iter(open_data("sample", limit=1))))


def renamed(model_type: str, name: str) -> Run:
    """A run of a model whose name is somebody else's choice."""
    model = tiny_model(model_type)
    model.config._name_or_path = name
    return Probe(model).layers(tiny_inputs(model, 2))


# --- in memory ------------------------------------------------------------------------------------


def test_a_run_in_memory_has_tables_words_figures_and_samples(run: Run) -> None:
    assert run.path is None
    assert run.command == "layers"
    assert run.table is run.tables["layers"]
    assert list(run.tables) == ["accounted", "assumptions", "layers", "theory"]
    assert len(run.tables) == 4
    assert run.verdict.startswith("Visual tokens enter the decoder ")
    assert list(run.figures()) == ["layers", "turning", "accounted", "directions", "theory"]
    assert run.samples["sample_id"].nunique() == 3
    assert run.record["status"] == "complete"
    assert "in memory" in repr(run)


def test_a_table_that_is_not_there(run: Run) -> None:
    with pytest.raises(KeyError):
        run.tables["shift"]
    with pytest.raises(NormprobeError, match="holds no table shift"):
        run.store.table("shift")


def test_a_notebook_shows_words_a_figure_and_a_table(any_run: Run) -> None:
    shown = any_run._repr_html_()
    assert shown.startswith("<p>")
    assert shown.count('<img src="data:image/png;base64,') == 1
    assert shown.count("<table") == 1
    assert str(any_run.table.columns[0]) in shown


def test_a_notebook_shows_foreign_names_as_text(run: Run) -> None:
    attacked = renamed("llava", ATTACK)
    for shown in (
        attacked._repr_html_(),
        compare([attacked, run])._repr_html_(),
        compare([attacked, run], [ATTACK, "other"])._repr_html_(),
    ):
        assert "<script" not in shown
        assert "<img src=x" not in shown
    assert "&lt;script" in compare([attacked, run], [ATTACK, "other"])._repr_html_()


def test_a_table_to_paste(any_run: Run) -> None:
    assert any_run.to_markdown() == table_text(any_run.table, "md")
    read, plain = read_latex(any_run.to_latex()), read_latex(table_text(any_run.table, "tex"))
    assert read == plain._replace(caption=run_title(any_run.store), label=any_run.command)
    first, *_ = any_run.tables
    if first != any_run.command:
        assert read_latex(any_run.to_latex(first)).label == f"{any_run.command}-{first}"


def test_chosen_columns_of_a_chosen_table(run: Run) -> None:
    columns = ["layer", "norm_ratio", "retention_mean"]
    read = read_latex(run.to_latex("theory", columns))
    assert read.rows[0] == columns
    assert len(read.rows) == 1 + len(run.tables["theory"])
    header, *_ = run.to_markdown("theory", columns).splitlines()
    assert header == r"| layer | norm\_ratio | retention\_mean |"
    with pytest.raises(NormprobeError, match="theory has no column angle"):
        run.to_latex("theory", ["angle"])
    with pytest.raises(NormprobeError, match="holds no table shift"):
        run.to_markdown("shift")


def test_a_page_of_a_run(any_run: Run) -> None:
    page = any_run.page()
    assert page.startswith("<!doctype html>")
    assert any_run.verdict.split(".")[0][:30] in Reader(page).text
    assert page == page_of([any_run])


def test_a_page_of_several_runs(run: Run, other: Run, tmp_path: Path) -> None:
    page = page_of([run, other.save(tmp_path / "other"), compare([run, other])])
    assert page.count('<section id="run-') == 3


# --- in a folder ----------------------------------------------------------------------------------


def test_a_saved_run_reads_back_as_it_was(any_run: Run, tmp_path: Path) -> None:
    saved = any_run.save(tmp_path / "saved")
    loaded = load_run(tmp_path / "saved")
    for again in (saved, loaded):
        assert again.path == tmp_path / "saved"
        assert again.command == any_run.command
        assert list(again.tables) == list(any_run.tables)
        assert again.verdict == any_run.verdict
        assert list(again.figures()) == list(any_run.figures())
        assert len(again.samples) == len(any_run.samples)
    for name, table in any_run.tables.items():
        assert (tmp_path / "saved" / f"{name}.csv").read_bytes() == csv_bytes(table)
        numbers = loaded.tables[name].select_dtypes("number")
        pd.testing.assert_frame_equal(numbers, table[numbers.columns], check_dtype=False)
    drawn = {file.stem for file in (tmp_path / "saved/plots").glob("*.png")}
    assert drawn == set(any_run.figures())


def test_the_record_is_kept(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "saved")
    record = json.loads((tmp_path / "saved/run.json").read_text())
    changing = {"files", "created"}
    for name in run.record.keys() - changing:
        kept: Any = json.loads(json.dumps(run.record[name], default=str))
        assert record[name] == kept, name
    assert record["status"] == "complete"
    assert record["warnings"]  # three images are few


def test_a_folder_that_holds_something_is_refused(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "saved", figures=False)
    assert not (tmp_path / "saved/plots").exists()
    with pytest.raises(NormprobeError, match="exists"):
        run.save(tmp_path / "saved")
    (tmp_path / "saved/notes.txt").write_text("mine")
    run.save(tmp_path / "saved", overwrite=True)
    assert (tmp_path / "saved/notes.txt").read_text() == "mine"
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/thesis.tex").write_text("mine")
    with pytest.raises(NormprobeError, match="not a run folder"):
        run.save(tmp_path / "foreign", overwrite=True)
    with pytest.raises(NormprobeError, match="is not a run folder"):
        load_run(tmp_path / "foreign")


def test_a_run_in_a_folder_is_copied(run: Run, tmp_path: Path) -> None:
    first = run.save(tmp_path / "first")
    second = first.save(tmp_path / "second")
    for name in run.tables:
        one, two = (folder / f"{name}.csv" for folder in (first.path, second.path))
        assert one.read_bytes() == two.read_bytes()
    assert len(second.samples) == len(run.samples)


def test_a_copy_of_an_unfinished_run_is_unfinished(run: Run, tmp_path: Path) -> None:
    first = run.save(tmp_path / "first", figures=False)
    assert first.record["status"] == COMPLETE
    first.store.note(status=PARTIAL)
    first.save(tmp_path / "second", figures=False)
    assert load_run(tmp_path / "second").record["status"] == PARTIAL


def test_a_run_is_not_saved_over_itself(run: Run, tmp_path: Path) -> None:
    saved = run.save(tmp_path / "saved")
    with pytest.raises(NormprobeError, match="is the run itself"):
        load_run(tmp_path / "saved").save(tmp_path / "saved", overwrite=True)
    assert load_run(tmp_path / "saved").verdict == saved.verdict


def test_a_failure_leaves_no_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise NormprobeError("no space left", "free some")

    monkeypatch.setattr("normprobe.runs.run_folder.csv_bytes", fail)
    with pytest.raises(NormprobeError, match="no space left"):
        run.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


# --- side by side ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_side_by_side_in_memory_and_in_folders(run: Run, other: Run, tmp_path: Path) -> None:
    folders = [run.save(tmp_path / "one").path, str(other.save(tmp_path / "two").path)]
    together = compare([run, other])
    assert list(together.tables) == ["compare", "ranking"]
    assert together.tables["compare"]["run"].nunique() == 2
    assert together.table["rank"].tolist() == [1, 2]
    assert together.verdict.startswith("The norm disparity at the decoder input is largest in ")
    assert together.figures()
    for runs in (folders, [run, folders[1]]):
        again = compare(runs)
        pd.testing.assert_frame_equal(again.table, together.table, check_dtype=False)
        assert again.verdict == together.verdict
    saved = compare([run, other], output=tmp_path / "compared")
    assert saved.path == tmp_path / "compared"
    assert load_run(saved.path).verdict == together.verdict
    assert together.save(tmp_path / "later").verdict == together.verdict


def test_labels_name_the_runs_and_their_steps(run: Run, other: Run) -> None:
    named = compare([run, other], ["mine", "yours"])
    assert named.tables["compare"]["run"].unique().tolist() == ["mine", "yours"]
    steps = compare([run, other], ["200", "100"])
    assert steps.tables["compare"]["step"].unique().tolist() == [100, 200]
    with pytest.raises(NormprobeError, match="2 runs but 1 labels"):
        compare([run, other], ["mine"])


def test_runs_of_the_same_model_get_labels_of_their_own(probe: Probe, run: Run) -> None:
    aligned = probe.layers("sample", limit=3, batch_size=3, align="table")
    assert compare([run, aligned]).table["run"].nunique() == 2
    repeated = probe.layers("sample", limit=3, batch_size=3)
    assert compare([run, repeated]).table["run"].nunique() == 2


def test_what_cannot_stand_side_by_side_is_refused(probe: Probe, run: Run, tmp_path: Path) -> None:
    with pytest.raises(NormprobeError, match="at least two runs; received 1"):
        compare([run])
    with pytest.raises(NormprobeError, match="a run in memory is given twice"):
        compare([run, run])
    saved = run.save(tmp_path / "saved", figures=False)
    with pytest.raises(NormprobeError, match="saved is given twice"):
        compare([saved, tmp_path / "saved"])
    with pytest.raises(NormprobeError, match="runs of different commands"):
        compare([run, probe.interface("sample", limit=1)])
    with pytest.raises(NormprobeError, match="is not a run folder"):
        compare([run, tmp_path / "nothing"])
