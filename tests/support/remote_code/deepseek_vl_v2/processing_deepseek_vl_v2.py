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
    attributes = ("tokenizer",)

    def __init__(self, tokenizer=None, **kwargs):
        super().__init__(tokenizer)

    def __call__(self, *, conversations, images, force_batchify=True, system_prompt=""):
        turns = [f"{turn['role']}: {turn['content']}".strip() for turn in conversations]
        text = "\n\n".join([*([system_prompt] if system_prompt else []), *turns])
        before, *after = (
            self.tokenizer(piece, add_special_tokens=False)["input_ids"]
            for piece in text.split("<image>")
        )
        image_id = self.tokenizer.convert_tokens_to_ids("<image>")
        tail = after[0] if after else []
        visual = [image_id] * (ROWS if images else 0)
        prepared = Batch(
            sft_format=text,
            input_ids=torch.tensor([*before, *visual, *tail]),
            images_seq_mask=torch.tensor(
                [False] * len(before) + [True] * len(visual) + [False] * len(tail)
            ),
            images=torch.stack(self._tiles(*images)) if images else torch.zeros(1, 3, SIZE, SIZE),
            images_spatial_crop=torch.tensor([[WIDE, HIGH] if images else [0, 0]]),
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
        return Batch(
            sft_format=[row.sft_format for row in rows],
            input_ids=padded("input_ids", self.tokenizer.pad_token_id, "left"),
            attention_mask=pad_sequence(masks, batch_first=True, padding_side="left"),
            images_seq_mask=padded("images_seq_mask", False, "left"),
            images=padded("images", 0.0, "right"),
            images_spatial_crop=padded("images_spatial_crop", 0, "right"),
        )
