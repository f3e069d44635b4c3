"""normprobe: what the norms of visual and text tokens do inside a multimodal LLM.

    find_parts(model)               where a model keeps its vision encoder, projector and decoder
    probe_layers(model, inputs)     norms, cosines and angles of every decoder layer
    probe_interface(model, inputs)  norms from the vision encoder to the decoder input
    embedding_statistics(weight)    norms of an embedding table
    NormProbeCallback(...)          the disparity in the log of a transformers Trainer
    align_norms(model)              the paper's remedy: a norm behind the projector
    remove_norm(model)              takes it out again
    save_alignment, load_aligned    an aligned model on disk

Importing the package loads no torch: the functions arrive when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normprobe.analyses.align import align_norms
    from normprobe.analyses.embeddings import embedding_statistics
    from normprobe.analyses.interface import probe_interface
    from normprobe.analyses.layers import probe_layers
    from normprobe.callback import NormProbeCallback
    from normprobe.model.alignment_files import save_alignment
    from normprobe.model.loading import load_aligned
    from normprobe.model.norm_alignment import GlobalWeightCompensatedLayerNorm, remove_norm
    from normprobe.model.parts import Parts, find_parts

from normprobe.errors import NormprobeError

__version__ = "0.1.0"
__all__ = [
    "GlobalWeightCompensatedLayerNorm",
    "NormProbeCallback",
    "NormprobeError",
    "Parts",
    "align_norms",
    "embedding_statistics",
    "find_parts",
    "load_aligned",
    "probe_interface",
    "probe_layers",
    "remove_norm",
    "save_alignment",
]

_HOME = {
    "NormProbeCallback": "normprobe.callback",
    "GlobalWeightCompensatedLayerNorm": "normprobe.model.norm_alignment",
    "Parts": "normprobe.model.parts",
    "align_norms": "normprobe.analyses.align",
    "embedding_statistics": "normprobe.analyses.embeddings",
    "find_parts": "normprobe.model.parts",
    "load_aligned": "normprobe.model.loading",
    "probe_interface": "normprobe.analyses.interface",
    "probe_layers": "normprobe.analyses.layers",
    "remove_norm": "normprobe.model.norm_alignment",
    "save_alignment": "normprobe.model.alignment_files",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
