"""A word and the part of the picture that it means: cosine and attention score by layer."""

from normprobe.measurements import Measurement
from normprobe.model.checkpoint import VISION_LANGUAGE
from normprobe.model.load.required_tensors import forward_to_last_layer

MEASUREMENT = Measurement(
    name="grounding",
    summary="""
    A word against the visual tokens inside and outside of its box (Eq. 10, 15, 18-21).

    Samples have a word of the prompt and a box around what it means: --data boxes (bundled), JSON
    lines with word and box, or RefCOCO as JSON.
    """,
    needs=forward_to_last_layer,
    measures=("decoder_layers", "vision_encoder"),
    kinds=(VISION_LANGUAGE,),
    over_samples=True,
    reads_samples=True,
    data="boxes",
    shown=("grounding",),
)
