import pandas as pd
import pytest
from rich.cells import cell_len
from support.flat import tidied
from support.made_tables import NASTY_TOKENS

from normprobe.report.terminal import nonfinite_note, selected_layers, token_cell


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("token", NASTY_TOKENS)
def test_tokens_keep_to_their_column(token, special):
    cell = token_cell(token, special=special).plain
    assert cell_len(cell) <= 20
    assert cell.startswith("* " if special else "  ")


@pytest.mark.parametrize("token", ["", float("nan"), None])
def test_a_row_without_a_token_has_a_dash(token):
    assert token_cell(token, special=False).plain == "  -"


@pytest.mark.parametrize("depth", [1, 6, 32, 33, 80, 126, 5000])
def test_a_selection_holds_both_ends_and_fits_a_screen(depth):
    layers = list(range(depth + 1))
    shown = selected_layers(layers)
    assert len(shown) <= 33
    assert shown == layers or depth > 32
    assert shown[:2] == [0, 1]
    assert shown[-1] == depth
    assert shown == sorted(set(shown))


def test_non_finite_tokens_are_counted_and_the_first_places_named():
    table = pd.DataFrame({"layer": range(6), "nonfinite": [1, 0, 1, 1, 1, 2]})

    def note(flat):
        return nonfinite_note(tidied("layers", flat), "layer")

    named = "Left out as non-finite: 6 at layer 0, 2, 3, 4, ..."
    assert note(table).startswith(named)
    assert note(table.assign(nonfinite=0)) == ""
    assert note(table[["layer"]]) == ""
    stage = tidied("interface", pd.DataFrame({"stage": ["decoder_input"], "nonfinite": [3]}))
    assert nonfinite_note(stage, "stage") == "Left out as non-finite: 3 at stage decoder input."
