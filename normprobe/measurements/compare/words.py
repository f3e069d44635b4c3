"""What the ranking of compared runs says, in sentences."""

from normprobe.report.ranking import ranking_verdict
from normprobe.report.sentences import CORRELATION, correlation_sentence
from normprobe.runs.run_folder import RunStore


def verdict(run: RunStore) -> str:
    """Who has the largest and the smallest disparity, and whether inertia goes with it."""
    said = ranking_verdict(run.table("ranking"))
    correlation = run.rows_of(CORRELATION)
    if correlation is None:
        return said
    return f"{said} {correlation_sentence(correlation, 'runs')}".strip()


def alike_sentence(run: RunStore) -> str:
    """Whether the runs measured the same weights, prompts and pictures; empty: nobody knows."""
    told = run.record.get("alike")
    return f"Measured: {'; '.join(map(str, told))}." if isinstance(told, list) and told else ""
