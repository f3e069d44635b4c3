from transformers import LlamaConfig


class Phi4MMConfig(LlamaConfig):
    model_type = "phi4mm"

    def __init__(self, embd_layer=None, **kwargs):
        self.embd_layer = embd_layer
        super().__init__(**kwargs)
