"""The alignment norm of a checkpoint: its weights read and checked, the norm put back."""

from pathlib import Path
from typing import cast

from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.model.align.files import put_back
from normprobe.model.align.norm import NAME
from normprobe.model.checkpoint import Checkpoint, open_checkpoint
from normprobe.model.config import adapter_settings
from normprobe.model.load.repository import FETCH_AGAIN
from normprobe.model.load.weight_files import WeightFiles, adapter_files, weight_files_of

#: The remedy where a norm was expected.
HOLDS_A_NORM = "pass an adapter of `normprobe align`, or a checkpoint of an aligned model"


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


def put_norm_back(checkpoint: Checkpoint, files: WeightFiles, model: nn.Module) -> None:
    """Attach the alignment norm of a checkpoint to its loaded model, if it holds one.

    The auto classes know nothing of the norm and leave it out in silence.
    """
    settings = checkpoint.alignment
    if settings is not None:
        source = files if settings.folder is None else adapter_files(settings.folder)
        put_back(model, settings, lambda: norm_weights(source))
