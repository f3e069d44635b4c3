"""A word and the part of the picture that it means: cosine and attention score by layer."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.extensions.pictures.picture_measurement import PictureMeasurement
from normprobe.measurements.measurement import ComparedModule, ShownModule

if TYPE_CHECKING:
    import pandas as pd

    from normprobe.data.sample import Sample
    from normprobe.inputs.builder import InputBuilder


class Grounding(PictureMeasurement):
    """A word and the part of the picture that it means: cosine and attention score by layer."""

    name = "grounding"
    summary = """
    A word against the visual tokens inside and outside of its box (Eq. 10, 15, 18-21).

    Samples have a word of the prompt and a box around what it means: --data boxes (bundled), JSON
    lines with word and box, or RefCOCO as JSON.
    """
    data = "boxes"
    section_tables = ("grounding",)

    @property
    def shown(self) -> ShownModule:
        from normprobe.extensions.pictures.grounding import shown

        return shown

    @property
    def compared(self) -> ComparedModule:
        from normprobe.extensions.pictures.grounding import compared

        return compared

    def observer(
        self, model: Any, builder: "InputBuilder"
    ) -> "Callable[[Mapping[str, Any], Sequence[Sample]], Any]":
        from normprobe.extensions.pictures.grounding.measure import observer

        return observer(model, builder)

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> "pd.DataFrame":
        from normprobe.extensions.pictures.grounding.measure import rows

        return rows(seen, sample_ids)

    def tables(self, rows: "pd.DataFrame", model: Any) -> "Mapping[str, pd.DataFrame]":
        from normprobe.extensions.pictures.grounding.measure import tables

        return tables(rows)
