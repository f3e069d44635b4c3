"""The alignment norm of a run: its facts as a table, and its files."""

from typing import Any

import pandas as pd

from normprobe.model.config import ADAPTER_FILES
from normprobe.model.load.alignment import save_alignment
from normprobe.model.measured_model import MeasuredModel
from normprobe.runs.files import write_failures
from normprobe.runs.run_folder import RunFolder


def alignment_table(alignment: dict[str, Any]) -> pd.DataFrame:
    """One row: after, target, target_norm, gain, scale, hidden_size."""
    return pd.DataFrame([alignment])


def save_adapter(run: RunFolder, model: MeasuredModel, base: str, revision: str | None) -> None:
    """Write the norm of an aligned model into the run folder, which then is an adapter."""
    with write_failures(run.path):
        run.note(files=[*run.record["files"], *ADAPTER_FILES])
        save_alignment(model.model, run.path, base_model=base, revision=revision)
