"""Sample rows of ``cause`` to cause.csv: effects, paired by sample with the untouched forward."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.errors import NormprobeError
from normprobe.extensions.cause.effect_intervals import (
    ONE_WON_ONE_LOST,
    TWO_OF_EACH,
    beyond,
    mean_interval,
    share_interval,
)
from normprobe.extensions.cause.effect_numbers import base_of
from normprobe.extensions.cause.measure import ANGLES, OUTCOMES
from normprobe.model.intervention_plan import BLANK, DOSED, PLACEBO, UNTOUCHED
from normprobe.report.ratio_words import ALIKE
from normprobe.statistics.bootstrap import LINEAR, Array, Held, band, interval
from normprobe.statistics.resampling import Resampled, scale_of
from normprobe.tidy import BAND, INTERVAL, QUANTITY, declared

#: Outcomes whose effect is a difference from the untouched forward; of the others it is the value.
DIFFERENCES = {"nll": "nll", "correct": "accuracy", "greedy": "greedy_accuracy"}
#: Images that are counted beside those whose answers changed.
_BESIDE = {"correct": ONE_WON_ONE_LOST, "greedy": ONE_WON_ONE_LOST, "changed": TWO_OF_EACH}
#: Outcomes that one sentence could name, of any intervention, dose or layer.
_TOGETHER = (("nll", "correct", "greedy"), ("kl", "changed"))
#: Between which limits they lie.
_BOUNDS = {
    "nll": LINEAR,
    "correct": LINEAR._replace(least=-1.0, most=1.0),
    "greedy": LINEAR._replace(least=-1.0, most=1.0),
    "kl": LINEAR._replace(least=0.0),
    "changed": LINEAR._replace(least=0.0, most=1.0),
    "moved": LINEAR._replace(least=0.0, most=2.0),
}
SHARE_REMOVED, LAYERS_APART, IMAGES = "share_removed", "layers_apart", "images"

#: What a decoder meets anyway, or what is done to other tokens: how far these move text.
CONTROLS = (BLANK, PLACEBO)
_KEYS = ["intervention", "dose", "layer"]


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``cause`` contains."""
    found = Effects(rows)
    table = pd.concat([found.outcomes(), found.angles()], ignore_index=True)
    if table.empty:
        raise NormprobeError(
            "no sample could be measured: in none a visual token was found, or a finite number",
            "look at the tokens with `normprobe inspect`, or pass --data with pictures",
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
        # A sample counts on both sides or on none: a forward may overflow under one of them.
        joined[own] = joined[own].replace([np.inf, -np.inf], np.nan)
        for name in (*DIFFERENCES, *ANGLES):
            both = np.isfinite(joined[[name, f"{name}_untouched"]].astype(float)).all(axis=1)
            joined.loc[~both, [name, f"{name}_untouched"]] = np.nan
        self.cells = joined[_KEYS].drop_duplicates(ignore_index=True)
        self.rows = joined
        self._resampled = Resampled(self.cells, joined, _KEYS)

    def outcomes(self) -> pd.DataFrame:
        """Rows of the answer's numbers, and of how far untouched rows moved."""
        known: dict[str, tuple[NDArray[np.bool_], Array, Array, Array, Array]] = {}
        for name in OUTCOMES:
            now = self._resampled.means(name, by_tokens=False)
            before = np.zeros_like(now)
            if name in DIFFERENCES:
                before = self._resampled.means(f"{name}_untouched", by_tokens=False)
            held = ~np.isnan(now[0])
            effects = (now - before)[:, held]
            ends = np.full((2, effects.shape[1]), np.nan)
            if name in _BOUNDS:
                ends = self._ends(name, effects, self._resampled.holding(name)[:, held])
            known[name] = held, before, now, effects, ends
        bands = self._bands_of_answers(known)
        found = [self._effect_rows(name, *known[name], bands.get(name)) for name in OUTCOMES]
        return pd.concat([*found, self._images()], ignore_index=True)

    def _images(self) -> pd.DataFrame:
        """How many images the answers of each cell rest on."""
        images = self._resampled.holding("kl").sum(axis=0).astype(float)
        states = {"mean": images, "untouched": 0 * images, "value": images}
        held = images > 0
        known = {name: numbers[held] for name, numbers in states.items()}
        samples = self._counts("kl")[held]
        table: pd.DataFrame = self.cells[held].assign(quantity=IMAGES, **known, samples=samples)
        return table

    def _ends(self, name: str, effects: Array, holding: Held) -> Array:
        """The ends of the intervals of an outcome, ``[2, cells]``."""
        if name in _BESIDE:
            return share_interval(effects, self._resampled.units, holding, _BESIDE[name])
        ends = mean_interval(effects, self._resampled.units, holding)
        return ends.clip(_BOUNDS[name].least)

    def _bands_of_answers(self, known: Mapping[str, Any]) -> dict[str, Array]:
        """Ends that hold for all interventions, doses and layers of a run at once, by outcome."""
        found: dict[str, Array] = {}
        for names in _TOGETHER:
            parts = [known[name] for name in names]
            holding = [
                self._resampled.holding(name)[:, held]
                for name, (held, *_) in zip(names, parts, strict=True)
            ]
            effects = [effects for *_, effects, _ in parts]
            scales = [_BOUNDS[name] for name in names]
            units = self._resampled.units
            bands = band(effects, units, scales, holding)
            for place, (name, held) in enumerate(zip(names, holding, strict=True)):
                means = effects[place][0]
                reached = means + (bands[place] - means) * beyond(effects[place], units, held)
                reached = reached.clip(scales[place].least, scales[place].most)
                found[name] = _no_narrower(reached, parts[place][-1])
        return found

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
            ratios = np.exp(now - before)[:, held]
            states = np.exp(before), np.exp(now)
            holding = self._resampled.holding(ANGLES[0])[:, held]
            scale = scale_of(declared(__package__)["cause"], quantity)
            ends = interval(ratios, self._resampled.units, scale, holding.sum(axis=0))
            bands = np.full_like(ends, np.nan)
            of_layers = self.cells[held].reset_index(drop=True)
            for places in of_layers.groupby(["intervention", "dose"]).indices.values():
                chosen = holding[:, places]
                (reached,) = band([ratios[:, places]], self._resampled.units, [scale], [chosen])
                bands[:, places] = _no_narrower(reached, ends[:, places])
            found.append(self._effect_rows(quantity, held, *states, ratios, ends, bands))
        return pd.concat([*found, self._removed(*drawn["angle_ratio"])], ignore_index=True)

    def _removed(self, before: Array, now: Array) -> pd.DataFrame:
        """1 - sum |log ratio| after / sum |log ratio| before, over layers with a difference.

        That is where the ratio untouched lies beyond 1.25 either way, with the band over layers:
        of no difference there is no share.
        """
        found = []
        known = ~np.isnan(now[0]) & ~np.isnan(before[0])
        of_layers, holding = self.cells[known], self._resampled.holding(ANGLES[0])
        counts = self._counts(ANGLES[0])
        for (name, dose), places in of_layers.groupby(["intervention", "dose"]).groups.items():
            units, holds = self._resampled.units, holding[:, places]
            (around,) = band([before[:, places]], units, [LINEAR], [holds])
            apart = np.fmax(around[0], -around[1]) > np.log(ALIKE)
            keys = {"intervention": name, "dose": dose, "layer": 0}
            samples = counts[places].max()
            count = {"mean": float(apart.sum()), "value": float(apart.sum()), "untouched": 0.0}
            found.append({**keys, QUANTITY: LAYERS_APART, **count, "samples": samples})
            if not apart.any():
                continue
            left, all_of_it = (np.abs(logs[:, places][:, apart]) for logs in (now, before))
            share = 1 - left.sum(axis=1, keepdims=True) / all_of_it.sum(axis=1, keepdims=True)
            images = holds[:, apart].any(axis=1).sum(keepdims=True)
            ends = interval(share, units, LINEAR._replace(most=1.0), images)[:, 0]
            # |log| of a ratio that may be 1 is above 0 by chance alone: it may be gone.
            after = interval(now[:, places][:, apart], units, LINEAR, holds[:, apart].sum(axis=0))
            gone = (after[0] <= 0) & (after[1] >= 0)
            ends[1] = np.maximum(ends[1], 1 - left[0, ~gone].sum() / all_of_it[0].sum())
            effect = {"mean": share[0, 0], "low": ends[0], "high": ends[1]}
            states = {"untouched": 0.0, "value": share[0, 0], "samples": samples}
            found.append({**keys, QUANTITY: SHARE_REMOVED, **effect, **states})
        return pd.DataFrame(found)

    def _counts(self, column: str) -> NDArray[np.int64]:
        """``[cells]`` how many samples have a number of a column."""
        known = self.rows[self.rows[column].notna()]
        counts = known.groupby(_KEYS)["sample_id"].nunique()
        of_cells = counts.reindex(pd.MultiIndex.from_frame(self.cells)).fillna(0)
        return np.asarray(of_cells, dtype=np.int64)

    def _effect_rows(
        self,
        name: str,
        held: NDArray[np.bool_],
        before: Array,
        now: Array,
        effects: Array,
        ends: Array,
        bands: Array | None = None,
    ) -> pd.DataFrame:
        """A row a cell that is held, with the interval of its effect and its band."""
        column = name if name in OUTCOMES else ANGLES[0]
        bands = np.full_like(ends, np.nan) if bands is None else bands
        table = self.cells[held].assign(
            quantity=DIFFERENCES.get(name, name),
            mean=effects[0],
            untouched=before[0, held],
            value=now[0, held],
            samples=self._counts(column)[held],
        )
        return table.assign(**dict(zip((*INTERVAL, *BAND), (*ends, *bands), strict=True)))


def _no_narrower(bands: Array, ends: Array) -> Array:
    """What lies outside of its interval cannot be inside of its band; without one there is none."""
    return np.stack([np.minimum(bands[0], ends[0]), np.maximum(bands[1], ends[1])])


def with_off_map(table: pd.DataFrame) -> pd.DataFrame:
    """Mark what moves untouched states further than each of the ``CONTROLS`` does.

    By the largest end of these. Never by answers: what harms most, or helps most, would be left out
    for that.
    """
    moved = table[QUANTITY] == "moved"
    control = table["intervention"].isin(CONTROLS)
    furthest = table["high"].fillna(table["mean"])[moved & control].max()
    far = table[moved & ~control & (table["mean"] > furthest)]
    beyond = {*far[_KEYS].itertuples(index=False, name=None)}
    cells = table[_KEYS].itertuples(index=False, name=None)
    marked = [(name, dose, at) in beyond or (name, dose, 0) in beyond for name, dose, at in cells]
    has_dose = table["intervention"].map(base_of).isin(DOSED)
    told = table.assign(off_map=marked, dose=table["dose"].where(has_dose))
    effect = ["mean", *INTERVAL, *BAND]
    order = [*_KEYS, QUANTITY, *effect, "untouched", "value", "off_map", "samples"]
    return told[order].reset_index(drop=True)
