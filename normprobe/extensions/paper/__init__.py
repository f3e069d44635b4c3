"""The paper's tables and figures, each by one command."""

from collections.abc import Callable, Mapping

from normprobe.registry import SHARE, Extension


class _Paper(Extension):
    panel = SHARE

    def commands(self) -> Mapping[str, Callable[..., None]]:
        from normprobe.extensions.paper.command import paper

        return {"paper": paper}


EXTENSION = _Paper()
