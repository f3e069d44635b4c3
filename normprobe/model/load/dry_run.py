"""Asks transformers' own loader which tensors of a checkpoint it reads.

Checkpoint keys are renamed, split and merged on load, differently from version to version. So no
key is matched by name here: the loader runs once on the meta device, over stand-ins for tensors
that note whether they are read.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError
from normprobe.model.load.weight_files import TensorHeader, WeightFiles
from normprobe.versions import load_and_report

if TYPE_CHECKING:
    import torch


def dry_run(
    model_class: Any, config: Any, weights: WeightFiles, dtype: Any
) -> tuple[frozenset[str], Mapping[str, Any]]:
    """Run the loader without values.

    Returns:
        The keys of the tensors that the loader reads, and its report.
    """
    stand_ins = {key: _StandIn(weights, key) for key in weights.file_of}
    try:
        with _silent():
            _, report = load_and_report(
                model_class,
                None,
                config=config,
                state_dict=stand_ins,
                device_map="meta",
                dtype=dtype,
            )
    finally:
        _raise_known(stand_ins.values())
    return frozenset(key for key, stand_in in stand_ins.items() if stand_in.was_read), report


class _StandIn:
    """Stands for one checkpoint tensor, as a slice of safetensors; it notes when it is read."""

    def __init__(self, weights: WeightFiles, key: str) -> None:
        self.weights, self.key = weights, key
        self.was_read = False
        self.failure: NormprobeError | None = None

    def __getitem__(self, _: Any) -> "torch.Tensor":
        import torch
        from transformers.modeling_utils import str_to_torch_dtype

        self.was_read = True
        header = self._header()
        dtype = str_to_torch_dtype.get(header.dtype, torch.uint8)
        return torch.empty(header.shape, dtype=dtype, device="meta")

    def get_shape(self) -> list[int]:
        return list(self._header().shape)

    def get_dtype(self) -> str:
        return self._header().dtype

    def _header(self) -> TensorHeader:
        try:
            return self.weights.header(self.key)
        except NormprobeError as failure:  # the loader may swallow it
            self.failure = failure
            raise


@contextmanager
def _silent() -> Iterator[None]:
    """No progress bar and no report on missing tensors for a load that loads nothing."""
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
    """Raise what went wrong in a stand-in, which says more than what the loader makes of it."""
    for stand_in in stand_ins:
        if stand_in.failure is not None:
            raise stand_in.failure
