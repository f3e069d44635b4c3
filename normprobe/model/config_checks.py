"""What a config of a stranger may not ask for, checked before transformers reads it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from normprobe.errors import NormprobeError

#: Far above every model there is: 126 layers, 512 experts.
_MOST_PARTS = 10_000
_COUNTS = re.compile(r"(layers?|depths?|blocks?|experts)$")

#: transformers downloads and runs a kernel where one of these holds org/name.
_IMPLEMENTATIONS = re.compile(r"_?(attn|experts)_implementation(_internal)?$")


def refuse_config(config: Mapping[str, Any], model: str, *, trust_remote_code: bool) -> None:
    """Refuse a config that would fill the memory, or fetches code that was not asked for.

    Args:
        config: the content of config.json.
        model: as typed.
        trust_remote_code: whether the repository's own code may run.

    Raises:
        NormprobeError: it asks for more layers, blocks or experts than any model has, or it names
            a kernel to be fetched and code is not trusted.
    """
    for name, value in _fields(config):
        is_count = isinstance(value, int | float) and _COUNTS.search(name)
        if is_count and abs(value) > _MOST_PARTS:
            raise NormprobeError(
                f"config.json of {model} asks for {name} {value:g}; expected {_MOST_PARTS} at most",
                "fetch the checkpoint again, or do not use it",
            )
        is_kernel = isinstance(value, str) and "/" in value and _IMPLEMENTATIONS.match(name)
        if is_kernel and not trust_remote_code:
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
