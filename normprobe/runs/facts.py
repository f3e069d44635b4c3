"""What the record of a run says of its model: facts, warnings, doubts, what was verified."""

import logging
import re
from collections.abc import Sequence
from typing import Any

import torch

from normprobe.inputs.on_device import transformers_config
from normprobe.model.align.norm import inserted_norm
from normprobe.model.attention_weights import attention_implementations
from normprobe.model.captured_states import Differences, in_doubt
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.find.overrides import DISCRETE
from normprobe.model.find.parts import Parts, family_of, fusion_in_words
from normprobe.model.load.loading import device_and_dtype
from normprobe.model.load.weight_checks import is_relabelled, quantised_parts
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tracing.trace import TracedParts, verify
from normprobe.runs.begin import doubt
from normprobe.runs.fingerprints import fingerprints
from normprobe.runs.run_folder import RunStore

log = logging.getLogger(__name__)


def checkpoint_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a record says of a checkpoint before its weights are read."""
    return {
        "model": checkpoint.name,
        "model_revision": checkpoint.revision,
        "model_type": checkpoint.config.model_type,
        "model_files": fingerprints(*checkpoint.local_folders),
        "adapter_revision": checkpoint.adapter_revision,
    }


def model_facts(model: Any) -> dict[str, Any]:
    """What a record says of a model in memory: its name, if it has one, and its type."""
    config = transformers_config(model)
    return {
        "model": getattr(config, "name_or_path", None) or type(model).__name__,
        "model_revision": None,
        "model_type": getattr(config, "model_type", None),
        "model_files": {},
        "adapter_revision": None,
    }


def note_model(
    run: RunStore,
    model: MeasuredModel,
    weights: dict[str, object] | None,
    notes: Sequence[str] = (),
) -> list[str]:
    """Record what was loaded: parts, alignment norm, device, dtype, attention."""
    parts = model.parts
    device, dtype = device_and_dtype(model.model)
    note_parts(run, model)
    run.note(
        sizes=_sizes(model),
        residual_stream=parts.stream.meaning,
        device=device,
        dtype=dtype,
        threads=torch.get_num_threads(),  # they split sums, whose last bits follow
        weights=weights,
        attn_implementation=attention_implementations(model.model, parts),
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
    if family_of(parts) == "projector" and parts.projector is None and parts.fusion != DISCRETE:
        warnings.append(
            "no projector found: its stages are left out; --part projector=NAME names one"
        )
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


def note_parts(run: RunStore, model: MeasuredModel) -> None:
    """Record the parts, and how they were found: the first batch may tell others.

    So it does of norms whose place made-up tokens do not show.
    """
    parts = model.parts
    run.note(
        norm_placement=model.norm_placement,
        parts_found_by=model.found_by,
        parts={role: part.name for role, part in parts},
        image_token_ids=list(parts.image_token_ids),
        video_token_ids=list(parts.video_token_ids),
        audio_token_ids=list(parts.audio_token_ids),
        family=family_of(parts),
        fusion=f"{parts.fusion}: {fusion_in_words(parts)}",
    )


def _sizes(model: MeasuredModel) -> dict[str, int | None]:
    """Hidden size and number of decoder layers, and the parameters of the whole model.

    None where there is no decoder, or where quantised weights do not show how many they are.
    """
    config = transformers_config(model.model)
    text = config.get_text_config(decoder=True) if config is not None else None
    counted = not quantised_parts(model.parts)
    return {
        "hidden_size": getattr(text, "hidden_size", None) if model.has_decoder else None,
        "decoder_layers": len(model.decoder_layers) if model.has_decoder else None,
        "parameters": sum(p.numel() for p in model.model.parameters()) if counted else None,
    }


def note_verified(run: RunStore, parts: Parts, traced: TracedParts) -> None:
    """Record and say where a trace and the parts in use agree."""
    table = verify(parts, traced)
    run.note(verified=table.to_dict("records"))
    for _, row in table.iterrows():
        found = row["traced"] if isinstance(row["traced"], str) else "none"
        static = row["static"] if isinstance(row["static"], str) else "none"
        word = "agrees" if row["agree"] else f"DIFFERS: the trace finds {found}"
        log.warning("%s: %s %s", row["part"].replace("_", " "), static, word)
    if not table["agree"].all():
        doubt(run, "parts differ from a trace of the running model, see `verified`")


def note_recomputed(run: RunStore, found: Differences, dtype: torch.dtype) -> None:
    """Record and say how far recomputed numbers are from the measured ones."""
    numbers = {name: value for name, value in found.items() if not isinstance(value, str)}
    reasons: dict[str, list[str]] = {}
    for name, value in found.items():
        if isinstance(value, str):
            reasons.setdefault(value, []).append(_words([name]))
    run.note(recomputed={**found, **{name: float(f"{v:.2g}") for name, v in numbers.items()}})
    told = ", ".join(f"{_words([name])} {value:.1e}" for name, value in numbers.items())
    log.warning("recomputed without hooks in float64, largest differences: %s", told)
    if reasons:
        missing = (f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
        log.warning("not recomputed: %s", "; ".join(missing))
    if doubted := in_doubt(found, dtype):
        doubt(run, f"{_words(doubted)}: DIFFERS when recomputed without hooks, see `recomputed`")


def _words(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)


def note_buffers(run: RunStore, changed: Sequence[str]) -> None:
    """Say which buffers hold something else than those of a fresh build."""
    if changed:
        names = ", ".join(changed[:3]) + ", ..." * (len(changed) > 3)
        doubt(run, f"buffers DIFFER from those of a fresh build of the model: {names}")
