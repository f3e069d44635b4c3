from transformers import PretrainedConfig, Qwen2Config


class MiniCPMVVisionConfig(PretrainedConfig):
    model_type = "siglip_vision_model"

    def __init__(self, hidden_size=24, num_hidden_layers=2, patch_size=14, **kwargs):
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.patch_size = patch_size
        super().__init__(**kwargs)


class MiniCPMVConfig(Qwen2Config):
    model_type = "minicpmv"

    def __init__(self, vision_config=None, query_num=4, **kwargs):
        values = vision_config if isinstance(vision_config, dict) else {}
        self.vision_config = MiniCPMVVisionConfig(**values)
        self.query_num = query_num
        super().__init__(**kwargs)
