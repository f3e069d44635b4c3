"""The alignment norm on disk: an adapter of two files, or inside a checkpoint that was trained.

An adapter folder names its base model. A checkpoint of an aligned model, as ``save_pretrained`` or
a Trainer writes it, holds the norm beside its other weights and says so in its config.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.norm_alignment import (
    CONFIG_ENTRY,
    NAME,
    attach_norm,
    inserted_norm,
    running_device,
)
from normprobe.model.parts import Part
from normprobe.model.repository import FETCH_AGAIN, Repository
from normprobe.model.weight_files import WeightFiles

ADAPTER_CONFIG = "norm_alignment.json"
ADAPTER_WEIGHTS = "norm_alignment.safetensors"

ADAPTER_FILES = (ADAPTER_WEIGHTS, ADAPTER_CONFIG)

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
    settings = {
        "base_model": base_model,
        "revision": revision,
        "model_type": getattr(getattr(model, "config", None), "model_type", None),
        "hidden_size": norm.normalized_shape[0],
        **norm.placement,
    }
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"{NAME}.{name}": tensor.cpu() for name, tensor in norm.state_dict().items()}
    save_file(weights, folder / ADAPTER_WEIGHTS)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def adapter_settings(folder: Path) -> dict[str, Any] | None:
    """What an adapter folder says; None where ``folder`` is none.

    Raises:
        NormprobeError: when its config is broken.
    """
    path = folder / ADAPTER_CONFIG
    if not path.is_file():
        return None
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        if {"base_model", "revision", "after", "compensate"} <= settings.keys():
            return dict(settings)
        problem = "expected base_model, revision, after and compensate"
    except (OSError, ValueError, AttributeError) as error:
        problem = str(error)
    raise NormprobeError(
        f"cannot read {path}: {problem}", "write it again with `normprobe align MODEL --output DIR`"
    )


def norm_weights(files: WeightFiles) -> dict[str, Tensor]:
    """Gain (``weight``) and ``bias`` of the norm, ``[hidden]`` each.

    Only the files that hold them are fetched and only they are read.

    Args:
        files: of ``adapter_files``, or of ``weight_files_of`` a checkpoint that was trained.

    Raises:
        NormprobeError: when there is no alignment norm, its file cannot be read, or gain and bias
            are no two finite vectors of one length.
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


def adapter_files(folder: Path) -> WeightFiles:
    """The weight file of an adapter folder."""
    return WeightFiles(Repository(str(folder), str(folder), None), explicit=ADAPTER_WEIGHTS)


def put_back(model: nn.Module, settings: Mapping[str, Any], files: WeightFiles) -> None:
    """Attach a saved norm where it was. Nothing is read where the projector was left out.

    Args:
        model: the base model.
        settings: of ``saved_settings``: ``after`` and ``compensate``, and what else an adapter says
            about its base.
        files: as ``norm_weights`` takes them.

    Raises:
        NormprobeError: when the model is not the one that the norm was saved from, or as
            ``norm_weights``.
    """

    def mismatch(what: str) -> NormprobeError:
        remedy = f"set base_model in {ADAPTER_CONFIG} to the model that it was made for"
        return NormprobeError(
            f"the alignment norm does not fit its base model: {what}",
            remedy if "base_model" in settings else FETCH_AGAIN,
        )

    config = getattr(model, "config", None)
    model_type = getattr(config, "model_type", None)
    if settings.get("model_type") not in (None, model_type):
        raise mismatch(f"made for a {settings['model_type']}, the base model is a {model_type}")
    try:
        projector = Part(settings["after"], model.get_submodule(settings["after"]))
    except AttributeError:
        raise mismatch(
            f"it stands behind {settings['after']}, which {type(model).__name__} has not"
        ) from None
    if running_device(projector.module).type == "meta":
        return
    weights = norm_weights(files)
    hidden = len(weights["weight"])
    text = config.get_text_config(decoder=True) if config is not None else None
    expected = getattr(text, "hidden_size", hidden)
    if expected != hidden:
        raise mismatch(f"it has {hidden} gains, the decoder reads rows of {expected}")
    norm = attach_norm(model, projector, hidden, compensate=settings["compensate"])
    # As exact as it was saved: a gain trained in float32 inside a bfloat16 model stays so.
    own = norm.weight
    saved = {
        name: weight.to(own.device, torch.promote_types(own.dtype, weight.dtype))
        for name, weight in weights.items()
    }
    norm.load_state_dict(saved, assign=True)


def saved_settings(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What a checkpoint, or the adapter that opened it, says of its norm; None without one.

    Raises:
        NormprobeError: when the adapter's config is broken.
    """
    if checkpoint.alignment is not None:
        return adapter_settings(checkpoint.alignment)
    return getattr(checkpoint.config, CONFIG_ENTRY, None)
