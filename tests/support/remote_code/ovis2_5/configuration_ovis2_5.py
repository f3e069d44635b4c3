from transformers import PretrainedConfig, Qwen3Config


class Siglip2NavitConfig(PretrainedConfig):
    model_type = "siglip2_navit"

    def __init__(
        self,
        hidden_size=24,
        num_hidden_layers=2,
        patch_size=56,
        hidden_stride=2,
        temporal_patch_size=1,
        **kwargs,
    ):
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.patch_size = patch_size
        self.hidden_stride = hidden_stride
        self.temporal_patch_size = temporal_patch_size
        super().__init__(**kwargs)


class Ovis2_5_Config(PretrainedConfig):
    model_type = "ovis2_5"

    def __init__(
        self, llm_config=None, vit_config=None, visual_vocab_size=50, hidden_size=None, **kwargs
    ):
        self.llm_config = Qwen3Config(**(llm_config or {}))
        self.vit_config = Siglip2NavitConfig(**(vit_config or {}))
        self.visual_vocab_size = visual_vocab_size
        self.hidden_size = hidden_size
        super().__init__(**kwargs)
