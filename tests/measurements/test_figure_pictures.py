"""Every figure looks as it did when somebody looked at it."""

import pytest
from matplotlib.text import Text
from support.figure_cases import FIGURES
from support.figure_references import REFERENCES, TOLERANCE, difference, drawn, grey, reference


@pytest.mark.parametrize("case", FIGURES)
def test_figures_look_as_their_references(tmp_path, case):
    found = {
        name: difference(grey(figure), reference(case, name))
        for name, figure in drawn(case, tmp_path).items()
    }
    assert {name: far for name, far in found.items() if far > TOLERANCE} == {}


def test_every_reference_has_its_figure():
    names = {f"{case}-{name}.png" for case, figures in FIGURES.items() for name in figures}
    assert {file.name for file in REFERENCES.iterdir()} == names
    assert sum(file.stat().st_size for file in REFERENCES.iterdir()) < 1_000_000


def labels(figure):
    """Titles, axis labels and legend entries: what a figure cannot be read without."""
    for axes in figure.axes:
        yield from (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label)
    for legend in (*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))):
        yield from legend.get_texts()
    yield figure._suptitle


@pytest.mark.parametrize(
    ("case", "name"), [("layers", "layers"), ("interface", "interface"), ("embeddings", "shift")]
)
def test_a_label_that_is_missing_is_seen(tmp_path, case, name):
    figure = drawn(case, tmp_path)[name]
    whole = grey(figure)
    assert difference(whole, reference(case, name)) < TOLERANCE
    texts: list[Text] = [text for text in labels(figure) if text.get_text()]
    assert len(texts) >= 2
    for text in texts:
        text.set_visible(False)
        assert difference(grey(figure), reference(case, name)) > 2 * TOLERANCE, text
        text.set_visible(True)
