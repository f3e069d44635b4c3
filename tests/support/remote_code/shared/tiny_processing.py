"""What processors of the miniatures have in common: a mark in the text, patches of a picture."""

import torch
from transformers import BatchFeature, ProcessorMixin

from .tiny_blocks import patches_of, pixels_of


class PictureProcessor(ProcessorMixin):
    """Writes a mark for every row of an image, and cuts the picture into four patches."""

    attributes = ("tokenizer",)
    rows = 4

    def __init__(self, tokenizer=None, chat_template=None, **kwargs):
        self.image_token = "<picture>"
        super().__init__(tokenizer, chat_template=chat_template)

    def __call__(self, images=None, text=None, **options):
        inputs = {}
        if images is not None:
            pixels = [pixels_of(image, 16, 16) for of_sample in images for image in of_sample]
            patches = [patches_of(image, 8).flatten(0, 1) for image in pixels]
            inputs = {"pixel_values": torch.stack(patches)}
            text = [
                prompt.replace(self.image_token, self.rows * self.image_token) for prompt in text
            ]
        return BatchFeature({**self.tokenizer(text, **options), **inputs})
