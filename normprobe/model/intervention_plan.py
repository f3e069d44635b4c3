"""Which forwards are asked for: interventions by name, dose and layers.

``scale`` is all of its usual doses, ``scale=3`` one; ``freeze@12-20`` is in those layers alone,
``freeze@12-`` from that one on; ``freeze:loudest_5`` is done to the 5 % of visual tokens that are
the loudest behind the vision tower, ``freeze:quiet`` to quiet ones beside these.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from normprobe.errors import NormprobeError, did_you_mean
from normprobe.statistics.loud_tokens import LOUDEST, QUIET

UNTOUCHED = "untouched"
SCALE = "scale"  # visual states at the decoder input x dose
SCALE_TO_TEXT = "scale-to-text"  # x what makes them as loud as text
SCALE_TEXT = "scale-text"  # text states x dose
NORM_AT_LAYER = "norm-at-layer"  # visual states as loud as text while one layer alone reads them
GAIN = "gain"  # what attention and MLP add to visual states x dose
FREEZE = "freeze"  # nothing is added to visual states
FREEZE_LAYER = "freeze-layer"  # in one layer
FREEZE_TEXT = "freeze-text"  # to the states of random text tokens
FREEZE_ATTENTION = "freeze-attention"  # attention adds nothing to visual states
FREEZE_MLP = "freeze-mlp"  # MLPs add nothing to them
RANDOM_UPDATES = "random-updates"  # what is added to them in random directions, as much of it
KNOCKOUT = "knockout"  # no other token attends to visual ones
KNOCKOUT_LAYER = "knockout-layer"  # in one layer
SWAP = "swap"  # norms kept, directions of another picture
SWAP_NORMS = "swap-norms"  # directions kept, norms of another picture
PATCH_LAYER = "patch-layer"  # visual states of another picture from one layer on
PERMUTE = "permute"  # visual states in another order
BLANK = "blank"  # a grey picture
PLACEBO = "placebo"  # states of random text tokens x dose

#: Those that ``--do`` can name, and their doses; NaN: there is no dose.
DOSES: dict[str, tuple[float, ...]] = {
    SCALE: (1 / 8, 1 / 4, 1 / 2, 2.0, 4.0, 8.0),
    SCALE_TO_TEXT: (math.nan,),
    SCALE_TEXT: (1 / 8, 8.0),
    NORM_AT_LAYER: (math.nan,),
    GAIN: (1 / 2, 2.0),
    FREEZE: (math.nan,),
    FREEZE_LAYER: (math.nan,),
    FREEZE_TEXT: (math.nan,),
    FREEZE_ATTENTION: (math.nan,),
    FREEZE_MLP: (math.nan,),
    RANDOM_UPDATES: (math.nan,),
    KNOCKOUT: (math.nan,),
    KNOCKOUT_LAYER: (math.nan,),
    SWAP: (math.nan,),
    SWAP_NORMS: (math.nan,),
    PATCH_LAYER: (math.nan,),
    PERMUTE: (math.nan,),
    BLANK: (math.nan,),
    PLACEBO: (1 / 8, 8.0),
}
DOSED = tuple(name for name, doses in DOSES.items() if not math.isnan(doses[0]))
#: In all layers, or in those that are named.
LAYERED = (GAIN, FREEZE, FREEZE_TEXT, FREEZE_ATTENTION, FREEZE_MLP, RANDOM_UPDATES, KNOCKOUT)
#: In all layers, or in those that are named, by what each branch adds.
OF_UPDATES = (GAIN, FREEZE_ATTENTION, FREEZE_MLP, RANDOM_UPDATES)
#: One forward a layer.
OF_ONE_LAYER = (FREEZE_LAYER, KNOCKOUT_LAYER, PATCH_LAYER)
#: To all visual tokens, or to a class of them.
OF_CLASSES = (SCALE, GAIN, FREEZE, FREEZE_ATTENTION, FREEZE_MLP, KNOCKOUT, BLANK)
CLASSES = (*LOUDEST, QUIET)
#: Those that need the states of another picture.
OF_ANOTHER_PICTURE = (SWAP, SWAP_NORMS, PATCH_LAYER)

#: What is done where nobody chooses: 13 forwards a sample beside the untouched one.
USUAL = (SCALE, SCALE_TO_TEXT, NORM_AT_LAYER, FREEZE, BLANK, PLACEBO)

_ASKED = re.compile(
    r"(?P<name>[a-z-]+)(=(?P<dose>[^@:]*))?(:(?P<tokens>[^@]*))?"
    r"(@(?P<first>\d+)(?P<to>-(?P<last>\d*))?)?"
)


@dataclass(frozen=True)
class Intervention:
    """What is done in one forward."""

    name: str  # of ``DOSES``, or ``UNTOUCHED``
    dose: float = math.nan  # by how much; NaN: it has none
    layer: int = 0  # of ``OF_ONE_LAYER`` which, from 1; 0: others
    #: Of ``LAYERED`` the first and the last layer, from 1; None: all.
    window: tuple[int, int] | None = None
    tokens: str = ""  # of ``OF_CLASSES`` one of ``CLASSES``; empty: all visual tokens

    @property
    def label(self) -> str:
        """Its name, its tokens and its layers: ``freeze:loudest_5@12-20``."""
        named = f"{self.name}:{self.tokens}" if self.tokens else self.name
        return named if self.window is None else f"{named}@{span(*self.window)}"

    def layers(self, count: int) -> range:
        """In which layers, from 0, of so many."""
        if self.layer:
            return range(self.layer - 1, self.layer)
        first, last = self.window or (1, count)
        return range(first - 1, last)


def span(first: int, last: int) -> str:
    """``12-20``, or ``12``."""
    return f"{first}-{last}" if last > first else f"{first}"


def read_label(label: str) -> tuple[str, str, str]:
    """Name, class of tokens and layers of an ``Intervention.label``; empty: all."""
    name, _, layers = label.partition("@")
    name, _, tokens = name.partition(":")
    return name, tokens, layers


def check(names: Sequence[str]) -> None:
    """Refuse what no decoder can be asked for."""
    for name in names:
        _read(name)


def planned(names: Sequence[str], layers: int) -> list[Intervention]:
    """The forwards that names stand for, in a decoder of so many layers."""
    found = []
    for asked in names:
        name, doses, window, tokens = _read(asked)
        if window is not None:
            first, last = max(window[0], 1), window[1] if window[1] >= 0 else layers
            if not first <= last <= layers:
                raise NormprobeError(
                    f"--do: {asked}: this decoder has the layers 1 to {layers}",
                    f"name some of them, as {name}@1-{layers}; 0 is the decoder input",
                )
            window = first, last
        found += [
            Intervention(name, dose, layer, window, tokens)
            for dose in doses
            for layer in (range(1, layers + 1) if name in OF_ONE_LAYER else (0,))
        ]
    by_label = {(done.label, str(done.dose), done.layer): done for done in found}
    return list(by_label.values())


def _read(asked: str) -> tuple[str, tuple[float, ...], tuple[int, int] | None, str]:
    """Name, doses, the first and last layer, -1: the last one there is, and the class of tokens."""
    parts = _ASKED.fullmatch(asked)
    name = parts["name"] if parts else re.split("[=@:]", asked)[0]
    if name not in DOSES:
        raise NormprobeError(
            f"--do: there is no intervention {name}: expected {', '.join(DOSES)}",
            did_you_mean(name, DOSES, f"leave {name} out"),
        )
    if parts is None:
        raise NormprobeError(
            f"--do: {asked} names no layers", f"write {FREEZE}@12-20, {FREEZE}@12- or {FREEZE}@12"
        )
    doses, window = DOSES[name], None
    if parts["dose"] is not None:
        if name not in DOSED:
            raise NormprobeError(
                f"--do: {name} has no dose", f"only {', '.join(DOSED)} have one; write {name}"
            )
        doses = (_number(asked, parts["dose"]),)
    tokens = parts["tokens"]
    if tokens is not None:
        if name not in OF_CLASSES:
            raise NormprobeError(
                f"--do: {name} is not done to some visual tokens",
                f"only {', '.join(OF_CLASSES)} are; write {name}",
            )
        if tokens not in CLASSES:
            raise NormprobeError(
                f"--do: {asked}: there is no class {tokens!r} of visual tokens: expected "
                f"{', '.join(CLASSES)}",
                did_you_mean(tokens, CLASSES, f"write {name}:{CLASSES[0]}"),
            )
    if parts["first"] is not None:
        if name not in LAYERED:
            raise NormprobeError(
                f"--do: {name} is not done in some layers",
                f"only {', '.join(LAYERED)} are; write {name}",
            )
        first = int(parts["first"])
        last = first if not parts["to"] else int(parts["last"] or -1)
        window = first, last
    return name, doses, window, tokens or ""


def _number(asked: str, dose: str) -> float:
    try:
        number = float(dose)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise NormprobeError(
            f"--do: {asked}: a dose is a number above 0, received {dose!r}",
            f"write {SCALE}=3; {FREEZE} is a gain of 0",
        )
    return number
