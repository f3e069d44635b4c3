from transformers import PretrainedConfig


class Phi3VConfig(PretrainedConfig):
    """Says nothing of vision but in two dicts."""

    model_type = "phi3_v"

    def __init__(
        self,
        vocab_size=300,
        hidden_size=24,
        num_hidden_layers=3,
        img_processor=None,
        embd_layer=None,
        **kwargs,
    ):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.img_processor, self.embd_layer = img_processor, embd_layer
        super().__init__(**kwargs)
