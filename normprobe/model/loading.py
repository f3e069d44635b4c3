"""Build a model from a checkpoint, with every weight accounted for."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import Checkpoint, auto_class, open_checkpoint

if TYPE_CHECKING:
    import torch
    from torch import nn


def build_on_meta(checkpoint: Checkpoint) -> "nn.Module":
    """The model's modules without weights, from the config alone.

    Raises:
        NormprobeError: when the config does not describe a model that can be built.
    """
    import torch

    with torch.device("meta"):
        try:
            model: nn.Module = auto_class(checkpoint).from_config(
                checkpoint.config, trust_remote_code=checkpoint.trust_remote_code
            )
        except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
            raise _not_loaded(checkpoint, error) from error
        except ImportError as error:
            raise _missing_extra(checkpoint, error) from error
    return model.eval()


def load_model(
    checkpoint: Checkpoint,
    *,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str | None = None,
    device_map: str | None = None,
) -> "nn.Module":
    """Load every weight of a checkpoint.

    Args:
        checkpoint: of ``open_checkpoint``.
        device: ``auto`` (cuda, mps or cpu, the first there is) or a torch device.
        dtype: ``auto`` (as saved) or the name of a torch float dtype.
        attn_implementation: as transformers names them; None: its default.
        device_map: passed to accelerate; replaces ``device``.

    Returns:
        The model in eval mode.

    Raises:
        NormprobeError: a weight that the checkpoint lacks or holds in another shape (its norm
            would be that of a random initialisation), an unreadable file, an unknown device.
    """
    from safetensors import SafetensorError

    target = None if device_map else pick_device(device)
    arguments: dict[str, Any] = {"dtype": _dtype(dtype), "device_map": device_map}
    if attn_implementation:
        arguments["attn_implementation"] = attn_implementation
    try:
        model, report = auto_class(checkpoint).from_pretrained(
            checkpoint.source,
            config=checkpoint.config,
            revision=checkpoint.revision,
            trust_remote_code=checkpoint.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below with both shapes
            **arguments,
        )
    except SafetensorError as error:
        raise NormprobeError(
            f"a weight file of {checkpoint.name} cannot be read: {error}",
            "fetch the checkpoint again; a file of a few hundred bytes is a git-lfs pointer",
        ) from error
    except ImportError as error:
        raise _missing_extra(checkpoint, error) from error
    except (OSError, ValueError, RuntimeError, TypeError, AttributeError, KeyError) as error:
        raise _not_loaded(checkpoint, error) from error
    built: nn.Module = model
    _refuse_random_weights(checkpoint, built, report)
    _put_norm_back(checkpoint, built)
    return (built if target is None else built.to(target)).eval()


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
    from normprobe.model.norm_alignment import inserted_norm

    checkpoint = open_checkpoint(str(folder), trust_remote_code=trust_remote_code)
    model = load_model(checkpoint, device=device, dtype=dtype)
    if inserted_norm(model) is None:
        raise NormprobeError(
            f"{folder} holds no alignment norm",
            "pass an adapter of `normprobe align`, or a checkpoint of an aligned model",
        )
    return model


def _put_norm_back(checkpoint: Checkpoint, model: "nn.Module") -> None:
    """The auto classes know nothing of the norm and would leave it out without a word."""
    from normprobe.model.alignment_files import (
        adapter_settings,
        config_settings,
        norm_weights,
        put_back,
    )

    settings = config_settings(checkpoint.config)
    if settings is not None:
        put_back(model, settings, norm_weights(checkpoint.source, checkpoint.revision))
    if checkpoint.adapter is not None:
        settings = adapter_settings(checkpoint.adapter)
        assert settings is not None
        put_back(model, settings, norm_weights(checkpoint.adapter))


def pick_device(name: str) -> "torch.device":
    """The device of a name; ``auto`` takes the first of cuda, mps and cpu that is there.

    Raises:
        NormprobeError: when the device is unknown or absent.
    """
    import torch

    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return accelerator or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise NormprobeError(
            f"device {name!r} is not available: {str(error).splitlines()[0]}",
            "pass --device auto, cpu, cuda, cuda:1 or mps",
        ) from error
    return device


def _dtype(name: str) -> "torch.dtype | str":
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name == "auto":
        return name
    if name not in known:
        raise NormprobeError(f"unknown dtype {name!r}", f"pass --dtype auto, {', '.join(known)}")
    return known[name]


def _refuse_random_weights(
    checkpoint: Checkpoint, model: "nn.Module", report: dict[str, Any]
) -> None:
    """The loader fills what a checkpoint lacks at random and only warns.

    Its report leaves out what a model class declares unneeded, so its mark on each weight that
    came from a file is asked for as well. Quantised and offloaded weights carry no such mark.
    """
    lacking = set(report["missing_keys"])
    if getattr(model, "hf_quantizer", None) is None:
        lacking |= {
            name
            for name, weight in model.named_parameters()
            if not weight.is_meta and not getattr(weight, "_is_hf_initialized", False)
        }
    lacking -= {name for name, _, _ in report["mismatched_keys"]}
    mismatched = [
        f"{name} (saved {list(saved)}, expected {list(expected)})"
        for name, saved, expected in sorted(report["mismatched_keys"])
    ]
    wrong = [*sorted(lacking), *mismatched]
    if wrong:
        shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if wrong[3:] else "")
        raise NormprobeError(
            f"{checkpoint.name} lacks weights that the model needs: {shown}",
            "fetch the checkpoint again; norms of randomly initialised weights mean nothing",
        )


def _missing_extra(checkpoint: Checkpoint, error: ImportError) -> NormprobeError:
    return NormprobeError(
        f"{checkpoint.name} needs a package that is not installed: {str(error).strip()[:200]}",
        "pip install 'normprobe[vision]' (torchvision, timm, scipy)",
    )


def _not_loaded(checkpoint: Checkpoint, error: Exception) -> NormprobeError:
    text = " ".join(str(error).split())
    return NormprobeError(
        f"cannot build {checkpoint.name} ({checkpoint.config.model_type}): {text[:300]}",
        "check the checkpoint's files against its source; NORMPROBE_DEBUG=1 shows the traceback",
    )
