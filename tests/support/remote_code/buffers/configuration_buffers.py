from transformers import PretrainedConfig


class BuffersConfig(PretrainedConfig):
    """``trait``: which buffer the model has that nobody can make again; none of them by default."""

    model_type = "buffers"

    def __init__(self, hidden_size=16, num_hidden_layers=2, vocab_size=300, trait=None, **kwargs):
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.vocab_size, self.trait = vocab_size, trait
        super().__init__(**kwargs)
