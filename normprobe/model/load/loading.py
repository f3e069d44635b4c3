"""Loads the model of a checkpoint where it is to be, and says first what that will read."""

import atexit
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from rich.filesize import decimal
from torch import nn
from transformers import GenerationConfig

from normprobe.errors import NormprobeError, first_line
from normprobe.model.align.norm import inserted_norm
from normprobe.model.checkpoint import Checkpoint, open_checkpoint
from normprobe.model.load.alignment import HOLDS_A_NORM, restore_alignment_norm
from normprobe.model.load.partial_load import (
    build_on_meta,
    explained_failures,
    restore_buffers,
    show_again,
)
from normprobe.model.load.plan import LoadPlan, plan_loading
from normprobe.model.load.weight_checks import (
    refuse_lacking,
    refuse_missing,
    refuse_non_finite,
    refuse_unread,
    without_read,
)
from normprobe.model.model_kind import is_own_code
from normprobe.remote_code_bridges import foreign_code
from normprobe.versions import load_and_report, tensor_parallel


def reading_sentence(plan: LoadPlan) -> str:
    """One line: how many weight files and bytes are read or fetched, of how many."""
    checkpoint = plan.checkpoint
    if checkpoint.adapter is None:
        return _reading(plan, checkpoint.name)
    base = f"the base {checkpoint.source}"
    return f"{_reading(plan, base)}, with the adapter {checkpoint.name} merged into it"


def _reading(plan: LoadPlan, name: str) -> str:
    weights = plan.weights
    absent = _absent(plan)
    whole = _size(weights.size_of(weights.files))
    if plan.keys is None or plan.because:
        verb = "fetches" if absent else "reads"
        return f"{verb} every weight of {name}, {whole}" + (
            f": {plan.because}" if plan.because else ""
        )
    number = len(weights.files)
    files = f"of {number} weight file{'s' if number > 1 else ''} of {name}"
    if not absent:
        return f"reads {len(plan.files)} {files}, {decimal(plan.nbytes_in(plan.files))} of {whole}"
    needed = decimal(plan.nbytes_in(absent))
    if reads_ranges(plan):
        return f"fetches bytes of {len(absent)} {files}, {needed} of {whole}"
    fetched = _size(weights.size_of(absent))
    return f"fetches {len(absent)} {files}, {fetched} of {whole}, for {needed} of tensors"


def reading_record(plan: LoadPlan) -> dict[str, object]:
    """What a load reads, for ``run.json``: names of files, and bytes of the tensors."""
    stored_as = plan.weights.stored_as
    return {
        "files": plan.files,
        "bytes": None if plan.keys is None else plan.nbytes_in(plan.files),
        "base_of_adapter": plan.checkpoint.source if plan.checkpoint.adapter else None,
        "everything_because": plan.because or None,
        **({"stored_as": stored_as} if stored_as else {}),
    }


def bytes_to_fetch(plan: LoadPlan) -> int | None:
    """Bytes of weights that a load is about to fetch; None where that is unknown."""
    absent = _absent(plan)
    return plan.nbytes_in(absent) if reads_ranges(plan) else plan.weights.size_of(absent)


def fetched_files(plan: LoadPlan) -> dict[str, int | None]:
    """The weight files that a load will fetch from, and how many bytes; None: that is unknown."""
    absent = _absent(plan)
    if reads_ranges(plan):
        return {file: plan.nbytes_in([file]) for file in absent}
    return plan.weights.repository.sizes(absent)


def reads_ranges(plan: LoadPlan) -> bool:
    """Whether ranges of files on a hub are fetched; where everything is read, files are."""
    return plan.weights.range_reads and plan.keys is not None


def cached_bytes(plan: LoadPlan) -> int:
    """Bytes of the tensors to read that lie in the hub's cache; none of a local folder."""
    if plan.weights.repository.is_local:
        return 0
    return plan.nbytes_in(set(plan.files) - set(_absent(plan)))


def _absent(plan: LoadPlan) -> list[str]:
    """The files to read that are not on this machine."""
    return [file for file in plan.files if plan.weights.repository.path_here(file) is None]


def _size(size: int | None) -> str:
    return "an unknown size" if size is None else decimal(size)


def merge_adapter(checkpoint: Checkpoint, model: nn.Module) -> nn.Module:
    """Merge a checkpoint's adapter into its base."""
    try:
        from peft import PeftConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict
        from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING
    except ImportError as error:
        raise NormprobeError(
            f"{checkpoint.name} is a PEFT adapter, and peft is not installed",
            "pip install 'normprobe[peft]'",
        ) from error
    assert checkpoint.adapter is not None
    revision = checkpoint.adapter_revision
    try:
        with warnings.catch_warnings(action="ignore"):  # of weights that are absent on purpose
            config = PeftConfig.from_pretrained(checkpoint.adapter, revision=revision)
            weights = load_peft_weights(checkpoint.adapter, device="cpu", revision=revision)
            adapted = get_peft_model(model, config)
            report: Any = set_peft_model_state_dict(adapted, weights)
            if report.unexpected_keys:
                raise ValueError(f"no place for {report.unexpected_keys[0]}")
            merged: nn.Module = adapted.merge_and_unload()
    except Exception as error:  # peft has no error class of its own
        raise NormprobeError(
            f"the adapter {checkpoint.name} does not fit {checkpoint.source}: {first_line(error)}",
            "check base_model_name_or_path in adapter_config.json; only adapters that can be "
            "merged, such as LoRA, are read",
        ) from error
    prefix = PEFT_TYPE_TO_PREFIX_MAPPING[config.peft_type]
    own = (prefix, "modules_to_save")
    refuse_lacking(checkpoint, sorted(k for k in report.missing_keys if any(o in k for o in own)))
    return merged.requires_grad_(False)


def load_model(
    checkpoint: Checkpoint,
    plan: LoadPlan | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str | None = None,
    device_map: str | Mapping[str, str] | None = None,
    shared: bool = False,
) -> nn.Module:
    """Load the weights of a checkpoint, all of them or those of a plan.

    ``shared``: each process of torchrun loads a part of every layer.
    """
    plan = plan or plan_loading(checkpoint, build_on_meta(checkpoint))
    arguments = placement("cpu" if shared else device, dtype, device_map)
    if shared:
        arguments |= _shared_among_processes(checkpoint)
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
    arguments |= plan.checkpoint.keywords  # with the renames that the plan found
    trusted = foreign_code(checkpoint.trust_remote_code, checkpoint.bridges)
    with explained_failures(checkpoint), trusted:
        loaded = load_and_report(plan.model_class, source, config=checkpoint.config, **arguments)
    model, report = loaded
    # Where no source was passed, its own code and printed commands would meet the name "None".
    model.config.name_or_path, model.name_or_path = checkpoint.source, checkpoint.typed
    if source is None and is_own_code(checkpoint.config):
        # Nor did it look there for the settings that its own code may read (HunyuanImage-3.0).
        with suppress(OSError, ValueError):
            model.generation_config = GenerationConfig.from_pretrained(
                checkpoint.source, revision=checkpoint.revision or "main"
            )
    refuse_missing(checkpoint, without_read(report, plan.weights, model))
    refuse_unread(checkpoint, model, plan.weights)
    if plan.keys is not None:
        show_again(model)
    restore_buffers(checkpoint, model)
    if checkpoint.adapter is not None:
        model = merge_adapter(checkpoint, model)
    restore_alignment_norm(checkpoint, plan.weights, model)
    refuse_non_finite(checkpoint, model)
    ready: nn.Module = model.eval()
    return ready


def _shared_among_processes(checkpoint: Checkpoint) -> dict[str, Any]:
    """The arguments of ``from_pretrained``, where there are processes and a plan for them."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise NormprobeError(
            "--device tp shares each layer among processes, and there is one",
            "torchrun --nproc-per-node N -m normprobe ..., or --device balanced",
        )
    if not getattr(build_on_meta(checkpoint), "_tp_plan", None):
        raise NormprobeError(
            f"{checkpoint.name} has no plan for sharing its layers among processes",
            "pass --device balanced, in one process",
        )
    return tensor_parallel()


def load_aligned(
    folder: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
) -> nn.Module:
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


# --- where weights go, and in which type ---------------------------------------------------------

#: What weights are loaded in; ``auto``: as they are saved.
DTYPES = ("auto", "float32", "bfloat16", "float16")


def pick_device(name: str) -> torch.device:
    """The device of a name; ``auto`` takes the first of cuda, mps and cpu that is there."""
    if name == "auto":
        there = torch.accelerator.is_available()
        return (torch.accelerator.current_accelerator() if there else None) or torch.device("cpu")
    remedy = "pass --device auto, cpu, cuda, cuda:1, mps, balanced or tp"
    try:
        device = torch.device(name)
    except RuntimeError as error:  # it lists devices that nobody here has heard of
        raise NormprobeError(f"there is no device {name!r}", remedy) from error
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise NormprobeError(
            f"device {name!r} is not available: {first_line(error)}", remedy
        ) from error
    return device


def placement(
    device: str, dtype: str, device_map: str | Mapping[str, str] | None
) -> dict[str, Any]:
    """The arguments of ``from_pretrained`` that say where weights go and in which type."""
    arguments: dict[str, Any] = {"dtype": _dtype(dtype)}
    if device_map is not None:
        arguments |= {"device_map": device_map, "offload_folder": _offload_folder()}
    elif (target := pick_device(device)).type != "cpu":
        arguments["device_map"] = {"": str(target)}
    return arguments


def device_and_dtype(model: nn.Module) -> tuple[str, str]:
    """Where the loaded weights of a model are, and their first float type, such as bfloat16."""
    loaded = [weight for weight in model.parameters() if not weight.is_meta]
    devices = sorted({str(weight.device) for weight in loaded})
    dtype = next((weight.dtype for weight in loaded if weight.is_floating_point()), None)
    return ", ".join(devices), str(dtype).removeprefix("torch.")


def check_dtype(name: str) -> None:
    """Refuse a dtype that weights cannot be loaded in."""
    if name not in DTYPES:
        raise NormprobeError(f"unknown dtype {name!r}", f"pass --dtype {', '.join(DTYPES)}")


def _dtype(name: str) -> torch.dtype | str:
    check_dtype(name)
    return name if name == "auto" else getattr(torch, name)


def _offload_folder() -> str:
    """Where accelerate puts weights that fit nowhere else and are not stored as they are used."""
    folder = tempfile.mkdtemp(prefix="normprobe-offload-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
