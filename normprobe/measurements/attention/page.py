"""The section of the page that shows a run of ``attention``."""

from normprobe.measurements.attention.charts import attention_charts
from normprobe.measurements.attention.words import attention_verdict
from normprobe.report.page.blocks import curves, heading, sentence
from normprobe.report.page.markup import Markup
from normprobe.report.page.tables import table as shown
from normprobe.runs.run_store import RunStore


def section(run: RunStore) -> list[Markup]:
    """How much and how widely text attends to the image."""
    attention, images = run.rows_of("attention"), run.rows_of("images")
    if attention is None:
        return []
    by_image = [] if images is None else [heading("Image by image"), shown(images)]
    return [
        sentence(attention_verdict(attention)),
        heading("Attention to the image"),
        curves(attention_charts(attention)),
        shown(attention),
        *by_image,
    ]
