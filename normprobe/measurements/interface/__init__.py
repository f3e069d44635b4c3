"""The way from pixels to the decoder input: norms by stage (Tables 1-3)."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from normprobe.measurements.measurement import (
    ComparedModule,
    FiguresModule,
    RecomputedModule,
    SampleMeasurement,
    ShownModule,
    WordsModule,
)
from normprobe.model.load.required_tensors import Needs, before_the_decoder
from normprobe.paper import AFTER, BEFORE, ENCODER, MERGED, TEXT_TABLE
from normprobe.schema import (
    MERGED_INPUT,
    NONZERO_ROWS,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    TEXT_EMBEDDING_TABLE,
    VISION_ENCODER,
    VISUAL,
)

if TYPE_CHECKING:
    import pandas as pd


class Interface(SampleMeasurement):
    """The way from pixels to the decoder input: norms by stage (Tables 1-3)."""

    name = "interface"
    summary = """
    Norms from the vision encoder to the decoder input, against the text table (Tables 1-3).

    MODEL may be a vision-language model, a bare vision encoder or a bare language model: the side
    that exists is reported. No decoder layer runs.
    """
    options = frozenset({"map"})
    section_tables = ("interface", "map")
    section_figures = ("interface", "visual_table")
    published: ClassVar = {
        ENCODER: {"stage": VISION_ENCODER, "group": VISUAL},
        BEFORE: {"stage": PROJECTOR_INPUT, "group": VISUAL},
        MERGED: {"stage": MERGED_INPUT, "group": VISUAL},
        AFTER: {"stage": PROJECTOR_OUTPUT, "group": VISUAL},
        TEXT_TABLE: {"stage": TEXT_EMBEDDING_TABLE, "group": NONZERO_ROWS},
    }

    @property
    def needs(self) -> Needs:
        return before_the_decoder

    @property
    def words(self) -> WordsModule:
        from normprobe.measurements.interface import words

        return words

    @property
    def shown(self) -> ShownModule:
        from normprobe.measurements.interface import shown

        return shown

    @property
    def figures(self) -> FiguresModule:
        from normprobe.measurements.interface import figures

        return figures

    @property
    def recomputed(self) -> RecomputedModule:
        from normprobe.measurements.interface import recomputed

        return recomputed

    @property
    def compared(self) -> ComparedModule:
        from normprobe.measurements.interface import compared

        return compared

    def facts(self, model: Any, first: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        from normprobe.measurements.interface.measure import entry_facts

        return entry_facts(model, first())

    def observe(self, model: Any, inputs: Mapping[str, Any]) -> Any:
        from normprobe.measurements.interface.measure import observe

        return observe(model, inputs)

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> "pd.DataFrame":
        from normprobe.measurements.interface.measure import rows

        return rows(seen, sample_ids)

    def tables(self, rows: "pd.DataFrame", model: Any) -> "Mapping[str, pd.DataFrame]":
        from normprobe.measurements.interface.table import tables

        return tables(rows, model)

    def norm_map(self, model: Any, picture: Any) -> Any:
        from normprobe.measurements.interface.norm_map import norm_map

        return norm_map(model, picture)
