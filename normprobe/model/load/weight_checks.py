"""Checks that loaded weights are those that were saved: none made up, NaN or without its scale.

transformers' loader fills weights that a checkpoint lacks at random and only warns. It loads NaN in
silence, and casts an 8-bit table without its scales.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.find.parts import Parts
from normprobe.model.load.weight_files import WeightFiles

if TYPE_CHECKING:
    from torch import nn

#: Stored types, as safetensors names them, whose values need no scale.
_PLAIN = {"F64", "F32", "F16", "BF16", "I64", "I32", "BOOL"}


def refuse_missing(checkpoint: Checkpoint, report: Mapping[str, Any]) -> None:
    """Refuse weights that the loader would fill at random.

    Args:
        checkpoint: named in the error.
        report: the loading info of ``from_pretrained``.

    Raises:
        NormprobeError: tensors are missing, or saved in another shape; it names them.
    """
    mismatched = {name: (saved, expected) for name, saved, expected in report["mismatched_keys"]}
    refuse_lacking(
        checkpoint,
        [
            *sorted(set(report["missing_keys"]) - mismatched.keys()),
            *(
                f"{name} (saved {list(saved)}, expected {list(expected)})"
                for name, (saved, expected) in sorted(mismatched.items())
            ),
        ],
    )


def refuse_unread(checkpoint: Checkpoint, model: "nn.Module") -> None:
    """Refuse weights that the loader did not mark as read.

    Its report does not list weights that a model class declares as unneeded. Tensors on meta were
    not needed or are offloaded; quantised ones carry no mark.

    Raises:
        NormprobeError: it names the weights.
    """
    if getattr(model, "hf_quantizer", None) is not None:
        return
    weights = model.named_parameters()
    unread = [
        n for n, w in weights if not w.is_meta and not getattr(w, "_is_hf_initialized", False)
    ]
    refuse_lacking(checkpoint, sorted(unread))


def refuse_non_finite(checkpoint: Checkpoint, model: "nn.Module") -> None:
    """Refuse weights that hold NaN or infinity: all states computed from them do too.

    Raises:
        NormprobeError: it names the weights.
    """
    import torch

    floats = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
    weights = [
        (name, weight)
        for name, weight in model.named_parameters()
        if weight.dtype in floats and not weight.is_meta and weight.numel()
    ]
    if not weights:
        return
    device = weights[0][1].device
    with torch.no_grad():  # extremes need no copy of a weight; the answers come over together
        finite = torch.stack(
            [torch.stack(w.aminmax()).isfinite().all().to(device) for _, w in weights]
        ).tolist()
    named = [name for (name, _), fine in zip(weights, finite, strict=True) if not fine]
    if named:
        raise NormprobeError(
            f"{checkpoint.name} holds NaN or infinity in {_some(named)}",
            "fetch the checkpoint again, or go back to a step before the training diverged",
        )


def refuse_scaled(checkpoint: Checkpoint, weights: WeightFiles, keys: Iterable[str]) -> None:
    """Refuse tensors of a stored type that means nothing without a scale, such as float8.

    Args:
        checkpoint: named in the error.
        weights: its files.
        keys: the tensors to look at; vectors and scalars are passed over.

    Raises:
        NormprobeError: it names the tensors and their types.
    """
    headers = {key: weights.header(key) for key in keys}
    scaled = [
        f"{key} ({header.dtype})"
        for key, header in sorted(headers.items())
        if len(header.shape) > 1 and header.dtype not in _PLAIN
    ]
    if scaled:
        raise NormprobeError(
            f"{checkpoint.name} stores {_some(scaled)}, which means nothing without its scales; "
            "expected F64, F32, F16 or BF16",
            "use the checkpoint that this one was quantised from",
        )


def quantised_parts(parts: Parts) -> list[str]:
    """The roles of parts that hold weights of another type than float, such as packed 4 bit."""
    return [
        role
        for role, part in parts
        if any(weight.dtype.itemsize == 1 for weight in part.module.parameters())
    ]


def refuse_lacking(checkpoint: Checkpoint, lacking: Sequence[str]) -> None:
    """Refuse a checkpoint that lacks weights, if any are named."""
    if lacking:
        raise NormprobeError(
            f"{checkpoint.name} lacks weights that the model needs: {_some(lacking)}",
            "check that config.json and weights belong together, or fetch them again; norms of "
            "randomly initialised weights mean nothing",
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
