import pytest
from normprobe.measurements.interface.terminal import print_interface
from support import made_tables
from support.printed import assert_fits, extreme, printed

INTERFACE = made_tables.interface()


@pytest.mark.parametrize("table", [INTERFACE, extreme(INTERFACE)], ids=["usual", "extreme"])
def test_every_line_fits_and_nothing_is_cut_or_wrapped(table):
    assert_fits(print_interface, table)


def test_sizes_and_ratios_are_shown():
    lines = printed(print_interface, INTERFACE).splitlines()
    assert lines[1].split()[:2] == ["stage", "d"]
    at = lines.index(next(line for line in lines if line.startswith("decoder input")))
    assert lines[at].split()[-1] == "128"
    assert lines[at + 1].split() == [
        "visual", "3584", "16.53", "2.200", "16.53", "56.78", "75.03",
    ]  # fmt: skip
