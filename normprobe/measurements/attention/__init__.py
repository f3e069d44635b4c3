"""How much text attends to the image in each decoder layer, and where (Appendix G)."""

from normprobe.measurements import Measurement
from normprobe.model.checkpoint import VISION_LANGUAGE
from normprobe.model.load.required_tensors import forward_to_last_layer

MEASUREMENT = Measurement(
    name="attention",
    needs=forward_to_last_layer,
    measures=("decoder_layers", "vision_encoder"),
    kinds=(VISION_LANGUAGE,),
    repeated=("attention", "heads", "heatmaps"),
    shown=("attention", "heads", "heatmaps"),
)
