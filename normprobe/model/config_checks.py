"""What a config of a stranger may not ask for, checked before transformers reads it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from normprobe.errors import NormprobeError

#: transformers downloads and runs a kernel where one of these holds org/name.
_IMPLEMENTATIONS = re.compile(r"_?(attn|experts)_implementation(_internal)?$")


def refuse_kernels(config: Mapping[str, Any], model: str) -> None:
    """Refuse a config that fetches code that was not asked for."""
    for name, value in _fields(config):
        if isinstance(value, str) and "/" in value and _IMPLEMENTATIONS.match(name):
            raise NormprobeError(
                f"config.json of {model} fetches the kernel {value} ({name}), code that is not "
                "run unless asked for",
                "read that code, then pass --trust-remote-code",
            )


def _fields(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values at every depth; those of a list, or of a mapping, have its name, too."""
    left: list[tuple[str, Any]] = [("", config)]
    while left:
        name, value = left.pop()
        if isinstance(value, Mapping):
            for key, item in value.items():
                left.append((str(key), item))
                if _IMPLEMENTATIONS.match(name):  # one a part of the model
                    left.append((name, item))
        elif isinstance(value, list):
            left += [(name, item) for item in value]
        else:
            yield name, value
