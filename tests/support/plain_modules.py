"""Plain modules as people write them: no config, no processor, rows inserted inside the forward.

Each records on its own what its layers take and return, and where every row comes from.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from normprobe import schema

VOCABULARY, WIDTH, EYE, SIDE = 60, 32, 24, 4
PLACE = -200  # what stands for a picture in the ids of ``Inserting``
SPECIAL = (1, 2)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        read = self.norm1(x)
        hidden = None
        if mask is not None:
            hidden = ~mask.repeat_interleave(4, 0)
        x = x + self.attend(read, read, read, attn_mask=hidden, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Eye(nn.Module):
    """Squares of a picture to rows, with a class row that the projector does not get."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, EYE, SIDE, SIDE)
        self.cls_token = nn.Parameter(torch.randn(1, 1, EYE))
        self.blocks = nn.ModuleList(Block(EYE) for _ in range(2))

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.cut(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return x[:, 1:]


class Plain(nn.Module):
    """As nanoVLM: placeholders in the ids are replaced in place; a padding mask, no config."""

    place = 3

    def __init__(self) -> None:
        super().__init__()
        self.vision = Eye()
        self.connector = nn.Linear(EYE, WIDTH)
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.seen: list[np.ndarray] = []

    def think(self, x: Tensor, kept: Tensor | None) -> Tensor:
        """All layers; a row sees those before it that are no padding."""
        rows = x.shape[1]
        mask = (
            torch.ones(rows, rows, dtype=torch.bool, device=x.device).tril().expand(len(x), -1, -1)
        )
        if kept is not None:
            mask = mask & kept[:, None].bool() | torch.eye(rows, dtype=torch.bool, device=x.device)
        self.seen = [x.detach().double().numpy()]
        for block in self.blocks:
            x = block(x, mask)
            self.seen.append(x.detach().double().numpy())
        return self.head(x)

    def forward(self, tokens: Tensor, image: Tensor | None = None, mask: Tensor | None = None):
        x = self.words(tokens)
        if image is not None:
            rows = self.connector(self.vision(image))
            x = x.masked_scatter((tokens == self.place).unsqueeze(-1), rows)
        return self.think(x, mask)


class Inserting(Plain):
    """As the original LLaVA: one id stands for all rows of a picture, padding is taken off and put
    back on another side, and a learned row ends each picture."""

    side = "right"

    def __init__(self) -> None:
        super().__init__()
        self.newline = nn.Parameter(torch.randn(WIDTH))

    def forward(self, input_ids: Tensor, images=None, attention_mask: Tensor | None = None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        pictures = (
            []
            if images is None
            else list(torch.cat([*images]) if isinstance(images, list) else images)
        )
        rows, origins = [], []
        for ids, mask in zip(input_ids, attention_mask, strict=True):
            ids = ids[mask.bool()]
            cuts = [-1, *(ids == PLACE).nonzero().flatten().tolist(), len(ids)]
            pieces = [ids[a + 1 : b] for a, b in pairwise(cuts)]
            embedded = self.words(torch.cat(pieces)).split([len(piece) for piece in pieces])
            row, origin = [embedded[0]], [*pieces[0].tolist()]
            for piece, words in zip(pieces[1:], embedded[1:], strict=True):
                seen = self.connector(self.vision(pictures.pop(0)[None]))[0]
                row += [seen, self.newline[None], words]
                origin += ["visual"] * len(seen) + ["structural"] + piece.tolist()
            rows.append(torch.cat(row))
            origins.append(origin)
        longest = max(map(len, rows))
        x = rows[0].new_zeros(len(rows), longest, WIDTH)
        kept = torch.zeros(len(rows), longest, dtype=torch.bool)
        self.origins = np.full((len(rows), longest), "", dtype="<U16")
        for number, (row, origin) in enumerate(zip(rows, origins, strict=True)):
            at = slice(longest - len(row), None) if self.side == "left" else slice(len(row))
            x[number, at], kept[number, at] = row, True
            self.origins[number, at] = [_group(each) for each in origin]
        return self.think(x, None if kept.all() else kept)


class Tokenizing(Plain):
    """Visual tokens are rows of the text table: the nearest of a few codes chooses each.

    They stand before the prompt, looked up with it or apart, or in place of its placeholders.
    """

    ways = ("before", "apart", "in place")
    at = "before"

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(20, EYE))

    def forward(self, ids: Tensor, image: Tensor, mask: Tensor | None = None):
        away = torch.cdist(self.vision(image), self.codes.expand(len(image), -1, -1))
        chosen = away.argmin(-1) + VOCABULARY - len(self.codes)
        if self.at == "before":
            x = self.words(torch.cat([chosen, ids], 1))
        elif self.at == "apart":
            x = torch.cat([self.words(chosen), self.words(ids)], 1)
        else:
            x = self.words(ids.masked_scatter(ids == self.place, chosen))
        return self.think(x, None)


class PoolingEye(Eye):
    """As open_clip's: returns a row for the whole image, then the squares; or names them."""

    names: tuple[str, ...] = ()
    row = False  # whether what is pooled has an axis of rows

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Linear(EYE, EYE)

    def forward(self, pixels: Tensor):
        squares = super().forward(pixels)
        pooled = self.pool(squares.mean(1, keepdim=self.row))
        return dict(zip(self.names, (pooled, squares), strict=False)) or (pooled, squares)


class Pooling(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.vision = PoolingEye()

    def squares(self, image: Tensor) -> Tensor:
        seen = self.vision(image)
        return seen[1] if isinstance(seen, tuple) else [*seen.values()][1]

    def forward(self, tokens: Tensor, image: Tensor):
        rows = self.connector(self.squares(image))
        x = self.words(tokens)
        return self.think(x.masked_scatter((tokens == self.place).unsqueeze(-1), rows), None)


class Looking(nn.Module):
    """Text attends to an image."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.block = Block(WIDTH)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        return self.block(x + self.look(x, seen, seen, need_weights=False)[0])


class Attending(Pooling):
    """As OpenFlamingo: pictures ``[batch, pictures, frames, 3, height, width]`` are attended to."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Looking() for _ in range(3))

    def forward(self, lang_x: Tensor, vision_x: Tensor):
        before = vision_x.shape[:3]
        squares = self.squares(vision_x.flatten(0, 2))
        seen = self.connector(squares.view(*before, *squares.shape[1:])).flatten(1, 3)
        x = self.words(lang_x)
        for block in self.blocks:
            x = block(x, seen)
        return self.head(x)


class Embedded(Plain):
    """Takes embeddings alone."""

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor | None = None):
        return self.think(inputs_embeds, attention_mask)


def _group(origin: str | int) -> str:
    if isinstance(origin, str):
        return origin
    return schema.SPECIAL if origin in SPECIAL else schema.TEXT


def made(kind: type[Plain]) -> Plain:
    torch.manual_seed(0)
    return kind().eval()
