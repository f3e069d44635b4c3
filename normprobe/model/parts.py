"""Find the parts of a model by its interfaces and its module tree. No forward, works on meta.

The vision encoder and the decoder come from the accessors that transformers models carry. The
projector is what is left beside the encoder, or a merger inside it. ``overrides.py`` holds, as
data, the few model types where that is not enough.
"""

import re
from dataclasses import dataclass, fields
from typing import Any, cast

from torch import nn

from normprobe.errors import NormprobeError
from normprobe.model.overrides import OVERRIDES

#: Config fields that name placeholder ids; visual indicators get rows from a visual table (Ovis).
IMAGE_TOKEN_FIELDS = ("image_token_id", "image_token_index", "visual_indicator_token_ids")

#: Children of the encoder's parent that are no projector.
_NO_PROJECTOR = re.compile(r"audio|speech|sound|video|lm_head|norm$|embed_tokens$|vqmodel")
#: Children of the encoder that project: the merger of Qwen-VL and its kin.
_IN_TOWER_PROJECTOR = re.compile(r"merger|projector|projection|connector|adapter|aligner")
#: A row that stands for the whole image, and rows that only store: no patches.
_CLASS_ROW = re.compile(r"(^|\.)(class_embedding|cls_token|class_token)$")
_REGISTER_ROWS = re.compile(r"(^|\.)(register_tokens|registers)$")


@dataclass(frozen=True)
class Part:
    """A module and its dotted name in the model."""

    name: str
    module: nn.Module


@dataclass(frozen=True)
class Parts:
    """Where a model keeps what normprobe measures. ``None``: the model has no such part."""

    vision_encoder: Part | None
    projector: Part | None
    text_embedding: Part | None
    decoder_layers: Part | None
    visual_embedding: Part | None
    image_token_ids: tuple[int, ...]

    def __iter__(self) -> Any:
        """Pairs of a part's role and the part, those that exist."""
        for field in fields(self):
            part = getattr(self, field.name)
            if isinstance(part, Part):
                yield field.name, part


def find_parts(model: nn.Module) -> Parts:
    """Name the parts of a transformers model.

    Args:
        model: a vision-language model, a bare vision encoder or a bare language model, on any
            device, meta included.

    Returns:
        The parts; a bare encoder has ``vision_encoder`` alone, a bare language model
        ``text_embedding`` and ``decoder_layers``.

    Raises:
        NormprobeError: when the model has neither side, or both but no image token id or no
            decoder layers; it names what was looked for and the candidates.
    """
    names = {id(module): name for name, module in model.named_modules()}
    override = OVERRIDES.get(getattr(_config(model), "model_type", ""), {})

    def part(role: str, found: nn.Module | None) -> Part | None:
        if role in override:
            return Part(override[role], model.get_submodule(override[role]))
        return None if found is None else Part(names[id(found)], found)

    encoder = _vision_encoder(model, names)
    embedding = None if encoder is model or _is_contrastive(model) else _text_embedding(model)
    if encoder is None and embedding is None:
        raise NormprobeError(
            f"{type(model).__name__} has neither a vision encoder (get_encoder(modality='image')) "
            f"nor a text embedding (get_input_embeddings()); children: {_children(model)}",
            "pass a transformers vision-language model, vision encoder or language model",
        )
    decoder = _decoder(model, encoder) if embedding is not None else None
    layers = _decoder_layers(model, decoder, encoder) if decoder is not None else None
    if embedding is not None and layers is None:
        raise NormprobeError(
            f"no decoder layers found in {type(model).__name__}: looked for a list of "
            f"{_number_of_layers(model)} layers; candidates: {_candidates(model, names)}",
            "open an issue with the model type; an entry in model/overrides.py names them",
        )
    projector = None
    if encoder is not None and decoder is not None:
        projector = _projector(model, encoder, decoder, names)
    return Parts(
        vision_encoder=part("vision_encoder", encoder),
        projector=part("projector", projector),
        text_embedding=part("text_embedding", embedding),
        decoder_layers=part("decoder_layers", layers),
        visual_embedding=part("visual_embedding", projector if _is_table(projector) else None),
        image_token_ids=_image_token_ids(model)
        if encoder is not None and decoder is not None
        else (),
    )


def prefix_rows(encoder: nn.Module) -> int:
    """How many class and register rows a vision encoder puts before the patch rows of an image."""
    rows = 0
    for name, parameter in encoder.named_parameters():
        if _CLASS_ROW.search(name):
            rows += 1
        elif _REGISTER_ROWS.search(name):
            rows += parameter.shape[-2]
    return rows


def _config(model: nn.Module) -> Any:
    return getattr(model, "config", None)


def _vision_encoder(model: nn.Module, names: dict[int, str]) -> nn.Module | None:
    """What ``get_encoder(modality="image")`` names; the model itself when it is a bare encoder."""
    found = _ask(model, "get_encoder", modality="image")
    if found is None or id(found) not in names:
        return None
    if found is not model:
        return found
    # The accessor answers with the model itself when it knows no encoder.
    return model if getattr(model, "main_input_name", "") == "pixel_values" else None


def _text_embedding(model: nn.Module) -> nn.Module | None:
    """The token embedding table: a module with a two-dimensional weight."""
    found = _ask(model, "get_input_embeddings")
    weight = getattr(found, "weight", None)
    return found if weight is not None and weight.dim() == 2 else None


def _is_contrastive(model: nn.Module) -> bool:
    """CLIP and SigLIP score images against texts: their text tower reads no visual tokens."""
    return isinstance(getattr(model, "logit_scale", None), nn.Parameter)


def _decoder(model: nn.Module, encoder: nn.Module | None) -> nn.Module:
    found = _ask(model, "get_decoder")
    return model if found is None or found is encoder else found


def _decoder_layers(
    model: nn.Module, decoder: nn.Module, encoder: nn.Module | None
) -> nn.Module | None:
    """The largest list of ``num_hidden_layers`` modules in the decoder, outside the encoder."""
    inside_encoder = {id(module) for module in encoder.modules()} if encoder is not None else set()
    lists = [
        module
        for module in decoder.modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == _number_of_layers(model)
        and id(module) not in inside_encoder
    ]
    return max(lists, key=_size, default=None)


def _number_of_layers(model: nn.Module) -> int | None:
    config = _config(model)
    if config is None:
        return None
    text_config = config.get_text_config(decoder=True)
    return cast("int | None", getattr(text_config, "num_hidden_layers", None))


def _projector(
    model: nn.Module, encoder: nn.Module, decoder: nn.Module, names: dict[int, str]
) -> nn.Module | None:
    """What stands beside the encoder and is no language model; else a merger inside the encoder.

    The last one is taken where several follow each other: it makes the rows the decoder reads.
    """
    parent = model.get_submodule(names[id(encoder)].rpartition(".")[0])
    beside = [
        child
        for name, child in parent.named_children()
        if child is not encoder
        and not _NO_PROJECTOR.search(name)
        and not _holds(child, decoder)
        and _size(child)
    ]
    inside = [
        child
        for name, child in encoder.named_children()
        if _IN_TOWER_PROJECTOR.search(name)
        and not isinstance(child, nn.ModuleList)  # DeepStack mergers feed later layers
        and _size(child)
    ]
    return next(reversed(beside or inside), None)


def _is_table(projector: nn.Module | None) -> bool:
    """Ovis mixes its visual rows from the rows of a table, weighted by probabilities."""
    return isinstance(projector, nn.Embedding)


def _image_token_ids(model: nn.Module) -> tuple[int, ...]:
    config = _config(model)
    ids: list[int] = []
    for field in IMAGE_TOKEN_FIELDS:
        value = getattr(config, field, None)
        ids.extend([value] if isinstance(value, int) else value or [])
    if not ids:
        raise NormprobeError(
            f"the config of {type(model).__name__} names no image token: expected one of "
            f"{', '.join(IMAGE_TOKEN_FIELDS)}",
            "set config.image_token_id to the id that stands for an image patch in the prompt",
        )
    return tuple(dict.fromkeys(ids))


def _ask(model: nn.Module, accessor: str, **arguments: str) -> nn.Module | None:
    """The answer of an accessor, or None where the model has none or refuses it."""
    try:
        answer = getattr(model, accessor)(**arguments)
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return answer if isinstance(answer, nn.Module) else None


def _holds(module: nn.Module, other: nn.Module) -> bool:
    return any(inner is other for inner in module.modules())


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _children(module: nn.Module) -> str:
    return ", ".join(name for name, _ in module.named_children()) or "none"


def _candidates(model: nn.Module, names: dict[int, str]) -> str:
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
    return ", ".join(f"{names[id(m)]} ({len(m)})" for m in lists) or "none"
