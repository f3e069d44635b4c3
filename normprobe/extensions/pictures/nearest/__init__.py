"""The words that visual tokens are nearest to, and whether that is more than chance."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.extensions.pictures.picture_measurement import PictureMeasurement
from normprobe.measurements.measurement import ShownModule

if TYPE_CHECKING:
    import pandas as pd

    from normprobe.data.sample import Sample
    from normprobe.inputs.builder import InputBuilder


class Nearest(PictureMeasurement):
    """Visual tokens against the rows of the text embedding table, layer by layer."""

    name = "nearest"
    summary = """
    The words of the text table nearest to visual tokens, at the decoder input and in each layer.

    How near are they, and nearer than tokens of the same pictures with their pixels permuted?
    """
    section_tables = ("nearest", "nearest_words")
    section_figures = ("nearest",)

    @property
    def shown(self) -> ShownModule:
        from normprobe.extensions.pictures.nearest import shown

        return shown

    def observer(
        self, model: Any, builder: "InputBuilder"
    ) -> "Callable[[Mapping[str, Any], Sequence[Sample]], Any]":
        from normprobe.extensions.pictures.nearest.measure import observer

        return observer(model, builder)

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> "pd.DataFrame":
        from normprobe.extensions.pictures.nearest.measure import rows

        return rows(seen, sample_ids)

    def tables(self, rows: "pd.DataFrame", model: Any) -> "Mapping[str, pd.DataFrame]":
        from normprobe.extensions.pictures.nearest.table import tables

        return tables(rows)
