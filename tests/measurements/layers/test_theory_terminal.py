import pytest
from support import made_tables
from support.printed import assert_fits, printed

from normprobe.measurements.layers.assumptions import assumptions_table
from normprobe.measurements.layers.theory_terminal import print_assumptions

ASSUMPTIONS = assumptions_table(made_tables.theory())


@pytest.mark.parametrize(
    "table",
    [
        ASSUMPTIONS,
        assumptions_table(made_tables.theory(80)).assign(
            holds_in="1, 3, 5, 7, 9-31", verdict="holds in some layers", median=-1.23456e-5
        ),
    ],
    ids=["6 layers", "80 layers"],
)
def test_every_line_fits_and_nothing_is_cut_or_wrapped(table):
    assert_fits(print_assumptions, table)


def test_the_theory_says_what_holds_where():
    text = printed(print_assumptions, ASSUMPTIONS)
    rows = {line[:27].strip(): line for line in text.splitlines()}
    assert "all layers" in rows["Modality Norm Imbalance"]
    assert "none" in rows["Uniform Update Magnitude"]
    assert "1-3" in rows["Random Rotational Direction"]  # 0.05 a layer against 2 / sqrt(128)
    assert "±0.18" in rows["Random Rotational Direction"]


def test_no_assumptions_print_nothing():
    assert printed(print_assumptions, assumptions_table(made_tables.theory().iloc[:0])) == ""
