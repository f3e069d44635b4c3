"""How far the largest numbers of each layer are from the end of float16, as table and in words.

What a layer returns is looked at, and what the modules inside it take and return: the hidden layer
of an MLP is often larger than the state that it is added to. A number that float32 holds and
float16 does not becomes infinite there, and every number that follows is lost.
"""

import math

import numpy as np
import pandas as pd
from markupsafe import Markup

from normprobe.report.page.blocks import heading, shown_table
from normprobe.report.readable import significant
from normprobe.runs.run_folder import RunStore
from normprobe.schema import BESIDE_GROUPS, NON_VISUAL

#: The largest number of float16.
FLOAT16_END = 65504.0


def headroom_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Sample rows to headroom.csv: of each layer the largest magnitude, and whose it is.

    Empty where the rows are of a run that did not look at it.
    """
    if "state_peak_max" not in rows:
        return pd.DataFrame()
    rows = rows[~rows["group"].isin([*BESIDE_GROUPS, NON_VISUAL])]
    largest = np.fmax(rows["state_peak_max"], rows["inner_peak_max"])
    rows = rows.assign(largest=largest).dropna(subset="largest")
    order = ["layer", "peak_order", "largest"]
    ordered = rows.sort_values(order, ascending=[True, True, False], kind="stable")
    first = ordered.drop_duplicates("layer")
    most = rows.groupby("layer")["largest"].max().to_numpy(float)
    with np.errstate(divide="ignore"):
        bits = np.log2(FLOAT16_END / most)
    return pd.DataFrame(
        {
            "layer": first["layer"].to_numpy(int),
            "largest": most,
            "at": first["peak_at"].to_numpy(object),
            "output": rows.groupby("layer")["state_peak_max"].max().to_numpy(float),
            "bits_to_float16": bits,
            "group": first["group"].to_numpy(object),
            "sample_id": first["sample_id"].to_numpy(object),
            "position": first["peak_position"].to_numpy(int),
        }
    )


def headroom_words(run: RunStore, layer: str = "layer", what: str = "the decoder") -> str:
    """Where float16 would overflow first, or how far that is.

    Args:
        run: that has looked at it; empty of any other.
        layer: what a layer is called, such as ``block``.
        what: has layers, such as ``the vision tower``.
    """
    table = run.rows_of("headroom")
    if table is None or table.empty:
        return ""
    over = table[~(table["largest"] <= FLOAT16_END)]
    if len(over):
        first = over.iloc[0]
        where = f"{layer} {first['layer']}, at {first['at']}"
        if not first["layer"]:
            where = f"what enters {layer} 1"
        number = f"{first['largest']:,.0f}" if math.isfinite(first["largest"]) else "infinite"
        dtype = str(run.record.get("dtype") or "").removeprefix("torch.")
        return (
            f"In float16 {what} overflows first in {where}: the largest magnitude there is "
            f"{number}{f' in {dtype}' if dtype else ''}, the limit 65,504."
        )
    most = table.iloc[int(table["largest"].to_numpy().argmax())]
    where = f"{layer} {most['layer']}, {most['at']}" if most["layer"] else f"before {layer} 1"
    return (
        f"The largest magnitude in {what} is {significant(most['largest'])} ({where}), "
        f"{most['bits_to_float16']:.1f} bits below the end of float16."
    )


def headroom_section(run: RunStore) -> list[Markup]:
    """The table on the page; nothing where the run did not look at it."""
    table = run.rows_of("headroom")
    if table is None or table.empty:
        return []
    return [heading("How far is the end of float16?"), shown_table(table)]
