"""Norm alignment: the gain that gives visual tokens the norm of text tokens (Section 5.1).

``align/norm.py`` inserts the layer. What it is aligned to is measured here, because a row of the
text table is not always what the decoder reads: Gemma scales it, Granite scales text and visual
tokens alike.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.hooks import attached, on_output
from normprobe.inputs.on_device import pixel_inputs
from normprobe.model.align.norm import (
    GlobalWeightCompensatedLayerNorm,
    hidden_size_of,
    insert_norm,
    norm_set_aside,
    projector_to_align,
    remove_norm,
)
from normprobe.model.find.parts import Parts, weight_of
from normprobe.model.find.structure import find_parts
from normprobe.model.measured_model import MeasuredModel, embedding_scale
from normprobe.model.provenance import fitted
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL
from normprobe.statistics.token_metrics import token_norms
from normprobe.statistics.weights import row_norms

TABLE, PROMPT = "table", "prompt"

#: Scales nearer to 1 than this are means over slightly different rows, not scales of the model.
_SAME = 0.01
_PROBE_TOKENS = 16  # of the text that measures a model's own scale


@dataclass(frozen=True)
class Alignment:
    """What was inserted, and which norm it gives to visual tokens."""

    norm: GlobalWeightCompensatedLayerNorm
    after: str  # the projector's name
    target: str
    target_norm: float  # of visual tokens: at the decoder input; a number given: behind the norm
    gain: float
    #: What the model multiplies visual rows by behind the projector. None: it does something else
    #: there (adds positions, normalises), so their norm at the decoder input is not the target.
    scale: float | None


def align_norms(
    model: nn.Module,
    target: str | float = TABLE,
    *,
    inputs: Mapping[str, Any] | None = None,
    compensate: bool = True,
) -> GlobalWeightCompensatedLayerNorm:
    """Insert the paper's alignment layer behind the projector.

    Calling it again starts again: there is never more than one layer. ``remove_norm(model)`` takes
    it out.

    Args:
        model: a transformers vision-language model, before it is wrapped (DDP) or sharded (FSDP2).
        target: ``table``: the mean norm of the non-zero rows of the text embedding as they enter
            the decoder (Eq. 11); ``prompt``: of the text tokens of ``inputs`` there; a number: the
            norm of the layer's output.
        inputs: what the processor returned for a prompt with an image. Needed for ``prompt``, and
            where the model's own scales cannot be measured by text alone.
        compensate: False: without Global Weight Compensation of the gradient.

    Returns:
        The layer, ``model.alignment_norm``, with gain = target / sqrt(hidden) and bias 0. Train it
        with the projector.

    Raises:
        NormprobeError: where alignment makes no sense (discrete visual tokens, cross-attention, no
            projector), or the target cannot be measured.
    """
    examples = [] if inputs is None else [inputs]
    measured = MeasuredModel(model, find_parts(model))
    return align(measured, target, examples, compensate=compensate).norm


@torch.no_grad()
def align(
    model: MeasuredModel,
    target: str | float,
    examples: Sequence[Mapping[str, Any]],
    *,
    compensate: bool = True,
    here_alone: bool = False,
) -> Alignment:
    """Insert the layer in a model whose parts are known."""
    projector = projector_to_align(model.model, model.parts)
    measured = isinstance(target, str)
    if isinstance(target, str):
        text, scale = _text_norm(model, target, examples)
    else:
        text, scale = float(target), None
    example = next((inputs for inputs in examples if pixel_inputs(inputs)), None)
    gain = text / math.sqrt(hidden_size_of(model.parts))
    norm = insert_norm(model.model, model.parts, gain, compensate=compensate, here_alone=here_alone)
    try:
        if example is not None:
            scale = _scale_behind(model, norm, example)
        if measured and scale is not None:
            gain /= scale
            nn.init.constant_(norm.weight, gain)
    except BaseException:
        remove_norm(model.model)
        raise
    finally:
        model.notice_changed_weights()
    return Alignment(norm, projector.name, str(target), text, gain, scale)


def _text_norm(
    model: MeasuredModel, target: str, examples: Sequence[Mapping[str, Any]]
) -> tuple[float, float | None]:
    """The norm of text at the decoder input, and what multiplies every token behind the table."""
    if target not in (TABLE, PROMPT):
        raise NormprobeError(
            f"unknown alignment target {target!r}: expected {TABLE}, {PROMPT} or a number",
            f"pass {TABLE}, the paper's choice (Eq. 11)",
        )
    if target == TABLE:
        measured = _effective_table_norm(model, examples[0] if examples else None)
        if measured is not None:
            return measured
    if not examples:
        raise NormprobeError(
            f"{model} needs a prompt to measure the norm of text at its decoder input",
            "pass inputs=processor(...) with text and an image",
        )
    norms = [token_norms(model.batch(inputs).states_of(TEXT)) for inputs in examples]
    return float(torch.cat([lengths.double().cpu() for lengths in norms]).mean()), None


def _effective_table_norm(
    model: MeasuredModel, inputs: Mapping[str, Any] | None
) -> tuple[float, float] | None:
    """The mean norm of non-zero table rows times the model's own scale of them.

    None where that is no scalar: positions are added, and only prompts tell the norm of text.
    """
    parts = model.parts
    assert parts.text_embedding is not None
    inputs = inputs or _text_alone(parts)
    embedded: list[Tensor] = []
    with attached(on_output(parts.text_embedding.module, embedded.append)):
        x = model.decoder_input(inputs)
    # Special tokens are rows of the table like all others.
    prompt = MeasuredModel(model.model, parts).placed(inputs)
    groups, ids = fitted(prompt.groups.to(x.device), x, parts), prompt.ids
    assert ids is not None
    scale = embedding_scale(parts, ids, x, groups)
    if scale is None:
        return None
    table = row_norms(weight_of(parts.text_embedding))
    text = groups == TOKEN_GROUPS.index(TEXT)
    behind = 1.0
    if embedded and embedded[0].shape == x.shape:
        rows = embedded[0][text.to(embedded[0].device)]
        behind = float(token_norms(x[text]).mean() / token_norms(rows).mean().to(x.device))
    return abs(scale) * float(table[table > 0].mean()), _rounded(behind)


def _text_alone(parts: Parts) -> dict[str, Tensor]:
    """A prompt of rows from all over the table, without padding rows and image tokens."""
    assert parts.text_embedding is not None
    weight = weight_of(parts.text_embedding)
    norms = row_norms(weight)
    usable = np.setdiff1d(np.flatnonzero(norms > 0), parts.image_token_ids)
    chosen = usable[np.linspace(0, len(usable) - 1, _PROBE_TOKENS).astype(int)]
    ids = torch.from_numpy(chosen)[None].to(weight.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _scale_behind(
    model: MeasuredModel, norm: GlobalWeightCompensatedLayerNorm, inputs: Mapping[str, Any]
) -> float | None:
    """Norm of visual tokens at the decoder input over that behind the layer, if it is a factor.

    Whether it is one, a second run with twice the gain tells: it must double every visual token.
    Tokens may be reordered, merged or dropped on the way.
    """
    model.notice_changed_weights()  # a newline may pass the norm, too
    batch = model.batch(inputs)
    outputs: list[Tensor] = []
    with attached(on_output(norm, lambda state: outputs.append(token_norms(state).flatten()))):
        once = batch.states_of(VISUAL)
    behind = torch.cat(outputs).mean()
    with torch.no_grad():
        norm.weight.mul_(2)
        model.notice_changed_weights()
        twice = model.batch(inputs).states_of(VISUAL)
        norm.weight.div_(2)
    rounding = 8 * torch.finfo(once.dtype).eps
    misfit = token_norms(twice.float() - 2 * once.float())
    if not bool((misfit <= rounding * token_norms(twice)).all()):
        return None
    return _rounded(float(token_norms(once).mean() / behind))


def _rounded(scale: float) -> float:
    return 1.0 if abs(scale - 1) < _SAME else scale


@contextmanager
def aligned(
    model: MeasuredModel, target: str | float, examples: Sequence[Mapping[str, Any]]
) -> Iterator[Alignment]:
    """Align a model inside the block; after it, the model is as it was.

    What other threads run on it passes as if it were not aligned.
    """
    try:
        with norm_set_aside(model.model):
            try:
                yield align(model, target, examples, here_alone=True)
            finally:
                remove_norm(model.model)
    finally:
        model.notice_changed_weights()
