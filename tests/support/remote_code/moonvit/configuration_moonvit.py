from transformers import PretrainedConfig


class MoonViTConfig(PretrainedConfig):
    model_type = "moonvit"

    def __init__(
        self, patch_size=14, hidden_size=24, num_hidden_layers=2, merge_kernel_size=(2, 2), **kwargs
    ):
        self.patch_size = patch_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.merge_kernel_size = merge_kernel_size
        super().__init__(**kwargs)
