import pytest
from normprobe.measurements.embeddings.shift_terminal import print_shift
from support import made_tables
from support.printed import assert_fits, extreme, printed


@pytest.mark.parametrize(
    "table",
    [made_tables.shift(), extreme(made_tables.shift(distances=False))],
    ids=["shift", "shift without distances"],
)
def test_every_line_fits_and_nothing_is_cut_or_wrapped(table):
    assert_fits(print_shift, table)


def test_what_rose_among_the_loudest_is_named():
    text = printed(print_shift, made_tables.shift())
    first = next(line for line in text.splitlines() if line.startswith("   1"))
    assert '* "<|vision_start|>"' in first
    assert first.endswith("new")
    assert "2,997 tokens in both, 2 in the model alone, 1 in the base." in text


def test_a_shift_between_widths_says_why_it_has_no_distance():
    assert "The hidden sizes differ" in printed(print_shift, made_tables.shift(distances=False))
