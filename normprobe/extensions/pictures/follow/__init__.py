"""Visual tokens from the vision tower to the answer: which are loud, which are attended to."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.extensions.pictures.picture_measurement import PictureMeasurement
from normprobe.measurements.measurement import ShownModule

if TYPE_CHECKING:
    import pandas as pd

    from normprobe.data.sample import Sample
    from normprobe.inputs.builder import InputBuilder


class Follow(PictureMeasurement):
    """Each visual token through vision tower, projector and decoder layers."""

    name = "follow"
    summary = """
    Visual tokens from the vision tower to the last decoder layer: norms, and attention they get.

    Do tokens that are loud behind the tower stay loud, and does text attend to them more than to
    quiet ones beside them?
    """
    section_tables = section_figures = ("follow",)

    @property
    def shown(self) -> ShownModule:
        from normprobe.extensions.pictures.follow import shown

        return shown

    def observer(
        self, model: Any, builder: "InputBuilder"
    ) -> "Callable[[Mapping[str, Any], Sequence[Sample]], Any]":
        from normprobe.extensions.pictures.follow.measure import observer

        return observer(model)

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> "pd.DataFrame":
        from normprobe.extensions.pictures.follow.measure import rows

        return rows(seen, sample_ids)

    def tables(self, rows: "pd.DataFrame", model: Any) -> "Mapping[str, pd.DataFrame]":
        from normprobe.extensions.pictures.follow.table import tables

        return tables(rows)
