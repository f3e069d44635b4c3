"""The parts of a model that normprobe measures, and what an error says where one is not found."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from accelerate.utils import align_module_device
from torch import Tensor, nn

from normprobe.errors import NormprobeError, did_you_mean
from normprobe.failures import runs_own_code
from normprobe.model.config import vision_modules
from normprobe.model.find.overrides import FUSIONS, IN_SEQUENCE
from normprobe.tensors import whole

#: Parameters that stand for the whole image or only store: their tokens are no patches.
_CLASS_TOKENS = re.compile(
    r"(^|\.)((cls|class)_embedding|(cls|class|register)\w*_tokens?|registers)$"
)


#: Modules at the end of an audio encoder that turn its states into tokens.
PROJECTS_SOUND = re.compile(r"(^|_)(proj\d?|projector|adapter|connector|post_proj_norm)$")


class Stream(NamedTuple):
    """How to read one residual stream."""

    meaning: str  # which stream it is, for the output
    # from the state between two layers and the text config to ``[batch, seq, hidden]``
    read: Callable[[Tensor, Any], Tensor]


def _altup(state: Tensor, config: Any) -> Tensor:
    """Gemma 3n: ``[streams, batch, seq, hidden]``; the active one passes through the layer."""
    return state[int(config.altup_active_idx)] if state.dim() == 4 else state


def _stacked(state: Tensor, _config: Any) -> Tensor:
    """``[batch, seq, streams, hidden]``; the model itself ends in the mean of its streams."""
    return state.mean(dim=2) if state.dim() == 4 else state


def _joined(state: Tensor, config: Any) -> Tensor:
    """``[batch, seq, streams * hidden]``."""
    return state.reshape(*state.shape[:-1], -1, config.hidden_size).mean(dim=-2)


def _only(state: Tensor, _config: Any) -> Tensor:
    return state


STREAMS = {
    "single": Stream("the residual", _only),
    "altup": Stream("active AltUp stream", _altup),
    "mean of stacked streams": Stream("mean of streams", _stacked),
    "mean of joined streams": Stream("mean of streams", _joined),
}


@dataclass(frozen=True)
class Part:
    """A module and its dotted name in the model."""

    name: str
    module: nn.Module

    def __repr__(self) -> str:
        """One line: name, class and size."""
        return "  ".join(_row(self))


@dataclass(frozen=True)
class Parts:
    """Where a model keeps what normprobe measures.

    Attributes:
        vision_encoder: turns pixels into patch features; None where the model has none, as for the
            four parts that follow.
        projector: turns patch features into visual tokens.
        text_embedding: the token embedding table.
        decoder_layers: the list of decoder layers, which read visual and text tokens.
        visual_embedding: a table that visual tokens are mixed from (Ovis).
        image_token_ids: ids that stand for visual tokens in the prompt; empty: visual tokens are
            found by perturbing the pixels.
        fusion: how visual tokens meet text, a key of ``overrides.FUSIONS``.
        stream: the residual stream that is reported.
        class_rows: how many class and register tokens precede the patches that the encoder returns.
        family: see ``family_of``; empty where the other fields tell it.
        channels_first: the encoder returns maps ``[..., hidden, height, width]``.
        video_token_ids: ids that stand for rows of a video in the prompt.
        audio_token_ids: ids that stand for rows of a sound.
        audio_encoder: turns a sound into features.
        audio_projector: the last module that turns these into audio tokens; inside it, or beside.
        named: which of these were named by hand.
        behind: what becomes of a row between projector and decoder; empty: it is scaled at most.
    """

    vision_encoder: Part | None
    projector: Part | None
    text_embedding: Part | None
    decoder_layers: Part | None
    visual_embedding: Part | None
    image_token_ids: tuple[int, ...]
    fusion: str = IN_SEQUENCE
    stream: Stream = STREAMS["single"]
    class_rows: int = 0
    family: str = ""
    channels_first: bool = False
    video_token_ids: tuple[int, ...] = ()
    audio_token_ids: tuple[int, ...] = ()
    behind: str = ""
    audio_encoder: Part | None = None
    audio_projector: Part | None = None
    named: frozenset[str] = field(default=frozenset(), compare=False)

    def __iter__(self) -> Iterator[tuple[str, Part]]:
        """Pairs of a part's role and the part, those that exist."""
        for each in fields(self):
            part = getattr(self, each.name)
            if isinstance(part, Part):
                yield each.name, part

    def __repr__(self) -> str:
        """A table: role, name, class and size of each part; then image token ids and fusion."""
        table = [(role, *_row(part)) for role, part in self]
        widths = [max(map(len, column), default=0) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        if self.text_embedding and (self.vision_encoder or self.projector):
            ids = ", ".join(map(str, self.image_token_ids)) or "none"
            lines += [f"image token ids: {ids}", f"fusion: {self.fusion}, {fusion_in_words(self)}"]
        return "\n".join(lines)


def fusion_in_words(parts: Parts) -> str:
    """How visual tokens meet text, for the output."""
    sees = parts.vision_encoder is not None or parts.projector is not None
    if sees and parts.fusion == IN_SEQUENCE and not parts.image_token_ids:
        return "visual tokens stand among words, and no id is declared that stands for one"
    return FUSIONS[parts.fusion]


def family_of(parts: Parts) -> str:
    """How a model brings images to its text, in two or three words."""
    if parts.family:
        return parts.family
    if parts.decoder_layers is None:
        return "bare vision encoder"
    if parts.vision_encoder is None and parts.projector is None:
        return "text only"
    if parts.fusion != IN_SEQUENCE:
        return parts.fusion
    if parts.vision_encoder is None:
        return "no vision encoder"
    if parts.visual_embedding is not None:
        return "visual table"
    inside = f"{parts.vision_encoder.name}."
    in_tower = parts.projector is not None and parts.projector.name.startswith(inside)
    return "in-tower projector" if in_tower else "projector"


def with_projector(parts: Parts, projector: Part) -> Parts:
    """The parts with another projector, which is a visual table where it is one (Ovis)."""
    table = projector if isinstance(projector.module, nn.Embedding) else None
    return replace(parts, projector=projector, visual_embedding=table)


def class_rows_of(encoder: Part | None, model: nn.Module | None = None) -> int:
    """How many class and register tokens a vision encoder puts before the patches of an image.

    ``model``: where an encoder is named without what cuts patches, as the ``encoder`` of CLIP, the
    module around both holds these tokens.
    """
    if encoder is None:
        return 0
    module, around = encoder.module, encoder.name.rpartition(".")[0]
    if model is not None and around and not cuts_patches(module):
        outer = model.get_submodule(around)
        module = outer if cuts_patches(outer) else module
    rows = Counter[str]()
    for name, parameter in module.named_parameters():
        if _CLASS_TOKENS.search(name):
            rows[name.rpartition(".")[0]] += parameter.shape[-2] if parameter.dim() > 1 else 1
    return next(iter(rows.values()), 0)  # of the first of several encoders (MoVA)


def head_of(model: nn.Module) -> Any:
    """What makes logits, as a model tells it; None where it tells none, or fails to (MAIRA-2)."""
    with suppress(AttributeError, NotImplementedError):
        return getattr(model, "get_output_embeddings", lambda: None)()
    return None


def cuts_patches(module: nn.Module) -> bool:
    """Whether a convolution is inside, as what makes patches of pixels is."""
    return any(isinstance(inside, nn.Conv2d | nn.Conv3d) for inside in module.modules())


def _row(part: Part) -> tuple[str, str, str]:
    """Name, class and size of a part; of a list, how many of which class."""
    layers = list(part.module.children()) if isinstance(part.module, nn.ModuleList) else []
    kind = f"{len(layers)} x {type(layers[0]).__name__}" if layers else type(part.module).__name__
    return part.name or "(the model itself)", kind, f"{size_of(part.module):,} parameters"


def size_of(module: nn.Module) -> int:
    """How many parameters a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


def holders_of(name: str) -> list[str]:
    """The names of the modules around one, the innermost first, without the model itself."""
    pieces = name.split(".")[:-1]
    return [".".join(pieces[:end]) for end in range(len(pieces), 0, -1)]


def children_of(module: nn.Module) -> str:
    """The names of a module's children, for a message."""
    return ", ".join(name for name, _ in module.named_children()) or "none"


def check_name(model: nn.Module, role: str, name: Any) -> None:
    """Refuse a name given by hand that is no module of the model, and suggest one that is."""
    if not isinstance(name, str):
        raise NormprobeError(
            f"{role} is the name of one module, and {name!r} was given",
            f'name one: "{role}": "NAME"; of several, what makes most of the tokens',
        )
    names = [known for known, _ in model.named_modules()]
    if name not in names:
        raise NormprobeError(
            f"{type(model).__name__} has no module {name!r} for {role.replace('_', ' ')}",
            did_you_mean(
                name,
                names,
                f"`normprobe inspect` lists what was found; at the top are {children_of(model)}",
            ),
        )


def by_hand(model: nn.Module, **named: str) -> str:
    """The remedy that names parts by hand, roles and candidates for them, as a user writes it."""
    options = " ".join(f"--part {role}={value}" for role, value in named.items())
    remedy = f"name {'it' if len(named) == 1 else 'them'} by hand: add {options}"
    remedy += f" (in Python: named={named})"
    if runs_own_code(model):
        source = getattr(model, "name_or_path", "") or "MODEL"
        begun = f"normprobe inputs {source} --trust-remote-code --write inputs.py"
        remedy += f"; or say how it is run: {begun}"
    return remedy


def guesses(model: nn.Module, names: dict[int, str]) -> dict[str, str]:
    """By role the best candidate for a part, by names and sizes; NAME where there is none."""
    outside = vision_modules(model)
    table = largest(model, nn.Embedding, names, outside)
    near = [model.get_submodule(name) for name in holders_of(table)]  # a detector may be larger
    found = (largest(holder, nn.ModuleList, names, outside) for holder in (*near, model))
    layers = next((name for name in found if name != "NAME"), "NAME")
    seen = [name for name in outside if not f"{layers}.".startswith(f"{name}.")]
    others = [name for name in seen if "proj" not in name and "sampler" not in name]
    return {
        "vision_encoder": next(iter(others), "NAME"),
        "projector": next((name for name in seen if "proj" in name), "NAME"),
        "decoder_layers": layers,
        "text_embedding": table,
    }


_POSITIONS = re.compile(r"wpe|position|pos_?emb", re.IGNORECASE)


def largest(
    model: nn.Module, kind: type[nn.Module], names: dict[int, str], outside: Sequence[str] = ()
) -> str:
    """The name of the largest module of a kind: the best candidate for a part.

    Of lists those whose blocks hold others: heads of a detector are none (Groma). Tables of
    positions, and what ``outside`` holds, the vision side, are taken where there is nothing else.
    """
    # Some modules are registered as they are asked for first (Moondream).
    found = [m for m in model.modules() if isinstance(m, kind) and id(m) in names]
    found = [each for each in found if not _POSITIONS.search(names[id(each)])] or found
    found = [each for each in found if holds_blocks(each)] or found
    seen = tuple(f"{name}." for name in outside)
    found = [each for each in found if not f"{names[id(each)]}.".startswith(seen)] or found
    return names[id(max(found, key=size_of))] if found else "NAME"


def holds_blocks(module: nn.Module) -> bool:
    """Whether each item of a list holds a norm, as a layer does; true of what is no list."""
    items = module.children() if isinstance(module, nn.ModuleList) else ()  # some may be None
    return all(any("norm" in type(m).__name__.lower() for m in item.modules()) for item in items)


def candidates(model: nn.Module, names: dict[int, str]) -> str:
    """The lists of modules in a model and their lengths, for a message."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
    return ", ".join(f"{names[id(m)]} ({len(m)})" for m in lists) or "none"


_TABLES = ("weight", "embedding", "new_embedding")


def weight_of(part: Part) -> Tensor:
    """The table itself, ``[rows, hidden]``. Molmo keeps added tokens in a second one.

    One of two names counts once (jina-vlm). An offloaded table is fetched from where accelerate
    put it.
    """
    with align_module_device(part.module):
        tables = [getattr(part.module, name, None) for name in _TABLES]
        held = {id(table): table for table in tables if isinstance(table, Tensor)}
        present = [whole(table.detach()) for table in held.values()]
    return present[0] if len(present) == 1 else torch.cat(present)
