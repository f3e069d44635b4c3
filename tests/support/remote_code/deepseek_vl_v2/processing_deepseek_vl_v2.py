from types import SimpleNamespace

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import ProcessorMixin

from .tiny_blocks import pixels_of

SIZE, WIDE, HIGH = 28, 2, 1
#: Overview 2 x (2 + newline), separator, tiles 2 x (4 + newline).
ROWS = 2 * 3 + 1 + 2 * 5


class Batch(SimpleNamespace):
    """Attributes that can also be asked for by name."""

    def __getitem__(self, name):
        return getattr(self, name)


class DeepseekVLV2Processor(ProcessorMixin):
    tokenizer_class = ("LlamaTokenizer", "LlamaTokenizerFast")
    attributes = ("tokenizer",)

    def __init__(self, tokenizer=None, **kwargs):
        print("a message on stdout while the processor is made")  # noqa: T201
        super().__init__(tokenizer)

    def __call__(self, *, conversations, images, force_batchify=True, system_prompt=""):
        """``system_prompt`` is in ``sft_format`` alone, not in the ids."""
        texts = []
        for turn in conversations:
            content = turn["content"].strip()
            is_system = turn["role"] == "system"
            texts.append(content if is_system else f"{turn['role']}: {content}\n\n")
        text = "".join(texts).strip()
        pieces = text.split("<image>")
        assert len(pieces) == len(images) + 1
        image_id = self.tokenizer.convert_tokens_to_ids("<image>")
        ids, mask = [], []
        for number, piece in enumerate(pieces):
            visual = [image_id] * (ROWS if number else 0)
            words = self.tokenizer(piece, add_special_tokens=False)["input_ids"]
            ids += [*visual, *words]
            mask += [True] * len(visual) + [False] * len(words)
        empty = torch.zeros(1, 3, SIZE, SIZE)
        tiles = [tile for image in images for tile in self._tiles(image)]
        prepared = Batch(
            sft_format=system_prompt + text,
            input_ids=torch.tensor(ids),
            images_seq_mask=torch.tensor(mask),
            images=torch.stack(tiles) if tiles else empty,
            images_spatial_crop=torch.tensor([[WIDE, HIGH] for _ in images] or [[0, 0]]),
        )
        return self.batchify([prepared]) if force_batchify else prepared

    def _tiles(self, image):
        whole = pixels_of(image, WIDE * SIZE, HIGH * SIZE)
        return [pixels_of(image, SIZE, SIZE), *whole.split(SIZE, dim=-1)]

    def batchify(self, rows):
        def padded(name, value, side):
            values = [row[name] for row in rows]
            return pad_sequence(values, batch_first=True, padding_value=value, padding_side=side)

        masks = [torch.ones_like(row.input_ids) for row in rows]
        seen = padded("images_seq_mask", False, "left")
        same = len({len(row.input_ids) for row in rows}) == 1
        return Batch(
            sft_format=[row.sft_format for row in rows],
            input_ids=padded("input_ids", self.tokenizer.pad_token_id, "left"),
            attention_mask=pad_sequence(masks, batch_first=True, padding_side="left").bool(),
            images_seq_mask=seen if same else seen.long(),  # padded as ids are
            images=padded("images", 0.0, "right"),
            images_spatial_crop=padded("images_spatial_crop", 0, "right"),
        )
