"""Which cells of the paper's tables a run has measured."""

import pandas as pd

from normprobe.foreign_text import visible
from normprobe.paper.beside import ranked_tokens
from normprobe.paper.layouts import RANK, Cells, Layout
from normprobe.paper.numbers import printed_rows, published_numbers
from normprobe.paper.quantities import ALSO
from normprobe.report.significant import significant
from normprobe.runs.run_store import RunStore

#: The columns of Table 5, by the name of the checkpoint in its commands.
NORM_COLUMNS = {"DEFAULT": "default_init", "ALIGNED": "aligned_init"}

#: What stands beside a quantity that the paper leaves open.
_ALSO = {quantity for others in ALSO.values() for quantity in others}
#: What Table 5 calls a column of ``norm_statistics`` otherwise.
_COLUMNS_OF_METRICS = {"sem_abs": "mean_abs_std"}


def cells_of_run(layout: Layout, run: RunStore, published: pd.DataFrame) -> Cells:
    """What a run has measured of a table."""
    cells: Cells = {}
    known = published[published["source"] == layout.source]
    rows = known.set_index(["model", "quantity", "statistic"])["measured"].dropna()
    ranks = known.dropna(subset="measured_rank").set_index(["model", "statistic"])["measured_rank"]
    for number in published_numbers():
        if number.source != layout.source:
            continue
        of_token = number.statistic.startswith("rank")
        if of_token and (number.name, number.statistic) in ranks.index:
            token = number.column.replace("l2_norm", "token")
            cells[number.row, token + RANK] = int(ranks[number.name, number.statistic])
        elif not of_token and (number.name, number.quantity, number.statistic) in rows.index:
            norm = rows[number.name, number.quantity, number.statistic]
            cells[number.row, number.column] = float(norm)
    for variant in ("base", "vl"):
        if known["model"].str.endswith(f" {variant}").any():
            cells |= _top_tokens(layout, run, variant)
    return cells


def _top_tokens(layout: Layout, run: RunStore, variant: str) -> Cells:
    """The loudest tokens of one side of a run, where the table has such a side."""
    printed = printed_rows(layout.file)
    if f"{variant}_token" not in printed[0]:
        return {}
    of_base = variant == "base" and bool(run.record.get("base"))
    ranked = ranked_tokens(run, of_base=of_base)
    if ranked is None:
        return {}
    top = ranked.drop_duplicates("rank").sort_values("rank").head(len(printed))
    cells: Cells = {}
    for rank, token, norm in zip(top["rank"], top["token"], top["norm"], strict=True):
        cells[int(rank) - 1, f"{variant}_token"] = str(token)
        cells[int(rank) - 1, f"{variant}_l2_norm"] = float(norm)
    return cells


def cells_of_norm(layout: Layout, column: str, statistics: pd.DataFrame) -> Cells:
    """What the gain and bias of a trained norm say of Table 5."""
    sizes = statistics.set_index("parameter").rename(columns=_COLUMNS_OF_METRICS).to_dict("index")
    return {
        (place, column): float(sizes[row["parameter"]][row["metric"]])
        for place, row in enumerate(printed_rows(layout.file))
    }


def notes_on(layout: Layout, run: RunStore, published: pd.DataFrame) -> list[str]:
    """What a reader of a run's cells should know: of what it is, and what the paper leaves open."""
    known = published[published["source"] == layout.source]
    names = " and ".join(dict.fromkeys(known["model"]))
    samples = len(run.record.get("sample_ids") or ())
    of_samples = f", {samples} samples of {run.record.get('data')}" if samples else ""
    models = " and ".join(str(run.record[key]) for key in ("model", "base") if run.record.get(key))
    notes = [f"{names}: {models}{of_samples}."]
    notes += [note for note in dict.fromkeys(known["note"].dropna()) if note]
    for (model, quantity), rows in known[known["quantity"].isin(_ALSO)].groupby(
        ["model", "quantity"], sort=False
    ):
        numbers = " \u00b1 ".join(significant(float(value)) for value in rows["measured"])
        notes.append(f"{model}, {quantity}: {numbers}.")
    return [visible(note) for note in notes]
