"""The section of the page that shows a run of ``grounding``."""

from normprobe.measurements.grounding.charts import grounding_charts
from normprobe.measurements.grounding.words import verdict
from normprobe.report.page.blocks import curves, heading, note, sentence
from normprobe.report.page.blocks import table as shown
from normprobe.report.page.markup import Markup
from normprobe.runs.run_folder import RunStore


def headline(run: RunStore) -> str:
    """Whether a word is closer to what it means."""
    return "" if run.rows_of("grounding") is None else verdict(run)


def section(run: RunStore) -> list[Markup]:
    """Gaps, and what they are the difference of, layer by layer."""
    grounding = run.rows_of("grounding")
    if grounding is None:
        return []
    return [
        sentence(headline(run)),
        heading("A word and what it means"),
        curves(grounding_charts(grounding)),
        note("Means over samples; intervals and bands are over images. Layer 0: decoder input."),
        shown(grounding),
    ]
