"""The section of the page that shows a run of ``interface``."""

from normprobe.measurements.interface.dots import interface_dots
from normprobe.measurements.interface.words import verdict
from normprobe.report.page.blocks import dots, heading, note, sentence
from normprobe.report.page.blocks import table as shown
from normprobe.report.page.markup import Markup
from normprobe.runs.run_folder import RunStore

_COLUMNS = ["stage", "group", "hidden_size", "tokens", "norm_mean", "norm_std", "norm_q50"]
_COLUMNS += ["ratio_to_prompt", "ratio_to_table"]


def headline(run: RunStore) -> str:
    """How loud visual tokens are at the decoder input."""
    return "" if run.rows_of("interface") is None else verdict(run)


def section(run: RunStore) -> list[Markup]:
    """The norms by stage and group."""
    interface = run.rows_of("interface")
    if interface is None:
        return []
    return [
        sentence(headline(run)),
        heading("L2 norm at the interface"),
        dots(interface_dots(interface)),
        note(
            "Dots: means on a logarithmic axis; thick: 95 % intervals over images; thin: 5-95 % of "
            "tokens or rows. Dashed, and n x: against the text tokens of the prompts."
        ),
        shown(interface[[column for column in _COLUMNS if column in interface]]),
        note("std over tokens or rows of a table; q50 is the median; ratios divide the mean."),
    ]
