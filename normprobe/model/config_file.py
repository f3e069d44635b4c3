"""config.json as it stands in its file, before transformers makes anything of it."""

import json
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError, first_line


def read_config_file(path: Path | None) -> dict[str, Any]:
    """The content of a config.json.

    Args:
        path: of the file; None: there is none.

    Returns:
        Its fields; none where it cannot be read: loading it says better why.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def refuse_broken_config(folder: Path) -> None:
    """Refuse a folder whose config.json is not a JSON object; one without the file passes.

    Raises:
        NormprobeError: it is not, and where it breaks.
    """
    path = folder / "config.json"
    if not path.is_file():
        return
    remedy = "fetch or save the checkpoint again"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NormprobeError(f"{path} is broken: {first_line(error)}", remedy) from error
    if not isinstance(found, dict):
        raise NormprobeError(
            f"{path} is broken: expected a JSON object, received {type(found).__name__}", remedy
        )
