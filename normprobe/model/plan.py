"""Which tensors of a checkpoint a load will read, asked of transformers' own loader.

Checkpoint keys are renamed, split and merged on load, differently from version to version. So no
key is matched by name here: the loader runs once on the meta device over stand-ins that note
whether it wants them.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.guard import refuse_missing, refuse_scaled
from normprobe.model.left_out import leaving_out
from normprobe.model.repository import first_line
from normprobe.model.weight_files import WeightFiles, weight_files_of

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class LoadPlan:
    """What a load will read.

    Attributes:
        checkpoint: of ``open_checkpoint``.
        model_class: builds the model, without what is left out.
        weights: the checkpoint's files.
        keys: the tensors to read; None: all of them, by the loader's own way.
        dtype: the float type that ``auto`` stands for.
        because: why it is all of them.
    """

    checkpoint: Checkpoint
    model_class: Any
    weights: WeightFiles
    keys: frozenset[str] | None
    dtype: Any = None
    because: str = ""

    @property
    def files(self) -> list[str]:
        """The files that hold the tensors to read."""
        if self.keys is None:
            return self.weights.files
        return sorted({self.weights.file_of[key] for key in self.keys})

    def nbytes_in(self, files: Collection[str]) -> int:
        """Bytes of the tensors to read that these files hold."""
        keys = self.weights.file_of if self.keys is None else self.keys
        held = [key for key in keys if self.weights.file_of[key] in files]
        return sum(self.weights.header(key).nbytes for key in held)


def plan_loading(
    checkpoint: Checkpoint,
    model: "nn.Module",
    unneeded: Collection[str] = (),
    *,
    weights: WeightFiles | None = None,
) -> LoadPlan:
    """Find out which tensors a load reads. Reads headers, no weights.

    Args:
        checkpoint: of ``open_checkpoint``.
        model: of ``build_on_meta(checkpoint)``.
        unneeded: tensors of the model that stay unloaded, of ``unneeded_by``.
        weights: of ``weight_files_of``; None: made here.

    Returns:
        The plan. Quantised checkpoints are read whole: their tensors only mean something together.

    Raises:
        NormprobeError: a weight file is absent or unreadable, or a tensor that is needed is stored
            in a type whose values mean nothing by themselves.
    """
    weights = weights or weight_files_of(checkpoint)
    if is_quantised(checkpoint):
        refuse_scaled(checkpoint, weights, _tables(weights, model))
        return LoadPlan(
            checkpoint, type(model), weights, None, because="the checkpoint is quantised"
        )
    model_class = leaving_out(type(model), unneeded)
    dtype = _stored_dtype(checkpoint, weights)
    stand_ins = {key: _StandIn(weights, key) for key in weights.file_of}
    try:
        with _silent():
            _, report = model_class.from_pretrained(
                None,
                config=checkpoint.config,
                state_dict=stand_ins,
                device_map="meta",
                dtype=dtype,
                ignore_mismatched_sizes=True,  # refused below, with both shapes
                output_loading_info=True,
            )
    except Exception as error:  # whatever a model class does with tensors that hold no values
        _raise_known(stand_ins.values())
        because = f"a dry run of the loader failed: {first_line(error)}"
        return LoadPlan(checkpoint, type(model), weights, None, because=because)
    _raise_known(stand_ins.values())
    refuse_missing(checkpoint, report)
    wanted = frozenset(key for key, stand_in in stand_ins.items() if stand_in.wanted)
    refuse_scaled(checkpoint, weights, wanted)
    return LoadPlan(checkpoint, model_class, weights, wanted, dtype)


def is_quantised(checkpoint: Checkpoint) -> bool:
    """Whether the config says that weights are stored with scales, as bitsandbytes does."""
    return getattr(checkpoint.config, "quantization_config", None) is not None


def _tables(weights: WeightFiles, model: "nn.Module") -> list[str]:
    """The keys of what can be the embedding table, by its shape."""
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    shape = tuple(getattr(getattr(embedding, "weight", None), "shape", ()))
    return [key for key in weights.file_of if weights.header(key).shape == shape]


def _stored_dtype(checkpoint: Checkpoint, weights: WeightFiles) -> Any:
    """The float type that the config names; else that of the checkpoint's first float tensor."""
    from transformers.modeling_utils import str_to_torch_dtype

    if checkpoint.config.dtype is not None:
        return checkpoint.config.dtype
    for key in weights.file_of:
        dtype = str_to_torch_dtype.get(weights.header(key).dtype)
        if dtype is not None and dtype.is_floating_point:
            return dtype
    return None


class _StandIn:
    """Stands for one checkpoint tensor; indexing it, as the loader does to read, is noted."""

    def __init__(self, weights: WeightFiles, key: str) -> None:
        self.weights, self.key = weights, key
        self.wanted = False
        self.failure: NormprobeError | None = None

    def __getitem__(self, _: Any) -> "torch.Tensor":
        import torch
        from transformers.modeling_utils import str_to_torch_dtype

        self.wanted = True
        try:
            header = self.weights.header(self.key)
        except NormprobeError as failure:  # the loader has its own mind about errors
            self.failure = failure
            raise
        dtype = str_to_torch_dtype.get(header.dtype, torch.uint8)
        return torch.empty(header.shape, dtype=dtype, device="meta")


@contextmanager
def _silent() -> Iterator[None]:
    """No bar for a load that loads nothing, no report on tensors that nobody wants."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _raise_known(stand_ins: Iterable[_StandIn]) -> None:
    for stand_in in stand_ins:
        if stand_in.failure is not None:
            raise stand_in.failure
