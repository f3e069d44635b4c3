"""How much text attends to the image in each decoder layer, and where (Appendix G)."""

from normprobe.measurements.measurement import (
    ComparedModule,
    FiguresModule,
    Measurement,
    ShownModule,
    WordsModule,
)
from normprobe.model.load.required_tensors import Needs, forward_to_last_layer
from normprobe.schema import VISION_LANGUAGE


class Attention(Measurement):
    """How much text attends to the image in each decoder layer, and where (Appendix G)."""

    name = "attention"
    measures = ("decoder_layers", "vision_encoder")
    kinds = (VISION_LANGUAGE,)
    section_tables = section_figures = ("attention", "heads", "heatmaps")

    @property
    def needs(self) -> Needs:
        return forward_to_last_layer

    @property
    def words(self) -> WordsModule:
        from normprobe.extensions.pictures.attention import words

        return words

    @property
    def shown(self) -> ShownModule:
        from normprobe.extensions.pictures.attention import shown

        return shown

    @property
    def figures(self) -> FiguresModule:
        from normprobe.extensions.pictures.attention import figures

        return figures

    @property
    def compared(self) -> ComparedModule:
        from normprobe.extensions.pictures.attention import compared

        return compared
