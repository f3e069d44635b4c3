import io
import json

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len
from rich.console import Console

from normprobe.measurements.attention.terminal import print_attention
from normprobe.measurements.embeddings.shift_words import print_shift, shift_verdict
from normprobe.measurements.embeddings.terminal import print_embeddings
from normprobe.measurements.interface.terminal import print_interface
from normprobe.measurements.layers.assumptions import assumptions_table
from normprobe.measurements.layers.terminal import print_layers
from normprobe.measurements.layers.theory_words import print_assumptions, theory_verdict
from normprobe.runs.table_json import to_json
from report import made_tables


def printed(show, *tables, width=80):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    show(*tables, console)
    return console.file.getvalue()


COUNTED = [
    "layer",
    "rank",
    "base_rank",
    "base_id",
    "samples",
    "hidden_size",
    "token_id",
    "nonfinite",
]


def extreme(table):
    """The same table with numbers as wide as they get."""
    table = table.copy()
    for column in table.select_dtypes("number"):
        if column in ("tokens", "count"):
            table[column] = 123_456_789
        elif column not in (
            "layer",
            "rank",
            "base_rank",
            "base_id",
            "samples",
            "hidden_size",
            "token_id",
            "nonfinite",
        ):
            table[column] = -0.99999 if column == "cosine_mean" else 1.23456e-4
    return table


LAYERS = made_tables.layers()
THEORY = made_tables.theory()
ALL_TABLES = {
    "interface": (print_interface, made_tables.interface()),
    "interface, extreme": (print_interface, extreme(made_tables.interface())),
    "layers": (print_layers, LAYERS),
    "80 layers": (print_layers, made_tables.layers(80)),
    "layers, extreme": (print_layers, extreme(LAYERS.assign(angle_below_resolution=True))),
    "attention": (print_attention, made_tables.attention(80)),
    "attention, extreme": (print_attention, extreme(made_tables.attention())),
    "theory": (print_assumptions, assumptions_table(THEORY)),
    "80 layers of theory": (
        print_assumptions,
        assumptions_table(made_tables.theory(80)).assign(
            holds_in="1, 3, 5, 7, 9-31", verdict="holds in some layers", median=-1.23456e-5
        ),
    ),
    "shift": (print_shift, made_tables.shift()),
    "shift without distances": (print_shift, extreme(made_tables.shift(distances=False))),
    "embeddings": (print_embeddings, made_tables.embeddings(), made_tables.tokens()),
    "visual table": (
        print_embeddings,
        extreme(made_tables.embeddings("text", "visual")),
        extreme(made_tables.tokens("text", "visual")),
    ),
}


@pytest.mark.parametrize("case", ALL_TABLES)
def test_every_line_fits_and_nothing_is_cut_or_wrapped(case):
    at_80 = printed(*ALL_TABLES[case])
    assert max(cell_len(line) for line in at_80.splitlines()) <= 80
    # With all the room of the world the lines are the same: nothing was squeezed to fit.
    assert at_80 == printed(*ALL_TABLES[case], width=300)


def test_nasty_tokens_are_shown_not_obeyed():
    text = printed(print_embeddings, made_tables.embeddings(), made_tables.tokens())
    assert '* "<|im_start|>"' in text
    assert '"[bold␣red]x[/]"' in text
    assert '"漢字仮名交じり文…' in text
    assert r'"\x00\x1b[31m"' in text
    assert not set(text) & {"\x00", "\x1b", "\u202e", "\u0301", "\t", "\r"}
    starts = {
        line.index("1516") for line in text.splitlines() if "1516" in line and "漢" not in line
    }
    assert len(starts) == 1  # columns stay columns


def test_interface_shows_sizes_and_ratios():
    lines = printed(print_interface, made_tables.interface()).splitlines()
    assert lines[1].split()[:2] == ["stage", "d"]
    at = lines.index(next(line for line in lines if line.startswith("decoder input")))
    assert lines[at].split()[-1] == "128"
    assert lines[at + 1].split() == [
        "visual", "3584", "16.53", "2.200", "16.53", "56.78", "75.03",
    ]  # fmt: skip


def test_layers_set_visual_beside_text():
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


def test_attention_tells_layers_without_it_and_regions_without_a_box():
    text = printed(print_attention, made_tables.attention())
    assert "from red cup (12 tokens)" in text
    assert [line.split()[1:] for line in text.splitlines() if line.startswith("    2 ")] == [
        5 * ["-"],
        5 * ["-"],
    ]
    assert "- a layer without softmax attention" in text
    assert "inside the box / outside" in text
    assert "inside the box" not in printed(print_attention, made_tables.attention(target=False))


def test_json_is_strict_and_exact():
    rows = json.loads(to_json(LAYERS))
    assert len(rows) == len(LAYERS)
    assert rows[0]["angle_mean"] is None
    assert rows[1]["cosine_mean"] == np.cos(made_tables.VISUAL_ANGLE[1])
    assert rows[1]["angle_below_resolution"] is False


def test_the_theory_says_what_holds_where():
    table = assumptions_table(THEORY)
    text = printed(print_assumptions, table)
    rows = {line[:27].strip(): line for line in text.splitlines()}
    assert "all layers" in rows["Modality Norm Imbalance"]
    assert "none" in rows["Uniform Update Magnitude"]
    assert "1-3" in rows["Random Rotational Direction"]  # 0.05 a layer against 2 / sqrt(128)
    assert "±0.18" in rows["Random Rotational Direction"]
    assert (
        "1 of 4 assumptions hold in every layer. After layer 6 Eq. 15 predicts"
        in theory_verdict(THEORY, table)
    )
    assert theory_verdict(THEORY, table).endswith("rad after layer 6.")
    few = THEORY.assign(lag_angle_samples=5)
    assert "in the 5 of 56 samples that begin with" in theory_verdict(few, table)
    assert printed(print_assumptions, assumptions_table(THEORY.iloc[:0])) == ""


def test_a_shift_names_what_rose_among_the_loudest():
    text = printed(print_shift, made_tables.shift())
    first = next(line for line in text.splitlines() if line.startswith("   1"))
    assert '* "<|vision_start|>"' in first
    assert first.endswith("new")
    assert "2,997 tokens in both, 2 in the model alone, 1 in the base." in text
    tables = pd.concat([made_tables.embeddings(), made_tables.embeddings().assign(table="base")])
    tables.loc[tables["table"] == "base", "norm_mean"] /= 1.25
    sentence = shift_verdict(tables, made_tables.shift())
    assert "in the base (+25.0 %)" in sentence
    assert '(2 visual): "<|vision_start|>" (new), "<|vision_end|>" (new)' in sentence


def test_a_shift_between_widths_says_why_it_has_no_distance():
    text = printed(print_shift, made_tables.shift(distances=False))
    assert "The hidden sizes differ" in text
    tables = pd.concat([made_tables.embeddings(), made_tables.embeddings().assign(table="base")])
    assert "moved" not in shift_verdict(tables, made_tables.shift(distances=False))


def test_a_token_that_was_zero_in_the_base_has_no_ratio():
    shift = made_tables.shift()
    shift.loc[7, ["norm", "base_norm", "rank", "base_rank", "emerging"]] = [9.0, 0.0, 0, 3000, True]
    tables = pd.concat([made_tables.embeddings(), made_tables.embeddings().assign(table="base")])
    assert "(zero in the base)" in shift_verdict(tables, shift)
    assert shift_verdict(tables, shift).endswith(f" and {shift['emerging'].sum() - 3} more.")
