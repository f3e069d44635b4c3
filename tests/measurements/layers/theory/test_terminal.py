import numpy as np
import pytest
from support import made_tables
from support.printed import assert_fits, printed

from normprobe.measurements.layers.assumptions import assumptions_table, print_assumptions

ASSUMPTIONS = assumptions_table(made_tables.theory())


@pytest.mark.parametrize(
    "table",
    [
        ASSUMPTIONS,
        assumptions_table(made_tables.theory(80)).assign(
            holds_in="1, 3, 5, 7, 9-31",
            verdict="fails in some layers",
            worst=-1.23456e-5,
            worst_band_low=-0.00234567,
            worst_band_high=-0.0012,
            worst_layer=80,
        ),
    ],
    ids=["6 layers", "80 layers"],
)
def test_every_line_fits_and_nothing_is_cut_or_wrapped(table):
    assert_fits(print_assumptions, table)


def rows_of(table) -> dict[str, str]:
    """The line of each number, by its words."""
    lines = printed(print_assumptions, table).splitlines()
    return {line.split("  ")[1]: line.rstrip() for line in lines if line.startswith("  ")}


def test_each_number_with_its_range_band_layer_and_where_it_holds():
    rows = rows_of(ASSUMPTIONS)
    assert len(rows) == len(ASSUMPTIONS)
    for number, *cells in (
        ("visual / text norm", ">= 1.25", "2.6", "[2.6, 2.6]", "6", "all layers"),
        ("visual / text |D|", "0.8-1.25", "0.70", "[0.70, 0.70]", "1", "none"),
        ("visual turn, text state", "±0.05", "0.12", "[0.12, 0.12]", "6", "1-2"),  # 0.02 a layer
    ):
        assert rows[number].split() == f"{number} {' '.join(cells)}".split()


def test_a_number_that_says_nothing_and_one_without_a_band():
    theory = made_tables.theory(norm_ratio=1.0, update_norm_ratio=1.0)
    rows = rows_of(assumptions_table(theory))
    assert rows["visual / text norm"].split()[4:] == [">=", "1.25", "-", "-", "-", "no", "say"]
    theory.loc[:, theory.columns.str.endswith(("_low", "_high"))] = np.nan
    rows = rows_of(assumptions_table(theory))
    assert rows["visual / text |D|"].split()[4:] == ["0.8-1.25", "1.0", "-", "1", "none"]


def test_layers_that_do_not_apply_are_not_among_all_layers():
    theory = made_tables.theory(norm_ratio=[4, 4, 4, 1, 1, 1, 1])
    assert rows_of(assumptions_table(theory))["visual / text norm"].endswith("1-2")


def test_no_assumptions_print_nothing():
    assert printed(print_assumptions, assumptions_table(made_tables.theory().iloc[:0])) == ""
