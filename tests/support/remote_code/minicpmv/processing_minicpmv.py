import re

import torch
from transformers import BatchFeature, ProcessorMixin
from transformers.image_processing_utils import BaseImageProcessor

from .tiny_blocks import patches_of, pixels_of

PLACEHOLDER = "(<image>./</image>)"


class MiniCPMVImageProcessor(BaseImageProcessor):
    """An overview and one slice, of different sizes."""

    model_input_names = ("pixel_values",)

    def __init__(self, patch_size=14, sizes=((2, 3), (2, 2)), query_num=4, **kwargs):
        super().__init__(**kwargs)
        self.patch_size, self.sizes, self.query_num = patch_size, sizes, query_num

    def preprocess(self, images):
        size = self.patch_size
        pixels = [
            [
                patches_of(pixels_of(image, columns * size, rows * size), size)
                .flatten(0, 1)
                .permute(1, 2, 0, 3)
                .flatten(2)
                for image in of_sample
                for rows, columns in self.sizes
            ]
            for of_sample in images
        ]
        sizes = [torch.tensor(list(self.sizes) * len(of_sample)) for of_sample in images]
        return BatchFeature({"pixel_values": pixels, "tgt_sizes": sizes})


class MiniCPMVProcessor(ProcessorMixin):
    attributes = ("image_processor", "tokenizer")

    def __init__(self, image_processor=None, tokenizer=None, **kwargs):
        super().__init__(image_processor, tokenizer)

    def __call__(self, text, images, max_length=None, return_tensors=None):
        for prompt, of_sample in zip(text, images, strict=True):
            assert prompt.count(PLACEHOLDER) == len(of_sample)
        rows = "<unk>" * self.image_processor.query_num
        visual = f"<image>{rows}</image><slice>{rows}</slice>"
        rendered = [re.sub(re.escape(PLACEHOLDER), visual, prompt) for prompt in text]
        tokens = self.tokenizer(
            rendered,
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=False,
        )
        return BatchFeature(
            {
                "input_ids": tokens["input_ids"],
                "attention_mask": tokens["input_ids"].ne(0),
                "image_sizes": [[image.size for image in of_sample] for of_sample in images],
                "image_bound": [self._bounds(row) for row in tokens["input_ids"]],
                **self.image_processor.preprocess(images),
            }
        )

    def _bounds(self, ids):
        starts = [self.tokenizer.convert_tokens_to_ids(mark) for mark in ("<image>", "<slice>")]
        first = torch.isin(ids, torch.tensor(starts)).nonzero() + 1
        return torch.cat([first, first + self.image_processor.query_num], dim=-1)
