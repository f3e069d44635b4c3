import torch
from transformers import ProcessorMixin
from transformers.image_processing_utils import BaseImageProcessor

from .tiny_blocks import patches_of, pixels_of


class MolmoImageProcessor(BaseImageProcessor):
    """Crops of 4 x 4 patches: one, and a second one of wide or tall images.

    The last feature of the second one lies in the overlap.
    """

    model_input_names = ("images", "image_input_idx", "image_masks")

    def crops(self, image):
        whole = patches_of(pixels_of(image, 56, 56), 14)
        crops = [whole, whole.transpose(0, 1)]
        is_long = max(image.size) > 1.3 * min(image.size)
        return torch.stack([crop.reshape(16, -1) for crop in crops[: 1 + is_long]])


class MolmoProcessor(ProcessorMixin):
    attributes = ("image_processor", "tokenizer")

    def __init__(self, image_processor=None, tokenizer=None, **kwargs):
        super().__init__(image_processor, tokenizer)

    def get_tokens_input(self, prompt, message_format, always_start_with_space):
        if message_format == "role":
            prompt = f"User: {prompt} Assistant:"
        return self.tokenizer.encode(
            " " * always_start_with_space + prompt, add_special_tokens=False
        )

    def process(self, text=None, images=None):
        """Fails without images, and gives all of them the positions of the first."""
        ids = self.get_tokens_input(text, "role", always_start_with_space=True)
        start, end, patch, column = (
            self.tokenizer.convert_tokens_to_ids(token)
            for token in ("<im_start>", "<im_end>", "<im_patch>", "<im_col>")
        )
        tokens, crops, indices = [], [], []
        for image in images:
            pixels = self.image_processor.crops(image)
            whole = [start, patch, patch, column, patch, patch, column, end]
            overlapping = [start, patch, patch, column, patch, column, end]
            visual = torch.tensor([whole, [*whole, *overlapping]][len(pixels) - 1])
            found = (visual == patch).nonzero().flatten()
            places = torch.full((len(pixels), 4), -100)
            places.view(-1)[: len(found)] = found + 1  # behind the first token
            tokens.append(visual)
            crops.append(pixels)
            indices.append(places)
        first = torch.tensor([self.tokenizer.bos_token_id or self.tokenizer.eos_token_id])
        pixels = torch.cat(crops)
        return {
            "input_ids": torch.cat([first, *tokens, torch.tensor(ids)]).int(),
            "images": pixels,
            "image_input_idx": torch.cat(indices),
            "image_masks": torch.ones(pixels.shape[:2]),
        }
