"""Which tensors of a model a command does without."""

from collections.abc import Iterable

from torch import nn

from normprobe.model.parts import Parts


def unneeded_by(command: str, model: nn.Module, parts: Parts) -> frozenset[str]:
    """The parameters and buffers that a command never reads.

    Args:
        command: a key of ``NEEDED``.
        model: on any device, meta included.
        parts: of ``find_parts(model)``.

    Returns:
        Names as ``model.named_parameters()`` and ``model.named_buffers()`` give them.
    """
    return _all_but(NEEDED[command](model, parts), model)


def outside(part_name: str, model: nn.Module) -> frozenset[str]:
    """The parameters and buffers outside a part, named likewise."""
    return _all_but(_below(_tensors(model), [part_name]), model)


def _embeddings(model: nn.Module, parts: Parts) -> set[str]:
    """The embedding tables alone."""
    tables = (parts.text_embedding, parts.visual_embedding)
    return _below(_tensors(model), [table.name for table in tables if table])


def _interface(model: nn.Module, parts: Parts) -> set[str]:
    """What runs before the first decoder layer; of a bare encoder, the encoder."""
    if parts.decoder_layers is None:
        encoder = parts.vision_encoder
        return _below(_tensors(model), [encoder.name] if encoder else [])
    return _forward(model, parts) - _below(_tensors(model), [parts.decoder_layers.name])


def _forward(model: nn.Module, parts: Parts) -> set[str]:
    """Everything but the output embedding, which runs after the last decoder layer."""
    tensors = _tensors(model)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    heads = [name for name, module in model.named_modules() if head is not None and module is head]
    return tensors - _below(tensors, heads)


def _everything(model: nn.Module, parts: Parts) -> set[str]:
    """What a trace of the running model needs."""
    return _tensors(model)


COMMANDS = {
    "embeddings": _embeddings,
    "interface": _interface,
    "layers": _forward,
    "attention": _forward,
}

EVERYTHING = "everything"

NEEDED = {**COMMANDS, "align": _interface, EVERYTHING: _everything}


def _all_but(needed: set[str], model: nn.Module) -> frozenset[str]:
    """A tensor tied to a needed one is needed too: checkpoints store it under either name."""
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", {})
    sources = {tied.get(name, name) for name in needed}
    partners = {name for name in tied if tied[name] in sources}
    return frozenset(_tensors(model) - needed - sources - partners)


def _tensors(model: nn.Module) -> set[str]:
    parameters = model.named_parameters(remove_duplicate=False)
    return {name for name, _ in [*parameters, *model.named_buffers(remove_duplicate=False)]}


def _below(tensors: Iterable[str], names: Iterable[str]) -> set[str]:
    prefixes = tuple(f"{name}." if name else "" for name in names)
    return {tensor for tensor in tensors if tensor.startswith(prefixes)}
