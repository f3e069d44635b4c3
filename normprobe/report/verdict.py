"""What a run says: a headline, and findings. Terminal, page, notebook and JSON render the same."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from normprobe.report.ratio_words import Estimate

#: How a finding says that an interval lies within a factor of 1.25 of 1.
SAME = "about the same"
#: How it says that neither a difference nor equality is shown.
OPEN = "inconclusive"
_MARGIN = "About the same: within 0.80 to 1.25, the whole interval if there is one."


class Finding(NamedTuple):
    """One thing that the numbers say."""

    name: str  # for a program
    words: str  # a sentence with one interval at most; empty: there is nothing to say
    numbers: "Mapping[str, Estimate]" = MappingProxyType({})  # by what each is of, as in the tables


@dataclass(frozen=True)
class Verdict:
    """What the numbers of a run say; false where they say nothing."""

    headline: str = ""  # the main finding, without intervals
    findings: tuple[Finding, ...] = ()  # one each, caveats last

    def __bool__(self) -> bool:
        return bool(self.headline)

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"- {each.words}" for each in self.findings)])

    def entries(self) -> dict[str, Any]:
        """For JSON."""
        findings = [
            {
                "name": name,
                "words": words,
                "numbers": [
                    {"of": of, "value": number.value, "low": number.low, "high": number.high}
                    for of, number in numbers.items()
                ],
            }
            for name, words, numbers in self.findings
        ]
        return {"headline": self.headline, "findings": findings}


NOTHING = Verdict()


def verdict_of(headline: str, findings: Iterable[Finding], intervals: str = "") -> Verdict:
    """Of what there is to say; without a headline the first finding is it.

    Args:
        headline: one sentence.
        findings: in order.
        intervals: what the brackets are, or why there are none.
    """
    told = [finding for finding in findings if finding.words]
    if any(SAME in finding.words for finding in told):
        told.append(Finding("same", _MARGIN))
    if not headline and told:
        headline = told.pop(0).words
    bracketed = any("[" in finding.words for finding in told)
    if headline and (bracketed or not intervals.startswith("[ ]")):
        told += [Finding("intervals", intervals)] if intervals else []
    return Verdict(headline, tuple(told))
