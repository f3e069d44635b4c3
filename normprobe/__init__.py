"""normprobe: what the norms of visual and text tokens do inside a multimodal LLM.

    find_parts(model)               where a model keeps its vision encoder, projector and decoder
    probe_layers(model, inputs)     norms, cosines and angles of every decoder layer
    probe_interface(model, inputs)  norms from the vision encoder to the decoder input
    embedding_statistics(weight)    norms of an embedding table
    NormProbeCallback(...)          the disparity in the log of a transformers Trainer

Importing the package loads no torch: the functions arrive when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normprobe.analyses.embeddings import embedding_statistics
    from normprobe.analyses.interface import probe_interface
    from normprobe.analyses.layers import probe_layers
    from normprobe.callback import NormProbeCallback
    from normprobe.model.parts import Parts, find_parts

from normprobe.errors import NormprobeError

__version__ = "0.1.0"
__all__ = [
    "NormProbeCallback",
    "NormprobeError",
    "Parts",
    "embedding_statistics",
    "find_parts",
    "probe_interface",
    "probe_layers",
]

_HOME = {
    "NormProbeCallback": "normprobe.callback",
    "Parts": "normprobe.model.parts",
    "embedding_statistics": "normprobe.analyses.embeddings",
    "find_parts": "normprobe.model.parts",
    "probe_interface": "normprobe.analyses.interface",
    "probe_layers": "normprobe.analyses.layers",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
