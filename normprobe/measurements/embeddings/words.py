"""What embeddings.csv and shift.csv say, in sentences."""

import math

import pandas as pd

from normprobe.report.ratio_words import LOUD, Ratio, ratio_in_words, times, usable
from normprobe.report.readable import readable_token, significant
from normprobe.runs.run_folder import RunStore
from normprobe.schema import BASE, NONZERO_ROWS, TEXT, VISUAL


def verdict(run: RunStore) -> str:
    """What the tables say, and how far they moved from those of a base."""
    embeddings, shift = run.table("embeddings"), run.rows_of("shift")
    moved = "" if shift is None else shift_verdict(embeddings, shift)
    return " ".join(filter(None, [embeddings_verdict(embeddings), moved]))


def embeddings_verdict(embeddings: pd.DataFrame) -> str:
    """The visual table against the text table, or how far its loudest row stands out."""
    rows = embeddings[embeddings["rows"] == NONZERO_ROWS].set_index("table")
    means = {table: float(rows["norm_mean"].get(table, math.nan)) for table in (VISUAL, TEXT)}
    if not usable(means[TEXT]):
        return ""
    if usable(means[VISUAL]):
        louder = ratio_in_words(
            [Ratio(means[VISUAL] / means[TEXT])], LOUD, "rows of the text table"
        )
        return (
            f"Rows of the visual table are {louder} (mean L2 norm {significant(means[VISUAL])} "
            f"against {significant(means[TEXT])}). No intervals: these are all rows."
        )
    sentence = f"Non-zero text embedding rows have a mean L2 norm of {significant(means[TEXT])}"
    loudest = float(rows["norm_max"].get(TEXT, math.nan))
    if usable(loudest):
        sentence += f"; the loudest has {times(loudest / means[TEXT])} that"
    return sentence + "."


_NAMED = 3  # tokens in a sentence


def shift_verdict(embeddings: pd.DataFrame, shift: pd.DataFrame) -> str:
    """How the mean norm and the rows changed, and which tokens rose among the loudest."""
    rows = embeddings[embeddings["rows"] == NONZERO_ROWS].set_index("table")["norm_mean"]
    mean, base = float(rows[TEXT]), float(rows[BASE])
    change = f" ({100 * (mean / base - 1):+.1f} %)" if usable(base) and usable(mean) else ""
    sentences = [
        f"The mean norm of the non-zero text rows is {significant(mean)}, {significant(base)} in "
        f"the base{change}"
    ]
    shared = shift[shift["token_id"].notna() & shift["base_id"].notna()]
    relative = (shared["distance"] / shared["base_norm"])[shared["base_norm"] > 0].dropna()
    if len(relative):
        sentences.append(
            f"The {len(shared):,} shared tokens moved by a median of "
            f"{significant(100 * float(relative.median()), 2)} % of their norm"
        )
    emerging = shift[shift["emerging"].astype(bool)].sort_values("rank")
    if len(emerging):
        named = ", ".join(_emerged(row) for _, row in emerging.head(_NAMED).iterrows())
        visual = int(emerging["visual_token"].sum())
        more = f" and {len(emerging) - _NAMED} more" if len(emerging) > _NAMED else ""
        sentences.append(
            f"{len(emerging)} of the {int(shift['rank'][shift['emerging'].astype(bool)].max())} "
            f"loudest were not among them in the base ({visual} visual): {named}{more}"
        )
    return ". ".join(sentences) + "."


def _emerged(row: "pd.Series[str]") -> str:
    norm, base_norm = float(row["norm"]), float(row["base_norm"])
    if math.isnan(base_norm):
        how = "new"
    elif base_norm == 0:
        how = "zero in the base"
    else:
        how = f"{significant(norm / base_norm, 2)} x its norm"
    return f"{readable_token(row['token'])} ({how})"
