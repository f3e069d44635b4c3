"""What looks further at the decoder layers, where an option asks for it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn


class Watcher(Protocol):
    """Looks at each layer beside what ``measure`` reads, where an option asks for it.

    There is one a forward.

    Attributes:
        metrics: the names of its numbers, each of a token.
    """

    metrics: tuple[str, ...]

    def watching(self, layers: Sequence[nn.Module]) -> AbstractContextManager[object]:
        """Its hooks, around the forward."""

    def see(self, number: int, x: Tensor, h: Tensor) -> Tensor:
        """Its numbers of a layer that has ended, ``[metrics, batch, seq]``; NaN where it has none.

        Args:
            number: of the layer; 0: the decoder input, which is both x and h.
            x: ``[batch, seq, hidden]``, what entered the layer.
            h: likewise, what left it.
        """


@runtime_checkable
class GroupWatcher(Watcher, Protocol):
    """A watcher that also looks at token groups, and says more of them than means over tokens."""

    def see_groups(self, number: int, h: Tensor, masks: Tensor) -> Tensor:
        """Its numbers of the token groups of a state, ``[batch, len(POOLED_GROUPS), numbers]``.

        Args:
            number: of the layer, as for ``see``.
            h: ``[batch, seq, hidden]``, what left the layer.
            masks: ``[batch, len(POOLED_GROUPS), seq]`` bool.
        """

    def columns(
        self, tokens: Mapping[str, NDArray[np.float32]], group: NDArray[np.float32]
    ) -> Mapping[str, Sequence[Any]]:
        """More columns for the rows of one group of a sample, one entry a layer from 0 on.

        Args:
            tokens: ``[layers, tokens]`` of the group by metric, its own among them.
            group: ``[layers, numbers]`` of ``see_groups``.
        """
