"""The page of a reproduction holds every table and figure, and what is lacking."""

from pathlib import Path

import pandas as pd
from PIL import Image
from support.made_runs import ATTACK
from support.read_page import Reader

from normprobe import load_run
from normprobe.extensions.paper.reproduction import write_page
from normprobe.paper.tables import PaperTable
from normprobe.report.readable import ReadableTable

TABLE = PaperTable(
    pd.DataFrame({"model": ["A"], "mean": [1.23456], "mean_published": [1.2]}),
    ReadableTable(
        [("Model",), ("Norm", "Mean")],
        [["A", "1.235"], ["", "(1.2)"]],
        [False, True],
        ["Below: as published."],
        "Table 9: norms",
    ),
)


def test_tables_pictures_and_what_is_lacking_are_there(tmp_path: Path) -> None:
    picture = tmp_path / "figure9.png"
    Image.new("RGB", (3, 2), "red").save(picture)
    columns = ["artefact", "model", "reason"]
    lacking = pd.DataFrame([("table8", "org/a", f"gated {ATTACK}")], columns=columns)
    out = tmp_path / "out"
    made = {"table9": TABLE, "figure9": picture, "figure10": picture}
    for _ in range(2):  # a second one replaces the first
        text = write_page(out, made, lacking).read_text()
    page = Reader(text)
    for said in ("Table 9: norms", "Norm Mean", "1.235", "(1.2)", "Below: as published.", "org/a"):
        assert said in page.text
    assert ATTACK not in text
    assert f"gated {ATTACK}" in page.text
    assert any((source or "").startswith("data:image/png;") for _, source in page.attributes)
    run = load_run(out / "all")
    assert run.record["status"] == "complete"
    assert run.tables["table9"]["mean"].tolist() == [1.23456]
    assert run.tables["not_made"]["model"].tolist() == ["org/a"]
    assert (out / "all/plots/figure9.png").read_bytes() == picture.read_bytes()


def test_without_failures_nothing_is_said_of_them(tmp_path: Path) -> None:
    none = pd.DataFrame([], columns=["artefact", "model", "reason"])
    page = Reader(write_page(tmp_path, {"table9": TABLE}, none).read_text())
    assert "Not made" not in page.text
