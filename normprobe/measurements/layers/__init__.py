"""Every decoder layer: norm, cosine, angular velocity and update size (Figures 2-5)."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from normprobe.measurements.measurement import (
    ComparedModule,
    FiguresModule,
    RecomputedModule,
    SampleMeasurement,
    ShownModule,
    WordsModule,
    unknown_word,
)
from normprobe.model.load.required_tensors import Needs, forward_to_last_layer
from normprobe.paper import AFTER
from normprobe.schema import LANGUAGE_MODEL, VISION_LANGUAGE, VISUAL

if TYPE_CHECKING:
    import pandas as pd

#: What ``--also`` can name, beside numbers of the user's own.
WATCHERS = ("branches", "massive", "headroom")


class Layers(SampleMeasurement):
    """Every decoder layer: norm, cosine, angular velocity and update size (Figures 2-5)."""

    name = "layers"
    summary = """
    Norm, cosine and angle of every decoder layer by token group (Figures 2-5).

    MODEL may be a vision-language model or, with --data text, a bare language model.
    Several GPUs share the samples: torchrun --nproc-per-node 8 -m normprobe layers MODEL
    """
    measures = ("decoder_layers",)
    kinds = (VISION_LANGUAGE, LANGUAGE_MODEL)
    batches = True
    text_alone = True
    tables_can_wait = True
    options = frozenset({"map", "also", "by", "theory", "tower"})
    section_tables = (
        *("layers", "theory", "assumptions", "accounted"),
        *("branches", "massive", "turns", "headroom", "map"),
    )
    section_figures = (
        *("layers", "turning", "accounted", "directions"),
        *("branches", "massive", "turns", "theory"),
    )
    published: ClassVar = {AFTER: {"layer": 0, "group": VISUAL}}

    def __init__(self, watching: tuple[str, ...] = (), *, intervals: bool = True) -> None:
        super().__init__()
        self.watching, self.intervals = watching, intervals

    @property
    def needs(self) -> Needs:
        return forward_to_last_layer

    @property
    def words(self) -> WordsModule:
        from normprobe.measurements.layers import words

        return words

    @property
    def shown(self) -> ShownModule:
        from normprobe.measurements.layers import shown

        return shown

    @property
    def figures(self) -> FiguresModule:
        from normprobe.measurements.layers import figures

        return figures

    @property
    def recomputed(self) -> RecomputedModule:
        from normprobe.measurements.layers import recomputed

        return recomputed

    @property
    def compared(self) -> ComparedModule:
        from normprobe.measurements.layers import compared

        return compared

    def asking(
        self,
        *,
        also: Sequence[str] = (),
        by: str | None = None,
        do: Sequence[str] = (),
        answer: bool = False,
        intervals: bool = True,
    ) -> "Layers":
        """With some of its watchers, or ``FILE.py:NAME``; without intervals, if need be."""
        super().asking(also=also, by=by, do=do, answer=answer)
        for name in also:
            if name not in WATCHERS and ".py:" not in name:
                raise unknown_word(self.name, name, WATCHERS)
        return Layers(tuple(also), intervals=intervals)

    def of_tower(self, modality: str) -> SampleMeasurement:
        from normprobe.measurements.layers.tower import Tower

        return Tower(modality)

    @property
    def requested(self) -> Mapping[str, tuple[str, ...]]:
        return {"also": self.watching}

    def observe(self, model: Any, inputs: Mapping[str, Any]) -> Any:
        from normprobe.measurements.layers.measure import observe

        if not self.watching:
            return observe(model, inputs)
        from normprobe.measurements.layers.also import watchers

        return observe(model, inputs, watchers(self.watching, model))

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> "pd.DataFrame":
        from normprobe.measurements.layers.measure import rows

        return rows(seen, sample_ids)

    def tables(self, rows: "pd.DataFrame", model: Any) -> "Mapping[str, pd.DataFrame]":
        from normprobe.measurements.layers.table import tables

        return tables(rows, model, intervals=self.intervals)

    def remarks(self, model: Any, first: Callable[[], Mapping[str, Any]]) -> list[str]:
        if not self.watching:
            return []
        from normprobe.measurements.layers.also import remarks

        return remarks(self.watching, model, first())

    @property
    def own_numbers(self) -> dict[str, dict[str, str]]:
        if not any(".py:" in name for name in self.watching):
            return {}
        from normprobe.measurements.layers.also import facts

        return facts(self.watching)

    def norm_map(self, model: Any, picture: Any) -> Any:
        from normprobe.measurements.layers.norm_map import norm_map

        return norm_map(model, picture)
