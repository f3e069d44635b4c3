import torch
from transformers import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from .tiny_blocks import patches_of, pixels_of


class MoonViTImageProcessor(BaseImageProcessor):
    model_input_names = ("pixel_values", "image_grid_hws")

    def __init__(self, patch_size=14, rows=4, columns=6, **kwargs):
        super().__init__(**kwargs)
        self.patch_size, self.rows, self.columns = patch_size, rows, columns

    def preprocess(self, images, return_tensors=None):
        images = images if isinstance(images, list) else [images]
        width, height = self.columns * self.patch_size, self.rows * self.patch_size
        patches = [
            patches_of(pixels_of(image, width, height), self.patch_size).flatten(0, 1)
            for image in images
        ]
        grid = torch.tensor([[self.rows, self.columns]] * len(images))
        return BatchFeature({"pixel_values": torch.cat(patches), "image_grid_hws": grid})
