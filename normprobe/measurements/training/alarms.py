"""What goes wrong in trainings and can be seen from inside, each said once.

Thresholds are calibrated by tests/measurements/training/test_alarms.py: planted faults, and healthy
trainings that raise none.
"""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from normprobe.measurements.training.measure import ForwardReader
from normprobe.report.readable import significant
from normprobe.schema import STRUCTURAL, VISUAL

#: A norm that grows by this factor within so many steps.
GROWTH, WITHIN = 10.0, 100
#: Of what float16 holds, the share that a token's norm may reach.
_LARGEST = {"float16": 65504.0 / 2}
#: Update over weight of a part, per step; the lower end at the full learning rate.
UPDATE_RATIOS = (1e-5, 1e-1)
#: Measured steps in a row that a ratio is outside, or that pictures are the same.
IN_A_ROW = 2
#: Relative differences below this are rounding.
SAME = 1e-4


class Alarm(NamedTuple):
    """Something that is wrong.

    Attributes:
        step: of the training.
        name: which of the alarms.
        where: the part, or the token group.
        words: what was seen, a sentence.
    """

    step: int
    name: str
    where: str
    words: str


class Judge:
    """Looks at the measured steps of one training, in order."""

    def __init__(self) -> None:
        self._raised: set[tuple[str, str]] = set()
        self._norms: deque[tuple[int, pd.Series[float]]] = deque()
        self._outside: dict[str, int] = {}
        self._pictures: deque[tuple[tuple[float, ...], float]] = deque(maxlen=IN_A_ROW + 1)
        self._trained: set[str] = set()

    def states(self, step: int, rows: pd.DataFrame, seen: ForwardReader) -> list[Alarm]:
        """Of a forward."""
        found = [*_broken(rows), *_near_overflow(rows), *self._grown(step, rows)]
        return self._new(step, [*found, *self._blind(rows, seen)])

    def weights(self, step: int, rows: pd.DataFrame, visual: bool, warmth: float) -> list[Alarm]:
        """Of an optimizer step.

        Args:
            step: of the training.
            rows: of ``UpdateReader.rows``.
            visual: whether the forward read pictures.
            warmth: the learning rate over that at which the schedule begins or peaks.
        """
        found = []
        parts = rows.set_index("stage")
        for part in sorted(self._trained - set(parts.index)):
            found.append(("frozen", part, f"the {_words(part)} was trained before, and is frozen"))
        self._trained |= set(parts.index)
        for part, gradient, ratio in parts.itertuples():
            of_pixels = part in ("vision_encoder", "projector", "alignment_norm")
            if gradient == 0 and (visual or not of_pixels):
                words = f"the {_words(part)} is to be trained and receives no gradient"
                found.append(("gradient", part, words))
            elif gradient > 0 and warmth > 0 and ratio == 0:
                words = f"the {_words(part)} receives a gradient and does not move"
                found.append(("still", part, f"{words}: are its weights in the optimizer?"))
            elif gradient > 0 and warmth > 0:
                found += self._ratio(part, ratio, warmth)
        return self._new(step, found)

    def _ratio(self, part: str, ratio: float, warmth: float) -> Iterator[tuple[str, str, str]]:
        low, high = UPDATE_RATIOS
        sparse = part == "text_embedding"  # a batch moves the rows of its own tokens
        outside = ratio > high or (ratio / min(warmth, 1.0) < low and not sparse)
        self._outside[part] = self._outside.get(part, 0) + 1 if outside else 0
        if self._outside[part] >= IN_A_ROW:
            end = f"above {high:g}" if ratio > high else f"below {low:g}"
            told = f"a step moves the {_words(part)} by {significant(ratio, 2)} of its weights"
            yield "update", part, f"{told}, {end}"

    def _grown(self, step: int, rows: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
        norms = rows.set_index(["group", "layer"])["norm_geometric_mean"]
        for before, older in self._norms:
            growth = (norms / older).dropna()
            for group in growth.index.unique("group"):
                layer, factor = growth[group].idxmax(), growth[group].max()
                if factor >= GROWTH:
                    told = f"the norm of {group} tokens after layer {layer} grew"
                    steps = f"from step {before} to {step}"
                    yield "growth", group, f"{told} {significant(factor, 2)} x {steps}"
        self._norms.append((step, norms))
        while self._norms[0][0] <= step - WITHIN:
            self._norms.popleft()

    def _blind(self, rows: pd.DataFrame, seen: ForwardReader) -> Iterator[tuple[str, str, str]]:
        """Visual tokens that do not depend on pixels."""
        within, between = seen.varies
        if not seen.pixels:
            return
        spread, sums = float(seen.pixels[0]), seen.pixels[1]
        groups = set(rows["group"])
        if spread == 0:
            yield "pixels", VISUAL, "all pictures are blank"
        elif STRUCTURAL in groups and VISUAL not in groups:
            yield "pixels", VISUAL, "no token of a picture depends on its pixels"
        elif 0 <= within < SAME:
            yield "pixels", VISUAL, "all visual tokens of a picture are the same"
        elif between < SAME and len(set(sums.tolist())) > 1:
            yield "pixels", VISUAL, "visual tokens are the same whatever the picture"
        self._pictures.append((tuple(sums.tolist()), float(seen.prompts)))
        pictures, prompts = zip(*self._pictures, strict=True)
        changed = all(one != other for one, other in pairwise(prompts))
        if len(pictures) > IN_A_ROW and len(set(pictures)) == 1 and changed:
            yield "pixels", VISUAL, "other prompts come with the same pictures, step by step"

    def _new(self, step: int, found: list[tuple[str, str, str]]) -> list[Alarm]:
        fresh: dict[tuple[str, str], Alarm] = {}
        for name, where, words in found:
            if (name, where) not in self._raised:
                fresh.setdefault((name, where), Alarm(step, name, where, words))
        self._raised |= set(fresh)
        return [*fresh.values()]


def _broken(rows: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
    """States that are no numbers, and where they were first."""
    broken = rows[rows["nonfinite"] > 0]
    if not broken.empty:
        first = broken[broken["layer"] == broken["layer"].min()]
        count, groups = int(first["nonfinite"].sum()), " and ".join(first["group"])
        at = int(first["layer"].iloc[0])
        where = f"after layer {at}" if at else "at the decoder input"
        yield "nonfinite", "states", f"{count} states of {groups} tokens are not finite {where}"


def _near_overflow(rows: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
    near = rows[rows["norm_max"] >= rows["dtype"].map(_LARGEST).astype(float)]
    for group, those in near.groupby("group"):
        largest = those.iloc[int(those["norm_max"].argmax())]
        told = f"a {group} token has the norm {significant(largest['norm_max'])} after layer"
        where = f"{largest['layer']}, near what {largest['dtype']} holds"
        yield "overflow", str(group), f"{told} {where}"


def _words(part: str) -> str:
    return part.replace("_", " ")
