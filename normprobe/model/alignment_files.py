"""The alignment norm on disk: an adapter of two files, or inside a checkpoint that was trained.

An adapter folder names its base model. A checkpoint of an aligned model, as ``save_pretrained`` or
a Trainer writes it, holds the norm beside its other weights and says so in its config.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.model.norm_alignment import (
    CONFIG_ENTRY,
    NAME,
    GlobalWeightCompensatedLayerNorm,
    attach_norm,
    inserted_norm,
)
from normprobe.model.parts import Part

ADAPTER_CONFIG = "norm_alignment.json"
ADAPTER_WEIGHTS = "norm_alignment.safetensors"

ADAPTER_FILES = (ADAPTER_WEIGHTS, ADAPTER_CONFIG)

_CHECKPOINT_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


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


def norm_weights(source: str | Path, revision: str | None = None) -> dict[str, Tensor]:
    """Gain (``weight``) and ``bias`` of the norm in an adapter or a checkpoint.

    Only the file that holds them is fetched and only they are read.

    Args:
        source: an adapter folder, a checkpoint folder or a hub id.
        revision: of a hub id.

    Raises:
        NormprobeError: when there is no alignment norm, or the file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    keys = {name: f"{NAME}.{name}" for name in ("weight", "bias")}
    if (Path(source) / ADAPTER_CONFIG).is_file():
        path = Path(source) / ADAPTER_WEIGHTS
    else:
        path = _file_with(source, revision, keys["weight"])
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(key) for name, key in keys.items()}
    except (OSError, SafetensorError) as error:
        raise NormprobeError(
            f"{source} holds no alignment norm: {' '.join(str(error).split())[:200]}",
            "pass an adapter of `normprobe align`, or a checkpoint of an aligned model",
        ) from error


def _file_with(source: str | Path, revision: str | None, key: str) -> Path:
    """The weight file of a checkpoint that holds a tensor; the only one where there is one."""
    from transformers.utils.hub import cached_file

    def fetch(name: str) -> str | None:
        try:
            found: str | None = cached_file(
                str(source), name, revision=revision, _raise_exceptions_for_missing_entries=False
            )
        except OSError:
            return None
        return found

    index = fetch(_INDEX)
    name: str | None = _CHECKPOINT_WEIGHTS
    if index is not None:
        name = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].get(key)
    path = fetch(name) if name is not None else None
    if path is None:
        raise NormprobeError(
            f"{source} holds no alignment norm: no {_CHECKPOINT_WEIGHTS} with {key}",
            "pass an adapter of `normprobe align`, or a checkpoint of an aligned model",
        )
    return Path(path)


def put_back(
    model: nn.Module, settings: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> GlobalWeightCompensatedLayerNorm:
    """Attach a saved norm where it was.

    Args:
        model: the base model.
        settings: ``after`` and ``compensate``, and what else an adapter says about its base.
        weights: of ``norm_weights``.

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
    return norm


def config_settings(config: Any) -> dict[str, Any] | None:
    """What the config of a checkpoint says about its alignment norm; None without one."""
    return getattr(config, CONFIG_ENTRY, None)


def _mismatch(what: str) -> NormprobeError:
    return NormprobeError(
        f"the alignment norm does not fit its base model: {what}",
        f"set base_model in {ADAPTER_CONFIG} to the model that it was made for",
    )
