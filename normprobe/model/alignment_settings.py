"""Where the alignment norm of a checkpoint belongs, as the checkpoint itself says it.

Two kinds of checkpoints hold an alignment norm:

- an adapter, which is what ``normprobe align`` writes: a folder with the norm's weights and a JSON
  file that names the base model;
- a checkpoint of an aligned model, as ``save_pretrained`` or a Trainer writes it: the norm is among
  its weights, and an entry of its config says so.

Both are read into ``AlignmentSettings``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError, first_line

#: The two files of an adapter.
ADAPTER_CONFIG = "norm_alignment.json"
ADAPTER_WEIGHTS = "norm_alignment.safetensors"
ADAPTER_FILES = (ADAPTER_WEIGHTS, ADAPTER_CONFIG)

#: The entry in the config of an aligned model.
CONFIG_ENTRY = "norm_alignment"


@dataclass(frozen=True)
class AlignmentSettings:
    """Where an alignment norm belongs.

    Attributes:
        after: dotted name of the module whose output is normalised.
        compensate: as in ``GlobalWeightCompensatedLayerNorm``.
        folder: of an adapter; None: the norm is among the weights of the checkpoint itself.
        base_model: of an adapter: the hub id or folder of the model that it was made for.
        revision: commit of that hub id.
        model_type: of that model, if the adapter says it.
        hidden_size: how many gains an adapter holds, if it says so.
    """

    after: str
    compensate: bool
    folder: Path | None = None
    base_model: str | None = None
    revision: str | None = None
    model_type: str | None = None
    hidden_size: int | None = None


def adapter_settings(folder: Path) -> AlignmentSettings | None:
    """What an adapter folder says; None where ``folder`` is no adapter."""
    path = folder / ADAPTER_CONFIG
    try:
        if not path.is_file():
            return None
    except OSError:  # a longer name than any file has
        return None
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        known = {"base_model", "revision", "after", "compensate"} <= settings.keys()
        if known and isinstance(settings["base_model"], str):
            return AlignmentSettings(
                after=settings["after"],
                compensate=settings["compensate"],
                folder=folder,
                base_model=settings["base_model"],
                revision=settings["revision"],
                model_type=settings.get("model_type"),
                hidden_size=settings.get("hidden_size"),
            )
        problem = "expected base_model, revision, after and compensate"
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        problem = first_line(error)
    raise NormprobeError(
        f"cannot read {path}: {problem}", "write it again with `normprobe align MODEL --output DIR`"
    )


def write_adapter_settings(settings: AlignmentSettings) -> None:
    """Write the JSON file of an adapter into ``settings.folder``, which exists."""
    assert settings.folder is not None
    written = {
        "base_model": settings.base_model,
        "revision": settings.revision,
        "model_type": settings.model_type,
        "hidden_size": settings.hidden_size,
        "after": settings.after,
        "compensate": settings.compensate,
    }
    text = json.dumps(written, indent=2) + "\n"
    (settings.folder / ADAPTER_CONFIG).write_text(text, encoding="utf-8")


def config_settings(config: Any) -> AlignmentSettings | None:
    """What the config of an aligned model says; None of any other model."""
    entry = getattr(config, CONFIG_ENTRY, None)
    if entry is None:
        return None
    if not isinstance(entry, Mapping) or not {"after", "compensate"} <= entry.keys():
        raise NormprobeError(
            f"{CONFIG_ENTRY} in config.json is broken: expected after and compensate",
            "fetch the checkpoint again, or save the aligned model again",
        )
    return AlignmentSettings(after=entry["after"], compensate=entry["compensate"])
