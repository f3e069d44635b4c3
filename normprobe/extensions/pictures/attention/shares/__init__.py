"""How much text attends to pictures, layer by layer, over the samples of a data set."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.extensions.pictures.picture_measurement import PictureMeasurement
from normprobe.measurements.measurement import ShownModule

if TYPE_CHECKING:
    import pandas as pd

    from normprobe.data.sample import Sample
    from normprobe.inputs.builder import InputBuilder


class Shares(PictureMeasurement):
    """Attention to pictures over many samples; ``attention --data`` measures it."""

    name = "shares"
    asked_of = "attention"
    summary = "How much text attends to pictures in each decoder layer, over many samples."
    section_tables = section_figures = ("shares",)

    @property
    def shown(self) -> ShownModule:
        from normprobe.extensions.pictures.attention.shares import shown

        return shown

    def observer(
        self, model: Any, builder: "InputBuilder"
    ) -> "Callable[[Mapping[str, Any], Sequence[Sample]], Any]":
        from normprobe.extensions.pictures.attention.shares.measure import observer

        return observer(model, builder)

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> "pd.DataFrame":
        from normprobe.extensions.pictures.attention.shares.measure import rows

        return rows(seen, sample_ids)

    def tables(self, rows: "pd.DataFrame", model: Any) -> "Mapping[str, pd.DataFrame]":
        from normprobe.extensions.pictures.attention.shares.measure import tables

        return tables(rows)
