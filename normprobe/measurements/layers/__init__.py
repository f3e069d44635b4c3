"""Every decoder layer: norm, cosine, angular velocity and update size (Figures 2-5)."""

from normprobe.measurements import Measurement
from normprobe.model.checkpoint import LANGUAGE_MODEL, VISION_LANGUAGE
from normprobe.model.load.required_tensors import forward_to_last_layer
from normprobe.paper import AFTER
from normprobe.schema import VISUAL

_FIGURES = "layers turning accounted directions branches massive turns theory"

MEASUREMENT = Measurement(
    name="layers",
    summary="""
    Norms, cosines and angles of every decoder layer, by token group (Figures 2-5).

    MODEL may be a vision-language model or, with --data text, a bare language model.
    Several GPUs share the samples: torchrun --nproc-per-node 8 -m normprobe layers MODEL
    """,
    needs=forward_to_last_layer,
    measures=("decoder_layers",),
    kinds=(VISION_LANGUAGE, LANGUAGE_MODEL),
    over_samples=True,
    batches=True,
    tables_from_rows=True,
    text_of_language_models=True,
    maps=True,
    shown=("layers", "theory", "assumptions", "accounted", "branches", "massive", "turns", "map"),
    repeated=(*_FIGURES.split(),),
    watchers=("branches", "massive"),
    theory=True,
    turns=True,
    published={AFTER: {"layer": 0, "group": VISUAL}},
)
