"""normprobe: what the norms of visual and text tokens do inside a multimodal LLM.

    Probe(model)                    a model that is ready to be measured
    probe.layers(data="mmbench")    a Run: .table, .verdict, .figures(), .save(folder)
    load_run(folder)                a run of the command line
    compare([run, run])             runs side by side

    find_parts(model)               where a model keeps its vision encoder, projector and decoder
    probe_layers(model, inputs)     norms, cosines and angles of every decoder layer
    probe_interface(model, inputs)  norms from the vision encoder to the decoder input
    embedding_statistics(weight)    norms of an embedding table
    per_token, per_group, per_pair  a number of your own, for ``layers --also``
    watch(model)                    a training from inside, with one line
    NormProbeCallback()             the same for the transformers Trainer and what is built on it
    LightningCallback()             and for Lightning; AxolotlPlugin for axolotl
    align_norms(model)              the paper's remedy: a norm behind the projector
    remove_norm(model)              takes it out again
    save_alignment, load_aligned    an aligned model on disk

Importing the package loads no torch: the functions arrive when they are first asked for.
"""

from importlib import import_module

TYPE_CHECKING = False  # to import it would take longer than all of this
if TYPE_CHECKING:
    from typing import Any

    from normprobe.errors import NormprobeError
    from normprobe.extensions.training.callback import NormProbeCallback
    from normprobe.extensions.training.watch import Watch, watch
    from normprobe.measurements.interface.measure import probe_interface
    from normprobe.measurements.layers.also import per_group, per_pair, per_token
    from normprobe.measurements.layers.table import probe_layers
    from normprobe.model.align.norm import GlobalWeightCompensatedLayerNorm, remove_norm
    from normprobe.model.align.target import align_norms
    from normprobe.model.find.parts import Parts
    from normprobe.model.find.structure import find_parts
    from normprobe.model.load.alignment import save_alignment
    from normprobe.model.load.loading import load_aligned
    from normprobe.probe import Probe
    from normprobe.run import Run, compare, load_run
    from normprobe.statistics.weights import embedding_statistics

__version__ = "0.1.0"
__all__ = [
    "GlobalWeightCompensatedLayerNorm",
    "NormProbeCallback",
    "NormprobeError",
    "Parts",
    "Probe",
    "Run",
    "Watch",
    "align_norms",
    "compare",
    "embedding_statistics",
    "find_parts",
    "load_aligned",
    "load_run",
    "per_group",
    "per_pair",
    "per_token",
    "probe_interface",
    "probe_layers",
    "remove_norm",
    "save_alignment",
    "watch",
]

_HOME = {
    "AxolotlPlugin": "normprobe.extensions.training.launchers",
    "GlobalWeightCompensatedLayerNorm": "normprobe.model.align.norm",
    "LightningCallback": "normprobe.extensions.training.launchers",
    "NormProbeCallback": "normprobe.extensions.training.callback",
    "NormprobeError": "normprobe.errors",
    "Parts": "normprobe.model.find.parts",
    "Probe": "normprobe.probe",
    "Run": "normprobe.run",
    "Watch": "normprobe.extensions.training.watch",
    "align_norms": "normprobe.model.align.target",
    "compare": "normprobe.run",
    "embedding_statistics": "normprobe.statistics.weights",
    "find_parts": "normprobe.model.find.structure",
    "load_aligned": "normprobe.model.load.loading",
    "load_run": "normprobe.run",
    "per_group": "normprobe.measurements.layers.also",
    "per_pair": "normprobe.measurements.layers.also",
    "per_token": "normprobe.measurements.layers.also",
    "probe_interface": "normprobe.measurements.interface.measure",
    "probe_layers": "normprobe.measurements.layers.table",
    "remove_norm": "normprobe.model.align.norm",
    "save_alignment": "normprobe.model.load.alignment",
    "watch": "normprobe.extensions.training.watch",
}


def __getattr__(name: str) -> "Any":
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names alone: the modules behind them are not the interface."""
    return [*__all__, "__version__"]
