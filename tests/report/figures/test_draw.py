"""Every figure: files, looks, and what it must not disturb."""

import subprocess
import sys
import warnings

import matplotlib
import pandas as pd
import pytest
from matplotlib.image import imread
from matplotlib.text import Text
from PIL import Image
from report import made_tables

from normprobe.errors import NormprobeError
from normprobe.measurements.layers.assumptions import assumptions_table
from normprobe.report.figures.draw import FIGURES, build, draw
from normprobe.report.figures.style import look

TABLES = {
    "layers": {
        "layers": made_tables.layers(),
        "theory": made_tables.theory(),
        "assumptions": assumptions_table(made_tables.theory()),
    },
    "interface": {
        "interface": made_tables.interface(),
        "histogram": made_tables.visual_histogram(),
    },
    "embeddings": {
        "embeddings": made_tables.embeddings("text", "visual"),
        "tokens": made_tables.tokens("text", "visual"),
        "histogram": made_tables.histogram("text", "visual"),
        "shift": made_tables.shift(),
    },
    "attention": {
        "attention": made_tables.attention(),
        "heatmaps": made_tables.heatmaps(),
    },
}
for compared in ("layers", "interface", "embeddings"):
    first = TABLES[compared][compared]
    runs = [first.assign(run=name) for name in ("llava-1.5-7b-hf", "qwen2.5-vl-7b-in…", "m #2")]
    TABLES[f"compare_{compared}"] = {"compare": pd.concat(runs, ignore_index=True)}
TABLES["compare_training"] = {
    "compare": pd.concat([TABLES["layers"]["layers"].assign(run=f"{s}", step=s) for s in (0, 900)])
}


def write(folder, tables):
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False, quoting=2)
    if "heatmaps" in tables:
        Image.linear_gradient("L").convert("RGB").save(folder / "image.png")


@pytest.mark.parametrize("command", FIGURES)
def test_redraws_from_csv_alone_without_a_warning(tmp_path, command):
    write(tmp_path, TABLES[command])
    settings = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing glyph or a failed layout is a warning
        files = draw(command, tmp_path)
    assert dict(matplotlib.rcParams) == settings
    expected = {f"{name}.{kind}" for name in FIGURES[command] for kind in ("png", "pdf")}
    assert {file.name for file in files} == expected
    assert {file.name for file in (tmp_path / "plots").iterdir()} == expected
    for file in files:
        if file.suffix == ".png":
            image = imread(file)[..., :3]
            assert image.shape[1] == 1400  # 7 inches at 200 dpi
            assert 0.02 < (image < 0.95).any(axis=2).mean() < 0.6
        else:
            content = file.read_bytes()
            assert b"/Type3" not in content
            assert b"/FontFile2" in content  # TrueType, embedded


def test_figures_of_absent_or_empty_tables_are_left_out(tmp_path):
    write(tmp_path, {"layers": TABLES["layers"]["layers"]})
    assert set(build("layers", tmp_path)) == {"layers", "turning"}
    write(tmp_path, {"theory": made_tables.theory().iloc[:0]})
    write(tmp_path, {"assumptions": TABLES["layers"]["assumptions"].iloc[:0]})
    assert set(build("layers", tmp_path)) == {"layers", "turning"}


def test_the_same_tables_give_the_same_bytes(tmp_path):
    write(tmp_path, {"interface": TABLES["interface"]["interface"].head(2)})
    first = [file.read_bytes() for file in draw("interface", tmp_path)]
    assert [file.read_bytes() for file in draw("interface", tmp_path)] == first


def shown_texts(axes):
    """The texts of a panel with their boxes in pixels, leader lines left out."""
    yield from axes.texts
    yield from (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label)
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        for tick in axis.get_major_ticks():
            if min(low, high) <= tick.get_loc() <= max(low, high):  # others are not drawn
                yield tick.label1


@pytest.mark.parametrize("command", FIGURES)
def test_texts_stay_apart_and_inside(tmp_path, command):
    write(tmp_path, TABLES[command])
    for figure in build(command, tmp_path).values():
        with look():
            figure.draw_without_rendering()
            boxes = [
                (text.get_text(), Text.get_window_extent(text))
                for axes in figure.axes
                for text in shown_texts(axes)
                if text.get_text() and text.get_visible()
            ]
        for place, (name, box) in enumerate(boxes):
            assert figure.bbox.padded(1).contains(*box.min), name
            assert figure.bbox.padded(1).contains(*box.max), name
            for other, second in boxes[place + 1 :]:
                assert not box.padded(-1).overlaps(second.padded(-1)), (name, other)


def test_unknown_commands_and_missing_tables_are_known_failures(tmp_path):
    with pytest.raises(NormprobeError, match="has no figures"):
        draw("inspect", tmp_path)
    with pytest.raises(NormprobeError, match=r"holds no layers\.csv"):
        draw("layers", tmp_path)


def test_odd_names_reach_the_title_as_text(tmp_path):
    write(tmp_path, TABLES["layers"])
    (tmp_path / "run.json").write_text(
        '{"status": "complete", "warnings": [], "files": [],'
        ' "model": "组织/$x_1$", "data": "/data/mmbench.tsv"}',
        encoding="utf-8",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = build("layers", tmp_path)["layers"]
        figure.draw_without_rendering()
    assert figure.get_suptitle() == r"\u7ec4\u7ec7/$x_1$, mmbench.tsv, 56 samples"


def test_the_title_says_that_a_norm_aligned_the_model(tmp_path):
    write(tmp_path, TABLES["layers"])
    (tmp_path / "run.json").write_text(
        '{"status": "complete", "warnings": [], "files": [], "model": "specimen",'
        ' "data": "sample", "alignment": {"after": "projector"}}'
    )
    figure = build("layers", tmp_path)["layers"]
    assert figure.get_suptitle() == "specimen, aligned, sample, 56 samples"


def test_an_empty_table_is_a_known_failure(tmp_path):
    write(tmp_path, {"layers": TABLES["layers"]["layers"].iloc[:0]})
    with pytest.raises(NormprobeError, match="holds no rows"):
        draw("layers", tmp_path)


def test_listing_figures_and_drawing_leave_pyplot_alone(tmp_path):
    write(tmp_path, {"interface": TABLES["interface"]["interface"].head(2)})
    code = (
        "import sys, pathlib; from normprobe.report.plots import FIGURES, draw;"
        "assert 'matplotlib' not in sys.modules;"
        "draw('interface', pathlib.Path(sys.argv[1]));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
