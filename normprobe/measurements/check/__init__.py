"""A fingerprint of every state on the way through a model: are two models still the same?"""

from normprobe.measurements import Measurement
from normprobe.model.load.required_tensors import everything

MEASUREMENT = Measurement(
    name="check",
    summary="""
    Are the states still those? Stage by stage and layer by layer against a baseline.

    --write makes a baseline of MODEL; --against compares with one, a run folder, or another model.
    Exit code 0: the same; 1: not; 3: not enough evidence.
    """,
    needs=everything,
    over_samples=True,
    text_of_language_models=True,
    intervals=False,
)
