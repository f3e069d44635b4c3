"""What goes wrong in trainings and can be seen from inside, each said once.

Thresholds are calibrated by tests/extensions/training/test_alarms.py: planted faults, and healthy
trainings that raise none.
"""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import nn

from normprobe.errors import number_of
from normprobe.extensions.training.measure import ForwardReader
from normprobe.extensions.training.processed import Processed, misplaced, odd_pixels
from normprobe.report.readable import significant
from normprobe.schema import STRUCTURAL, TEXT, VISUAL

#: A norm that grows by this factor within so many steps.
GROWTH, WITHIN = 10.0, 100
#: Of what float16 holds, the share that a token's norm may reach.
_LARGEST = {"float16": 65504.0 / 2}
#: Update over weight of a part, per step; the lower end at the full learning rate.
UPDATE_RATIOS = (1e-5, 1e-1)
#: A gradient that grows by this factor over all earlier ones, of which there are so many.
GRADIENT_GROWTH, AFTER = 100.0, 3
#: Measured steps in a row that a ratio is outside, or that pictures are the same.
IN_A_ROW = 2
#: Relative differences below this are rounding.
NO_SPREAD = 1e-4


#: Columns of ``UpdateReader.rows`` that are judged.
_OF_PARTS = ("gradient_norm", "update_ratio", "reached")


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
    """Looks at the measured steps of one training, in order.

    Args:
        made: what the processor makes of pictures, where it is known.
    """

    def __init__(self, made: Processed | None = None) -> None:
        self._made, self._odd = made, False
        self._raised: set[tuple[str, str]] = set()
        self._norms: deque[tuple[int, pd.Series[float]]] = deque()
        self._outside: dict[str, int] = {}
        self._gradients: dict[str, list[float]] = {}
        self._nothing: dict[str, int] = {}  # by part, steps in a row whose gradient was 0
        self._resting = 0  # steps in a row whose learning rate was 0
        self._suspected, self._moves = set[str](), True
        self._pictures: deque[tuple[tuple[float, ...], float]] = deque(maxlen=IN_A_ROW + 1)
        self._trained: set[str] = set()

    def states(self, step: int, rows: pd.DataFrame, seen: ForwardReader) -> list[Alarm]:
        """Of a forward."""
        found = [
            *self._unprocessed(seen),
            *_broken(rows),
            *_near_overflow(rows),
            *self._grown(step, rows),
        ]
        return self._new(step, [*found, *self._blind(rows, seen)])

    def weights(self, step: int, rows: pd.DataFrame, visual: bool, warmth: float) -> list[Alarm]:
        """Of an optimizer step.

        Args:
            step: of the training.
            rows: of ``UpdateReader.rows``.
            visual: whether the forward read pictures.
            warmth: the learning rate over that at which the schedule begins or peaks.
        """
        self._moves = warmth > 0
        self._resting = 0 if self._moves else self._resting + 1
        found = []
        if self._resting >= IN_A_ROW:
            found.append(("rate", "optimizer", "the learning rate is 0, and was so before"))
        parts = rows.set_index("stage")
        for part in sorted(self._trained - set(parts.index)):
            found.append(("frozen", part, f"the {_words(part)} was trained before, and is frozen"))
        self._trained |= set(parts.index)
        broken = [_words(part) for part in parts.index[~np.isfinite(parts["gradient_norm"])]]
        if broken:
            words = f"the gradient of the {' and '.join(broken)} is not finite"
            found += self._unless_raised("gradient", words)
        for part, gradient, ratio, reached in parts[list(_OF_PARTS)].itertuples():
            of_pixels = part in ("vision_encoder", "projector", "alignment_norm")
            if gradient == 0 and (visual or not of_pixels):
                # An output that begins at zero lets none through until it has moved.
                nothing = IN_A_ROW if not reached else self._nothing.get(part, 0) + self._moves
                self._nothing[part] = nothing
                if nothing >= IN_A_ROW:
                    words = f"the {_words(part)} is to be trained and receives no gradient"
                    found.append(("gradient", part, words))
                continue
            self._nothing[part] = 0
            found += self._size(part, gradient)
            if gradient > 0 and self._moves and ratio == 0:
                words = f"the {_words(part)} receives a gradient and does not move"
                found.append(("still", part, f"{words}: are its weights in the optimizer?"))
            elif gradient > 0 and self._moves:
                found += self._ratio(part, ratio, warmth)
        return self._new(step, found)

    def _size(self, part: str, gradient: float) -> Iterator[tuple[str, str, str]]:
        """Of a gradient far above all earlier ones."""
        earlier = self._gradients.setdefault(part, [])
        if 0 < gradient < inf:
            if len(earlier) >= AFTER and gradient >= GRADIENT_GROWTH * max(earlier):
                factor = significant(gradient / max(earlier), 2)
                told = f"the gradient of the {_words(part)} is {factor} x the largest before"
                yield "growth", part, told
            earlier.append(gradient)

    def adapters(self, step: int, model: nn.Module) -> list[Alarm]:
        """Of layers that add more than one adapter to their output."""
        doubled = [name for name, module in model.named_modules() if _adapters(module) > 1]
        told = f"more than one adapter is active in {number_of(len(doubled), 'layer')}"
        found = [("adapters", "layers", f"{told}, {name} the first") for name in doubled[:1]]
        return self._new(step, found)

    def loss(self, step: int, where: str) -> list[Alarm]:
        """Of the first loss that is not finite; ``where``: in which process."""
        return self._new(step, [*self._unless_raised("loss", f"the loss is not finite{where}")])

    def _unless_raised(self, where: str, words: str) -> Iterator[tuple[str, str, str]]:
        """What follows from states that are not finite is not told again."""
        if not any(name == "nonfinite" for name, _ in self._raised):
            yield "nonfinite", where, words

    def _ratio(self, part: str, ratio: float, warmth: float) -> Iterator[tuple[str, str, str]]:
        low, high = UPDATE_RATIOS
        sparse = part == "text_embedding"  # a batch moves the rows of its own tokens
        outside = ratio > high or (ratio / min(warmth, 1.0) < low and not sparse)
        self._outside[part] = self._outside.get(part, 0) + 1 if outside else 0
        if self._outside[part] >= IN_A_ROW:
            end = f"above {high:g}" if ratio > high else f"below {low:g}"
            told = f"a step moves the {_words(part)} by {significant(ratio, 2)} of its matrices"
            yield "update", part, f"{told}, {end}"

    def _grown(self, step: int, rows: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
        norms = rows.set_index(["group", "layer"])["norm_geometric_mean"]
        # What began near zero may grow until it is as loud as text.
        text = rows["layer"].map(rows[rows["group"] == TEXT].set_index("layer")[norms.name])
        quiet = norms.index[rows[norms.name] < text]
        for before, older in self._norms:
            growth = (norms / older).dropna().drop(quiet, errors="ignore")
            for group in growth.index.unique("group"):
                layer, factor = growth[group].idxmax(), growth[group].max()
                if factor >= GROWTH:
                    told = f"the norm of {group} tokens after layer {layer} grew"
                    steps = f"from step {before} to {step}"
                    yield "growth", group, f"{told} {significant(factor, 2)} x {steps}"
        self._norms.append((step, norms))
        while self._norms[0][0] <= step - WITHIN:
            self._norms.popleft()

    def _unprocessed(self, seen: ForwardReader) -> Iterator[tuple[str, str, str]]:
        """Pixels and placeholders that are none of the processor's."""
        if self._made is None or not seen.pixels:
            return
        told, at_once = odd_pixels(self._made, *map(float, seen.pixels[0]))
        if told and (at_once or self._odd):
            yield "processor", "pixels", told
        self._odd = bool(told)
        for words in misplaced(self._made, seen.ids()):
            yield "processor", "placeholders", words

    def _blind(self, rows: pd.DataFrame, seen: ForwardReader) -> Iterator[tuple[str, str, str]]:
        """Visual tokens that do not depend on pixels."""
        if not seen.pixels:
            return
        (spread, *_), sums = seen.pixels  # one array each
        if spread == 0:
            yield "pixels", VISUAL, "all pictures are blank"
        # A projector that begins at zero is none: told where it is so behind a step, too.
        blind = set(_same_for_all(rows, seen))
        for words in sorted(blind & self._suspected) if self._moves else ():
            yield "pixels", VISUAL, words
        self._suspected, self._moves = blind, True
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


def _same_for_all(rows: pd.DataFrame, seen: ForwardReader) -> Iterator[str]:
    """How visual tokens fail to tell pictures, or places of a picture, apart."""
    within, between = seen.varies
    groups = set(rows["group"])
    if STRUCTURAL in groups and VISUAL not in groups:
        yield "no token of a picture depends on its pixels"
    elif 0 <= within < NO_SPREAD:
        yield "all visual tokens of a picture are the same"
    elif between < NO_SPREAD and len(set(seen.pixels[1].tolist())) > 1:
        yield "visual tokens are the same whatever the picture"


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


def _adapters(module: Any) -> int:
    """How many adapters of PEFT a layer adds, those of a layer inside it included."""
    inside = getattr(module, "base_layer", None)
    if not hasattr(module, "lora_A") or getattr(module, "merged", False):
        return 0
    active = sum(name in module.lora_A for name in module.active_adapters)
    return active + (_adapters(inside) if inside is not None else 0)


def _words(part: str) -> str:
    return part.replace("_", " ")
