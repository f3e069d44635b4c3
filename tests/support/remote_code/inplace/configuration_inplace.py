from transformers import PretrainedConfig


class InplaceConfig(PretrainedConfig):
    """One flat config; that there is an image is said in dicts of other names."""

    model_type = "inplace"

    def __init__(
        self,
        hidden_size=24,
        num_hidden_layers=3,
        vocab_size=300,
        img_processor=None,
        embd_layer=None,
        **kwargs,
    ):
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.vocab_size = vocab_size
        self.img_processor = img_processor or {"name": "small_tower", "image_dim_out": 16}
        self.embd_layer = embd_layer or {"embedding_cls": "image"}
        super().__init__(**kwargs)
