"""The section of the page that shows a run of ``attention``."""

import numpy as np

from normprobe.measurements.attention.charts import attention_charts
from normprobe.measurements.attention.grids import head_grids, picture_grids
from normprobe.measurements.attention.words import attention_verdict
from normprobe.report.page.blocks import asked, curves, grid, heading, note, sentence
from normprobe.report.page.blocks import table as shown
from normprobe.report.page.markup import Markup, photograph_url
from normprobe.runs.run_folder import RunStore

_MAPS = (
    "Attention per area of the picture. Orange: more than attention spread evenly over it would "
    "give, blue: less."
)
_HEADS = "Of all text, or the first word that was followed. Each cell is a head in a layer."


def section(run: RunStore) -> list[Markup]:
    """How much and how widely text attends to the image."""
    attention, images = run.rows_of("attention"), run.rows_of("images")
    if attention is None:
        return []
    blocks = [*_asked(run), sentence(headline(run)), *_over_pictures(run)]
    blocks += [
        heading("Attention to the image, layer by layer"),
        curves(attention_charts(attention)),
        shown(attention),
    ]
    heads = run.rows_of("heads")
    if heads is not None:
        blocks += [heading("Head by head"), grid(head_grids(heads)), note(_HEADS)]
    if images is not None:
        blocks += [heading("Image by image"), shown(images)]
    return blocks


def headline(run: RunStore) -> str:
    """How much and how widely text attends to the image."""
    attention = run.rows_of("attention")
    return "" if attention is None else attention_verdict(attention)


def _asked(run: RunStore) -> list[Markup]:
    """The question and its pictures, where the run says them."""
    options = run.record.get("options") or {}
    pictures = [photograph_url(np.asarray(image.convert("RGB"))) for _, image in run.images()]
    question = str(options.get("prompt") or "")
    return [asked(question, pictures)] if question or pictures else []


def _over_pictures(run: RunStore) -> list[Markup]:
    """Heat maps over their pictures, or the pictures alone where a map is not known."""
    grids = picture_grids(run)
    return [] if grids is None else [grid(grids), note(_MAPS)]
