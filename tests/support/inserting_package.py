"""As a package of its authors: importing it registers the class of a checkpoint."""

from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from support.plain_modules import PLACE, WIDTH, Inserting

IMAGE_TOKEN_INDEX = PLACE


class InsertingConfig(PretrainedConfig):
    model_type = "inserting"


class InsertingForCausalLM(PreTrainedModel):
    config_class = InsertingConfig

    def __init__(self, config):
        super().__init__(config)
        self.body = Inserting()
        self.body.words = nn.Embedding(config.vocab_size, WIDTH)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, images=None):
        return self.body(input_ids, images, attention_mask)


AutoConfig.register("inserting", InsertingConfig)
AutoModelForCausalLM.register(InsertingConfig, InsertingForCausalLM)
