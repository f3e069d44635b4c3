"""Norms from the vision encoder to the input of decoder layer 1 (Tables 1-3).

One sample a forward, because tiles and packed patches have no sample axis. The forward ends before
decoder layer 1: no decoder layer runs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.failures import is_native
from normprobe.hooks import attached, observing, on_input, run_until
from normprobe.inputs.on_device import moved_to, named_inputs, pixel_inputs, with_other_pixels
from normprobe.measurements.interface.table import SCALE_COLUMN, interface_table, table_rows
from normprobe.model.entry_norms import by_construction, entries_of
from normprobe.model.find.overrides import CROSS_ATTENTION
from normprobe.model.first_forward import check_entry
from normprobe.model.measured_model import MeasuredModel, embedding_scale
from normprobe.model.part_checks import doubt_idle_rows
from normprobe.model.stage_norms import StageNorms
from normprobe.model.tracing.trace import find_or_trace
from normprobe.model.vision_stages import VisionStages
from normprobe.schema import (
    AUDIO,
    DECODER_INPUT,
    PADDING,
    STRUCTURAL,
    TOKEN_GROUPS,
    VIDEO,
    VIDEO_MASK,
    VISUAL,
)
from normprobe.statistics.loud_tokens import loudest_token
from normprobe.statistics.sample_statistics import reported_groups, statistics_of
from normprobe.statistics.token_metrics import masks_of, token_norms
from normprobe.tensors import to_host


def probe_interface(
    model: nn.Module,
    inputs: Any,
    *,
    named: Mapping[str, Any] | None = None,
    special_token_ids: Iterable[int] | None = None,
) -> pd.DataFrame:
    """Measure the way from pixels to the decoder input on one batch of a model in memory.

    Where the structure of the model does not tell its parts, a trace of three forwards finds them.

    Args:
        model: a vision-language model, vision encoder or language model: any ``nn.Module``.
        inputs: one batch: what its processor returned, a tuple in the order of its forward, or a
            function that calls it, such as ``lambda m: m(ids, image=pixels)``; tensors or arrays.
        named: parts named by hand, as ``find_parts`` takes them.
        special_token_ids: ids to report as ``special`` rather than ``text``; None: the config's
            ``bos_token_id`` where it opens a prompt.

    Returns:
        interface.csv without intervals: a row a stage, token group and quantity. The batch counts
        as one sample.

    Raises:
        NormprobeError: when the parts are not found, or the batch does not fit the model.
    """
    inputs = named_inputs(model, inputs)
    parts, found_by = find_or_trace(model, named or {}, lambda: inputs)
    measured = MeasuredModel(model, parts, special_token_ids, found_by=found_by)
    seen = reported_groups(rows(observe(measured, inputs), None))
    return interface_table(seen, table_rows(parts, None), intervals=False)


def entry_facts(model: MeasuredModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a run records of how rows enter decoder layer 1; nothing where no batch shows it."""
    try:
        found = entries_of(model, inputs) if model.has_decoder else {}
    except NormprobeError:  # the measurement will say it
        return {}
    told = {group: {"norm": str(each), "module": each.module} for group, each in found.items()}
    return {"before_layer_1": told, "input_by_construction": by_construction(found)} if told else {}


@dataclass(frozen=True)
class SeenStages:
    """What one forward leaves, on its way to the CPU."""

    stages: list[StageNorms]
    # Norms and groups, [batch, seq]; and ids, where each has a state of its own.
    decoder_input: Callable[[], list[NDArray[Any]]] | None
    hidden_size: int
    scale: float | None  # of ``embedding_scale``
    attends: bool  # the text attends to the image: no visual token is in the sequence
    together: bool = False  # images and videos come in one tensor: stages tell neither apart


def observe(model: MeasuredModel, inputs: Mapping[str, Any]) -> SeenStages:
    """One forward up to decoder layer 1."""
    # Before a hook is there: the batch may run the vision side to tell its token groups.
    batch = model.batch(inputs) if model.has_decoder else None
    if batch is not None:
        check_entry(model, inputs)
        if model.parts.fusion != CROSS_ATTENTION:
            doubt_idle_rows(model, batch)
    attends = model.parts.fusion == CROSS_ATTENTION
    # Images and videos pass through the same modules: another video tells their rows apart.
    mixed = bool(pixel_inputs(inputs) and pixel_inputs(inputs, VIDEO))
    own_code = not is_native(model.model)
    marked = own_code and batch is not None and not mixed and batch.may_be_structural
    stages = VisionStages(model.parts, Tensor.clone if mixed or marked else token_norms)
    heard = VisionStages(model.parts, Tensor.clone, group=AUDIO)
    x = run_stages(model, inputs, stages, heard)
    if own_code:
        model.add_doubt(stages.joined)
        model.add_doubt(stages.leave_out_chosen())
    if mixed:
        other = VisionStages(model.parts, Tensor.clone)
        run_stages(model, with_other_pixels(inputs, VIDEO), other)
        stages.tell_videos(other)
    if batch is None or x is None:
        return SeenStages([stages.norms()], None, 0, None, attends)
    with observing(model.model):
        groups = batch.groups_at(x)
        if marked:
            stages.tell_structural(x[groups == TOKEN_GROUPS.index(STRUCTURAL)])
        held = [bool((groups == TOKEN_GROUPS.index(name)).any()) for name in (VIDEO, VISUAL)]
        if held == [True, False]:
            stages.tell_videos(None)
        heard.count_entered(x[groups == TOKEN_GROUPS.index(AUDIO)])
        told = [stages.norms(), heard.norms()]
        ids = batch.ids
        scale = None if ids is None else embedding_scale(model.parts, ids, x, groups)
        norms = token_norms(x)
        each = [] if ids is None or ids.shape != norms.shape else [ids]
        copied = to_host([norms, groups, *each])
        return SeenStages(told, copied, x.shape[-1], scale, attends, VIDEO_MASK in inputs)


def run_stages(
    model: MeasuredModel, inputs: Mapping[str, Any], *stages: VisionStages
) -> Tensor | None:
    """Run the model up to decoder layer 1 while ``stages`` watch it.

    Returns:
        The decoder input, ``[batch, positions, hidden]``; None of a bare vision encoder.
    """
    handles = [handle for each in stages for handle in each.handles()]
    states: list[Tensor] = []
    first_layer = model.decoder_layers[0] if model.has_decoder else None
    if first_layer is not None:
        handles.append(on_input(first_layer, states.append))
    # A dual encoder such as CLIP wants texts too: its vision side runs alone.
    encoder = model.parts.vision_encoder
    runs = encoder.module if encoder is not None and first_layer is None else model.model
    with observing(model.model), attached(*handles):
        run_until(runs, moved_to(model.model, inputs), entering=first_layer)
    return model.read_stream(states[0]) if states else None


def rows(seen: SeenStages, sample_ids: Sequence[str] | None) -> pd.DataFrame:
    """One row a (stage, token group)."""
    found, *heard = (each.rows() for each in seen.stages)
    if seen.decoder_input is not None:
        norms, codes, *ids = seen.decoder_input()
        held = masks_of(codes).keys()
        if not (seen.attends or VISUAL in held):
            found = []  # some code always wants pixels, and of text alone gets blank ones
        if {VIDEO} & held - {row["group"] for row in found} and not seen.together:
            found = []  # those of videos are not seen
        found += chain.from_iterable(heard) if AUDIO in held else []
        found.extend(_decoder_input_rows(norms, codes, ids[0] if ids else None, seen))
    (sample_id,) = sample_ids or ["0"]
    return pd.DataFrame({"sample_id": sample_id, **row} for row in found)


def _decoder_input_rows(
    norms: NDArray[Any], codes: NDArray[Any], ids: NDArray[Any] | None, seen: SeenStages
) -> list[dict[str, Any]]:
    scale = np.nan if seen.scale is None else seen.scale
    common = {"hidden_size": seen.hidden_size, SCALE_COLUMN: scale}
    positions = np.cumsum(codes != PADDING, axis=-1) - 1

    def of_loudest(mask: NDArray[np.bool_]) -> dict[str, float]:
        columns = loudest_token(
            norms[None, mask], positions[mask], None if ids is None else ids[mask]
        )
        return {name: value for name, (value,) in columns.items()}

    return [
        {
            "stage": DECODER_INPUT,
            "group": group,
            **common,
            **statistics_of(norms[None, mask], ["norm"]),
            **of_loudest(mask),
        }
        for group, mask in masks_of(codes).items()
    ]
