from transformers import PretrainedConfig


class VisionEncoderConfig(PretrainedConfig):
    model_type = "vision"

    def __init__(self, width=24, layers=2, patch_size=14, image_size=28, **kwargs):
        self.width, self.layers = width, layers
        self.patch_size, self.image_size = patch_size, image_size
        super().__init__(**kwargs)


class DeepseekV2Config(PretrainedConfig):
    model_type = "deepseek_v2"

    def __init__(
        self,
        vocab_size=300,
        hidden_size=32,
        num_hidden_layers=3,
        rope_theta=100.0,
        rope_scaling=None,
        **kwargs,
    ):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.rope_theta, self.rope_scaling = rope_theta, rope_scaling
        super().__init__(**kwargs)


class DeepseekVLV2Config(PretrainedConfig):
    model_type = "deepseek_vl_v2"

    def __init__(self, vision_config=None, language_config=None, tile_tag="2D", **kwargs):
        super().__init__(**kwargs)
        self.vision_config = VisionEncoderConfig(**(vision_config or {}))
        self.language_config = DeepseekV2Config(**(language_config or {}))
        self.tile_tag = tile_tag
