from transformers import PretrainedConfig


class OlderConfig(PretrainedConfig):
    """As code for transformers 4 writes them: rope_scaling is None for plain rotary tables."""

    model_type = "older"

    def __init__(
        self,
        hidden_size=24,
        num_hidden_layers=3,
        vocab_size=300,
        image_token_id=0,
        rope_theta=100.0,
        rope_scaling=None,
        vision_config=None,
        **kwargs,
    ):
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.vocab_size, self.image_token_id = vocab_size, image_token_id
        self.rope_theta, self.rope_scaling = rope_theta, rope_scaling
        self.vision_config = vision_config or {"hidden_size": 16}
        super().__init__(**kwargs)
