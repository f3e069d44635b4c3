import torch
from transformers import BatchFeature, ProcessorMixin

from .tiny_blocks import patches_of, pixels_of


class InplaceProcessor(ProcessorMixin):
    """Six rows an image: two lines of two patches and a separator, all of id -1."""

    attributes = ("tokenizer",)

    def __init__(self, tokenizer=None, chat_template=None, **kwargs):
        self.image_token = "<picture>"
        super().__init__(tokenizer, chat_template=chat_template)

    def __call__(self, images=None, text=None, **options):
        if images is None:
            return BatchFeature(self.tokenizer(text, **options))
        pixels = [pixels_of(image, 16, 16) for of_sample in images for image in of_sample]
        patches = torch.stack([patches_of(image, 8).flatten(0, 1) for image in pixels])
        text = [prompt.replace(self.image_token, 6 * self.image_token) for prompt in text]
        inputs = BatchFeature({**self.tokenizer(text, **options), "pixel_values": patches})
        mark = self.tokenizer.convert_tokens_to_ids(self.image_token)
        inputs["input_ids"][inputs["input_ids"] == mark] = -1
        return inputs
