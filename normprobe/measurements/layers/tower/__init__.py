"""A vision or audio tower block by block, with the quantities of decoder layers."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError
from normprobe.measurements.measurement import (
    FiguresModule,
    SampleMeasurement,
    ShownModule,
    WordsModule,
)
from normprobe.model.load.required_tensors import Needs, audio_tower, vision_tower

if TYPE_CHECKING:
    import pandas as pd

    from normprobe.tidy import Table

#: What ``--tower`` can name, and what is loaded of a model then.
TOWERS: dict[str, Needs] = {"vision": vision_tower, "audio": audio_tower}


class Tower(SampleMeasurement):
    """A tower block by block; ``layers --tower`` measures it."""

    name = "tower"
    asked_of = "layers"
    summary = "Norms, cosines and angles of every block of a vision or audio tower."
    measures = ("vision_encoder",)
    batches = True
    tables_can_wait = True
    section_tables = ("tower", "headroom")
    section_figures = ("tower", "tower_turning", "headroom")

    def __init__(self, modality: str = "vision", *, intervals: bool = True) -> None:
        super().__init__()
        if modality not in TOWERS:
            raise NormprobeError(
                f"there is no tower {modality!r}: expected {' or '.join(TOWERS)}", "name one"
            )
        self.modality, self.intervals = modality, intervals
        self.needs_images = modality == "vision"
        self._model: Any = None  # of the model that was measured last, its tower

    @property
    def needs(self) -> Needs:
        return TOWERS[self.modality]

    @property
    def words(self) -> WordsModule:
        from normprobe.measurements.layers.tower import words

        return words

    @property
    def shown(self) -> ShownModule:
        from normprobe.measurements.layers.tower import shown

        return shown

    @property
    def figures(self) -> FiguresModule:
        from normprobe.measurements.layers.tower import figures

        return figures

    def quantities(self) -> "Mapping[str, Table]":
        """Those of its own, and of what layers have in common."""
        from normprobe.tidy import declared

        common = declared("normprobe.measurements.layers")
        return {**super().quantities(), "headroom": common["headroom"]}

    def asking(
        self,
        *,
        also: Sequence[str] = (),
        by: str | None = None,
        do: Sequence[str] = (),
        answer: bool = False,
        intervals: bool = True,
    ) -> "Tower":
        """Without intervals, if need be."""
        super().asking(also=also, by=by, do=do, answer=answer)
        return Tower(self.modality, intervals=intervals)

    @property
    def requested(self) -> Mapping[str, tuple[str, ...]]:
        return {"also": (), "tower": (self.modality,)}

    def tower_of(self, model: Any) -> Any:
        """The tower of a model, found once."""
        from normprobe.model.tower import TowerModel

        if self._model is None or self._model.whole is not model:
            self._model = TowerModel(model, self.modality)
        return self._model

    def facts(self, model: Any, first: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        from normprobe.measurements.layers.tower.measure import tower_facts

        return {"tower": tower_facts(self.tower_of(model), first())}

    def observe(self, model: Any, inputs: Mapping[str, Any]) -> Any:
        from normprobe.measurements.layers.tower.measure import observe

        return observe(self.tower_of(model), inputs)

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> "pd.DataFrame":
        from normprobe.measurements.layers.tower.measure import rows

        return rows(seen, sample_ids)

    def tables(self, rows: "pd.DataFrame", model: Any) -> "Mapping[str, pd.DataFrame]":
        from normprobe.measurements.layers.tower.measure import tables

        return tables(rows, self.tower_of(model), intervals=self.intervals)
