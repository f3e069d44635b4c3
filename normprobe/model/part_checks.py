"""See that parts do what they are taken for, by the first batch with an image.

A guess by structure that fails is followed by what stands beside it, then by a trace of the vision
side. A projector or encoder that nothing replaces is left out, and all else is measured without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.failures import is_native
from normprobe.hooks import after_call, attached
from normprobe.inputs.on_device import with_other_pixels
from normprobe.model.attended_rows import source_of_attended
from normprobe.model.find.overrides import ADDS_POSITIONS, CROSS_ATTENTION, DISCRETE
from normprobe.model.find.parts import (
    Part,
    Parts,
    by_hand,
    class_rows_of,
    holders_of,
    with_projector,
)
from normprobe.model.find.structure import other_projectors
from normprobe.model.handed_rows import (
    are_among,
    is_one_of_several,
    share_of_rows,
    wrong_part,
)
from normprobe.model.tracing.trace import retraced
from normprobe.schema import (
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    STRUCTURAL,
    TOKEN_GROUPS,
    VISION_ENCODER,
    VISUAL,
)
from normprobe.tensors import with_tensors

if TYPE_CHECKING:
    from normprobe.model.measured_model import MeasuredBatch, MeasuredModel

_VISUAL = TOKEN_GROUPS.index(VISUAL)

#: Of the visual tokens, the share that tells a projector.
_MOST = 0.5

#: Of an encoder's rows the share that class rows and padding may be, about.
_FEW = 0.2

#: What to say of rows that other ones enter the decoder for.
_POOLED = (
    'if its rows are pooled or mixed behind it, say how: "behind": "WORDS" in parts of an --inputs '
    "file"
)


def check_parts(model: MeasuredModel, batch: MeasuredBatch) -> bool:
    """Check the parts of a model, and take others where these are wrong.

    Returns:
        Whether the batch told: it has to hold a visual row.

    Raises:
        NormprobeError: a part looks wrong, nothing replaces it, and without it another looks wrong.
    """
    attends = model.parts.fusion == CROSS_ATTENTION
    if model.parts.fusion == DISCRETE or (attends and is_native(model.model)):
        return False  # no row of the projector enters the sequence
    wrong, seen = _wrong_part(model, batch)
    if wrong is not None and not (
        _class_rows_enter(model, batch) or _beside(model, batch, wrong[0])
    ):
        if not _settled(model, batch, *wrong):
            return False
        if wrong[0] == "vision_encoder":
            _doubt_projector_too(model, batch)
    elif seen and model.parts.behind:
        _doubt_unchecked_projector(model)
    elif seen and not attends:
        _doubt_other_calls(model, batch)
    if attends:
        _check_attended(model, batch)
    if seen and not is_native(model.model):
        _doubt_positions(model)
        _doubt_two_branches(model, batch)
        _doubt_class_rows(model, batch)
    return seen


def _doubt_projector_too(model: MeasuredModel, batch: MeasuredBatch) -> None:
    """Say where the projector behind a doubtful vision encoder looks wrong as well (ColFlor)."""
    guessed = model.parts
    if guessed.projector is None or guessed.vision_encoder is None:
        return
    model.take(replace(guessed, vision_encoder=None))
    wrong, _ = _wrong_part(model, batch)
    model.take(guessed)
    if wrong is not None:
        model.add_doubt(f"{guessed.projector.name} looks like no projector, too: it {wrong[1]}")


def _class_rows_enter(model: MeasuredModel, batch: MeasuredBatch) -> bool:
    """Whether all is right where class rows enter the decoder, too (Valley)."""
    guessed = model.parts
    if not guessed.class_rows or "class_rows" in guessed.named:
        return False
    model.take(replace(guessed, class_rows=0))
    handed = model.watched(batch.inputs)[0]
    encoded, taken = (handed.get(stage, ()) for stage in (VISION_ENCODER, PROJECTOR_INPUT))
    # A projector that takes fewer rows takes none of these (CXR-LLaVA).
    if len(encoded) <= len(taken) and _wrong_part(model, batch)[0] is None:
        return True
    model.take(guessed)
    return False


def _beside(model: MeasuredModel, batch: MeasuredBatch, role: str) -> bool:
    """Whether another module beside the encoder is the projector (Ferret)."""
    guessed = model.parts
    if role != "projector" or "projector" in guessed.named:
        return False
    for other in other_projectors(model.model, guessed):
        model.take(with_projector(guessed, other))
        if _wrong_part(model, batch)[0] is None:
            return True
    model.take(guessed)
    return False


def _settled(model: MeasuredModel, batch: MeasuredBatch, role: str, does: str) -> bool:
    """Say what was found in place of a wrong part, or leave it out; whether that could be told."""
    name, by_name = getattr(model.parts, role).name or str(model), role in model.parts.named
    problem = f"{name} looks like no {role.replace('_', ' ')}"
    if role == "vision_encoder" and not by_name and _called_inside(model, batch):
        return True
    traced, still = _traced(model, batch, role)
    if traced is not None:
        found = getattr(traced, role).name
        said = f"{problem}: it {does}; a trace found {found}"
        if still and found == name:
            said = f"{name} {does}, the others of another module"
        elif still:
            said += f": it {still[1]}, the others of another module"
        elif found.startswith(f"{name}."):
            said = ""  # what holds it is never called itself
    elif model.parts.fusion == CROSS_ATTENTION:
        return False  # it may run behind layer 1
    elif _is_one_of_several(model, batch):
        said = f"{name} {does}, the others of another module"
    elif model.found_by != "by hand":
        said = _kept_or_left_out(
            model, batch, role, f"{problem}: it {does}", _way(model, role, does)
        )
    elif by_name and role == "projector":
        unless = "if it is no projector, its stages are wrong"
        said = f"{name}, named by hand, {does}: {unless}; {_POOLED}"
    else:
        said = f"{problem}{', as it was named by hand' * by_name}: it {does}"
    model.add_doubt(said)
    return True


def _called_inside(model: MeasuredModel, batch: MeasuredBatch) -> bool:
    """Take the module inside an encoder, never called itself, whose rows the projector takes.

    Of several the last, as the norm of timm's towers, of which code calls ``forward_features``.
    """
    guessed = model.parts
    rows = model.watched(batch.inputs)[0].get(PROJECTOR_INPUT)
    if rows is None or guessed.vision_encoder is None:
        return False
    encoder, found = guessed.vision_encoder, list[str]()

    def seen(name: str, state: Any) -> None:
        if isinstance(state, Tensor) and state.dim() > 1 and state.is_floating_point():
            state = state.reshape(-1, state.shape[-1])
            if len(state) >= len(rows) and are_among(rows, state):
                found.append(name)

    model.take(guessed)  # what was watched is seen again
    handles = [
        after_call(inside, lambda *call, name=name: seen(name, call[-1]))
        for name, inside in encoder.module.named_modules()
        if name
    ]
    with attached(*handles):
        model.watched(batch.inputs)
    if found:
        name = f"{encoder.name}.{found[-1]}"
        part = Part(name, model.model.get_submodule(name))
        rows_before = class_rows_of(part, model.model) or guessed.class_rows
        model.take(replace(guessed, vision_encoder=part, class_rows=rows_before))
        if _wrong_part(model, batch)[0] is None:
            return True
    model.take(guessed)
    return False


def _traced(
    model: MeasuredModel, batch: MeasuredBatch, role: str
) -> tuple[Parts | None, tuple[str, str] | None]:
    """The parts that a trace found, if they fit; and what is wrong where others make some rows."""
    guessed = model.parts
    if model.found_by == "trace" or role in guessed.named:
        return None, None
    traced = retraced(model.model, guessed, batch.inputs)
    if traced is None:
        return None, None
    model.take(traced)
    still = _wrong_part(model, batch)[0]
    if still is not None and not _is_one_of_several(model, batch):
        model.take(guessed)
        return None, None
    if model.found_by == "structure":
        model.found_by = "trace"
    return traced, still


def _way(model: MeasuredModel, role: str, does: str) -> str:
    """What a user can do about a part that was not found."""
    way = by_hand(model.model, **{role: "NAME"})
    if any(weight.is_meta for weight in model.model.parameters()):  # no trace runs without them
        way += "; or add --verify: all weights are read then, and a trace looks for it"
    if does.startswith("hands over nothing"):
        way += "; where its forward is called by name, which no hook sees, one inside it"
    return f"{way}; {_POOLED}" if role == "projector" else way


def _kept_or_left_out(
    model: MeasuredModel, batch: MeasuredBatch, role: str, problem: str, way: str
) -> str:
    """Keep a projector that makes most of the visual tokens; else leave a part out. What to say."""
    if role == "projector" and (said := _of_most(model, batch)):
        return said
    guessed = model.parts
    if role == "projector":
        model.take(replace(guessed, projector=None, visual_embedding=None))
    elif guessed.projector is not None:
        model.take(replace(guessed, vision_encoder=None))
    if _wrong_part(model, batch)[0] is not None:
        model.take(guessed)
        raise NormprobeError(problem, way)
    return f"{problem}; its stages are left out: {way}"


def _of_most(model: MeasuredModel, batch: MeasuredBatch) -> str:
    """Take the projector whose rows most of the visual tokens are; what to say, "" for none."""
    guessed, shares = model.parts, list[tuple[float, str, Part]]()
    for part in filter(None, (guessed.projector, *other_projectors(model.model, guessed))):
        model.take(with_projector(guessed, part))
        handed_over, visual = _rows(model, batch)
        share = share_of_rows(handed_over.get(PROJECTOR_OUTPUT), visual)
        shares.append((share, part.name, part))
    share, name, most = max(shares)
    model.take(with_projector(guessed, most) if share >= _MOST else guessed)
    if share < _MOST:
        return ""
    return (
        f"{name} is taken for the projector, and of the visual tokens that were looked at "
        f"{1 - share:.0%} are no rows of it: they are pooled or mixed behind it, or another "
        f"module's; {_POOLED}"
    )


def _doubt_other_calls(model: MeasuredModel, batch: MeasuredBatch) -> None:
    """Say where the projector serves another module as well (MoAI)."""
    if model.parts.projector is None:
        return
    beside, entering = model.calls_beside(_rows(model, batch)[1])
    if beside and entering:
        model.add_doubt(
            f"{model.parts.projector.name} runs {beside + entering} times a forward, and of "
            f"{beside} no row enters the decoder: its stages hold the rows of all"
        )


def doubt_idle_rows(model: MeasuredModel, batch: MeasuredBatch) -> None:
    """Say once where the projector hands over rows that enter nowhere, beside all that do.

    It is of the stages, and not of what enters the decoder layers.
    """
    projector = model.parts.projector
    if model.idle_seen or is_native(model.model) or projector is None:
        return
    entered = model.watched(batch.inputs)[1]
    groups = batch.groups_at(entered)
    enters = (groups == _VISUAL) | (groups == TOKEN_GROUPS.index(STRUCTURAL))
    if not enters.any():  # of text alone
        return
    model.idle_seen = True
    idle, rows = model.rows_beside(entered[enters], int((groups == _VISUAL).sum()))
    if idle and not model.calls_beside(entered[groups == _VISUAL])[0]:
        model.add_doubt(
            f"of {rows} rows that {projector.name} hands over {idle} enter no position of the "
            "decoder (cut away as what pads a picture, or of one that code makes up): its stages, "
            "and those before, hold them, too"
        )


def _doubt_unchecked_projector(model: MeasuredModel) -> None:
    """Say which projector was taken of several, where its rows are no longer seen behind it."""
    parts = model.parts
    if is_native(model.model) or {"projector", "fusion"} & parts.named or parts.projector is None:
        return
    if others := sorted(other.name for other in other_projectors(model.model, parts)):
        model.add_doubt(
            f"{parts.projector.name} is taken for the projector, and {', '.join(others)} may be it "
            'as well: where "behind" is said, rows do not tell; name it by --part projector=NAME'
        )


def _doubt_positions(model: MeasuredModel) -> None:
    """Say where only code outside of the forward makes positions by rows and columns (DexVLA)."""
    asks = any(hasattr(module, "get_rope_index") for module in model.model.modules())
    if model.same_axes and asks:
        model.add_doubt(
            "layer 1 gets the same positions on all axes, and the model has get_rope_index, which "
            "its generate() may ask for rows and columns of pictures: to pass them, forward(model, "
            "**inputs) of an --inputs file calls model(position_ids=..., **inputs)"
        )
    config = getattr(model.model, "config", None)
    asked = getattr(config, "rope_pos_id_version", None)
    if model.counted and asked not in (None, "default"):  # V2PE, whose chat() makes them
        model.add_doubt(
            f"config.json names positions of its own for pictures, rope_pos_id_version {asked}, "
            "and rows are counted one by one: to pass them, forward(model, **inputs) of an "
            "--inputs file calls model(position_ids=..., **inputs)"
        )


def _doubt_two_branches(model: MeasuredModel, batch: MeasuredBatch) -> None:
    """Say where the projector is not behind the vision encoder: of two towers each may have one.

    VideoGPT+ names the tower of its clips, and a still picture passes through another.
    """
    encoder, projector = model.parts.vision_encoder, model.parts.projector
    if encoder is None or projector is None or encoder.name in ("", *holders_of(projector.name)):
        return
    if not other_projectors(model.model, model.parts):
        return
    taken = model.watched(batch.inputs)[0].get(PROJECTOR_INPUT)
    model.take(model.parts)
    with attached(after_call(encoder.module, lambda *seen: with_tensors(seen[-1], _other))):
        moved = model.watched(batch.inputs)[0].get(PROJECTOR_INPUT)
    model.take(model.parts)
    if taken is None or moved is None or taken.shape != moved.shape:
        return
    if torch.equal(taken, moved):
        model.add_doubt(
            f"what {projector.name} takes stays as it is where {encoder.name} hands over other "
            "rows: they may be of two branches; name both by --part"
        )


def _doubt_class_rows(model: MeasuredModel, batch: MeasuredBatch) -> None:
    """Say where an encoder hands over a few rows more than its projector takes."""
    handed = model.watched(batch.inputs)[0]
    encoded, taken = (len(handed.get(stage, ())) for stage in (VISION_ENCODER, PROJECTOR_INPUT))
    encoder = model.parts.vision_encoder
    taken = taken if model.rows_given != encoded else encoded
    if encoder is not None and 0 < encoded - taken <= _FEW * encoded:
        model.add_doubt(
            f"{encoder.name} hands over {encoded} rows that count as visual, and the projector "
            f"takes {taken}: class rows or padding may be among them; name what hands over those "
            "alone by --part vision_encoder=NAME"
        )


def _other(state: Tensor) -> Tensor:
    return 2 * state + 1 if state.is_floating_point() else state


def _check_attended(model: MeasuredModel, batch: MeasuredBatch) -> None:
    """Take the module whose rows text attends to for the projector, if it is another one."""
    handing = model.parts.projector or model.parts.vision_encoder
    if handing is None:
        return
    layers = model.decoder_layers
    name, doubt = source_of_attended(model.model, model.parts, layers, batch.inputs)
    if name != handing.name:
        model.take(with_projector(model.parts, Part(name, model.model.get_submodule(name))))
    model.add_doubt(doubt)


def _rows(model: MeasuredModel, batch: MeasuredBatch) -> tuple[dict[str, Tensor], Tensor]:
    """What the vision side hands over, and the visual tokens that enter the decoder."""
    handed_over, entered = model.watched(batch.inputs)
    return handed_over, entered[batch.groups_at(entered) == _VISUAL]


def _is_one_of_several(model: MeasuredModel, batch: MeasuredBatch) -> bool:
    """Whether another module beside the projector makes visual tokens, too."""
    handed_over, visual = _rows(model, batch)
    named = "projector" in model.parts.named
    return is_one_of_several(handed_over.get(PROJECTOR_OUTPUT), visual, named=named)


def _wrong_part(model: MeasuredModel, batch: MeasuredBatch) -> tuple[tuple[str, str] | None, bool]:
    """Which part looks wrong, of ``wrong_part``, and whether the batch has a visual row."""
    handed_over, entered = model.watched(batch.inputs)
    visual = batch.groups_at(entered) == _VISUAL
    if model.parts.fusion == CROSS_ATTENTION:
        return wrong_part(model.parts, handed_over, entered[visual]), True
    if not visual.any():
        return None, False
    wrong = wrong_part(model.parts, handed_over, entered[visual])
    if wrong is None or PROJECTOR_OUTPUT not in handed_over:
        return wrong, True
    others, other = model.watched(with_other_pixels(batch.inputs))
    taken = [each.get(PROJECTOR_INPUT, torch.empty(0)) for each in (handed_over, others)]
    if wrong[0] == "vision_encoder" and taken[0].shape == taken[1].shape:
        # Words may enter the projector beside the encoder's rows (Parrot).
        of_pixels = taken[0][(taken[0] != taken[1]).any(-1)]
        by_pixels = {**handed_over, PROJECTOR_INPUT: of_pixels}
        wrong = wrong_part(model.parts, by_pixels, entered[visual])
    if wrong is not None and wrong[0] == "projector":
        # What is added behind it, such as positions, cancels in differences.
        rows = [(handed_over[PROJECTOR_OUTPUT], others[PROJECTOR_OUTPUT]), (entered, other)]
        if all(before.shape == after.shape for before, after in rows):
            projected, moved = (before - after for before, after in rows)
            by_pixels = {**handed_over, PROJECTOR_OUTPUT: projected}
            if wrong_part(model.parts, by_pixels, moved[visual]) is None:
                model.parts, wrong = replace(model.parts, behind=ADDS_POSITIONS), None
    return wrong, True
