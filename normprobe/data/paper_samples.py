"""The paper's samples: our reading of "1000 samples drawn from the MMBench, POPE, and MM-Star".

The paper says no more. Here it means 334 questions of MMBench (dev, without the CircularEval
copies), 333 of POPE (adversarial) and 333 of MMStar (val), no two about the same picture. They are
taken in the order of ``draw.shuffled``, so that the draw depends on seed, keys and pixels alone.
"""

from collections.abc import Sequence
from dataclasses import replace

from normprobe.data.bad_rows import BadRow, BadRows
from normprobe.data.draw import shuffled
from normprobe.data.images import image_hash
from normprobe.data.question import Question, Source
from normprobe.errors import NormprobeError

PAPER = "paper"
SHARES = {"mmbench": ("dev", 334), "pope": ("adversarial", 333), "mmstar": ("val", 333)}
"""Subset and number of questions of each benchmark, in the order of drawing."""


def choose_sources(sources: Sequence[Source], folder: str) -> list[Source]:
    """Choose the three files of a folder that hold the paper's benchmarks."""
    chosen = []
    for name, (subset, _) in SHARES.items():
        found = [source for source in sources if source.benchmark == name]
        named = [source for source in found if subset in source.label.lower()]
        found = named if len(found) > 1 and named else found
        if len(found) != 1:
            raise NormprobeError(
                f"{folder}: expected one file of {name} ({subset}), received {len(found)}",
                "put the published files of MMBench, POPE and MMStar there, one of each",
            )
        chosen.append(_only(found[0], subset))
    return chosen


def draw_paper(sources: Sequence[Source], seed: int, bad: BadRows) -> list[Question]:
    """Draw the paper's samples; decodes the image of each question that it considers."""
    drawn, seen = [], set[str]()
    for source in sources:
        share, mine = SHARES[source.benchmark][1], list[Question]()
        for question in shuffled(source.questions, seed):
            if len(mine) == share:
                break
            try:
                images = question.load().images
            except BadRow as error:
                bad.refuse(error, question.id)
                continue
            picture = image_hash(images[0]) if images else None
            if picture is not None and picture not in seen:
                seen.add(picture)
                mine.append(question)
        if len(mine) < share:
            raise NormprobeError(
                f"{source.benchmark}: expected {share} questions with a picture of their own, "
                f"received {len(mine)}",
                "use the complete published data set",
            )
        drawn += mine
    return drawn


def _only(source: Source, subset: str) -> Source:
    """One subset of a table that holds several (POPE), keyed as on the hub; else the table."""
    prefix = f"{subset}/"
    questions = [
        replace(question, key=question.key.removeprefix(prefix))
        for question in source.questions
        if question.key.startswith(prefix)
    ]
    return replace(source, questions=questions) if questions else source
