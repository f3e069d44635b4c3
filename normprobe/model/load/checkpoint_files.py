"""Which weight files belong to a checkpoint, or to an adapter of ``normprobe align``."""

from pathlib import Path

from normprobe.model.alignment_settings import ADAPTER_WEIGHTS
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.load.repository import Repository
from normprobe.model.load.weight_files import WeightFiles


def weight_files_of(checkpoint: Checkpoint, *, range_reads: bool = False) -> WeightFiles:
    """The weight files of a checkpoint, without those of its adapters."""
    repository = Repository(checkpoint.name, checkpoint.source, checkpoint.revision)
    explicit = getattr(checkpoint.config, "transformers_weights", None)
    return WeightFiles(repository, explicit=explicit and str(explicit), range_reads=range_reads)


def adapter_files(folder: Path) -> WeightFiles:
    """The weight file of an adapter that ``normprobe align`` wrote."""
    return WeightFiles(Repository(str(folder), str(folder), None), explicit=ADAPTER_WEIGHTS)
