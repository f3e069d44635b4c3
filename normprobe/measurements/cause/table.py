"""Sample rows of ``cause`` to cause.csv: effects, paired by sample with the untouched forward."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.errors import NormprobeError
from normprobe.measurements.cause.measure import ANGLES, OUTCOMES
from normprobe.model.interventions import (
    BLANK,
    GAIN,
    PLACEBO,
    SCALE,
    SCALE_TEXT,
    SCALE_TO_TEXT,
    UNTOUCHED,
)
from normprobe.model.measured_model import MeasuredModel
from normprobe.statistics.bootstrap import LINEAR, LOGARITHM, Array, Scale, band, interval
from normprobe.statistics.resampling import Resampled

#: Outcomes whose effect is a difference from the untouched forward; of the others it is the value.
DIFFERENCES = {"nll": "nll", "correct": "accuracy"}
SHARE_REMOVED = "share_removed"

#: Interventions whose dose may be more than a decoder has ever met.
DOSED = (SCALE, SCALE_TO_TEXT, SCALE_TEXT, GAIN)
_KEYS = ["intervention", "dose", "layer"]
_ENDS = ("effect_ci_low", "effect_ci_high", "effect_band_low", "effect_band_high")


def tables(rows: pd.DataFrame, model: MeasuredModel | None = None) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``cause`` contains."""
    del model
    found = Effects(rows)
    table = pd.concat([found.outcomes(), found.angles()], ignore_index=True)
    if table.empty:
        raise NormprobeError(
            "no sample could be measured: none has a picture", "pass --data with pictures"
        )
    return {"cause": with_off_map(table)}


class Effects:
    """Sample rows beside those of the untouched forward, and all their draws by image."""

    def __init__(self, rows: pd.DataFrame) -> None:
        rows = rows.assign(dose=rows["dose"].fillna(0.0))  # as a key
        own = [*ANGLES, *OUTCOMES]
        # The frozen layer is no layer of the untouched forward; its outcomes are those of layer 0.
        beside = rows["layer"].where(rows["nll"].isna() & rows["kl"].isna(), 0)
        untouched = rows[rows["intervention"] == UNTOUCHED]
        untouched = untouched.set_index(["sample_id", "layer"])[own].add_suffix("_untouched")
        joined = rows[rows["intervention"] != UNTOUCHED].assign(beside=beside)
        joined = joined.join(untouched, on=["sample_id", "beside"])
        self.cells = joined[_KEYS].drop_duplicates(ignore_index=True)
        self.rows = joined
        self._resampled = Resampled(self.cells, joined, _KEYS)

    def outcomes(self) -> pd.DataFrame:
        """Rows of the answer's numbers, and of how far text states moved."""
        found = []
        for name in OUTCOMES:
            quantity = DIFFERENCES.get(name, name)
            now = self._resampled.means(name, by_tokens=False)
            before = np.zeros_like(now)
            if name in DIFFERENCES:
                before = self._resampled.means(f"{name}_untouched", by_tokens=False)
            held = ~np.isnan(now[0])
            scale = LINEAR if name in (*DIFFERENCES, "changed") else LOGARITHM
            effects = now - before
            found.append(self._told(quantity, name, held, before, now, effects, scale))
        return pd.concat(found, ignore_index=True)

    def angles(self) -> pd.DataFrame:
        """Rows of angles by layer, and of the share of their ratios that is removed."""
        drawn: dict[str, tuple[Array, Array]] = {}
        for group in ("visual", "text"):
            columns = (f"{group}_angle_log_mean", f"{group}_angle_log_mean_untouched")
            tokens = (f"{group}_tokens", f"{group}_tokens_untouched")
            now, before = (
                self._resampled.means(column, by_tokens=True, tokens=counts)
                for column, counts in zip(columns, tokens, strict=True)
            )
            drawn[f"{group}_angle"] = before, now
        drawn["angle_ratio"] = (
            drawn["text_angle"][0] - drawn["visual_angle"][0],
            drawn["text_angle"][1] - drawn["visual_angle"][1],
        )
        found = []
        for quantity, (before, now) in drawn.items():
            held = ~np.isnan(now[0]) & ~np.isnan(before[0])
            ratios = np.exp(now - before)
            states = np.exp(before), np.exp(now)
            found.append(self._told(quantity, ANGLES[0], held, *states, ratios, LOGARITHM))
        return pd.concat([*found, self._removed(*drawn["angle_ratio"])], ignore_index=True)

    def _removed(self, before: Array, now: Array) -> pd.DataFrame:
        """1 - sum |log ratio| after / sum |log ratio| before, over all layers."""
        found = []
        known = ~np.isnan(now[0]) & ~np.isnan(before[0])
        of_layers, holding = self.cells[known], self._resampled.holding(ANGLES[0])
        for (name, dose), places in of_layers.groupby(["intervention", "dose"]).groups.items():
            sums = [np.abs(logs[:, places]).sum(axis=1, keepdims=True) for logs in (now, before)]
            share = 1 - sums[0] / sums[1]
            images = holding[:, places].any(axis=1).sum(keepdims=True)
            ends = interval(share, self._resampled.units, LINEAR, images)
            keys = {"intervention": name, "dose": dose, "layer": 0, "quantity": SHARE_REMOVED}
            samples = int(self._counts(ANGLES[0])[places].max())
            numbers = {"samples": samples, "untouched": 0.0}
            effect = {"value": share[0, 0], "effect": share[0, 0]}
            effect |= dict(zip(_ENDS, (*ends[:, 0], np.nan, np.nan), strict=True))
            found.append({**keys, **numbers, **effect})
        return pd.DataFrame(found)

    def _counts(self, column: str) -> NDArray[np.int64]:
        """``[cells]`` how many samples have a number of a column."""
        known = self.rows[self.rows[column].notna()]
        counts = known.groupby(_KEYS)["sample_id"].nunique()
        of_cells = counts.reindex(pd.MultiIndex.from_frame(self.cells)).fillna(0)
        return np.asarray(of_cells, dtype=np.int64)

    def _told(
        self,
        quantity: str,
        column: str,
        held: NDArray[np.bool_],
        before: Array,
        now: Array,
        effects: Array,
        scale: Scale,
    ) -> pd.DataFrame:
        """A row a cell that is held, with the interval of its effect and, over layers, its band."""
        units, holding = self._resampled.units, self._resampled.holding(column)[:, held]
        table = self.cells[held].assign(
            quantity=quantity,
            samples=self._counts(column)[held],
            untouched=before[0, held],
            value=now[0, held],
            effect=effects[0, held],
        )
        ends = interval(effects[:, held], units, scale, holding.sum(axis=0))
        bands = np.full_like(ends, np.nan)
        table = table.reset_index(drop=True)
        for _, places in table[table["layer"] > 0].groupby(["intervention", "dose"]).groups.items():
            of_one = effects[:, np.flatnonzero(held)[places]]
            (found,) = band([of_one], units, [scale], [holding[:, places]])
            # What lies outside of its interval cannot be inside of its band.
            bands[0, places] = np.fmin(found[0], ends[0, places])
            bands[1, places] = np.fmax(found[1], ends[1, places])
        columns = dict(zip(_ENDS, (*ends, *bands), strict=True))
        return table.assign(**columns)


def with_off_map(table: pd.DataFrame) -> pd.DataFrame:
    """Mark doses under which the decoder meets what it has not met.

    Text states move further than where text itself is scaled (``PLACEBO``), or answers further than
    where they lose the picture (``BLANK``). The bounds are the largest ends of these.
    """
    told = table.assign(off_map=False)
    end = told["effect_ci_high"].fillna(told["effect"])
    beyond: set[tuple[Any, ...]] = set()
    for quantity, reference in (("text_moved", PLACEBO), ("kl", BLANK)):
        of_one = told["quantity"] == quantity
        references = end[of_one & (told["intervention"] == reference)]
        if references.notna().any():
            far = told[of_one & (told["effect"] > references.max())]
            beyond |= set(far[["intervention", "dose"]].itertuples(index=False, name=None))
    cells = told[["intervention", "dose"]].itertuples(index=False, name=None)
    marked = np.array([cell in beyond for cell in cells], dtype=bool)
    told["off_map"] = marked & told["intervention"].isin(DOSED)
    has_dose = told["intervention"].isin([SCALE, SCALE_TEXT, GAIN, PLACEBO])
    told["dose"] = told["dose"].where(has_dose)
    order = ["intervention", "dose", "layer", "quantity", "samples", "untouched", "value", "effect"]
    return told[[*order, *_ENDS, "off_map"]].reset_index(drop=True)
