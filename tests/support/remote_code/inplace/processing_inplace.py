from .tiny_processing import PictureProcessor


class InplaceProcessor(PictureProcessor):
    """Six rows an image: two lines of two patches and a separator, all of id -1."""

    rows = 6

    def __call__(self, images=None, text=None, **options):
        inputs = super().__call__(images, text, **options)
        mark = self.tokenizer.convert_tokens_to_ids(self.image_token)
        if images is not None:
            inputs["input_ids"][inputs["input_ids"] == mark] = -1
        return inputs
