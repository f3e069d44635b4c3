"""What ran: the facts without which a number cannot be traced or repeated."""

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from normprobe.runs.json_text import jsonable
from normprobe.schema import SCHEMA_VERSION

PACKAGES = ("normprobe", "torch", "transformers", "accelerate", "datasets", "numpy", "pandas")


def provenance(
    argv: Sequence[str], options: Mapping[str, object], **facts: object
) -> dict[str, Any]:
    """The first content of ``run.json``."""
    record = {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": list(argv),
        "options": options,
        "versions": {
            "python": platform.python_version(),
            **{package: installed_version(package) for package in PACKAGES},
        },
        "platform": platform.platform(),
        **facts,
    }
    made: dict[str, Any] = jsonable(record)
    return made


def installed_version(package: str) -> str | None:
    """The installed version of a distribution, None where it is absent; imports nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
