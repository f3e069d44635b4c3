from transformers import LlamaConfig


class Phi4MMConfig(LlamaConfig):
    model_type = "phi4mm"

    def __init__(self, embd_layer=None, vision_lora=None, **kwargs):
        self.embd_layer, self.vision_lora = embd_layer, vision_lora
        super().__init__(**kwargs)
