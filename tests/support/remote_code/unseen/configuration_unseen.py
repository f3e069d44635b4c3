from transformers import PretrainedConfig


class UnseenConfig(PretrainedConfig):
    """Field names that no released model has."""

    model_type = "unseen"

    def __init__(self, span=24, floors=3, words=300, picture_mark=0, vision_config=None, **kwargs):
        self.span, self.floors, self.words, self.picture_mark = span, floors, words, picture_mark
        self.vision_config = vision_config or {"span": 16}
        super().__init__(**kwargs)
