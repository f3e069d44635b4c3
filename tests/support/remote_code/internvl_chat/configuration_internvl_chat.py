from transformers import LlamaConfig, PretrainedConfig


class InternVisionConfig(PretrainedConfig):
    model_type = "intern_vit"

    def __init__(
        self, hidden_size=16, num_hidden_layers=2, image_size=28, patch_size=7, drop=0.1, **kwargs
    ):
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.image_size, self.patch_size, self.drop = image_size, patch_size, drop
        super().__init__(**kwargs)


class InternVLChatConfig(PretrainedConfig):
    """The language model stands under a name of its own, and no field names an image token."""

    model_type = "internvl_chat"
    is_composition = True

    def __init__(
        self,
        vision_config=None,
        llm_config=None,
        force_image_size=None,
        downsample_ratio=0.5,
        template=None,
        dynamic_image_size=False,
        use_thumbnail=False,
        min_dynamic_patch=1,
        max_dynamic_patch=6,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vision_config = InternVisionConfig(**(vision_config or {}))
        self.llm_config = LlamaConfig(**(llm_config or {}))
        self.force_image_size, self.downsample_ratio = force_image_size, downsample_ratio
        self.template = template
        self.dynamic_image_size, self.use_thumbnail = dynamic_image_size, use_thumbnail
        self.min_dynamic_patch = min_dynamic_patch
        self.max_dynamic_patch = max_dynamic_patch
        self.tie_word_embeddings = self.llm_config.tie_word_embeddings
