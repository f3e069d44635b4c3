"""The alignment norm on disk: an adapter of two files, or inside a checkpoint that was trained.

An adapter folder names its base model. A checkpoint of an aligned model, as ``save_pretrained`` or
a Trainer writes it, holds the norm beside its other weights and says so in its config.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.model.norm_alignment import (
    CONFIG_ENTRY,
    NAME,
    attach_norm,
    device_that_runs,
    inserted_norm,
)
from normprobe.model.parts import Part
from normprobe.model.repository import Repository
from normprobe.model.weight_files import WeightFiles

ADAPTER_CONFIG = "norm_alignment.json"
ADAPTER_WEIGHTS = "norm_alignment.safetensors"

ADAPTER_FILES = (ADAPTER_WEIGHTS, ADAPTER_CONFIG)


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


def norm_weights(
    source: str | Path, revision: str | None = None, *, weights: WeightFiles | None = None
) -> dict[str, Tensor]:
    """Gain (``weight``) and ``bias`` of the norm in an adapter or a checkpoint.

    Only the file that holds them is fetched, with range reads their bytes, and only they are read.

    Args:
        source: an adapter folder, a checkpoint folder or a hub id.
        revision: of a hub id.
        weights: of ``weight_files_of``; None: made here.

    Raises:
        NormprobeError: when there is no alignment norm, or the file cannot be read.
    """
    if weights is None:
        adapter = (Path(source) / ADAPTER_CONFIG).is_file()
        repository = Repository(str(source), str(source), revision)
        weights = WeightFiles(repository, explicit=ADAPTER_WEIGHTS if adapter else None)
    keys = {name: f"{NAME}.{name}" for name in ("weight", "bias")}
    try:
        lacking = [key for key in keys.values() if key not in weights.file_of]
    except (NormprobeError, ValueError) as error:  # ValueError: neither a folder nor a hub id
        raise _no_norm(source, getattr(error, "problem", str(error))) from error
    if lacking:
        raise _no_norm(source, f"no {' and no '.join(lacking)}")
    tensors = weights.tensors(keys.values())
    return {name: tensors[key][...] for name, key in keys.items()}


def put_back(
    model: nn.Module, settings: Mapping[str, Any], read: Callable[[], Mapping[str, Tensor]]
) -> None:
    """Attach a saved norm where it was; not where the projector was left out of the load.

    Args:
        model: the base model.
        settings: ``after`` and ``compensate``, and what else an adapter says about its base.
        read: gives the weights, as ``norm_weights`` does.

    Raises:
        NormprobeError: when the model is not the one that the norm was saved from.
    """
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if settings.get("model_type") not in (None, model_type):
        raise _mismatch(f"made for a {settings['model_type']}, the base model is a {model_type}")
    try:
        projector = model.get_submodule(settings["after"])
    except AttributeError:
        raise _mismatch(
            f"it stands behind {settings['after']}, which {type(model).__name__} has not"
        ) from None
    if device_that_runs(projector).type == "meta":
        return
    weights = read()
    config = getattr(model, "config", None)
    hidden = len(weights["weight"])
    text = config.get_text_config(decoder=True) if config is not None else None
    expected = getattr(text, "hidden_size", hidden)
    if expected != hidden:
        raise _mismatch(f"it has {hidden} gains, the decoder reads rows of {expected}")
    norm = attach_norm(
        model, Part(settings["after"], projector), hidden, compensate=settings["compensate"]
    )
    norm.load_state_dict(dict(weights))


def config_settings(config: Any) -> dict[str, Any] | None:
    """What the config of a checkpoint says about its alignment norm; None without one."""
    return getattr(config, CONFIG_ENTRY, None)


def _no_norm(source: str | Path, why: str) -> NormprobeError:
    return NormprobeError(
        f"{source} holds no alignment norm: {' '.join(why.split())[:200]}",
        "pass an adapter of `normprobe align`, or a checkpoint of an aligned model",
    )


def _mismatch(what: str) -> NormprobeError:
    return NormprobeError(
        f"the alignment norm does not fit its base model: {what}",
        f"set base_model in {ADAPTER_CONFIG} to the model that it was made for",
    )
