"""A fingerprint of every state on the way through a model: are two models still the same?"""

from normprobe.measurements import Measurement
from normprobe.model.load.required_tensors import everything

MEASUREMENT = Measurement(
    name="check",
    summary="A fingerprint of every state, by stage and token group.",
    needs=everything,
    over_samples=True,
    text_of_language_models=True,
    intervals=False,
)
