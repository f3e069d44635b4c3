"""config.json as it stands in its file, before transformers makes anything of it."""

import json
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError, first_line

_LARGEST = 2**23  # bytes: a hundred times what a config has


def config_of(path: Path) -> dict[str, Any]:
    """The fields of a config.json."""
    remedy = "fetch or save the checkpoint again"
    try:
        if (size := path.stat().st_size) > _LARGEST:
            raise ValueError(f"expected {_LARGEST >> 20} MB at most, received {size >> 20} MB")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NormprobeError(f"{path} is broken: {first_line(error)}", remedy) from error
    if not isinstance(found, dict):
        raise NormprobeError(
            f"{path} is broken: expected a JSON object, received {type(found).__name__}", remedy
        )
    return found


def read_config_file(path: Path | None) -> dict[str, Any]:
    """The content of a config.json."""
    try:
        return config_of(path) if path else {}
    except NormprobeError:
        return {}
