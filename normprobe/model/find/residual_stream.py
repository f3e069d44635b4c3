"""Which residual stream is reported, where a decoder layer carries several.

One function for each kind: it takes the state between two layers and gives
``[batch, seq, hidden]``. All streams equal the decoder input before layer 1, so layer 0 is the same
whichever is read.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


class Stream(NamedTuple):
    """How to read one residual stream.

    Attributes:
        meaning: which stream it is, for the output.
        read: from the state between two layers and the text config to ``[batch, seq, hidden]``.
    """

    meaning: str
    read: Callable[[Tensor, Any], Tensor]


def _altup(state: Tensor, config: Any) -> Tensor:
    """Gemma 3n: ``[streams, batch, seq, hidden]``; the active one passes through the layer."""
    return state[int(config.altup_active_idx)] if state.dim() == 4 else state


def _stacked(state: Tensor, config: Any) -> Tensor:
    """``[batch, seq, streams, hidden]``; the model itself ends in the mean of its streams."""
    del config
    return state.mean(dim=2) if state.dim() == 4 else state


def _joined(state: Tensor, config: Any) -> Tensor:
    """``[batch, seq, streams * hidden]``."""
    return state.reshape(*state.shape[:-1], -1, config.hidden_size).mean(dim=-2)


def _only(state: Tensor, config: Any) -> Tensor:
    del config
    return state


STREAMS = {
    "single": Stream("the residual", _only),
    "altup": Stream("active AltUp stream", _altup),
    "mean of stacked streams": Stream("mean of streams", _stacked),
    "mean of joined streams": Stream("mean of streams", _joined),
}
