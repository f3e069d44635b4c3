"""What ``run.json`` says of a loaded model."""

import re
from collections.abc import Sequence
from typing import Any

import torch

from normprobe.model.align.norm import inserted_norm
from normprobe.model.find.attention import attention_of
from normprobe.model.find.overrides import FUSIONS
from normprobe.model.find.parts import family_of
from normprobe.model.load.device import device_and_dtype
from normprobe.model.load.weight_checks import is_relabelled, quantised_parts
from normprobe.model.measured_model import MeasuredModel
from normprobe.runs.run_store import RunStore


def note_model(
    run: RunStore,
    model: MeasuredModel,
    weights: dict[str, object] | None,
    notes: Sequence[str] = (),
) -> list[str]:
    """Record what was loaded: parts, alignment norm, device, dtype, attention."""
    parts = model.parts
    device, dtype = device_and_dtype(model.model)
    run.note(
        parts_found_by=model.found_by,
        parts={role: part.name for role, part in parts},
        image_token_ids=list(parts.image_token_ids),
        video_token_ids=list(parts.video_token_ids),
        audio_token_ids=list(parts.audio_token_ids),
        family=family_of(parts),
        norm_placement=model.norm_placement,
        sizes=_sizes(model),
        fusion=f"{parts.fusion}: {FUSIONS[parts.fusion]}",
        residual_stream=parts.stream.meaning,
        device=device,
        dtype=dtype,
        threads=torch.get_num_threads(),  # they split sums, whose last bits follow
        weights=weights,
        attn_implementation=attention_of(model.model, parts),
    )
    norm = inserted_norm(model.model)
    if norm is not None and "alignment" not in run.record:
        run.note(alignment=norm.placement)
    warnings = list(notes)
    kind = re.split("[:,]", device)[0]
    if kind and torch.is_autocast_enabled(kind):
        computes = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
        run.note(autocast=computes)
        warnings.append(f"torch.autocast is on: the model, of {dtype}, computes in {computes}")
    if family_of(parts) == "projector" and parts.projector is None:
        warnings.append("no projector found: its stages are left out; --projector NAME names one")
    if quantised := quantised_parts(parts):
        names = " and ".join(name.replace("_", " ") for name in quantised)
        warnings.append(f"the weights of {names} are quantised: their norms are not the original's")
    table = getattr(parts.text_embedding and parts.text_embedding.module, "weight", None)
    if parts.text_embedding is not None and table is not None and is_relabelled(table):
        warnings.append(
            f"the numbers of {parts.text_embedding.name} are nearly all of one size, as those of "
            "bfloat16 are that are read as float16: trained weights spread like a bell curve"
        )
    for warning in warnings:
        run.add_warning(warning)
    return warnings


def _sizes(model: MeasuredModel) -> dict[str, int | None]:
    """Hidden size and number of decoder layers, and the parameters of the whole model.

    None where there is no decoder, or where quantised weights do not show how many they are.
    """
    config: Any = getattr(model.model, "config", None)
    text = config.get_text_config(decoder=True) if config is not None else None
    counted = not quantised_parts(model.parts)
    return {
        "hidden_size": getattr(text, "hidden_size", None) if model.has_decoder else None,
        "decoder_layers": len(model.decoder_layers) if model.has_decoder else None,
        "parameters": sum(p.numel() for p in model.model.parameters()) if counted else None,
    }
