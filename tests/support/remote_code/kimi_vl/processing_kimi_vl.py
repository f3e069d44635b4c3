from transformers import BatchFeature, ProcessorMixin


class KimiVLProcessor(ProcessorMixin):
    attributes = ("image_processor", "tokenizer")

    def __init__(self, image_processor=None, tokenizer=None, chat_template=None, **kwargs):
        self.image_token = "<|media_pad|>"
        super().__init__(image_processor, tokenizer, chat_template=chat_template)

    def __call__(self, images=None, text=None, **options):
        inputs = {}
        if images is not None:
            flat = [image for of_sample in images for image in of_sample]
            inputs = dict(self.image_processor(images=flat))
            counts = iter((inputs["image_grid_hws"].prod(dim=-1) // 4).tolist())
            text = [self._expanded(prompt, counts) for prompt in text]
        return BatchFeature({**self.tokenizer(text, **options), **inputs})

    def _expanded(self, prompt, counts):
        first, *others = prompt.split(self.image_token)
        return first + "".join(self.image_token * next(counts) + other for other in others)
