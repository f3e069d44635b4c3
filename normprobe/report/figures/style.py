"""The shared look of the figures: fonts, sizes, colours, markers, axes and files."""

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike

from normprobe.errors import escape
from normprobe.report.readable import significant
from normprobe.runs.files import write_by_rename
from normprobe.schema import AUDIO, IMAGE, NON_VISUAL, SPECIAL, STRUCTURAL, TEXT, VIDEO, VISUAL

FONT = "DejaVu Sans"


def drawable(text: str) -> str:
    """``text`` with every character that the figure font lacks as its escape."""
    return "".join(c if ord(c) in _characters() else escape(c) for c in text)


def shortened(text: str, longest: int) -> str:
    """``text`` as it can be drawn, cut to so many characters."""
    return drawable(
        text if len(text) <= longest else f"{text[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


@cache
def _characters() -> frozenset[int]:
    return frozenset(FT2Font(findfont(FontProperties(family=FONT))).get_charmap())


_PER_INCH = 14  # characters


def wrapped(text: str, width: float) -> str:
    """A title that fits."""
    characters = int(width * _PER_INCH)
    return "\n".join(textwrap.fill(line, characters) for line in text.splitlines())


DOUBLE_WIDTH = 7.0  # inches: both columns
FILE_DPI = 200  # of files; sharp where a screen has two pixels in a point
CSS_DPI = 96  # what a page takes for an inch

_LOOK = {
    "font.family": FONT,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titley": 1.0,  # nothing stands in its way; to look costs a sixth of the drawing
    "figure.titlesize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.columnspacing": 1.6,
    "legend.handlelength": 2.8,  # long enough to tell dashes from dots
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Ticks in full: a factor or an offset would stand above the axis, in the title.
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": [-9, 9],
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # TrueType: text stays text, which journals ask for
    "text.parse_math": False,  # tokens and model names hold dollar signs
}


class GroupLook(NamedTuple):
    """How a token group is drawn: each of the three alone tells the groups apart."""

    color: str
    marker: str
    linestyle: str


#: Okabe-Ito colours, which differ for colour-blind readers, and gray; one for each group, in every
#: figure.
GROUP_LOOKS = {
    VISUAL: GroupLook("#D55E00", "o", "-"),
    TEXT: GroupLook("#0072B2", "s", "--"),
    SPECIAL: GroupLook("#009E73", "^", "-."),
    STRUCTURAL: GroupLook("#CC79A7", "D", ":"),
    NON_VISUAL: GroupLook("#56B4E9", "v", "--"),
    IMAGE: GroupLook("#7A3E00", "p", "-."),
    VIDEO: GroupLook("#E69F00", "P", "-"),
    AUDIO: GroupLook("#7F7F7F", "X", ":"),
}

#: One for each compared run, or each query of attention: from Tol's muted palette, no group's.
SERIES_COLORS = ("#882255", "#999933", "#44AA99", "#332288", "#AA4499", "#000000", "#DDCC77")
_SERIES_MARKS = "os^DvPX"
_SERIES_LINES = ("-", "--", "-.", ":", "--", "-.", ":")


class OwnFigure(Figure):
    """A figure that was made here, not by a caller: its title and legend are our own."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """In a notebook: as sharp as a file, at the size that it has in print."""
        buffer = io.BytesIO()
        with look():
            self.savefig(buffer, format="png", dpi=FILE_DPI)
        width, height = np.rint(self.get_size_inches() * CSS_DPI).astype(int).tolist()
        return buffer.getvalue(), {"width": width, "height": height}


def series_look(place: int) -> GroupLook:
    """How one of several runs or queries is drawn: of 49, no two have colour and marker alike."""
    count = len(SERIES_COLORS)
    return GroupLook(
        SERIES_COLORS[place % count],
        _SERIES_MARKS[(place + place // count) % count],
        _SERIES_LINES[place % count],
    )


@contextmanager
def look() -> Iterator[None]:
    """Use the look for figures that are made, and saved, inside."""
    with matplotlib.style.context(["default", _LOOK]):
        yield


def new_figure(width: float, height: float, title: str) -> Figure:
    """A figure with a title and constrained layout; sizes in inches."""
    figure = OwnFigure(figsize=(width, height), layout="constrained")
    figure.suptitle(title)
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``<stem>.png`` at 200 dpi and ``<stem>.pdf``, each complete by rename."""
    files = []
    for suffix in (".png", ".pdf"):
        file = stem.with_name(stem.name + suffix)
        write_by_rename(file, image_bytes(figure, suffix[1:]))
        files.append(file)
    return files


def image_bytes(figure: Figure, kind: str, *, dpi: int = FILE_DPI) -> bytes:
    """A figure as an image file, ``png`` or ``pdf``; the same numbers give the same bytes.

    The layout is solved once: another file of the same figure looks as the first does.
    """
    _solve_layout(figure, dpi)
    buffer = io.BytesIO()
    metadata = {"CreationDate": None} if kind == "pdf" else {}
    figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def _solve_layout(figure: Figure, dpi: int) -> None:
    """Place the panels for good: ``savefig`` draws a figure that has a layout engine twice."""
    if engine := figure.get_layout_engine():
        before = figure.dpi
        figure.dpi = dpi
        engine.execute(figure)
        figure.dpi = before
        figure.set_layout_engine(None)


def asks_for_log(values: ArrayLike) -> bool:
    """Whether the largest value is over 10 x the smallest above zero."""
    return _span(values) > 10


def use_log(axes: Axes, which: Literal["x", "y"], values: ArrayLike) -> None:
    """Make an axis logarithmic with ticks in plain numbers: 0.1, 1, 10."""
    if which == "x":
        axes.set_xscale("log", nonpositive="clip")
    else:
        axes.set_yscale("log", nonpositive="clip")
    name_log_ticks(axes.xaxis if which == "x" else axes.yaxis, values)


def name_log_ticks(axis: Axis, values: ArrayLike) -> None:
    """Ticks of a logarithmic axis in plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1,) if _span(values) > 40 else (1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: significant(value, 1)))
    axis.set_minor_locator(LogLocator(subs="all"))
    axis.set_minor_formatter(NullFormatter())


def log_or_from_zero(axes: Axes, values: ArrayLike) -> None:
    """A logarithmic y axis where the values ask for one; else an axis that begins at zero."""
    if asks_for_log(values):
        use_log(axes, "y", values)
    else:
        axes.set_ylim(bottom=0)


def mark_layers(axes: Axes, last: int) -> None:
    """Ticks at whole layers, 0 to ``last``."""
    step = next((s for s in (1, 2, 4, 5, 10, 20, 50) if last <= 9 * s), last // 9)
    axes.set_xticks(range(0, last + 1, step))
    axes.set_xlim(-0.02 * last - 0.1, last * 1.02 + 0.1)
    axes.set_xlabel("decoder layer")


def mark_doses(axes: Axes, doses: Sequence[float]) -> None:
    """A logarithmic axis with a tick a dose."""
    axes.set_xscale("log")
    axes.set_xticks(doses, labels=[f"{dose:g}" for dose in doses])
    axes.set_xticks([], minor=True)


def _span(values: ArrayLike) -> float:
    array = np.asarray(values, dtype=float)
    positive = array[np.isfinite(array) & (array > 0)]
    return float(positive.max() / positive.min()) if positive.size else 1.0
