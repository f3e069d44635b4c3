"""The way from pixels to the decoder input: norms by stage (Tables 1-3)."""

from normprobe.measurements import Measurement
from normprobe.model.load.required_tensors import before_the_decoder
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

MEASUREMENT = Measurement(
    name="interface",
    summary="""
    Norms from the vision encoder to the decoder input, against the text table (Tables 1-3).

    MODEL may be a vision-language model, a bare vision encoder or a bare language model: the side
    that exists is reported. No decoder layer runs.
    """,
    needs=before_the_decoder,
    over_samples=True,
    maps=True,
    shown=("interface", "map"),
    repeated=("interface", "visual_table"),
    published={
        ENCODER: {"stage": VISION_ENCODER, "group": VISUAL},
        BEFORE: {"stage": PROJECTOR_INPUT, "group": VISUAL},
        MERGED: {"stage": MERGED_INPUT, "group": VISUAL},
        AFTER: {"stage": PROJECTOR_OUTPUT, "group": VISUAL},
        TEXT_TABLE: {"stage": TEXT_EMBEDDING_TABLE, "group": NONZERO_ROWS},
    },
)
