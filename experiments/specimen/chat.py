"""Tokenizer, chat template and processor of the specimen."""

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from experiments.specimen.scenes import IMAGE_SIZE

PATCH_SIZE = 8
VISUAL_TOKENS = (IMAGE_SIZE // PATCH_SIZE) ** 2
MAX_TOKENS = 1024
MAX_VOCABULARY = 512
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<image>")
PAD_ID, BOS_ID, EOS_ID, IMAGE_ID = range(4)
DESCRIBE = "Describe the image."

IMAGE_PREFIX = "USER: " + "<image>" * VISUAL_TOKENS + "\n"
ANSWER_CUE = " ASSISTANT:"

CHAT_TEMPLATE = """
{%- macro words(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content if part['type'] == 'image' -%}{{- '<image>\\n' -}}{%- endfor -%}
        {%- for part in content if part['type'] == 'text' -%}{{- part['text'] -}}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
    {%- if message['role'] == 'user' -%}
        {{- 'USER: ' + words(message['content']) -}}
    {%- elif message['role'] == 'assistant' -%}
        {{- ' ASSISTANT: ' + words(message['content']) + '</s>' -}}
    {%- else -%}
        {{- words(message['content']) + '\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- ' ASSISTANT:' -}}{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer.

    Args:
        texts: Training texts, without special tokens.

    Returns:
        A tokenizer of at most 512 tokens that can spell any text.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<image>"},
        padding_side="right",
        model_max_length=MAX_TOKENS,
    )


def build_processor(
    tokenizer: PreTrainedTokenizerFast,
    *,
    patch_size: int = PATCH_SIZE,
    chat_template: str = CHAT_TEMPLATE,
) -> Any:
    """Join the tokenizer with the image processor.

    Args:
        tokenizer: The trained tokenizer.
        patch_size: Pixels of a side of what a visual token shows.
        chat_template: How dialogues are written.

    Returns:
        A ``LlavaProcessor`` that makes 64 x 64 pixels and a visual token a patch of an image.
    """
    image_processor = CLIPImageProcessorPil(
        size={"shortest_edge": IMAGE_SIZE},
        crop_size={"height": IMAGE_SIZE, "width": IMAGE_SIZE},
    )
    return LlavaProcessor(  # type: ignore[no-untyped-call]
        image_processor,
        tokenizer,
        patch_size=patch_size,
        vision_feature_select_strategy="default",
        # The "default" strategy drops the class token, which this number stands for.
        num_additional_image_tokens=1,
        chat_template=chat_template,
    )
