"""Which rows of a vision encoder's states are of no patch: class and register rows."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normprobe.hooks import after_call, before_call
from normprobe.model.find.parts import size_of
from normprobe.model.stage_states import rows_a_mask_hides
from normprobe.model.tracing.recording import tensors
from normprobe.schema import SPECIAL, TOKEN_GROUPS


class ClassRows:
    """Counts rows where the blocks of an encoder run, and compares them with what it hands over.

    They are the first ``count`` rows of an image. As many rows as patches: they stay behind.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.entered = 0  # all rows that entered the first block
        self._since = 0  # those since the encoder returned: it may run picture by picture
        self._of_image = 0  # how many an image has there
        self._layers = 0  # how many blocks it has
        self._patches = 0  # how many an image is cut into
        self._handed_over = 0  # how many an image has in what the encoder handed over last
        self._hidden: Tensor | None = None  # [images, rows] bool, of those that blocks attend to

    def watch(self, encoder: nn.Module) -> Iterator[RemovableHandle]:
        """Hooks on the first block and convolution; without blocks the latter tells it."""
        cuts = (m for m in encoder.modules() if isinstance(m, nn.Conv2d | nn.Conv3d))
        blocks = encoder_blocks(encoder)
        self._layers = len(blocks)
        if (block := next(iter(blocks.values()), None)) is not None:
            yield before_call(block, self._enter)
        if (first := next(cuts, None)) is not None:
            yield after_call(first, self._cut if block is None else self._count_patches)

    def are_of_layers(self, states: list[Any]) -> bool:
        """Whether each of several states holds all rows of the blocks: they are its layers'."""
        alike = [each for each in states if isinstance(each, Tensor) and each.dim() > 2]
        rows = {each[..., 0].numel() for each in alike}
        whole = [{self._since - count * len(alike[0])} for count in (0, self.count) if alike]
        many = len(states) in (self._layers, self._layers + 1)
        return len(alike) == len(states) and many and rows in whole

    def since_last(self) -> tuple[int, Tensor | None]:
        """How many rows entered since the encoder returned last, and which of them a mask hides."""
        found = self._since, self._hidden
        self._since, self._hidden = 0, None
        return found

    def read_inside(self, state: Tensor, left: Tensor) -> None:
        """A module inside the encoder reads its states; a merger reads patches alone."""
        without_them = self._of_image not in (0, state.shape[-2])
        if without_them or left[..., 0].numel() < state[..., 0].numel():
            self.count = 0

    def compare(self, state: Tensor, entered: int) -> None:
        """Whether what the encoder returned, of ``entered`` rows of its blocks, has any."""
        rows, of_state = state[..., 0].numel(), state.shape[-2]
        patches, tiles = self._of_image - self.count, entered // max(self._of_image, 1)
        of_tile = rows // max(tiles, 1)
        whole = bool(self._of_image) and of_state % self._of_image == 0
        if (
            # States of several layers (LHRS-Bot).
            (patches > 0 and of_state % patches == 0 and not whole)
            # Tiles in a row, cut to what each has (LLaVA-UHD v2).
            or (tiles > rows // of_state and not whole)
            # Merged by the tower itself, as four patches to a row (ViSpeak).
            or (0 < of_tile == of_state < patches and patches % of_tile == 0)
            or entered == rows + self.count * rows // of_state
        ):
            self.count = 0  # they ran beside the patches, and are not handed over

    def hand_over(self, rows: int, *, of_map: bool) -> None:
        """Note how many rows an image has in what was handed over; a map has no class rows."""
        self._handed_over = rows
        if of_map:
            self.count = 0  # PIIP

    def mark(self, codes: Tensor) -> None:
        """Write into group codes ``[..., rows]`` which are class rows, where rows are patches."""
        rows = codes.shape[-1]
        if rows == self._handed_over:
            # Of several tiles, or levels, in a row each has its own (WeMM).
            several = self._of_image and rows % self._of_image == 0
            tiles = codes.view(*codes.shape[:-1], -1, self._of_image if several else rows)
            tiles[..., : self.count] = TOKEN_GROUPS.index(SPECIAL)

    def _enter(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        states = (t for t in tensors((args, kwargs)) if t.is_floating_point() and t.dim() > 1)
        state = next(states, torch.empty(0, 0))
        entered, self._of_image = state[..., 0].numel(), state.shape[-2]
        if self._of_image <= self.count < entered:  # rows of all images first (MiniMax-VL)
            self._of_image = self._patches + self.count
        self._since += entered
        self.entered += entered
        self._hidden = rows_a_mask_hides(state, {**dict(enumerate(args)), **kwargs})

    def _count_patches(self, module: nn.Module, args: Any, kwargs: Any, patches: Tensor) -> None:
        self._patches = patches[0, 0].numel()

    def _cut(self, module: nn.Module, args: Any, kwargs: Any, patches: Tensor) -> None:
        """Take as many rows for an image's as it has patches and class rows (Mono-InternVL)."""
        self._count_patches(module, args, kwargs, patches)
        self._of_image = self._patches + self.count
        self._since = self._of_image * len(patches)


def encoder_blocks(encoder: nn.Module) -> dict[str, nn.Module]:
    """The blocks of an encoder by their names in it: the largest list of modules of one class."""
    lists = [
        (name, module)
        for name, module in encoder.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(set(map(type, module))) == 1
    ]
    holder, found = max(lists, key=lambda each: size_of(each[1]), default=("", nn.ModuleList()))
    return {".".join(filter(None, (holder, key))): block for key, block in found.named_children()}
