import re

import torch
from transformers import BatchFeature, ProcessorMixin
from transformers.image_processing_utils import BaseImageProcessor

from .tiny_blocks import pixels_of

CROP, TOKENS = 42, 9


class Phi3VImageProcessor(BaseImageProcessor):
    """Wide pictures have two crops, others one and an empty one; an overview comes first."""

    model_input_names = ("pixel_values", "image_sizes")

    def __init__(self, num_img_tokens=TOKENS, **kwargs):
        self.num_img_tokens = num_img_tokens
        super().__init__(**kwargs)

    def preprocess(self, images, return_tensors=None):
        crops, sizes = [], []
        for image in images:
            wide = 2 if image.width > image.height else 1
            detail = pixels_of(image, CROP * wide, CROP).split(CROP, dim=-1)
            empty = [torch.zeros(3, CROP, CROP)] * (2 - wide)
            crops.append(torch.stack([pixels_of(image, CROP, CROP), *detail, *empty]))
            sizes.append([CROP, CROP * wide])
        counts = [(2 if wide > CROP else 1) * TOKENS + TOKENS + 7 for _, wide in sizes]
        return BatchFeature(
            {
                "pixel_values": torch.stack(crops),
                "image_sizes": torch.tensor(sizes),
                "num_img_tokens": counts,
            }
        )


class Phi3VProcessor(ProcessorMixin):
    """Takes one prompt; an image becomes its negative number, once a row."""

    attributes = ("image_processor", "tokenizer")

    def __init__(self, image_processor=None, tokenizer=None, **kwargs):
        self.num_img_tokens = image_processor.num_img_tokens
        super().__init__(image_processor, tokenizer)

    def __call__(self, text, images=None, return_tensors=None):
        if images is None:
            return BatchFeature(dict(self.tokenizer(text, return_tensors=return_tensors)))
        seen = self.image_processor.preprocess(images)
        marks = [int(number) for number in re.findall(r"<\|image_(\d+)\|>", text)]
        ids, *others = (
            self.tokenizer(chunk)["input_ids"] for chunk in re.split(r"<\|image_\d+\|>", text)
        )
        for number, chunk in zip(marks, others, strict=True):
            ids = [*ids, *[-number] * seen["num_img_tokens"][number - 1], *chunk]
        ids = torch.tensor([ids])
        return BatchFeature(
            {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "pixel_values": seen["pixel_values"],
                "image_sizes": seen["image_sizes"],
            }
        )
