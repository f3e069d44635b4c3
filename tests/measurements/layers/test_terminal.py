import pytest
from normprobe.measurements.layers.terminal import print_layers, show
from support import made_tables
from support.printed import assert_fits, extreme, printed

from normprobe.runs.run_folder import RunStore

LAYERS = made_tables.layers()


@pytest.mark.parametrize(
    "table",
    [LAYERS, made_tables.layers(80), extreme(LAYERS.assign(angle_below_resolution=True))],
    ids=["6 layers", "80 layers", "extreme"],
)
def test_every_line_fits_and_nothing_is_cut_or_wrapped(table):
    assert_fits(print_layers, table)


def test_visual_stands_beside_text():
    lines = printed(print_layers, LAYERS).splitlines()
    row = next(line for line in lines if line.split()[:1] == ["1"])
    assert row.split()[:5] == ["1", "16.52", "1.500", "0.9995", "0.4303"]
    first = next(line for line in lines if line.split()[:1] == ["0"])
    assert first.split() == ["0", "16.53", "0.2911", *"------"]


def test_deep_models_print_a_selection_and_say_so():
    text = printed(print_layers, made_tables.layers(80))
    numbers = [int(line.split()[0]) for line in text.splitlines() if line[:6].strip().isdigit()]
    assert numbers[:2] == [0, 1]
    assert numbers[-1] == 80
    assert len(numbers) <= 22
    assert "18 of 81 layers shown; layers.csv has all." in text
    assert "layers shown" not in printed(print_layers, made_tables.layers(32))


def test_text_only_models_show_the_groups_that_exist():
    text = printed(print_layers, LAYERS[LAYERS["group"].isin(["text", "special"])])
    assert "visual" not in text
    assert "special" in text


def test_flags_and_missing_rows_are_told():
    table = LAYERS.copy()
    table.loc[(table["layer"] == 1) & (table["group"] == "visual"), "angle_below_resolution"] = True
    table.loc[table["layer"] == 3, "nonfinite"] = 2
    table = table[~((table["layer"] == 2) & (table["group"] == "text"))]
    text = printed(print_layers, table)
    assert "0.03160*" in text
    assert "* below what the stored numbers resolve." in text
    assert "Left out as non-finite: 10 at layer 3." in text
    assert "below what" not in printed(print_layers, LAYERS)


def test_a_decoder_that_is_not_pre_norm_says_so_under_the_table():
    run = RunStore({"norm_placement": "sandwich: the paper's theory is about pre-norm"})
    for name in ("layers", "theory", "assumptions"):
        run.write_table(name, LAYERS if name == "layers" else LAYERS.iloc[:0])
    text = " ".join(printed(show, run).split())
    assert text.endswith(
        "no intervals. Norm placement of this decoder: sandwich. The paper's "
        "theory is about pre-norm."
    )
