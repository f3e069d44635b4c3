"""The norm that gives visual tokens the norm of text, to train with (Section 5)."""

from normprobe.measurements import Measurement
from normprobe.model.checkpoint import VISION_LANGUAGE
from normprobe.model.load.required_tensors import before_the_decoder

MEASUREMENT = Measurement(name="align", needs=before_the_decoder, kinds=(VISION_LANGUAGE,))
