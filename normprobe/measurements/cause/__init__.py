"""Interventions: what the norms do to turning, and what turning is worth in answers."""

from normprobe.measurements import Measurement
from normprobe.model.checkpoint import VISION_LANGUAGE
from normprobe.model.load.required_tensors import everything

MEASUREMENT = Measurement(
    name="cause",
    summary="""
    What norms do to turning, and what turning is worth in answers: interventions on visual tokens.

    Each sample runs untouched, then once an intervention: visual tokens scaled, frozen, swapped.
    Data with answers give what it costs: --data scenes (bundled), sample, mmbench, your own.
    """,
    needs=everything,
    measures=("decoder_layers", "vision_encoder"),
    kinds=(VISION_LANGUAGE,),
    over_samples=True,
    batches=True,
    reads_samples=True,
    intervenes=True,
    data="scenes",
    shown=("cause",),
)
