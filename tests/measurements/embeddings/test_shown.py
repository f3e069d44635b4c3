"""What a terminal and the figure show of ``embeddings``."""

import numpy as np
import pandas as pd
from support import made_tables
from support.flat import tidied
from support.printed import printed

from normprobe.measurements.embeddings.figures import draw_embeddings
from normprobe.measurements.embeddings.shown import print_embeddings, print_shift
from normprobe.measurements.embeddings.words import shift_sentences

EMBEDDINGS = made_tables.embeddings()
TEXT = (tidied("embeddings", EMBEDDINGS), made_tables.tokens(), made_tables.histogram())


def test_nasty_tokens_are_shown_not_obeyed() -> None:
    text = printed(print_embeddings, *TEXT[:2])
    assert '* "<|im_start|>"' in text
    assert '"[bold␣red]x[/]"' in text
    assert '"漢字仮名交じり文…' in text
    assert r'"\x00\x1b[31m"' in text
    assert not set(text) & {"\x00", "\x1b", "\u202e", "\u0301", "\t", "\r"}
    starts = {
        line.index("1516") for line in text.splitlines() if "1516" in line and "漢" not in line
    }
    assert len(starts) == 1  # columns stay columns


def test_what_rose_among_the_loudest_is_named() -> None:
    text = printed(print_shift, made_tables.shift())
    first = next(line for line in text.splitlines() if line.startswith("   1"))
    assert '* "<|vision_start|>"' in first
    assert first.endswith("new")
    assert "2,997 tokens in both, 2 in the model alone, 1 in the base." in text
    still = made_tables.shift().assign(distance=0.0)
    assert "moved most" not in printed(print_shift, still)
    assert "The hidden sizes differ" in printed(print_shift, made_tables.shift(distances=False))


def names(axes):
    return [text for text in axes.texts if text.get_text()[0].isdigit()]


def test_bars_hold_the_counts_and_the_loudest_are_named_from_below():
    drawing = draw_embeddings("t", *TEXT)
    (axes,) = drawing.axes
    assert sum(bar.get_height() for bar in axes.patches) == TEXT[2]["count"].sum()
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")
    assert axes.get_ylim()[0] < 1  # a single row is visible
    mean = next(line for line in axes.get_lines() if line.get_label() == "mean")
    assert mean.get_xdata()[0] == EMBEDDINGS.query("rows == 'nonzero_rows'")["norm_mean"].iloc[0]
    loudest = names(axes)
    texts = [text.get_text() for text in loudest]
    assert texts[:3] == ['4.020  "<|im_start|>"', '3.908  "␣the"', r'3.797  "\n\n"']
    assert loudest[0].get_color() != loudest[1].get_color()  # it is special
    steps = np.diff([text.xyann[1] for text in loudest])
    assert (steps > 0).all()
    assert len(set(steps.round(6))) == 1
    labels = {text.get_text() for text in drawing.legends[0].get_texts()}
    assert labels == {"mean", "text table", "special tokens"}


def test_two_tables_two_panels_and_rows_without_text():
    names_of = ("text", "visual")
    embeddings = tidied("embeddings", made_tables.embeddings(*names_of))
    both = made_tables.tokens(*names_of), made_tables.histogram(*names_of)
    _, visual = draw_embeddings("t", embeddings, *both).axes
    assert names(visual)[0].get_text().endswith("row 151643")


def test_log_norms_and_zero_rows():
    edges = np.geomspace(0.05, 5, 11)
    bins = pd.DataFrame(
        {"table": "text", "special": False, "left": edges[:-1], "right": edges[1:], "count": 7}
    )
    zero = bins.head(1).assign(left=0.0, right=0.0, count=412)
    axes = draw_embeddings("t", *TEXT[:2], pd.concat([zero, bins])).axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "L2 norm of an embedding row (412 zero rows not drawn)"
    assert sum(bar.get_height() for bar in axes.patches) == 70


def test_a_table_beside_itself_is_unchanged() -> None:
    shift = made_tables.shift(rows=50)
    shift = shift[shift["token_id"].notna() & shift["base_id"].notna()].assign(distance=0.0)
    table = made_tables.embeddings()
    both = tidied("embeddings", pd.concat([table, table.assign(table="base")]))
    headline, findings = shift_sentences(both, shift)
    assert headline == f"The text table is unchanged: all {len(shift)} rows are those of the base."
    assert findings == []
    shift.loc[shift.index[0], "distance"] = 0.1
    assert "unchanged" not in shift_sentences(both, shift)[0]
