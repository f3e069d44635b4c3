"""A finished run for others: a model card, and the atlas of measured models."""

from collections.abc import Callable, Mapping

from normprobe.registry import SHARE, Extension


class _Sharing(Extension):
    panel = SHARE

    def commands(self) -> Mapping[str, Callable[..., None]]:
        from normprobe.extensions.sharing.command import atlas, card

        return {"card": card, "atlas": atlas}


EXTENSION = _Sharing()
