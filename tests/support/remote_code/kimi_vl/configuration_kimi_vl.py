from transformers import LlamaConfig, PretrainedConfig

from .configuration_moonvit import MoonViTConfig


class KimiVLConfig(PretrainedConfig):
    model_type = "kimi_vl"

    def __init__(
        self, vision_config=None, text_config=None, media_placeholder_token_id=0, **kwargs
    ):
        self.vision_config = MoonViTConfig(**(vision_config or {}))
        self.text_config = LlamaConfig(**(text_config or {}))
        self.media_placeholder_token_id = media_placeholder_token_id
        super().__init__(**kwargs)
