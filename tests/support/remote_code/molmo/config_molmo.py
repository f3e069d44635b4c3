from transformers import PretrainedConfig


class MolmoConfig(PretrainedConfig):
    """The vision part has no field here: its sizes are constants of the code."""

    model_type = "molmo"

    def __init__(
        self, vocab_size=256, embedding_size=256, hidden_size=32, num_hidden_layers=3, **kwargs
    ):
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        super().__init__(**kwargs)
