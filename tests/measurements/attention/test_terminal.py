import pytest
from normprobe.measurements.attention.terminal import print_attention
from support import made_tables
from support.printed import assert_fits, extreme, printed


@pytest.mark.parametrize(
    "table",
    [made_tables.attention(80), extreme(made_tables.attention())],
    ids=["80 layers", "extreme"],
)
def test_every_line_fits_and_nothing_is_cut_or_wrapped(table):
    assert_fits(print_attention, table)


def test_layers_without_it_and_regions_without_a_box_are_told():
    text = printed(print_attention, made_tables.attention())
    assert "from red cup (12 tokens)" in text
    assert [line.split()[1:] for line in text.splitlines() if line.startswith("    2 ")] == [
        6 * ["-"],
        6 * ["-"],
    ]
    assert "- a layer without softmax attention" in text
    assert "inside the box / outside" in text
    assert "inside the box" not in printed(print_attention, made_tables.attention(target=False))
