"""Which tensors of a model a measurement reads: all others need not be loaded.

A measurement names one of these functions:

    embedding_tables        the embedding tables alone
    before_the_decoder      what runs before decoder layer 1
    vision_tower            the vision encoder alone
    audio_tower             the audio encoder alone
    forward_to_last_layer   what runs up to the last decoder layer
    everything              the whole model, as a trace needs it

Each takes a model and its parts and gives the names of tensors.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # measurements name these functions when the program starts
    from torch import nn

    from normprobe.model.find.parts import Part, Parts

#: From a model on any device, meta included, and its parts to the parameters and buffers that are
#: read, named as ``named_parameters()`` and ``named_buffers()`` name them.
Needs = Callable[["nn.Module", "Parts"], set[str]]


def embedding_tables(model: "nn.Module", parts: "Parts") -> set[str]:
    """The text embedding table, and the visual one where there is one."""
    tables = (parts.text_embedding, parts.visual_embedding)
    return _below(tensor_names(model), [table.name for table in tables if table])


def before_the_decoder(model: "nn.Module", parts: "Parts") -> set[str]:
    """What runs before decoder layer 1; of a bare vision encoder, the encoder."""
    if parts.decoder_layers is None:
        encoder = parts.vision_encoder
        return _below(tensor_names(model), [encoder.name] if encoder else [])
    layers = _below(tensor_names(model), [parts.decoder_layers.name])
    return forward_to_last_layer(model, parts) - layers


def vision_tower(model: "nn.Module", parts: "Parts") -> set[str]:
    """The vision encoder, without a projector inside it."""
    return _tower(model, parts.vision_encoder, parts.projector)


def audio_tower(model: "nn.Module", parts: "Parts") -> set[str]:
    """The encoder of sounds, likewise."""
    return _tower(model, parts.audio_encoder, parts.audio_projector)


def _tower(model: "nn.Module", encoder: "Part | None", projector: "Part | None") -> set[str]:
    tensors = tensor_names(model)
    inside = _below(tensors, [encoder.name] if encoder else [])
    return inside - _below(tensors, [projector.name] if projector else [])


def forward_to_last_layer(model: "nn.Module", parts: "Parts") -> set[str]:
    """Everything but the output embedding, which runs after the last decoder layer."""
    tensors = tensor_names(model)
    from normprobe.model.find.parts import head_of

    head = head_of(model)
    named = model.named_modules(remove_duplicate=False)  # PaddleOCR-VL's code keeps it twice
    heads = [name for name, module in named if head is not None and module is head]
    return tensors - _below(tensors, heads)


def everything(model: "nn.Module", parts: "Parts") -> set[str]:
    """All tensors: a trace runs the whole model."""
    return tensor_names(model)


def unneeded(needs: Needs, model: "nn.Module", parts: "Parts") -> frozenset[str]:
    """The parameters and buffers that a measurement does not read."""
    return _all_but(needs(model, parts), model)


def outside(part_name: str, model: "nn.Module") -> frozenset[str]:
    """The parameters and buffers outside a part, by its dotted name."""
    return _all_but(_below(tensor_names(model), [part_name]), model)


def _all_but(needed: set[str], model: "nn.Module") -> frozenset[str]:
    """A tensor tied to a needed one is needed too: checkpoints store it under either name."""
    from normprobe.versions import tied_weights

    tied = tied_weights(model)
    sources = {tied.get(name, name) for name in needed}
    partners = {name for name in tied if tied[name] in sources}
    return frozenset(tensor_names(model) - needed - sources - partners)


def tensor_names(model: "nn.Module") -> set[str]:
    """Its parameters and buffers; one that is shared has several names."""
    parameters = model.named_parameters(remove_duplicate=False)
    return {name for name, _ in [*parameters, *model.named_buffers(remove_duplicate=False)]}


def _below(tensors: Iterable[str], names: Iterable[str]) -> set[str]:
    prefixes = tuple(f"{name}." if name else "" for name in names)
    return {tensor for tensor in tensors if tensor.startswith(prefixes)}
