"""A training from inside: states of its own forwards, gradients and updates of its weights."""

from normprobe.measurements import Measurement

MEASUREMENT = Measurement(
    name="training",
    measures=("decoder_layers",),
    shown=("training", "gradients", "alarms"),
)
