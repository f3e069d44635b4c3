import re

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import BatchFeature, ProcessorMixin
from transformers.image_processing_utils import BaseImageProcessor

from .tiny_blocks import pixels_of

_IMAGE_SPECIAL_TOKEN_ID = 200010
#: Detail 2 x (2 + newline), separator, overview 2 x (2 + newline).
ROWS = 6 + 1 + 6


class Phi4MMImageProcessor(BaseImageProcessor):
    model_input_names = ("input_image_embeds", "image_sizes", "image_attention_mask")

    def preprocess(self, images, return_tensors=None):
        crops = []
        for image in images:
            width, height = image.size
            half = image.crop((0, 0, width // 2, height))
            crops.append(torch.stack([pixels_of(image, 28, 28), pixels_of(half, 28, 28)]))
        return BatchFeature(
            {
                "input_image_embeds": torch.stack(crops),
                "image_sizes": torch.tensor([[28, 28]] * len(images)),
                "image_attention_mask": torch.ones(len(images), 2, 4, 4),
            }
        )


class Phi4MMProcessor(ProcessorMixin):
    attributes = ("image_processor", "tokenizer")

    def __init__(self, image_processor=None, tokenizer=None, **kwargs):
        super().__init__(image_processor, tokenizer)

    def __call__(self, text, images=None, return_tensors=None):
        rows = [self._ids(prompt) for prompt in text]
        masks = [torch.ones_like(row, dtype=torch.bool) for row in rows]
        none = torch.tensor([])
        pixels = {"input_image_embeds": none, "image_sizes": none, "image_attention_mask": none}
        if images is not None:
            pixels = self.image_processor.preprocess(images)
        return BatchFeature(
            {
                "input_ids": pad_sequence(
                    rows,
                    batch_first=True,
                    padding_value=self.tokenizer.pad_token_id,
                    padding_side="left",
                ),
                "attention_mask": pad_sequence(masks, batch_first=True, padding_side="left"),
                "input_mode": torch.tensor([0 if images is None else 1]),
                "input_audio_embeds": none,
                "num_img_tokens": [ROWS for _ in images or []],
                **pixels,
            }
        )

    def _ids(self, prompt):
        first, *others = (
            self.tokenizer(piece, add_special_tokens=False)["input_ids"]
            for piece in re.split(r"<\|image_\d+\|>", prompt)
        )
        for other in others:
            first = [*first, *[_IMAGE_SPECIAL_TOKEN_ID] * ROWS, *other]
        return torch.tensor(first)
