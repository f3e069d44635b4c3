"""config.json as it stands in its file, before transformers makes anything of it."""

import json
from pathlib import Path
from typing import Any


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
