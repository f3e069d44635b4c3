"""The embedding tables: norms of their rows, and how far they moved (Tables 3, 6-8)."""

from typing import ClassVar

from normprobe.measurements.measurement import (
    ComparedModule,
    FiguresModule,
    Measurement,
    ShownModule,
    WordsModule,
)
from normprobe.model.load.required_tensors import Needs, embedding_tables
from normprobe.paper import TEXT_TABLE, VISUAL_TABLE
from normprobe.schema import NONZERO_ROWS, TEXT, VISUAL


class Embeddings(Measurement):
    """The embedding tables: norms of their rows, and how far they moved (Tables 3, 6-8)."""

    name = "embeddings"
    runs_model = False
    measures = ("text_embedding",)
    section_tables = ("embeddings", "tokens", "histogram")  # the histogram is a figure
    section_figures = ("embeddings", "shift")
    published: ClassVar = {
        TEXT_TABLE: {"table": TEXT, "rows": NONZERO_ROWS},
        VISUAL_TABLE: {"table": VISUAL, "rows": NONZERO_ROWS},
    }

    @property
    def needs(self) -> Needs:
        return embedding_tables

    @property
    def words(self) -> WordsModule:
        from normprobe.measurements.embeddings import words

        return words

    @property
    def shown(self) -> ShownModule:
        from normprobe.measurements.embeddings import shown

        return shown

    @property
    def figures(self) -> FiguresModule:
        from normprobe.measurements.embeddings import figures

        return figures

    @property
    def compared(self) -> ComparedModule:
        from normprobe.measurements.embeddings import compared

        return compared
