"""Build a model from a checkpoint, with every weight accounted for."""

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError
from normprobe.model.adapter import merge_adapter
from normprobe.model.checkpoint import Checkpoint, auto_class, open_checkpoint
from normprobe.model.guard import refuse_missing, refuse_non_finite, refuse_unread
from normprobe.model.left_out import show_again
from normprobe.model.parts import find_parts
from normprobe.model.plan import LoadPlan, plan_loading
from normprobe.model.repository import FETCH_AGAIN
from normprobe.model.unneeded import unneeded_by
from normprobe.model.weight_files import weight_files_of

if TYPE_CHECKING:
    import torch
    from torch import nn


NO_PARTS = "its parts show only when it runs"


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
            raise _missing_package(checkpoint, error) from error
    return model.eval()


def plan_for(
    command: str,
    checkpoint: Checkpoint,
    *,
    named: Mapping[str, Any] | None = None,
    range_reads: bool = False,
) -> LoadPlan:
    """Which weights a command needs of a checkpoint. Reads headers, no weights.

    Args:
        command: a key of ``unneeded.NEEDED``.
        checkpoint: of ``open_checkpoint``.
        named: parts named by hand, as ``find_parts`` takes them.
        range_reads: of files that are not here, fetch the needed bytes alone.

    Returns:
        The plan: every weight where the structure does not tell the parts, because then the model
        has to run.

    Raises:
        NormprobeError: as ``build_on_meta`` and ``plan_loading``.
    """
    model = build_on_meta(checkpoint)
    weights = weight_files_of(checkpoint, range_reads=range_reads)
    try:
        unneeded = unneeded_by(command, model, find_parts(model, named=named))
    except NormprobeError:
        return replace(plan_loading(checkpoint, model, weights=weights), because=NO_PARTS)
    return plan_loading(checkpoint, model, unneeded, weights=weights)


def load_model(
    checkpoint: Checkpoint,
    plan: LoadPlan | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str | None = None,
    device_map: str | Mapping[str, str] | None = None,
) -> "nn.Module":
    """Load the weights of a checkpoint, all of them or those of a plan.

    Args:
        checkpoint: of ``open_checkpoint``.
        plan: of ``plan_loading``; None: everything.
        device: ``auto`` (cuda, mps or cpu, the first there is) or a torch device.
        dtype: ``auto`` (as saved) or the name of a torch float dtype.
        attn_implementation: as transformers names them; None: its default.
        device_map: passed to accelerate, such as ``auto``; replaces ``device``.

    Returns:
        The model in eval mode. What the plan leaves out is on the meta device.

    Raises:
        NormprobeError: a weight that the checkpoint lacks or holds in another shape (its norm
            would be that of a random initialisation), NaN or infinity in a weight, an unreadable
            file, an unknown device.
    """
    from safetensors import SafetensorError

    plan = plan or plan_loading(checkpoint, build_on_meta(checkpoint))
    arguments: dict[str, Any] = {"dtype": _dtype(dtype)}
    if attn_implementation:
        arguments["attn_implementation"] = attn_implementation
    if device_map is not None:
        arguments |= {"device_map": device_map, "offload_folder": _offload_folder()}
    elif (target := pick_device(device)).type != "cpu":
        arguments["device_map"] = {"": str(target)}
    if plan.keys is None or (device_map is not None and plan.files == plan.weights.files):
        # From its files, so that what is offloaded to the disk stays where it is.
        arguments |= {"revision": checkpoint.revision}
        arguments |= {"trust_remote_code": checkpoint.trust_remote_code}
        source: str | None = checkpoint.source
    else:
        arguments |= {"state_dict": plan.weights.tensors(plan.keys)}
        arguments["dtype"] = arguments["dtype"] if dtype != "auto" else plan.dtype
        source = None
    try:
        model, report = plan.model_class.from_pretrained(
            source,
            config=checkpoint.config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below with both shapes
            **arguments,
        )
    except SafetensorError as error:
        raise NormprobeError(
            f"a weight file of {checkpoint.name} cannot be read: {error}", FETCH_AGAIN
        ) from error
    except ImportError as error:
        raise _missing_package(checkpoint, error) from error
    except (OSError, ValueError, RuntimeError, TypeError, AttributeError, KeyError) as error:
        raise _not_loaded(checkpoint, error) from error
    built: nn.Module = model
    refuse_missing(checkpoint, report)
    refuse_unread(checkpoint, built)
    if plan.keys is not None:
        show_again(built)
    if checkpoint.adapter is not None:
        built = merge_adapter(checkpoint, built)
    _put_norm_back(checkpoint, plan, built)
    refuse_non_finite(checkpoint, built)
    return built.eval()


def device_and_dtype(model: "nn.Module") -> tuple[str, str]:
    """Where the weights that were loaded are, and their first float type, such as bfloat16."""
    loaded = [weight for weight in model.parameters() if not weight.is_meta]
    devices = sorted({str(weight.device) for weight in loaded})
    dtype = next((weight.dtype for weight in loaded if weight.is_floating_point()), None)
    return ", ".join(devices), str(dtype).removeprefix("torch.")


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
    from normprobe.model.alignment_files import HOLDS_A_NORM
    from normprobe.model.norm_alignment import inserted_norm

    checkpoint = open_checkpoint(str(folder), trust_remote_code=trust_remote_code)
    model = load_model(checkpoint, device=device, dtype=dtype)
    if inserted_norm(model) is None:
        raise NormprobeError(f"{folder} holds no alignment norm", HOLDS_A_NORM)
    return model


def _put_norm_back(checkpoint: Checkpoint, plan: LoadPlan, model: "nn.Module") -> None:
    """The auto classes know nothing of the norm and would leave it out without a word."""
    from normprobe.model.alignment_files import adapter_files, put_back, saved_settings

    settings = saved_settings(checkpoint)
    if settings is not None:
        adapter = checkpoint.alignment
        put_back(model, settings, plan.weights if adapter is None else adapter_files(adapter))


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


def _offload_folder() -> str:
    """Where accelerate puts weights that fit nowhere else and are not stored as they are used."""
    folder = tempfile.mkdtemp(prefix="normprobe-offload-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _dtype(name: str) -> "torch.dtype | str":
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name == "auto":
        return name
    if name not in known:
        raise NormprobeError(f"unknown dtype {name!r}", f"pass --dtype auto, {', '.join(known)}")
    return known[name]


def _missing_package(checkpoint: Checkpoint, error: ImportError) -> NormprobeError:
    text = " ".join(str(error).split())
    extra = any(package in text for package in ("torchvision", "timm", "scipy"))
    return NormprobeError(
        f"{checkpoint.name} needs a package that is not installed: {text[:200]}",
        "pip install 'normprobe[vision]' (torchvision, timm, scipy)"
        if extra
        else "install the package that it names",
    )


def _not_loaded(checkpoint: Checkpoint, error: Exception) -> NormprobeError:
    text = " ".join(str(error).split())
    return NormprobeError(
        f"cannot build {checkpoint.name} ({checkpoint.config.model_type}): {text[:300]}",
        "check the checkpoint's files against its source; NORMPROBE_DEBUG=1 shows the traceback",
    )
