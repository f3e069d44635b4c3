"""The alignment norm on disk: written as an adapter, put back into a model.

Which checkpoints hold a norm, and what they say of it, is in ``alignment_settings``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.model.align.norm import NAME, attach_norm, inserted_norm, running_device
from normprobe.model.config import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AlignmentSettings,
    write_adapter_settings,
)
from normprobe.model.find.parts import Part


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


def put_back(
    model: nn.Module, settings: AlignmentSettings, read: Callable[[], Mapping[str, Tensor]]
) -> None:
    """Attach a saved norm where it was.

    Args:
        model: the base model.
        settings: what the checkpoint says of its norm.
        read: gives gain (``weight``) and ``bias``, ``[hidden]`` each. It is not called where the
            projector was not loaded: then the model goes without its norm.
    """

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
    weights = read()
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
