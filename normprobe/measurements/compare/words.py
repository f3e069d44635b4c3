"""What the ranking of compared runs says, in sentences."""

from normprobe.report.ranking import ranking_sentences
from normprobe.report.sentences import CORRELATION, correlation_sentence
from normprobe.runs.run_folder import RunStore


def verdict(run: RunStore) -> str:
    """Who has the largest and the smallest disparity, and whether inertia goes with it."""
    return " ".join(told(run))


def told(run: RunStore) -> list[str]:
    """``verdict``, sentence by sentence."""
    said = ranking_sentences(run.table("ranking"))
    correlation = run.rows_of(CORRELATION)
    return said if correlation is None else [*said, correlation_sentence(correlation, "runs")]


def alike_sentence(run: RunStore) -> str:
    """Whether the runs measured the same weights, prompts and pictures; empty: nobody knows."""
    alike = run.record.get("alike")
    return f"Measured: {'; '.join(map(str, alike))}." if isinstance(alike, list) and alike else ""
