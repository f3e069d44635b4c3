"""What measurements of text and the pictures before it have in common."""

from normprobe.measurements.measurement import SampleMeasurement
from normprobe.model.load.required_tensors import Needs, forward_to_last_layer
from normprobe.schema import VISION_LANGUAGE


class PictureMeasurement(SampleMeasurement):
    """Of a vision-language model, one sample a forward, up to the last decoder layer."""

    measures = ("decoder_layers", "vision_encoder")
    kinds = (VISION_LANGUAGE,)
    reads_samples = True
    needs_images = True

    @property
    def needs(self) -> Needs:
        """What a forward up to there reads."""
        return forward_to_last_layer
