"""The section of the page that shows a run of ``compare``."""

from normprobe.measurements import measurement
from normprobe.measurements.compare.words import alike_sentence, verdict
from normprobe.report.page.blocks import heading, sentence
from normprobe.report.page.blocks import table as shown
from normprobe.report.page.markup import Markup
from normprobe.runs.run_folder import RunStore


def headline(run: RunStore) -> str:
    """Which run is at either end."""
    return "" if run.rows_of("ranking") is None else verdict(run)


def section(run: RunStore) -> list[Markup]:
    """The ranking, then the tables as the compared measurement shows them."""
    compare, ranking = run.rows_of("compare"), run.rows_of("ranking")
    blocks: list[Markup] = []
    if ranking is not None:
        blocks += [sentence(headline(run)), heading("Ranking"), shown(ranking)]
    if compare is not None:
        compared = measurement(str(run.record["compared"])).module("compared")
        own = getattr(compared, "section", None)
        blocks += own(compare) if own else [heading("Side by side"), shown(compare)]
    if told := alike_sentence(run):
        blocks.append(sentence(told))
    return blocks
