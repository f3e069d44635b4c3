import pytest
from normprobe.measurements.embeddings.terminal import print_embeddings
from support import made_tables
from support.printed import assert_fits, extreme, printed


@pytest.mark.parametrize(
    "tables",
    [
        (made_tables.embeddings(), made_tables.tokens()),
        (
            extreme(made_tables.embeddings("text", "visual")),
            extreme(made_tables.tokens("text", "visual")),
        ),
    ],
    ids=["text table", "visual table"],
)
def test_every_line_fits_and_nothing_is_cut_or_wrapped(tables):
    assert_fits(print_embeddings, *tables)


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
