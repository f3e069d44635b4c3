"""A new measurement of the core is a folder of two files and its class in ``CORE``."""

import json
import sys
from pathlib import Path
from textwrap import dedent

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from normprobe import Probe, load_run, measurements
from normprobe.cli.app import app
from normprobe.cli.measure import command_of
from normprobe.measurements.measurement import SampleMeasurement
from normprobe.run import page_of

#: The throw-away measurement: how many tokens of each group the prompts have.
FOLDER = {
    "__init__": """
        from normprobe.measurements.measurement import SampleMeasurement
        from normprobe.model.load.required_tensors import before_the_decoder

        class Lengths(SampleMeasurement):
            name = "lengths"
            summary = "How many tokens of each group a prompt has."
            batches = True

            @property
            def needs(self):
                return before_the_decoder

            def observe(self, model, inputs):
                from lengths.measure import observe

                return observe(model, inputs)

            def rows(self, seen, sample_ids):
                from lengths.measure import rows

                return rows(seen, sample_ids)

            def tables(self, rows, model):
                return {"lengths": rows.groupby("group")["tokens"].mean().reset_index()}
        """,
    "measure": """
        import pandas as pd

        from normprobe.schema import TOKEN_GROUPS
        from normprobe.tensors import to_host

        def observe(model, inputs):
            return to_host([model.batch(inputs).groups_at(model.decoder_input(inputs))])

        def rows(seen, sample_ids):
            (groups,) = seen()
            names = sample_ids or [str(number) for number in range(len(groups))]
            return pd.DataFrame(
                {"sample_id": name, "group": group, "tokens": int((row == code).sum())}
                for name, row in zip(names, groups, strict=True)
                for code, group in enumerate(TOKEN_GROUPS)
            )
        """,
}
#: What it may have besides: sentences, and looks of its own.
MORE = {
    "__init__": FOLDER["__init__"]
    + """
            @property
            def words(self):
                from lengths import words

                return words

            @property
            def shown(self):
                from lengths import shown

                return shown

            @property
            def figures(self):
                from lengths import figures

                return figures
        """,
    "shown": """
        def show(run, console):
            console.print(run.table("lengths").to_string())
        """,
    "words": """
        def verdict(run):
            return "Prompts have tokens."
        """,
    "figures": """
        from normprobe.report.figures.draw import Drawing
        from normprobe.report.figures.lines import panels

        def drawings(run):
            return [Drawing("lengths", ("lengths",), draw_lengths)]

        def draw_lengths(title, lengths, ax=None):
            drawing, grid = panels(title, 3.3, 2.0, ax=ax)
            grid[0, 0].bar(lengths["group"], lengths["tokens"])
            return drawing
        """,
}


@pytest.fixture(params=[FOLDER, FOLDER | MORE], ids=["short", "long"])
def lengths(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SampleMeasurement:
    """The folder on the path, and its class among those of the core."""
    for name, text in request.param.items():
        file = tmp_path / "lengths" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "lengths"]:
        monkeypatch.delitem(sys.modules, name)
    import lengths

    offered: SampleMeasurement = lengths.Lengths()
    known = {**measurements.measurements(), "lengths": offered}
    monkeypatch.setattr(measurements, "measurements", lambda: known)
    for module in ("normprobe.probe", "normprobe.run", "normprobe.pipeline"):
        for name in ("measurements", "over_samples"):
            if hasattr(sys.modules[module], name):
                monkeypatch.setattr(f"{module}.{name}", getattr(measurements, name))
    return offered


def test_it_measures_in_python(lengths: SampleMeasurement) -> None:
    run = Probe("specimen").measure("lengths", "sample", limit=3, batch_size=2)
    assert run.table.set_index("group").loc["visual", "tokens"] == 64
    assert run.samples["sample_id"].nunique() == 3
    has_more = lengths.figures is not None
    assert list(run.figures()) == ["lengths"] * has_more
    assert run.verdict.headline == "Prompts have tokens." * has_more


def test_it_is_a_command_with_a_folder_resuming_and_a_page(
    lengths: SampleMeasurement, tmp_path: Path
) -> None:
    application = typer.Typer()
    application.command("lengths")(command_of(lengths))
    application.command("other")(lambda: None)
    words = ["lengths", "specimen", "-n", "3", "-b", "2", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(application, words)
    assert result.exit_code == 0, result.output
    assert "visual" in result.stdout
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["status"] == "complete"
    assert (tmp_path / "out/plots/lengths.png").is_file() == (lengths.figures is not None)
    before = pd.read_csv(tmp_path / "out/lengths.csv")
    assert CliRunner().invoke(application, [*words, "--resume"]).exit_code == 0
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "out/lengths.csv"), before)
    assert "lengths" in page_of([load_run(tmp_path / "out")])


def test_it_leaves_no_trace() -> None:
    assert "lengths" not in measurements.measurements()
    assert "lengths" not in {command.name for command in app.registered_commands}
