"""Whether sentences say no more than their brackets: the rule of three states, and nothing else.

A ratio *differs* where its printed bracket lies above 1 (what is below 1 is told the other way
round), is *equal* where the bracket lies in 0.80 to 1.25, and is *not told apart* where neither
holds. Nothing of the package is asked here: sentences are read as a reader reads them.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

ABOVE, BELOW, EQUAL, OPEN = "above", "below", "equal", "open"
#: More blocks of layers than these are told by state.
MOST_BLOCKS = 4

_NUMBER = r"-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf)"
_VALUES = rf"(?<![\w.-])(?<!step )(?P<first>{_NUMBER})(?: to (?P<last>{_NUMBER}))?"
_BRACKET = rf" \[(?P<low>{_NUMBER}), (?P<high>{_NUMBER})\]"
_RATIO = re.compile(
    rf"{_VALUES} x(?!\w)(?:{_BRACKET})?(?P<direct> as (?:loud|fast|large|much(?: attention)?))?"
)
_QUANTITY = re.compile(rf"{_VALUES}(?P<unit> x| %)?{_BRACKET}")

_WORDS = {
    ABOVE: "louder|more quickly|larger|more attention|more(?! slowly)|closer to the word|higher",
    BELOW: "quieter|more slowly|smaller|less attention|less|farther from it|lower",
    EQUAL: r"about as (?:loud|fast|large|much)(?: attention)?|about the same",
    OPEN: "not told apart",
}
_STATE = "|".join(f"(?P<{state}>{words})" for state, words in _WORDS.items())
# "in layers 1-2, 12 x": what follows the comma is no layer.
_RANGE = r"\d+(?:-\d+)?"
_RANGES = rf"{_RANGE}(?![-\d]|\.\d)(?:, {_RANGE}(?![-\d]|\.\d| x| to \d))*"
_LAYERS = re.compile(rf" (?:in|after|of) layers? (?P<layers>{_RANGES})")
_COUNTED = re.compile(
    rf"(?:{_STATE}) (?:in|after) (?P<count>\d+) of (?P<total>\d+) layers, "
    rf"(?:(?:in|after) layer (?P<only>\d+)|from layer (?P<from>\d+) to (?P<to>\d+)) \($"
)
_BEFORE = re.compile(rf"(?:{_STATE})(?: (?:as|from) [^,.;()]+)?,? \(?$")
_FOLLOWS = re.compile(rf" (?:{_STATE})(?![\w])(?: than (?:(?! by | in | after )[^,.;()])+)?")
_GAP = re.compile(
    rf"(?:{_STATE})(?: [^,;()\d]*?)? (?:in|after) layers? (?P<layers>{_RANGES}) "
    rf"\((?:\w+ )?gap {_VALUES}(?:{_BRACKET})?\)"
)
_RANKS = re.compile(rf"(?P<said>[^.]*): rank correlation {_VALUES}(?:{_BRACKET})?")
_CHANGES = re.compile(r"; the direction changes (?P<times>\d+) times?\b")
_MISSING = re.compile(rf"\(no ratio (?:in|after) layers? ({_RANGES})\)")
_ARITHMETIC = re.compile(
    rf"Eq\. 13's arithmetic of turning .*? (?P<way>more slowly|more quickly) in layers? "
    rf"(?P<layers>{_RANGES})"
)

_OVER_WHAT = re.compile(r"In brackets: 95 % intervals over \w+|\(95 % interval over \w+\)")
_WHY_NONE = re.compile(r"(?:One (?:image|sample|prompt), no|\bNo) intervals\b|no interval\b")
_ALONE = re.compile(r"One (?:image|sample|prompt)\b(?:, no intervals| judges)")
_JUDGED = re.compile(
    r"assumptions? holds?|"
    r"(?:Imbalance|Magnitude|Geometry|Direction|Eq\. 1[35]) (?:holds?|fails?|is open)\b"
)
#: What nothing is told apart of; a ratio that is open is one of these.
_NAMED_OPEN = re.compile(r"(?:\bat (?:norms|rates)|\bof a size|\bmean norm is) $")
_COUNT = re.compile(r"\bfrom (?P<held>\d+) of (?P<all>\d+) (?:samples|conversations)\b")
_BLAMED = re.compile(
    rf"\b(?P<apart>{_NUMBER}) x their median: the loudest token of a sample holds (?P<share>\d+) %"
)
_MISS = re.compile(rf"largest miss of Eq\. 15 is {_VALUES}(?:{_BRACKET})?")
_CAUSES = re.compile(r"\b(?:explain|cause)(?:s|d)?\b", re.IGNORECASE)
_MINUS_ZERO = re.compile(r"(?<![\w.-])-0(?:\.0+)?(?![\d.e])")


class Claim(NamedTuple):
    """A comparison that a sentence makes.

    Attributes:
        text: as it is printed.
        state: what the words call it: above, below, equal or open.
        numbers: the smallest and the largest ratio.
        bracket: its ends; empty: there is none.
        layers: that it is about; empty: it names none.
        counted: of how many layers it is, where they are told by state.
        total: of how many in all.
        direct: whether its factor says that it is not turned round.
    """

    text: str
    state: str
    numbers: tuple[float, ...]
    bracket: tuple[float, ...]
    layers: tuple[int, ...]
    counted: int = 0
    total: int = 0
    direct: bool = False


def complaints(text: str, *, pre_norm: bool = True) -> list[str]:
    """What in a verdict breaks the rule; empty where nothing does.

    Args:
        text: sentences.
        pre_norm: whether the paper's theory is about the decoder.
    """
    text = _plain(text)
    found = []
    found += [f"{word!r} is a word for interventions" for word in _CAUSES.findall(text)]
    found += [f"minus zero: {word}" for word in _MINUS_ZERO.findall(text)]
    found += [f"no number: {word!r}" for word in re.findall(r"\S*\bnan\b.{0,9}", text)]
    found += _of_counts(text)
    found += _of_brackets(text)
    found += [complaint for sentence in sentences(text) for complaint in _of_sentence(sentence)]
    found += _of_closing(text)
    found += _of_arithmetic(text)
    judged = _JUDGED.search(text)
    if judged and (_ALONE.search(text) or not pre_norm or "is about pre-norm" in text):
        found.append(f"one image or no pre-norm, and yet {judged[0]!r}")
    return found


def layer_complaints(told: str, ratios: Mapping[int, Sequence[float]]) -> list[str]:
    """Where a sentence about layers does not say of each what its own bracket says.

    Args:
        told: the sentence, or the part of it about one quantity.
        ratios: value, low and high of each layer; NaN for ends that there are none of.
    """
    told = _plain(told)
    states = {
        layer: own_state(*ratio) for layer, ratio in ratios.items() if 0 < ratio[0] < math.inf
    }
    claims = [claim for claim in claims_of(told) if claim.layers]
    if not states:
        return [f"nothing is known, and yet {claim.text!r}" for claim in claims]
    found = []
    if any(claim.total for claim in claims):
        for claim in claims:
            own = [layer for layer, state in states.items() if state == claim.state]
            if (len(own), len(states)) != (claim.counted, claim.total):
                found.append(f"{len(own)} of {len(states)} layers are so, not {claim.text!r}")
            elif (own[0], own[-1]) != (claim.layers[0], claim.layers[-1]):
                found.append(f"layers {own[0]} to {own[-1]} are so, not {claim.text!r}")
            found += _hull(claim, [ratios[layer] for layer in own])
        ways = [state for state in states.values() if state in (ABOVE, BELOW)]
        turns = sum(one != other for one, other in pairwise(ways))
        said = _CHANGES.search(told)
        if turns != (int(said["times"]) if said else 0):
            found.append(f"the direction changes {turns} times: {told}")
        return found
    named = {layer: claim for claim in claims for layer in claim.layers}
    for layer, state in states.items():
        if layer not in named:
            found.append(f"layer {layer} is not named: {told}")
        elif named[layer].state != state:
            found.append(f"layer {layer} is {state}: {named[layer].text}")
    found += [f"layer {layer} has no ratio: {told}" for layer in named if layer not in states]
    missing = {layer for part in _MISSING.findall(told) for layer in _layers(part)}
    if missing != set(ratios) - set(states):
        found.append(f"layers without a ratio are {sorted(set(ratios) - set(states))}: {told}")
    for claim in claims:
        found += _hull(claim, [ratios[layer] for layer in claim.layers if layer in states])
    return found


def own_state(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """What may be said of one ratio, at two decimals: so ratios below 2 are printed."""
    ends = (value, value) if math.isnan(low) or math.isnan(high) else (low, high)
    if float(f"{ends[0]:.2f}") >= 0.8 and float(f"{ends[1]:.2f}") <= 1.25:
        return EQUAL
    if float(f"{ends[0]:.2f}") > 1:
        return ABOVE
    below = math.inf if ends[1] == 0 else 1 / ends[1]
    return BELOW if float(f"{below:.2f}") > 1 else OPEN


def sentences(text: str) -> list[str]:
    """The sentences of a text; "Eq. 13" ends none."""
    return re.split(r"(?<=[.?!])(?<!Eq\.) +(?=[A-Z\"])", _plain(text))


def claims_of(text: str) -> list[Claim]:
    """The comparisons that a text makes of ratios, in its order."""
    return [claim for claim in (_claim(text, ratio) for ratio in _RATIO.finditer(text)) if claim]


def _claim(text: str, ratio: re.Match[str]) -> Claim | None:
    """What the words around a ratio say of it; None: nothing."""
    counted = _COUNTED.search(text, 0, ratio.start())
    before = _BEFORE.search(text, 0, ratio.start())
    words = counted or before or _FOLLOWS.match(text, ratio.end())
    if words is None:
        return None
    end = max(ratio.end(), words.end())
    end += text[end : end + 1] == ")"
    named = _LAYERS.match(text, end)
    layers = _layers(named["layers"]) if named and not counted else ()
    if counted:
        ends = [counted["only"]] if counted["only"] else [counted["from"], counted["to"]]
        layers = tuple(map(int, ends))
    whole = text[min(ratio.start(), words.start()) : named.end() if named else end]
    return Claim(
        whole.strip(),
        _state(words),
        *_numbers(ratio),
        layers,
        *((int(counted["count"]), int(counted["total"])) if counted else (0, 0)),
        direct=bool(ratio["direct"]),
    )


def _of_sentence(sentence: str) -> Iterator[str]:
    for ratio in _RATIO.finditer(sentence):
        claim = _claim(sentence, ratio)
        if claim is not None:
            yield from _of_ratio(claim, repeated="Eq. 13's arithmetic" in sentence)
            before = sentence[: sentence.rfind("not told apart", 0, ratio.start())]
            if claim.state == OPEN and not _NAMED_OPEN.search(before):
                yield f"of what is nothing told apart? {claim.text!r}"
        elif not re.match(r" their (?:mean|median)\b| that\b", sentence[ratio.end() :]):
            yield f"no state is said of {ratio[0]!r}"
    for gap in _GAP.finditer(sentence):
        _, bracket = _numbers(gap)
        way = (bracket[0] > 0) - (bracket[1] < 0) if bracket else 0
        if _state(gap) != {1: ABOVE, -1: BELOW, 0: OPEN}[way]:
            yield f"the gap says otherwise: {gap[0]!r}"
    if ranks := _RANKS.search(sentence):
        (_, bracket), said = _numbers(ranks), ranks["said"]
        way = (bracket[0] > 0) - (bracket[1] < 0) if bracket else 0
        told = 0 if "not told apart" in said else 1 if "goes with" in said else -1
        if told != way:
            yield f"the ranks say otherwise: {ranks[0]!r}"
    for part in re.split(r", and it turns them | with massive tokens, and ", sentence):
        yield from _of_layers(part)
    for part in re.split(r", and (?:it turns them|turn) ", sentence):  # of one quantity
        claims = claims_of(part)
        if any(claim.state == BELOW for claim in claims):
            for claim in claims:
                if claim.state in (EQUAL, OPEN) and not claim.direct:
                    yield f"not turned round, beside one that is: {claim.text!r}"


def _of_counts(text: str) -> Iterator[str]:
    """Of how many samples it is, which token holds the mean, and what a cosine can miss."""
    for found in _COUNT.finditer(text):
        if not 0 < int(found["held"]) < int(found["all"]):
            yield f"a count that tells nothing: {found[0]!r}"
    for found in _BLAMED.finditer(text):
        carries = (1 - 1 / float(found["apart"])) / 2
        if float(found["share"]) / 100 < carries - 0.02:  # both are rounded
            yield f"that token carries nothing: {found[0]!r}"
    for found in _MISS.finditer(text):
        numbers, bracket = _numbers(found)
        if max(map(abs, (*numbers, *bracket))) > 2:
            yield f"no difference of two cosines: {found[0]!r}"


def _of_ratio(claim: Claim, *, repeated: bool) -> Iterator[str]:
    """Of one comparison; the word of one that is repeated is that of each of its layers."""
    low, high = claim.bracket or (min(claim.numbers), max(claim.numbers))
    equal = low >= 0.8 and high <= 1.25
    if claim.state == EQUAL and not equal:
        yield f"called equal, and not inside 0.80 to 1.25: {claim.text!r}"
    if claim.state in (ABOVE, BELOW) and low <= 1:
        yield f"called different, and not above 1: {claim.text!r}"
    if claim.state in (ABOVE, BELOW) and low > 1 and equal and not repeated:
        yield f"called different, and inside 0.80 to 1.25: {claim.text!r}"
    if claim.state == OPEN and (equal or low > 1 or high < 1 or not claim.bracket):
        yield f"called open, and told apart: {claim.text!r}"


def _of_layers(told: str) -> Iterator[str]:
    """Of a part of a sentence about one quantity."""
    claims = [claim for claim in claims_of(told) if claim.layers]
    counted = [claim for claim in claims if claim.total]
    if counted:
        totals = {claim.total for claim in counted}
        if len(counted) < len(claims) or totals != {sum(claim.counted for claim in counted)}:
            yield f"counts of layers do not add up: {told}"
        if len({claim.state for claim in counted}) < len(counted):
            yield f"a state is told twice: {told}"
        return
    if len(claims) > MOST_BLOCKS:
        yield f"{len(claims)} blocks of layers: {told}"
    named = [layer for claim in claims for layer in claim.layers]
    named += [layer for found in _MISSING.finditer(told) for layer in _layers(found[1])]
    if twice := sorted({layer for layer in named if named.count(layer) > 1}):
        yield f"layers {twice} are named twice: {told}"


def _of_brackets(text: str) -> Iterator[str]:
    read = _QUANTITY.sub("", text)
    if "[" in read:
        yield f"a bracket behind no number: {read[read.index('[') - 20 :][:60]!r}"
    for found in _QUANTITY.finditer(text):
        numbers, (low, high) = _numbers(found)
        if not low <= min(numbers) <= max(numbers) <= high:
            yield f"out of order: {found[0]!r}"
    bare = [ratio for ratio in _RATIO.finditer(text) if ratio["low"] is None]
    for found in [*_QUANTITY.finditer(text), *bare]:
        printed = [found[name] for pair in _PAIRS for name in pair if found[name]]
        sizes = [abs(float(number)) for number in printed if float(number)]
        decimals = {len(number.partition(".")[2]) for number in printed if float(number)}
        # A factor of ten, less what rounding can make of it.
        if len(decimals) > 1 and max(sizes) < 9 * min(sizes) and "e" not in "".join(printed):
            yield f"decimals differ: {found[0]!r}"


def _of_closing(text: str) -> Iterator[str]:
    bracketed = _QUANTITY.search(text)
    if bracketed and _ALONE.search(text):
        yield f"one image, and yet {bracketed[0]!r}"
    elif bracketed and not _OVER_WHAT.search(text):
        yield f"brackets of what? {bracketed[0]!r}"
    bare = [claim.text for claim in claims_of(text) if not claim.bracket]
    if bare and not _WHY_NONE.search(text):
        yield f"no bracket, and nobody says why: {bare[0]!r}"


def _of_arithmetic(text: str) -> Iterator[str]:
    """Eq. 13 is about those layers that are said to turn so."""
    told = re.search(r"(?:They|visual tokens) turn (.*)", text)
    if told is None:
        return
    sentence = sentences(told[0])[0]
    for found in _ARITHMETIC.finditer(text):
        state = BELOW if found["way"] == "more slowly" else ABOVE
        claims = [claim for claim in claims_of(sentence) if claim.state == state]
        layers = _layers(found["layers"])
        said = tuple(layer for claim in claims for layer in claim.layers)
        if any(claim.total for claim in claims):
            alike = (len(layers), layers[0], layers[-1]) == (claims[0].counted, said[0], said[-1])
        else:
            alike = layers == said
        if not alike:
            yield f"other layers than those that turn so: {found[0]!r} after {sentence!r}"


def _hull(claim: Claim, ratios: list[Sequence[float]]) -> Iterator[str]:
    """A block reaches from its smallest number to its largest."""
    if claim.state == BELOW:
        ratios = [
            [1 / end if end else math.inf for end in (value, high, low)]
            for value, low, high in ratios
        ]
    values = [ratio[0] for ratio in ratios]
    ends = [ratio for ratio in ratios if not math.isnan(ratio[1])]
    expected = [min(values), max(values)]
    printed = [claim.numbers[0], claim.numbers[-1]]
    if bool(ends) != bool(claim.bracket):
        yield f"a bracket too many, or too few: {claim.text}"
        return
    if ends:
        expected += [min(end[1] for end in ends), max(end[2] for end in ends)]
        printed += claim.bracket
    for number, shown in zip(expected, printed, strict=True):
        if not math.isclose(number, shown, rel_tol=0.051, abs_tol=0.0051):
            yield f"{number:.4g} is printed as {shown:g}: {claim.text}"


def _numbers(found: re.Match[str]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The values and the ends of a match."""
    names = found.groupdict()
    read = [tuple(float(names[name]) for name in pair if names.get(name)) for pair in _PAIRS]
    return read[0], read[1]


_PAIRS = (("first", "last"), ("low", "high"))


def _state(found: re.Match[str]) -> str:
    return next(state for state in _WORDS if found[state])


def _layers(ranges: str) -> tuple[int, ...]:
    ends = [part.split("-") for part in ranges.split(", ")]
    return tuple(layer for end in ends for layer in range(int(end[0]), int(end[-1]) + 1))


def _plain(text: str) -> str:
    """On one line, without quoted tokens, which may hold anything."""
    return re.sub(r'"(?:[^"\\]|\\.)*"', '"token"', " ".join(text.split()))
