"""The tensors of a GGUF file, by the names that transformers gives them.

They are stored as blocks of few bits, and are made float32 as they are read: one by one where the
file's tensors are those of the model, all at once where transformers merges or splits them, such as
experts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normprobe.model.checkpoint import Checkpoint
from normprobe.model.gguf import StoredTensor, stored_tensors
from normprobe.model.load.partial_load import build_on_meta, explained_failures
from normprobe.model.load.repository import Repository
from normprobe.model.load.weight_files import TensorHeader, WeightFiles
from normprobe.versions import is_line_5

#: Processors of transformers that give a tensor for a tensor.
_ONE_BY_ONE = (
    "TensorProcessor", "LlamaTensorProcessor", "Gemma2TensorProcessor", "NemotronTensorProcessor",
)  # fmt: skip


def weight_files_of(checkpoint: Checkpoint, *, range_reads: bool = False) -> WeightFiles:
    """The weight files of a checkpoint, without those of its adapters."""
    if checkpoint.gguf is not None:
        return GgufWeights(checkpoint)
    repository = Repository(checkpoint.name, checkpoint.source, checkpoint.revision)
    explicit = getattr(checkpoint.config, "transformers_weights", None)
    return WeightFiles(repository, explicit=explicit and str(explicit), range_reads=range_reads)


class GgufWeights(WeightFiles):
    """The one weight file of a checkpoint that was opened from a GGUF file."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(Repository(checkpoint.name, checkpoint.source, None))
        self._checkpoint = checkpoint

    @cached_property
    def file_of(self) -> dict[str, str]:
        """The file of every tensor, by the tensor's key."""
        return dict.fromkeys(self._held, Path(str(self._checkpoint.gguf)).name)

    @property
    def headers_are_here(self) -> bool:
        """They are."""
        return True

    @property
    def stored_as(self) -> dict[str, int]:
        """How many tensors are stored how, such as ``{"F32": 61, "Q4_1": 210}``."""
        held = stored_tensors(Path(self._checkpoint.source))
        return dict(sorted(Counter(tensor.stored for tensor in held).items()))

    def tensors(self, keys: Iterable[str]) -> dict[str, Any]:
        """Lazy tensors by key: ``tensor[...]`` makes one of its blocks."""
        return {key: self._held[key] for key in keys if self.header(key)}

    def _read_headers(self, file: str) -> dict[str, TensorHeader]:
        return {
            key: TensorHeader(tuple(held.shape), "F32", blocks=getattr(held, "blocks", None))
            for key, held in self._held.items()
        }

    @cached_property
    def _held(self) -> Mapping[str, Any]:
        from transformers import modeling_gguf_pytorch_utils as of_transformers

        checkpoint = self._checkpoint
        file = Path(checkpoint.source, Path(str(checkpoint.gguf)).name)
        model = build_on_meta(checkpoint)
        kinds: Any = of_transformers.TENSOR_PROCESSORS
        kind = kinds.get(checkpoint.config.model_type, of_transformers.TensorProcessor)
        with explained_failures(checkpoint):
            if kind.__name__ not in _ONE_BY_ONE:
                whole: Any = of_transformers.load_gguf_checkpoint
                read = whole(str(file), return_tensors=True, model_to_load=model)
                return dict(read["tensors"])
            processor = kind(config=checkpoint.config.to_dict())
            given = (model, processor) if is_line_5() else (model,)
            key_of = of_transformers.get_gguf_hf_weights_map(*given)
        data = np.memmap(file, dtype=np.uint8, mode="r")
        return {
            key_of[stored.name]: _Blocks(data, stored, processor)
            for stored in stored_tensors(Path(checkpoint.source))
            if stored.name in key_of
        }


@dataclass(frozen=True)
class _Blocks:
    """A tensor of the file, whose numbers are made when it is read."""

    data: Any  # the bytes of the file
    stored: StoredTensor
    processor: Any  # of transformers: puts rows into its order

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def blocks(self) -> tuple[str, int]:
        """How it is stored, in how many bytes."""
        return self.stored.stored, self.stored.nbytes

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def get_dtype(self) -> str:
        return "F32"

    def __getitem__(self, index: Any) -> torch.Tensor:
        from gguf import GGMLQuantizationType, dequantize, quant_shape_to_byte_shape

        kind = GGMLQuantizationType[self.stored.stored]
        held = self.data[self.stored.begins : self.stored.begins + self.stored.nbytes]
        plain = {"F64": np.float64, "F32": np.float32, "F16": np.float16}.get(kind.name)
        if plain is None:
            values = dequantize(held.reshape(quant_shape_to_byte_shape(self.shape, kind)), kind)
        else:
            values = held.view(plain).reshape(self.shape).astype(np.float32)
        made = self.processor.process(weights=values, name=self.stored.name).weights
        return torch.from_numpy(np.array(made, dtype=np.float32))[index]
