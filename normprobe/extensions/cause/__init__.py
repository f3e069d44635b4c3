"""Interventions: what the norms do to turning, and what turning is worth in answers."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.measurements.measurement import (
    ComparedModule,
    FiguresModule,
    Measurement,
    RecomputedModule,
    SampleMeasurement,
    ShownModule,
    WordsModule,
)
from normprobe.model.load.required_tensors import Needs, everything
from normprobe.registry import MEASURE, Extension
from normprobe.schema import VISION_LANGUAGE

if TYPE_CHECKING:
    import pandas as pd

    from normprobe.data.sample import Sample
    from normprobe.inputs.builder import InputBuilder


class Cause(SampleMeasurement):
    """Interventions: what the norms do to turning, and what turning is worth in answers."""

    name = "cause"
    summary = """
    What norms do to turning, and what turning is worth in answers: interventions on visual tokens.

    Each sample runs untouched, then once an intervention: visual tokens scaled, frozen, swapped.
    Data with answers give what it costs: --data scenes (bundled), sample, mmbench, your own.
    """
    measures = ("decoder_layers", "vision_encoder")
    kinds = (VISION_LANGUAGE,)
    data = "scenes"
    batches = True
    reads_samples = True
    needs_images = True
    options = frozenset({"do", "answer"})
    section_tables = ("cause",)

    def __init__(self, doing: tuple[str, ...] = (), *, answer: bool = False) -> None:
        super().__init__()
        self.doing = doing
        self.answer = answer

    @property
    def needs(self) -> Needs:
        return everything

    @property
    def words(self) -> WordsModule:
        from normprobe.extensions.cause import words

        return words

    @property
    def shown(self) -> ShownModule:
        from normprobe.extensions.cause import shown

        return shown

    @property
    def figures(self) -> FiguresModule:
        from normprobe.extensions.cause import figures

        return figures

    @property
    def recomputed(self) -> RecomputedModule:
        from normprobe.extensions.cause import recomputed

        return recomputed

    @property
    def compared(self) -> ComparedModule:
        from normprobe.extensions.cause import compared

        return compared

    def asking(
        self,
        *,
        also: Sequence[str] = (),
        by: str | None = None,
        do: Sequence[str] = (),
        answer: bool = False,
        intervals: bool = True,
    ) -> "Cause":
        """With some interventions; none: the usual ones. ``answer``: with greedy answers."""
        super().asking(also=also, by=by, do=do, answer=answer)
        from normprobe.model.intervention_plan import USUAL, check

        check(do)
        return Cause(tuple(do) or USUAL, answer=answer)

    @property
    def requested(self) -> Mapping[str, tuple[str, ...]]:
        answer = {"answer": ("greedy",)} if self.answer else {}
        return {**super().requested, "do": self.doing, **answer}

    def observer(
        self, model: Any, builder: "InputBuilder"
    ) -> "Callable[[Mapping[str, Any], Sequence[Sample]], Any]":
        from normprobe.extensions.cause.measure import observer

        return observer(model, builder, self.doing, answer=self.answer)

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> "pd.DataFrame":
        from normprobe.extensions.cause.measure import rows

        return rows(seen, sample_ids)

    def tables(self, rows: "pd.DataFrame", model: Any) -> "Mapping[str, pd.DataFrame]":
        from normprobe.extensions.cause.table import tables

        return tables(rows)


class _Cause(Extension):
    panel = MEASURE

    def measurements(self) -> Sequence[Measurement]:
        return (Cause(),)


EXTENSION = _Cause()
