"""What embeddings.csv and shift.csv say."""

import math

import pandas as pd

from normprobe.report.ratio_words import Ratio, times, usable
from normprobe.report.readable import readable_token, significant
from normprobe.report.verdict import Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.schema import BASE, NONZERO_ROWS, TEXT, VISUAL
from normprobe.tidy import select


def verdict(run: RunStore) -> Verdict:
    """How far the text table moved from that of a base; what the tables say."""
    embeddings, shift = run.table("embeddings"), run.rows_of("shift")
    headline, findings = embeddings_sentences(embeddings)
    if shift is not None:
        moved, how = shift_sentences(embeddings, shift)
        headline, findings = moved, [*how, Finding("table", headline), *findings]
    return verdict_of(headline, findings)


def of_nonzero(
    embeddings: pd.DataFrame, table: str, quantity: str = "norm", estimate: str = "mean"
) -> float:
    """A number of the non-zero rows of a table; NaN where there is none."""
    rows = select(embeddings, quantity, rows=NONZERO_ROWS).set_index("table")
    return float(rows[estimate].get(table, math.nan))


def embeddings_sentences(embeddings: pd.DataFrame) -> tuple[str, list[Finding]]:
    """The visual table against the text table, or how far its loudest row stands out."""
    means = {table: of_nonzero(embeddings, table) for table in (VISUAL, TEXT)}
    if not usable(means[TEXT]):
        return "", []
    mean = significant(means[TEXT])
    if usable(means[VISUAL]):
        ratio = Ratio(means[VISUAL] / means[TEXT])
        norm = f"{times(ratio.value)} the norm of" if ratio.state else "about the norm of"
        told = f"{significant(means[VISUAL])} against {mean} (non-zero rows)"
        ends = f"Mean norm of the visual and the text table: {told}."
        return f"Rows of the visual table have {norm} rows of the text table.", [
            Finding("ratio", ends, {"ratio": ratio}),
            Finding("intervals", "No intervals: these are all rows."),
        ]
    headline = f"Non-zero text embedding rows have a mean norm of {mean}"
    loudest = of_nonzero(embeddings, TEXT, "norm_max")
    if usable(loudest):
        headline += f"; the largest is {times(loudest / means[TEXT])} that"
    return f"{headline}.", []


_NAMED = 3  # tokens in a sentence


def shift_sentences(embeddings: pd.DataFrame, shift: pd.DataFrame) -> tuple[str, list[Finding]]:
    """How the mean norm and the rows changed, and which tokens rose among the loudest."""
    mean, base = (of_nonzero(embeddings, table) for table in (TEXT, BASE))
    shared = shift[shift["token_id"].notna() & shift["base_id"].notna()]
    if len(shared) == len(shift) and shared["distance"].eq(0).all():
        return f"The text table is unchanged: all {len(shared):,} rows are those of the base.", []
    headline = f"The mean norm of text rows is {significant(mean)}; that of the base is unknown."
    findings = []
    if usable(base) and usable(mean):
        change = f"{100 * (mean / base - 1):+.1f} % against the base"
        headline = f"The mean norm of text rows is {significant(mean)}, {change}."
        ends = f"from {significant(base)} to {significant(mean)}"
        findings.append(Finding("mean", f"Mean norm of non-zero rows: {ends}."))
    relative = (shared["distance"] / shared["base_norm"])[shared["base_norm"] > 0].dropna()
    if len(relative):
        told = (
            f"The {len(shared):,} shared tokens moved by a median of "
            f"{significant(100 * float(relative.median()), 2)} % of their norm."
        )
        findings.append(Finding("moved", told))
    emerging = shift[shift["emerging"].astype(bool)].sort_values("rank")
    if len(emerging):
        visual = int(emerging["visual_token"].sum())
        most = int(shift["rank"][shift["emerging"].astype(bool)].max())
        told = (
            f"{len(emerging)} of the {most} rows of largest norm were not among them in the base "
            f"({visual} visual)."
        )
        named = ", ".join(_emerged(row) for _, row in emerging.head(_NAMED).iterrows())
        more = f", and {len(emerging) - _NAMED} more" if len(emerging) > _NAMED else ""
        findings += [
            Finding("emerged", told),
            Finding("emerged.tokens", f"These are {named}{more}."),
        ]
    return headline, findings


def _emerged(row: "pd.Series[str]") -> str:
    norm, base_norm = float(row["norm"]), float(row["base_norm"])
    if math.isnan(base_norm):
        how = "new"
    elif base_norm == 0:
        how = "zero in the base"
    else:
        how = f"{significant(norm / base_norm, 2)} x its norm"
    return f"{readable_token(row['token'])} ({how})"
