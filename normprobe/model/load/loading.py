"""Loads the model of a checkpoint; every weight comes from the checkpoint or stays on meta."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from normprobe.bridges import foreign_code
from normprobe.errors import NormprobeError
from normprobe.model.align.norm import inserted_norm
from normprobe.model.checkpoint import Checkpoint, open_checkpoint
from normprobe.model.load.alignment import HOLDS_A_NORM, put_norm_back
from normprobe.model.load.buffers import restore_buffers
from normprobe.model.load.build import build_on_meta, explained_failures
from normprobe.model.load.device import placement
from normprobe.model.load.partial_load import show_again
from normprobe.model.load.peft_adapter import merge_adapter
from normprobe.model.load.plan import LoadPlan, plan_loading
from normprobe.model.load.weight_checks import refuse_missing, refuse_non_finite, refuse_unread
from normprobe.versions import load_and_report

if TYPE_CHECKING:
    from torch import nn


def load_model(
    checkpoint: Checkpoint,
    plan: LoadPlan | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str | None = None,
    device_map: str | Mapping[str, str] | None = None,
) -> "nn.Module":
    """Load the weights of a checkpoint, all of them or those of a plan."""
    plan = plan or plan_loading(checkpoint, build_on_meta(checkpoint))
    arguments = placement(device, dtype, device_map)
    if attn_implementation:
        arguments["attn_implementation"] = attn_implementation
    if plan.keys is None or (device_map is not None and plan.files == plan.weights.files):
        # From its files, so that what is offloaded to the disk stays where it is.
        arguments |= {"revision": checkpoint.revision}
        arguments |= {"trust_remote_code": checkpoint.trust_remote_code}
        source: str | None = checkpoint.source
    else:
        arguments |= {"state_dict": plan.weights.tensors(plan.keys)}
        source = None
    if dtype == "auto" and (plan.keys is not None or plan.dtype is not None):
        arguments["dtype"] = plan.dtype
    trusted = foreign_code(checkpoint.trust_remote_code, checkpoint.bridges)
    with explained_failures(checkpoint), trusted:
        loaded = load_and_report(plan.model_class, source, config=checkpoint.config, **arguments)
    model, report = loaded
    # Where no source was passed, its own code and printed commands would meet the name "None".
    model.config.name_or_path, model.name_or_path = checkpoint.source, checkpoint.typed
    refuse_missing(checkpoint, report)
    refuse_unread(checkpoint, model)
    if plan.keys is not None:
        show_again(model)
    restore_buffers(checkpoint, model)
    if checkpoint.adapter is not None:
        model = merge_adapter(checkpoint, model)
    put_norm_back(checkpoint, plan.weights, model)
    refuse_non_finite(checkpoint, model)
    ready: nn.Module = model.eval()
    return ready


def load_aligned(
    folder: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
) -> "nn.Module":
    """Load a model with its alignment norm.

    Args:
        folder: an adapter of ``normprobe align``, or a checkpoint of an aligned model, as
            ``save_pretrained`` or a Trainer writes it.
        device: as in ``load_model``.
        dtype: as in ``load_model``.
        trust_remote_code: run the base model's own code.

    Returns:
        The base model in eval mode, the norm behind its projector.

    Raises:
        NormprobeError: when the base model is missing or another one, or there is no norm.
    """
    checkpoint = open_checkpoint(str(folder), trust_remote_code=trust_remote_code)
    model = load_model(checkpoint, device=device, dtype=dtype)
    if inserted_norm(model) is None:
        raise NormprobeError(f"{folder} holds no alignment norm", HOLDS_A_NORM)
    return model
