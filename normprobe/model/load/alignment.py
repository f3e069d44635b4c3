"""The alignment norm on disk: written as an adapter, read and checked, put back into a model.

Which checkpoints hold a norm, and what they say of it, is in ``model.config``.
"""

from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.model.align.norm import NAME, attach_norm, inserted_norm, running_device
from normprobe.model.checkpoint import Checkpoint, open_checkpoint
from normprobe.model.config import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AlignmentSettings,
    adapter_settings,
    write_adapter_settings,
)
from normprobe.model.find.parts import Part
from normprobe.model.load.gguf_weights import weight_files_of
from normprobe.model.load.repository import FETCH_AGAIN
from normprobe.model.load.weight_files import WeightFiles, adapter_files

#: The remedy where a norm was expected.
HOLDS_A_NORM = "pass an adapter of `normprobe align`, or a checkpoint of an aligned model"


def save_alignment(
    model: nn.Module, folder: Path, *, base_model: str, revision: str | None = None
) -> None:
    """Write the norm of an aligned model as an adapter.

    Args:
        model: of ``align_norms``.
        folder: made if absent; ``ADAPTER_FILES`` go there.
        base_model: what ``load_aligned`` is to load: a hub id or a path.
        revision: commit of a hub id.

    Raises:
        NormprobeError: when the model has no alignment norm.
    """
    from safetensors.torch import save_file

    norm = inserted_norm(model)
    if norm is None:
        raise NormprobeError(
            f"{type(model).__name__} has no alignment norm to save", "call align_norms(model) first"
        )
    settings = AlignmentSettings(
        **norm.placement,
        folder=folder,
        base_model=base_model,
        revision=revision,
        model_type=getattr(getattr(model, "config", None), "model_type", None),
        hidden_size=norm.normalized_shape[0],
    )
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"{NAME}.{name}": tensor.cpu() for name, tensor in norm.state_dict().items()}
    save_file(weights, folder / ADAPTER_WEIGHTS)
    write_adapter_settings(settings)


def saved_norm(
    source: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> dict[str, Tensor]:
    """Gain and bias of a saved alignment norm. No other weights are read."""
    if adapter_settings(Path(source)) is not None:
        return norm_weights(adapter_files(Path(source)))
    checkpoint = open_checkpoint(source, revision=revision, trust_remote_code=trust_remote_code)
    return norm_weights(weight_files_of(checkpoint))


def norm_weights(files: WeightFiles) -> dict[str, Tensor]:
    """Gain (``weight``) and ``bias`` of the norm, ``[hidden]`` each.

    Only the files that hold them are fetched, and only these two tensors are read.
    """
    source = files.repository.name
    keys = {name: f"{NAME}.{name}" for name in ("weight", "bias")}
    try:
        if lacking := [key for key in keys.values() if key not in files.file_of]:
            raise NormprobeError(f"no {' and no '.join(lacking)}", HOLDS_A_NORM)
        found = files.tensors(keys.values())
        weights = {name: cast(Tensor, found[key][...]) for name, key in keys.items()}
    except NormprobeError as error:
        raise NormprobeError(
            f"{source} gives no alignment norm: {error.problem}", HOLDS_A_NORM
        ) from error
    gain, bias = weights["weight"], weights["bias"]
    if gain.dim() != 1 or gain.shape != bias.shape:
        raise NormprobeError(
            f"the alignment norm of {source} has a gain of shape {list(gain.shape)} and a bias of "
            f"shape {list(bias.shape)}; expected one length",
            FETCH_AGAIN,
        )
    for name, weight in weights.items():
        if not bool(weight.isfinite().all()):
            raise NormprobeError(
                f"{source} holds NaN or infinity in {keys[name]}",
                "fetch it again, or go back to a step before the training diverged",
            )
    return weights


def restore_alignment_norm(checkpoint: Checkpoint, files: WeightFiles, model: nn.Module) -> None:
    """Attach the alignment norm of a checkpoint where it was, if it holds one.

    The auto classes know nothing of the norm and leave it out in silence. Where the projector was
    not loaded, the model goes without it.
    """
    settings = checkpoint.alignment
    if settings is None:
        return

    def mismatch(what: str) -> NormprobeError:
        return NormprobeError(
            f"the alignment norm does not fit its base model: {what}",
            "fetch the checkpoint again"
            if settings.base_model is None
            else f"set base_model in {ADAPTER_CONFIG} to the model that it was made for",
        )

    config = getattr(model, "config", None)
    model_type = getattr(config, "model_type", None)
    if settings.model_type not in (None, model_type):
        raise mismatch(f"made for a {settings.model_type}, the base model is a {model_type}")
    try:
        projector = Part(settings.after, model.get_submodule(settings.after))
    except AttributeError:
        raise mismatch(
            f"it stands behind {settings.after}, which {type(model).__name__} has not"
        ) from None
    if running_device(projector.module).type == "meta":
        return
    weights = norm_weights(files if settings.folder is None else adapter_files(settings.folder))
    hidden = len(weights["weight"])
    text = config.get_text_config(decoder=True) if config is not None else None
    expected = getattr(text, "hidden_size", hidden)
    if expected != hidden:
        raise mismatch(f"it has {hidden} gains, the decoder reads rows of {expected}")
    norm = attach_norm(model, projector, hidden, compensate=settings.compensate)
    # As exact as it was saved: a gain trained in float32 inside a bfloat16 model stays so.
    own = norm.weight
    saved = {
        name: weight.to(own.device, torch.promote_types(own.dtype, weight.dtype))
        for name, weight in weights.items()
    }
    norm.load_state_dict(saved, assign=True)
