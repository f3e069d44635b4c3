"""The section of the page that shows a run of ``embeddings``."""

from normprobe.measurements.embeddings.shift_words import shift_verdict
from normprobe.measurements.embeddings.words import embeddings_verdict
from normprobe.report.page.blocks import heading, sentence
from normprobe.report.page.blocks import table as shown
from normprobe.report.page.markup import Markup
from normprobe.runs.run_folder import RunStore

_COLUMNS = ["table", "rows", "hidden_size", "count", "norm_mean", "norm_std", "norm_min"]
_COLUMNS += ["norm_q50", "norm_max"]


def headline(run: RunStore) -> str:
    """How loud the rows of the tables are."""
    embeddings = run.rows_of("embeddings")
    return "" if embeddings is None else embeddings_verdict(embeddings)


def section(run: RunStore) -> list[Markup]:
    """The statistics of the tables, and the rows that stand out."""
    embeddings, tokens = run.rows_of("embeddings"), run.rows_of("tokens")
    if embeddings is None:
        return []
    blocks = [
        sentence(headline(run)),
        heading("L2 norm of embedding rows"),
        shown(embeddings[[column for column in _COLUMNS if column in embeddings]]),
    ]
    shift = run.rows_of("shift")
    if shift is not None:
        blocks.insert(1, sentence(shift_verdict(embeddings, shift)))
    if tokens is not None:
        blocks += [heading("Loudest and quietest rows"), shown(tokens)]
    return blocks
