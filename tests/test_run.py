"""``Run``: in memory, in a folder and on a page, the same tables, words and figures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.made_runs import ATTACK
from support.processors import make_processor
from support.read_latex import read_latex
from support.read_page import Reader
from support.tiny_inputs import tiny_inputs
from support.tiny_models import tiny_model

from normprobe import NormprobeError, Probe, Run, compare, load_run
from normprobe.data.data_set import open_data
from normprobe.measurements import measurement
from normprobe.report.page.document import run_title
from normprobe.report.readable import readable_table
from normprobe.report.table_text import latex, markdown
from normprobe.run import page_of
from normprobe.runs.files import csv_bytes, csv_table
from normprobe.runs.run_folder import COMPLETE, PARTIAL
from normprobe.tidy import select

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
    model = tiny_model("llava_next")
    return Probe(model, make_processor("llava_next")).layers("sample", limit=3)


@pytest.fixture(scope="module", params=["layers", "interface", "embeddings", "attention"])
def any_run(request: pytest.FixtureRequest, probe: Probe, run: Run) -> Run:
    if request.param == "layers":
        return run
    if request.param == "interface":
        return probe.interface("sample", limit=2)
    if request.param == "embeddings":
        return probe.embeddings()
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
    assert list(run.tables) == ["accounted", "assumptions", "layers", "loudest", "theory"]
    assert len(run.tables) == 5
    assert run.verdict.headline.startswith("Visual tokens enter the decoder ")
    assert repr(run.tables) == "<tables: accounted, assumptions, layers, loudest, theory>"
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
    assert shown.strip().startswith("<p")
    assert shown.count("<li>") == len(any_run.verdict.findings)
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
    shown = measurement(any_run.command).quantities()[any_run.command].shown
    table = readable_table(any_run.table, shown or None)
    assert any_run.to_markdown() == markdown(table)
    read, plain = read_latex(any_run.to_latex()), read_latex(latex(table))
    assert read == plain._replace(caption=run_title(any_run.store), label=any_run.command)
    first, *_ = any_run.tables
    if first != any_run.command:
        assert read_latex(any_run.to_latex(first)).label == f"{any_run.command}-{first}"


def test_chosen_quantities_of_a_chosen_table(run: Run) -> None:
    chosen = ["retention", "norm_ratio"]
    read = read_latex(run.to_latex("theory", chosen))
    assert read.rows[0] == ["", "retention", "norm ratio"]
    assert read.rows[1] == ["layer", "visual text", "visual text"]
    assert len(read.rows) == 2 + run.tables["theory"]["layer"].nunique()
    header, *_ = run.to_markdown("theory", chosen).splitlines()
    assert header == "| layer | retention visual text | norm ratio visual text |"
    header, *_ = run.to_csv("theory", chosen).splitlines()
    assert header == "layer,retention visual_text,norm_ratio visual_text"
    for text in (run.to_latex, run.to_csv):
        with pytest.raises(NormprobeError, match="theory has no quantity angle"):
            text("theory", ["angle"])
        with pytest.raises(NormprobeError, match="holds no table shift"):
            text("shift")


def test_chosen_columns_of_a_table_that_is_not_tidy(run: Run) -> None:
    """It has a column ``quantity``, too; its own columns stay."""
    columns = ["number", "quantity", "verdict"]
    table = run.tables["assumptions"]
    assert read_latex(run.to_latex("assumptions", columns)).rows[0] == columns
    header, *_ = run.to_markdown("assumptions").splitlines()
    assert header.replace("\\", "") == f"| {' | '.join(table)} |"
    assert run.to_csv("assumptions") == csv_bytes(table).decode()
    with pytest.raises(NormprobeError, match="assumptions has no column norm_ratio"):
        run.to_markdown("assumptions", ["norm_ratio"])


def test_csv_holds_the_main_quantities_in_full_precision(run: Run) -> None:
    text = run.to_csv()
    found = csv_table(text.encode()).set_index("layer")
    groups = ("visual", "text")  # the file has special tokens, too
    quantities = ("norm", "cosine", "angle", "relative_update")
    assert list(found) == [f"{name} {group}" for name in quantities for group in groups]
    for name in quantities:
        for group in groups:
            rows = select(run.table, name, group=group).set_index("layer")["mean"]
            assert found[f"{name} {group}"].dropna().to_dict() == rows.to_dict()
    assert "special" in set(run.table["group"])


def test_a_quantity_stands_side_by_side_layers_down_and_groups_across(run: Run) -> None:
    layers = sorted(set(run.table["layer"]))
    norms = run.wide("norm")
    assert (norms.index.name, norms.index.tolist()) == ("layer", layers)
    assert list(norms) == ["visual", "special", "text", "non_visual"]
    for estimate in ("mean", "q50", "geometric_low", "tokens"):
        made = run.wide("norm", estimate)
        rows = select(run.table, "norm").set_index(["layer", "group"])[estimate]
        assert made.stack().dropna().to_dict() == rows.to_dict()
    ratios = run.wide("norm_ratio", table="theory")
    assert (list(ratios), ratios.index.tolist()) == (["visual_text"], layers)
    assert run.wide("cosine").index.tolist() == layers[1:]


def test_stages_stay_in_their_order(probe: Probe) -> None:
    run = probe.interface("sample", limit=2)
    made = run.wide("norm")
    assert made.index.tolist() == list(dict.fromkeys(run.table["stage"]))
    assert made.index[0] == "vision_encoder" and made.index[-1] == "effective_embedding"
    assert list(made) == list(dict.fromkeys(run.table["group"]))
    assert made.loc["decoder_input", "visual"] > 0
    assert np.isnan(made.loc["decoder_input", "all_rows"])


def test_a_table_of_three_keys_has_two_of_them_down(probe: Probe) -> None:
    sample = next(iter(open_data("sample", limit=1)))
    run = probe.attention(sample, words=[sample.prompt.split()[0]])
    made = run.wide("share", "std", table="heads")
    assert made.index.names == ["layer", "query"]
    assert made.columns.name == "head"
    rows = select(run.tables["heads"], "share")
    assert made.size == len(rows) == 3 * 2 * made.shape[1]
    for row in rows.to_dict("records"):
        assert made.loc[(row["layer"], row["query"]), row["head"]] == row["std"]


def test_a_table_of_one_key_has_the_quantity_across(run: Run, other: Run) -> None:
    compared = compare([run, other], ["one", "two"])
    made = compared.wide("disparity_input", "low")
    assert (made.index.name, list(made)) == ("run", ["disparity_input"])
    rows = select(compared.table, "disparity_input").set_index("run")["low"]
    assert made["disparity_input"].to_dict() == rows.to_dict()


@pytest.mark.parametrize(
    ("asked", "problem", "remedy"),
    [
        ({"quantity": "nrom"}, "layers has no quantity nrom", "did you mean norm"),
        ({"quantity": "zzz"}, "layers has no quantity zzz", "it has hidden_size, nonfinite, norm,"),
        (
            {"quantity": "norm", "estimate": "q5"},
            "layers has no estimate q5",
            "did you mean q95 or q75 or q50? it has mean, low, high, band_low,",
        ),
        (
            {"quantity": "norm", "table": "assumptions"},
            "assumptions is no table of quantities",
            "read it from tables",
        ),
        (
            {"quantity": "norm", "table": "shift"},
            "the run of layers holds no table shift",
            "it holds accounted, assumptions, layers, loudest, theory",
        ),
    ],
)
def test_what_cannot_stand_side_by_side_is_told(
    asked: dict[str, str], problem: str, remedy: str, run: Run
) -> None:
    with pytest.raises(NormprobeError) as refused:
        run.wide(**asked)
    assert refused.value.problem == problem
    assert refused.value.remedy.startswith(remedy)
    assert len(str(refused.value).splitlines()) == 2


def test_a_table_of_a_stranger_is_named_where_it_cannot_be_turned(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "saved", figures=False)
    pd.concat([run.table, run.table]).to_csv(tmp_path / "saved/layers.csv", index=False)
    readers: list[Callable[[Run], object]] = [
        Run.to_csv,
        Run.to_markdown,
        lambda damaged: damaged.to_latex(columns=["norm"]),
        lambda damaged: damaged.wide("norm"),
    ]
    for read in readers:
        with pytest.raises(NormprobeError, match="saved are not as normprobe writes them"):
            read(load_run(tmp_path / "saved"))


def test_a_page_of_a_run(any_run: Run) -> None:
    page = any_run.page()
    assert page.startswith("<!doctype html>")
    assert any_run.verdict.headline[:30] in Reader(page).text
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
        assert str(again.verdict) == str(any_run.verdict)
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
    assert str(load_run(tmp_path / "saved").verdict) == str(saved.verdict)


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
    assert together.wide("rank")["rank"].tolist() == [1, 2]
    assert together.verdict.headline.endswith("at the decoder input is inconclusive.")
    assert together.figures()
    for runs in (folders, [run, folders[1]]):
        again = compare(runs)
        pd.testing.assert_frame_equal(again.table, together.table, check_dtype=False)
        assert str(again.verdict) == str(together.verdict)
    saved = compare([run, other], output=tmp_path / "compared")
    assert saved.path == tmp_path / "compared"
    assert str(load_run(saved.path).verdict) == str(together.verdict)
    assert str(together.save(tmp_path / "later").verdict) == str(together.verdict)


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
