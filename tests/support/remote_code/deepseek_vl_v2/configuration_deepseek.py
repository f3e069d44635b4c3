from transformers import LlamaConfig, PretrainedConfig


class VisionEncoderConfig(PretrainedConfig):
    model_type = "vision"

    def __init__(self, width=24, layers=2, patch_size=14, image_size=28, **kwargs):
        self.width, self.layers = width, layers
        self.patch_size, self.image_size = patch_size, image_size
        super().__init__(**kwargs)


class DeepseekVLV2Config(PretrainedConfig):
    model_type = "deepseek_vl_v2"

    def __init__(self, vision_config=None, language_config=None, tile_tag="2D", **kwargs):
        self.vision_config = VisionEncoderConfig(**(vision_config or {}))
        self.language_config = LlamaConfig(**(language_config or {}))
        self.tile_tag = tile_tag
        super().__init__(**kwargs)
