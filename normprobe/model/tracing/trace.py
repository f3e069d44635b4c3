"""Finds the parts of a model by running it: by itself, as a check, or where structure fails."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.failures import is_native
from normprobe.hooks import computed_inside
from normprobe.inputs.on_device import inputs_for, pixel_inputs
from normprobe.model.find.overrides import FUSIONS, IN_SEQUENCE
from normprobe.model.find.parts import Part, Parts, by_hand, check_name, class_rows_of
from normprobe.model.find.structure import find_parts, video_and_audio_ids
from normprobe.model.tracing.language import (
    find_language,
    find_stacks,
    holds,
    influenced_positions,
    injected_layers,
    visual_tokens,
)
from normprobe.model.tracing.observation import (
    Observation,
    ObservedCall,
    observe,
    other_pixels,
    other_words,
)
from normprobe.model.tracing.origins import (
    find_blocks,
    find_embedding,
    find_encoder,
    find_projector,
    fusion_of,
    is_looked_up,
)
from normprobe.model.tracing.recording import Call, Recording, is_ids, record
from normprobe.tensors import find_named, flattened, unflattened


@dataclass(frozen=True)
class TracedParts:
    """Where a model keeps its parts, as dotted names; None where the trace finds none."""

    # the list of layers that reads the text, and the image if it is in the sequence
    decoder_layers: str | None
    # ``[batch, seq]`` bool, positions of layer 1's input that change with the pixels. ``seq`` is
    # longer than the ids where visual tokens are prepended.
    visual_positions: Tensor | None
    # outermost module that emits the visual tokens, up to scale, order and grouping
    projector: str | None
    vision_encoder: str | None  # the module whose output feeds the projector
    text_embedding: str | None  # the module that turns ids into the states at text positions
    # ``in-sequence``, ``prepended``, ``added``, ``discrete``, ``cross-attention``, or ``none``
    # where the decoder layers do not read the image
    fusion: str
    # layers, from 1, whose input differs from the output of the layer before at visual positions
    # (DeepStack)
    injected_layers: tuple[int, ...]
    # all modules that emit the visual tokens, the projector and some inside it
    emitters: tuple[str, ...] = ()
    # all modules that hold the weight of the text embedding, which may be tied
    text_table: tuple[str, ...] = ()
    encoder_layers: str | None = None  # the list of layers of the vision encoder


def trace_parts(
    model: nn.Module, inputs: Mapping[str, Any], *, text_ids: Sequence[int] | None = None
) -> TracedParts:
    """Find the parts of a model in three forwards of one batch.

    Memory: no activation is kept. While a module runs, each vector that it takes or returns is
    replaced by eleven float32 numbers on the CPU. Modules inside blocks are not watched.

    Limits:
        - Blocks must be in a ModuleList or Sequential, two of a class, with modules inside.
        - A patch to which a discrete tokenizer gives the same id whatever the pixels is missed.
        - A gate at zero hides the image. An image stored as whole numbers is taken for a mask.
        - Of two vision encoders the first is named; so it is with two projectors that write an
          equal number of tokens.
        - A weight that is used without calling its module is not seen.
        - A video or a sound in the same inputs is taken for an image.
    """
    inputs = flattened(inputs)
    base = record(model, inputs)
    changed = other_pixels(inputs)
    pixels = base if changed is None else record(model, changed)
    calls = observe(base, pixels, base)
    if changed is not None and not any(out.by_pixels.any() for out in _results(calls)):
        if not any(out.base.vectors.any() for out in _results(calls)):
            raise NormprobeError(
                f"what {type(model).__name__} returns is zero, infinite or no number, whatever the "
                f"pixels; inputs: {', '.join(inputs)}",
                "check its weights, and that its inputs are scaled as its processor scales them",
            )
        raise NormprobeError(
            f"the image does not reach the output of {type(model).__name__}: other pixels change "
            f"nothing; inputs: {', '.join(inputs)}",
            "pass an image and a prompt with its placeholders, as the processor returns them",
        )
    ids = _looked_up(base)
    if changed is not None and not ids:
        return _bare_encoder(model, calls)
    shapes = {tuple(inputs[name].shape) for name in ids}
    influenced = influenced_positions(find_stacks(model, calls), shapes)
    if changed is None or any(mask.any() for mask in influenced.values()):
        rephrased, replaced = other_words(inputs, ids, influenced, text_ids)
        with suppress(NormprobeError):  # some ids may be no words for the model
            calls = observe(base, pixels, record(model, rephrased))
            return _full_model(model, calls, replaced, inputs)
    # Rows may be inserted inside the model: then no position tells which ids are words. All rows of
    # the table are others instead of some ids.
    blurred = record(model, inputs, blurred=_tables(base))
    replaced = [torch.ones(shape, dtype=torch.bool) for shape in shapes]
    return _full_model(model, observe(base, pixels, blurred), replaced, inputs)


def _results(calls: Sequence[ObservedCall]) -> list[Observation]:
    """The outputs of the model; of one that returns a loss alone, those of all that ran."""
    of_model = [out for call in calls if call.name == "" for out in call.outputs]
    return of_model or [out for call in calls for out in call.outputs]


def _looked_up(recording: Recording) -> list[str]:
    """Names of the inputs of ids that an embedding table turns into states, one an id."""
    return sorted(
        {name for call in recording.values() for name in call.reads_ids if _is_table(call)}
    )


def _is_table(call: Call) -> bool:
    """Whether a module returned one state for each id that it took."""
    return any(len(out.vectors) == call.ids_read for out in call.outputs)


def _tables(recording: Recording) -> set[str]:
    """The innermost modules that turn ids into states."""
    found = {call.name for call in recording.values() if call.reads_ids and _is_table(call)}
    return {name for name in found if not any(name != n and holds(name, n) for n in found)}


def _bare_encoder(model: nn.Module, calls: Sequence[ObservedCall]) -> TracedParts:
    blocks = find_blocks(find_stacks(model, calls), None, len(calls) * 2)
    encoder = find_encoder(calls, blocks, None, ()) if blocks else None
    layers = blocks.name if blocks else None
    return TracedParts(None, None, None, encoder, None, "none", (), encoder_layers=layers)


def _full_model(
    model: nn.Module,
    calls: Sequence[ObservedCall],
    replaced: Sequence[Tensor],
    inputs: Mapping[str, Any],
) -> TracedParts:
    stacks = find_stacks(model, calls)
    language = find_language(stacks, replaced)
    if language is None:
        layers = computed_inside(model, unflattened(inputs))
        lists = sorted({name.rpartition(".")[0] for name in layers})
        computed = f"; never called, while what is inside is: layers of {', '.join(lists)}"
        raise NormprobeError(
            f"no stack of layers in {type(model).__name__} reads the text, prompt by prompt, when "
            f"it first runs; lists of blocks that ran: "
            f"{', '.join(stack.name for stack in stacks) or 'none'}{computed * bool(lists)}",
            "layers are found in a ModuleList or Sequential; name the parts in overrides.py",
        )
    embedding = find_embedding(calls, language)
    visual = visual_tokens(calls, stacks, language)
    blocks = find_blocks(stacks, language.stack, visual.read)
    discrete = embedding is not None and is_looked_up(calls, visual, embedding)
    source = None
    if not discrete:
        apart = [stack.name for stack in (language.stack, blocks) if stack]
        source = find_projector(model, calls, visual, apart)
    projector = source.name if source else None
    fusion = fusion_of(calls, language, visual, replaced, projector, embedding)
    apart = [name for name in (language.stack.name, embedding) if name is not None]
    return TracedParts(
        decoder_layers=language.stack.name,
        visual_positions=language.visual,
        projector=projector,
        vision_encoder=find_encoder(calls, blocks, projector, apart),
        text_embedding=embedding,
        fusion="discrete" if discrete else fusion,
        injected_layers=injected_layers(language),
        emitters=source.emitters if source else (),
        text_table=_holders(model, embedding),
        encoder_layers=blocks.name if blocks else None,
    )


def _holders(model: nn.Module, name: str | None) -> tuple[str, ...]:
    """Names of all modules that hold a parameter of a module: tables may be tied."""
    if name is None:
        return ()
    own = {id(parameter) for parameter in model.get_submodule(name).parameters(recurse=False)}
    return tuple(
        other
        for other, module in model.named_modules()
        if any(id(parameter) in own for parameter in module.parameters(recurse=False))
    )


ROLES = ("vision_encoder", "projector", "text_embedding", "decoder_layers")


def verify(parts: Parts, traced: TracedParts) -> pd.DataFrame:
    """Compare what ``find_parts`` says with what a trace shows."""
    rows = []
    for role in ROLES:
        part = getattr(parts, role)
        static, found = part.name if part else None, getattr(traced, role)
        agree = static == found or static in _alike(role, traced)
        # What is said to stand behind a projector may hide it from a trace (SlowFast-LLaVA).
        agree |= role == "projector" and found is None and bool(parts.behind)
        rows.append({"part": role, "static": static, "traced": found, "agree": agree})
    return pd.DataFrame(rows, columns=["part", "static", "traced", "agree"])


def _alike(role: str, traced: TracedParts) -> list[str]:
    """Other names that agree with the traced one."""
    if role == "text_embedding":
        return list(traced.text_table)
    if role == "projector" and traced.projector is not None:
        projector = traced.projector
        return [n for n in traced.emitters if holds(n, projector) or holds(projector, n)]
    return []


class UnreadWeights(Exception):
    """A trace is asked for, which runs the whole model, and not all of its weights were read."""


def find_or_trace(
    model: nn.Module,
    named: Mapping[str, object],
    example: Callable[[], Mapping[str, Any]],
    *,
    unread: bool = False,
) -> tuple[Parts, str]:
    """Find the parts by structure and by name; where that fails, what is not named by a trace.

    A structure without a vision side is believed only where the example holds no pixels.
    ``unread``: the model lacks weights that were not needed so far.

    Returns:
        The parts, and how they were found: ``structure``, ``by hand`` or ``trace``.

    Raises:
        UnreadWeights: a trace has to run, and weights are ``unread``.
    """

    def traced_parts(inputs: Mapping[str, Any]) -> Parts:
        if unread:
            raise UnreadWeights
        return _traced(model, inputs)

    try:
        parts = find_parts(model, named=named)
    except NormprobeError as failure:
        _modules_named(model, named)  # refuses what is not there before anything runs
        try:
            traced = traced_parts(example())
            return with_named(model, traced, named), "by hand" if named else "trace"
        except NormprobeError as second:
            if named:
                raise failure from second
            named_alone = second.remedy.startswith("name ")
            if "has no attribute" in second.problem:  # the cause of both (VisionLLM v2)
                raise NormprobeError(
                    f"{second.problem}; it was run to find its parts: {failure.problem}",
                    f"{second.remedy}; or {failure.remedy}",
                ) from second
            raise NormprobeError(
                f"{failure.problem}; a trace of the running model fails, too: {second.problem}",
                f"{f'{second.remedy}; or ' * (not named_alone)}{failure.remedy}",
            ) from second
    # An encoder in a module whose text table only a trace finds is not bare (OdysseyAgent).
    inside = parts.vision_encoder is not None and parts.vision_encoder.name
    if inside and parts.text_embedding is None and not is_native(model):
        with suppress(NormprobeError):
            traced = traced_parts(example())
            if traced.vision_encoder is None:  # it opens a file, and no input is a picture
                encoder, rows = parts.vision_encoder, parts.class_rows
                traced = replace(traced, vision_encoder=encoder, class_rows=rows)
            parts = with_named(model, traced, named)
            if not named:
                return parts, "trace"
    if named:
        one_side = (parts.projector is None) != (parts.vision_encoder is None)
        if one_side and not is_native(model):
            with suppress(NormprobeError):  # beside a named projector (LaViDa) or encoder (LLaVAR)
                traced = traced_parts(example())
                if traced.decoder_layers == parts.decoder_layers:
                    parts = replace(parts, **_other_side(parts, traced))
        return parts, "by hand"
    if parts.text_embedding is None or parts.vision_encoder or parts.projector:
        return parts, "structure"
    try:
        inputs = example()
    except NormprobeError:  # nothing to look at, so no image either
        return parts, "structure"
    return (traced_parts(inputs), "trace") if pixel_inputs(inputs) else (parts, "structure")


def _other_side(parts: Parts, traced: Parts) -> dict[str, Any]:
    """What a trace found of the vision side beside the one part of it that is known."""
    if parts.vision_encoder is None:
        return {"vision_encoder": traced.vision_encoder, "class_rows": traced.class_rows}
    return {"projector": traced.projector, "visual_embedding": traced.visual_embedding}


def retraced(model: nn.Module, parts: Parts, inputs: Mapping[str, Any]) -> Parts | None:
    """The parts with the vision side that a trace finds; None where it finds no other one.

    What was named by hand stays.
    """
    try:
        traced = _traced(model, inputs)
    except NormprobeError:
        return None
    same = parts.decoder_layers == traced.decoder_layers and traced.vision_encoder is not None
    if not same:
        return None
    sides = {"vision_encoder", "projector", "visual_embedding", "class_rows"} - parts.named
    if traced.projector is None:  # what is called once a sample may not be told (VideoLLaMB)
        sides -= {"projector", "visual_embedding"}
    return replace(parts, **{side: getattr(traced, side) for side in sides})


def with_named(model: nn.Module, parts: Parts, named: Mapping[str, Any]) -> Parts:
    """Traced parts, and those named by hand in place of what was traced."""
    modules = _modules_named(model, named)
    others = {f"{kind}_token_ids" for kind in ("image", "video", "audio")} | {
        "fusion",
        "class_rows",
    }
    said = {name: value for name, value in named.items() if name in others}
    ids = {name: tuple(value) for name, value in said.items() if name.endswith("_ids")}
    found = {role: Part(name, model.get_submodule(name)) for role, name in modules.items()}
    if "vision_encoder" in found:
        said.setdefault("class_rows", class_rows_of(found["vision_encoder"], model))
    return replace(parts, **{**said, **ids, **found}, named=frozenset(named))


def _modules_named(model: nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
    """The modules among what is named by hand, each of which is there."""
    modules = {role: name for role, name in named.items() if role in ROLES and name is not None}
    for role, name in modules.items():
        check_name(model, role, name)
    return modules


def _traced(model: nn.Module, inputs: Mapping[str, Any]) -> Parts:
    """The parts that a trace finds."""
    traced = trace_parts(model, inputs_for(model, inputs))
    embedded = find_named(inputs, "inputs_embeds") is not None
    if embedded and traced.decoder_layers is None:  # no word and no pixel: what runs are its layers
        traced = replace(traced, decoder_layers=traced.encoder_layers)
        traced = replace(traced, vision_encoder=None, encoder_layers=None)
    for role in ("decoder_layers", "text_embedding")[: 1 if embedded else 2]:
        if getattr(traced, role) is None and not any(map(is_ids, flattened(inputs).values())):
            raise NormprobeError(
                f"the inputs ({', '.join(flattened(inputs))}) hold no token ids [batch, seq], so "
                "nothing shows which modules read the words: name decoder_layers, text_embedding, "
                "projector and vision_encoder",
                by_hand(
                    model,
                    **dict.fromkeys(
                        ("decoder_layers", "text_embedding", "projector", "vision_encoder"), "NAME"
                    ),
                ),
            )
        if getattr(traced, role) is None:
            raise NormprobeError(
                f"no {role.replace('_', ' ')} among what ran reads the ids as they were passed",
                by_hand(model, **{role: "NAME"}),
            )
    return _as_parts(model, traced)


def traced_example(model: nn.Module, parts: Parts, example: Mapping[str, Any]) -> TracedParts:
    """Trace one sample, to compare with the parts in use."""
    inputs, encoder = inputs_for(model, example), parts.vision_encoder
    if encoder is None or parts.decoder_layers is not None or not encoder.name:
        return trace_parts(model, inputs)
    traced = trace_parts(encoder.module, inputs)
    names = (traced.vision_encoder, traced.encoder_layers)
    inside = [name and f"{encoder.name}.{name}" for name in names]
    return replace(traced, vision_encoder=inside[0] or encoder.name, encoder_layers=inside[1])


def _around_layers(traced: TracedParts) -> str | None:
    """The encoder; where code calls its methods in place of itself, the module that has them."""
    encoder, layers = traced.vision_encoder, traced.encoder_layers
    if encoder is None or layers is None or holds(encoder, layers):
        return encoder
    path = layers.split(".")
    others = [traced.decoder_layers, traced.text_embedding, traced.projector]
    around = (".".join(path[:depth]) for depth in range(1, len(path)))
    alone = (name for name in around if not any(other and holds(name, other) for other in others))
    return next(alone, encoder)


def _as_parts(model: nn.Module, traced: TracedParts) -> Parts:
    """A traced model has no known image token id: its visual tokens are found by perturbation."""

    def part(name: str | None) -> Part | None:
        return None if name is None else Part(name, model.get_submodule(name))

    encoder = part(traced.vision_encoder)
    video_ids, audio_ids = video_and_audio_ids(model, {}, ())
    return Parts(
        vision_encoder=encoder,
        projector=part(traced.projector),
        text_embedding=part(traced.text_embedding),
        decoder_layers=part(traced.decoder_layers),
        visual_embedding=None,
        image_token_ids=(),
        fusion=traced.fusion if traced.fusion in FUSIONS else IN_SEQUENCE,
        class_rows=class_rows_of(part(_around_layers(traced)), model),
        video_token_ids=video_ids,
        audio_token_ids=audio_ids,
    )
