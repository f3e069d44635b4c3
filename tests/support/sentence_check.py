"""Whether a verdict can be read, and says no more than its brackets: the rule of three states.

A ratio *differs* where its printed bracket lies above 1 (what is below 1 is told the other way
round), is *about the same* where the bracket lies in 0.80 to 1.25, and is *inconclusive* where
neither holds. Nothing of the package is asked here: lines are read as a reader reads them.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

ABOVE, BELOW, EQUAL, OPEN = "above", "below", "equal", "open"
#: Of a headline and of a finding: words, and numbers.
MOST_WORDS, MOST_NUMBERS = (25, 30), (2, 4)
#: More ranges of layers than these are counted.
MOST_RANGES = 4

_NUMBER = r"-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf)"
_VALUES = rf"(?<![\w.-])(?P<first>{_NUMBER})(?: to (?P<last>{_NUMBER}))?"
_BRACKET = rf" \[(?P<low>{_NUMBER}), (?P<high>{_NUMBER})\]"
_QUANTITY = re.compile(rf"{_VALUES}(?P<unit> x| %| [a-z]+)?{_BRACKET}")
_RANGE = r"\d+(?:-\d+)?"
_RANGES = rf"{_RANGE}(?:, {_RANGE})*"
_WHERE = (
    rf"(?:layers? (?P<layers>{_RANGES})|"
    r"(?P<count>\d+) of (?P<total>\d+) layers, from (?P<from>\d+) to (?P<to>\d+))"
)
#: ``... in layers 1-3: 1.8 to 9.3 x [5.1, 18] (layer 2).``
_BLOCK = re.compile(
    rf"(?P<what>.*?) (?:in|after) {_WHERE}"
    rf"(?:: {_VALUES} x(?:{_BRACKET})?(?: \(layer (?P<largest>\d+)\))?| \((?P<same>[^)]*) x\))?\.$"
)
#: ``57 x [49, 66] larger``, ``2.0 x as large as that of text``,
#: ``about the same as that of text (1.10 x [0.90, 1.20])``.
_RATIO = re.compile(rf"{_VALUES} x(?!\w)(?:{_BRACKET})? (?P<way>larger|as large|smaller)")
_BESIDE = re.compile(
    r"(?P<state>about the same|inconclusive)(?: (?:as|against) [^(;]*)? "
    rf"\({_VALUES} x(?:{_BRACKET})?\)"
)
_WAYS = {
    ABOVE: r"more quickly|larger|as large|more attention|closer|higher",
    BELOW: r"more slowly|smaller|less attention|farther from|lower",
}
_OPPOSITES = (
    ("larger", "smaller"),
    ("as large", "smaller"),
    ("more quickly", "more slowly"),
    ("more attention", "less attention"),
    ("closer", "farther from the word"),
    ("higher", "lower"),
    (" costs ", " gains "),
)
_OVER_WHAT = re.compile(r"\[ \]: 95 % interval \(bootstrap over|\(95 % interval over \w+\)")
_WHY_NONE = re.compile(r"(?:One (?:image|sample|prompt), no|\bNo) intervals\b")
_ALONE = re.compile(r"One (?:image|sample|prompt)\b(?:, no intervals| judges)")
_JUDGED = re.compile(r"\b(?:Holds|Fails|Open) in every layer|assumptions, \d")
_BLAMED = re.compile(
    rf"\b(?P<apart>{_NUMBER}) x their median: the loudest token of a sample holds (?P<share>\d+) %"
)
_MISS = re.compile(rf"Eq. 15 misses by up to {_VALUES}(?:{_BRACKET})?")
_COUNT = re.compile(r"\bare in (?P<held>\d+) of (?P<all>\d+) (?:samples|conversations)\b")
_CAUSES = re.compile(r"\b(?:explain|cause)(?:s|d)?\b", re.IGNORECASE)
_MINUS_ZERO = re.compile(r"(?<![\w.-])-0(?:\.0+)?(?![\d.e])")
#: What is no number of a quantity: names of layers, steps, equations, positions, counts.
_NAMES = re.compile(
    rf" \(layers? {_RANGES}\)|layers? {_RANGES}|\d+ of \d+ layers(?:, from \d+ to \d+)?|"
    rf"Eq\. \d+|step \d+|95 %| by {_NUMBER}(?:, {_NUMBER})*\.$|in \d+ of \d+ samples?|"
    rf"position \d+|[Dd]imension \d+|1 / \|\|p\|\|\^2|\d+ of {_NUMBER}"
)


class Claim(NamedTuple):
    """A comparison that a finding makes.

    Attributes:
        text: of the finding.
        state: what the words call it: above, below, equal or open.
        numbers: the smallest and the largest ratio; empty: they are not told.
        bracket: its ends; empty: there is none.
        layers: that it is about; empty: it names none, or counts them.
        counted: how many layers it counts, of how many, the first and the last; or empty.
        largest: the layer of the largest ratio; 0: not told.
    """

    text: str
    state: str
    numbers: tuple[float, ...]
    bracket: tuple[float, ...]
    layers: tuple[int, ...] = ()
    counted: tuple[int, ...] = ()
    largest: int = 0


def complaints(verdict: object, *, pre_norm: bool = True) -> list[str]:
    """What in a verdict breaks the rules; empty where nothing does.

    Args:
        verdict: of which the text is read: a headline, and a line a finding.
        pre_norm: whether the paper's theory is about the decoder.
    """
    text = str(verdict).replace("`normprobe cause`", "`it`")
    headline, *findings = lines(text) or [""]
    found = [
        *_unreadable(headline, *(of[0] for of in (MOST_WORDS, MOST_NUMBERS))),
        *([f"a headline of several sentences: {headline!r}"] if ". " in headline else []),
        *(["a headline with an interval"] if "[" in headline else []),
    ]
    for finding in findings:
        found += _unreadable(finding, *(of[1] for of in (MOST_WORDS, MOST_NUMBERS)))
    found += [f"{word!r} is a word for interventions" for word in _CAUSES.findall(text)]
    found += [f"minus zero: {word}" for word in _MINUS_ZERO.findall(text)]
    found += [f"no number: {word!r}" for word in re.findall(r"\S*\bnan\b.{0,9}", text)]
    for line in lines(text):
        found += of_line(line)
    found += [complaint for claim in claims_of(text) for complaint in _of_claim(claim)]
    found += _of_closing(text)
    judged = _JUDGED.search(text)
    if judged and ("One image judges" in text or not pre_norm or "is about pre-norm" in text):
        found.append(f"one image or no pre-norm, and yet {judged[0]!r}")
    return found


def lines(text: str) -> list[str]:
    """The headline and the findings, without quoted tokens, which may hold anything."""
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', '"token"', text)
    return [line.removeprefix("- ") for line in plain.splitlines() if line]


def lines_about(text: str, pattern: str) -> list[str]:
    """The findings that begin with some words."""
    return [line for line in lines(text)[1:] if re.match(pattern, line)]


def words_of(line: str) -> int:
    """How many words a line has; numbers and units are none."""
    return sum(word != "x" for word in re.findall(r"[A-Za-z][\w'-]*", line))


def numbers_of(line: str) -> int:
    """How many quantities a line tells; a range, or a number and its interval, is one."""
    plain = re.sub(r" \[[^\]]*\]", "", _NAMES.sub("", line))
    return len(re.findall(rf"(?<![\w.-]){_NUMBER}(?: to {_NUMBER})?(?![\w-])", plain))


def layer_complaints(told: Sequence[str], ratios: Mapping[int, Sequence[float]]) -> list[str]:
    """Where lines about layers do not say of each what its own bracket says.

    Args:
        told: the lines about one quantity.
        ratios: value, low and high of each layer; NaN for ends that there are none of.
    """
    states = {n: own_state(*ratio) for n, ratio in ratios.items() if 0 < ratio[0] < math.inf}
    claims = [claim for line in told if (claim := _block(line))]
    if not states:
        return [f"nothing is known, and yet {claim.text!r}" for claim in claims]
    found = []
    if len({claim.state for claim in claims}) < len(claims):
        found.append(f"a state is told twice: {told}")
    missing = tuple(sorted(set(ratios) - set(states)))
    named = {claim.state: claim for claim in claims}
    for state in (ABOVE, BELOW, EQUAL, OPEN, "unknown"):
        own = [n for n in states if states[n] == state] if state != "unknown" else [*missing]
        if bool(own) != (state in named):
            found.append(f"layers {own} are {state}: {told}")
        elif own:
            claim = named[state]
            counted = (len(own), len(ratios), own[0], own[-1])
            if (claim.layers or counted) != (tuple(own) if claim.layers else claim.counted):
                found.append(f"layers {own} are {state}: {claim.text}")
            if state in (ABOVE, BELOW):
                found += _hull(claim, {n: ratios[n] for n in own})
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


def claims_of(text: str) -> list[Claim]:
    """The comparisons that the findings make of ratios, in their order."""
    found = []
    for line in lines(text)[1:]:
        if block := _block(line):
            found.append(block)
            continue
        for ratio in _RATIO.finditer(line):
            state = BELOW if ratio["way"] == "smaller" else ABOVE
            found.append(Claim(line, state, *_numbers(ratio)))
        for ratio in _BESIDE.finditer(line):
            state = EQUAL if ratio["state"] == "about the same" else OPEN
            found.append(Claim(line, state, *_numbers(ratio)))
    return found


def _block(line: str) -> Claim | None:
    """A line about layers; None: it is about none."""
    found = _BLOCK.match(line)
    if found is None or "gap" in line or line.startswith(("Massive", "The visual token at")):
        return None
    what = found["what"]
    state = next((way for way, words in _WAYS.items() if re.search(words, what)), "")
    if found["same"] is not None or what.endswith("about the same"):
        state = EQUAL
    elif what.endswith("inconclusive"):
        state = OPEN
    elif what.endswith("no ratio"):
        state = "unknown"
    if not state or (state in (ABOVE, BELOW) and found["first"] is None):
        return None
    numbers, bracket = _numbers(found) if found["first"] else ((), ())
    if found["same"]:
        numbers = tuple(map(float, found["same"].split(" to ")))
    counts = ("count", "total", "from", "to")
    return Claim(
        line,
        state,
        numbers,
        bracket,
        _layers(found["layers"]) if found["layers"] else (),
        tuple(int(found[name]) for name in counts) if found["count"] else (),
        int(found["largest"] or 0),
    )


def _unreadable(line: str, words: int, numbers: int) -> Iterator[str]:
    if words_of(line) > words:
        yield f"{words_of(line)} words: {line!r}"
    if numbers_of(line) > numbers:
        yield f"{numbers_of(line)} numbers: {line!r}"
    if line.count("[") > 1 and "[ ]" not in line:
        yield f"several intervals: {line!r}"
    for one, other in _OPPOSITES:
        if one in line and other in line:
            yield f"the direction flips: {line!r}"


def of_line(line: str) -> Iterator[str]:
    """Brackets, counts, which token holds the mean, and what a cosine can miss."""
    read = _QUANTITY.sub("", line).replace("[ ]", "")
    if "[" in read:
        yield f"a bracket behind no number: {line!r}"
    for found in _QUANTITY.finditer(line):
        numbers, (low, high) = _numbers(found)
        if not low <= numbers[-1] <= high:
            yield f"out of order: {found[0]!r}"
        printed = [found[name] for pair in _PAIRS for name in pair if found[name]]
        sizes = [abs(float(number)) for number in printed if float(number)]
        decimals = {len(number.partition(".")[2]) for number in printed if float(number)}
        # A factor of ten, less what rounding can make of it.
        if len(decimals) > 1 and max(sizes) < 9 * min(sizes) and "e" not in "".join(printed):
            yield f"decimals differ: {found[0]!r}"
    for found in _COUNT.finditer(line):
        if not 0 < int(found["held"]) < int(found["all"]):
            yield f"a count that tells nothing: {found[0]!r}"
    for found in _BLAMED.finditer(line):
        carries = (1 - 1 / float(found["apart"])) / 2
        if float(found["share"]) / 100 < carries - 0.02:  # both are rounded
            yield f"that token carries nothing: {found[0]!r}"
    for found in _MISS.finditer(line):
        numbers, bracket = _numbers(found)
        if max(map(abs, (*numbers, *bracket))) > 2:
            yield f"no difference of two cosines: {found[0]!r}"


def _of_claim(claim: Claim) -> Iterator[str]:
    """Of one comparison; the word of one that is repeated is that of each of its layers."""
    if not claim.numbers:
        return
    low, high = claim.bracket or (min(claim.numbers), max(claim.numbers))
    equal = low >= 0.8 and high <= 1.25
    if claim.state == EQUAL and not equal:
        yield f"called the same, and not inside 0.80 to 1.25: {claim.text!r}"
    if claim.state in (ABOVE, BELOW) and (low <= 1 or min(claim.numbers) <= 1):
        yield f"called different, and not above 1: {claim.text!r}"
    if claim.state in (ABOVE, BELOW) and low > 1 and equal:
        yield f"called different, and inside 0.80 to 1.25: {claim.text!r}"
    if claim.state == OPEN and (equal or low > 1 or high < 1 or not claim.bracket):
        yield f"called inconclusive, and it is not: {claim.text!r}"
    if claim.layers and claim.largest and claim.largest not in claim.layers:
        yield f"the largest in another layer: {claim.text!r}"


def _of_closing(text: str) -> Iterator[str]:
    bracketed = _QUANTITY.search(text)
    if bracketed and _ALONE.search(text):
        yield f"one image, and yet {bracketed[0]!r}"
    elif bracketed and not _OVER_WHAT.search(text):
        yield f"brackets of what? {bracketed[0]!r}"
    bare = [claim.text for claim in claims_of(text) if claim.numbers and not claim.bracket]
    bare = [told for told in bare if "about the same" not in told and not _COUNTED.search(told)]
    if bare and not _WHY_NONE.search(text):
        yield f"no bracket, and nobody says why: {bare[0]!r}"
    if "about the same" in text.partition("\n")[2] and "About the same: within" not in text:
        yield "about the same, and nobody says what that is"


#: A range over several runs, each of which has its own interval in the table.
_COUNTED = re.compile(r" in \d+ of \d+ \w+: ")


def _hull(claim: Claim, ratios: Mapping[int, Sequence[float]]) -> Iterator[str]:
    """A block reaches from its smallest number to its largest, whose bracket it has."""
    if claim.state == BELOW:
        ratios = {
            n: [1 / end if end else math.inf for end in (value, high, low)]
            for n, (value, low, high) in ratios.items()
        }
    values = {n: ratio[0] for n, ratio in ratios.items()}
    largest = max(values, key=lambda n: values[n])
    expected = [min(values.values()), max(values.values())]
    printed = [claim.numbers[0], claim.numbers[-1]]
    known = not math.isnan(ratios[largest][1])
    if known != bool(claim.bracket):
        yield f"a bracket too many, or too few: {claim.text}"
        return
    if known:
        expected += ratios[largest][1:]
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


def _layers(ranges: str) -> tuple[int, ...]:
    ends = [part.split("-") for part in ranges.split(", ")]
    return tuple(layer for end in ends for layer in range(int(end[0]), int(end[-1]) + 1))
